"""Pairs of rows with the same key, as positions in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.functions.vectorized import Array
from stateflow.state.key_columns import Numbers
from stateflow.state.kinds.key_context import RowTimes
from stateflow.state.kinds.keyed_state_batch import optional_times
from stateflow.state.kinds.timers import NO_WATERMARK


@dataclass(frozen=True)
class Side:
    """Rows of one side of a join.

    Attributes:
        of: for each row, the number of its key.
        rows: the rows, as structs.
        times: the event time of each row in milliseconds since 1970, the lowest integer without one. None if no state
            has a time to live in event time.
    """

    of: Array
    rows: pa.StructArray
    times: Numbers | None = None

    @property
    def keys(self) -> Array:
        """The numbers of the keys that have rows."""
        return np.unique(self.of)

    def of_keys(self, chosen: Array) -> Side:
        """Returns the rows of the keys for which a mask is true."""
        kept = chosen[self.of]
        if kept.all():
            return self
        return Side(self.of[kept], self.rows.filter(pa.array(kept)), None if self.times is None else self.times[kept])

    def row_times(self, readers: Side | None = None) -> RowTimes:
        """Returns the time that the TTL of each row counts from; None if no state needs it.

        Args:
            readers: rows of the other side that read these rows, and so extend their time to live; None without such.
        """
        times = self.times
        if times is None:
            return None
        if readers is not None and readers.times is not None and len(readers.of):
            keys, latest = latest_times(readers.of, readers.times)
            at = np.minimum(np.searchsorted(keys, self.of), len(keys) - 1)
            times = np.where(keys[at] == self.of, np.maximum(times, latest[at]), times)
        return optional_times(times)

    def latest_times(self) -> RowTimes:
        """Returns the latest event time of the rows of each of `keys`; None if no state needs it."""
        return None if self.times is None else optional_times(latest_times(self.of, self.times)[1])


def joinable(keys: pa.RecordBatch) -> Array:
    """Returns for each key whether its rows may have partners: as in SQL, a key with a null has none."""
    found = np.ones(len(keys), bool)
    for column in keys.columns:
        if column.null_count:
            found &= np.asarray(column.is_valid())
    return found


def latest_times(of: Array, times: Numbers) -> tuple[Array, Numbers]:
    """Returns the keys that have rows, and the latest of the rows' times of each."""
    keys, at = np.unique(of, return_inverse=True)
    latest = np.full(len(keys), NO_WATERMARK, np.int64)
    np.maximum.at(latest, at, times)
    return keys, latest


HOT = 10_000_000
"""Pairs of one key and batch, from which on the run names the key."""


class ComparedPairs:
    """Counts the pairs of each key that a join compares one row after the other.

    Attributes:
        hot: the numbers of pairs of keys with many.
    """

    few = 100
    """A row with fewer partners is not counted."""

    def __init__(self) -> None:
        self.hot: dict[str, int] = {}
        self._pairs: dict[object, int] = {}

    def add(self, key: object, pairs: int) -> None:
        """Counts the pairs of one row."""
        if pairs < self.few:
            return
        total = self._pairs[key] = self._pairs.get(key, 0) + pairs
        if total >= HOT:
            self.hot[repr(key)[:100]] = total


class Columns(Protocol):
    """The columns of one side of many pairs, as a condition gets them: ``rows["price"]`` has a value for each pair."""

    def __len__(self) -> int:
        """Number of pairs."""
        ...

    def __getitem__(self, name: str) -> pa.Array:
        """Returns a column; raises KeyError for a name that the rows do not have."""
        ...


class PairedColumns:
    """The columns of one side of many pairs: ``rows["price"]`` is an Arrow array with a value for each pair."""

    def __init__(self, rows: pa.StructArray, at: Array) -> None:
        self._rows = rows
        self._at = at

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._at)

    def __getitem__(self, name: str) -> pa.Array:
        """Returns a column; raises KeyError for a name that the rows do not have."""
        return self._rows.field(name).take(pa.array(self._at))

    def filter(self, is_kept: pa.Array) -> PairedColumns:
        """Returns the pairs for which `is_kept` is true, and not null."""
        kept = np.asarray(pc.fill_null(is_kept, False))
        return PairedColumns(self._rows, self._at[kept])


@dataclass(frozen=True)
class PairLimits:
    """How many pairs are joined at once, at least one.

    Attributes:
        pairs: number of pairs.
        bytes: size of the columns of both rows of all pairs. A column of texts has at most 2 GiB.
    """

    pairs: int = 1 << 16
    bytes: int = 64 << 20


_LIMITS = PairLimits()


@dataclass(frozen=True)
class Timed:
    """Rows with times.

    Attributes:
        of: for each row, the number of its key.
        times: its event time, in milliseconds since 1970.
    """

    of: Array
    times: Array


@dataclass(frozen=True)
class Partners:
    """The right rows that each left row is joined with.

    Attributes:
        order: positions of the right rows, in an order in which those of a left row follow each other.
        first, counts: for each left row, where its right rows begin in `order`, and their number.
    """

    order: Array
    first: Array
    counts: Array


def pairs_of(
    left: Array, right: Array, sizes: tuple[Array, Array] | None = None, limits: PairLimits = _LIMITS
) -> Iterator[tuple[Array, Array]]:
    """Yields the positions of left and right rows with equal numbers, in order of the left rows.

    Args:
        left: the number of each left row's key.
        right: the number of each right row's key.
        sizes: the bytes of each left and each right row; None for none.
        limits: how many pairs are yielded at once.
    """
    if not len(left) or not len(right):
        return
    order = np.argsort(right, kind="stable")
    in_order = right[order]
    first = np.searchsorted(in_order, left, "left")
    counts = np.searchsorted(in_order, left, "right") - first
    yield from partners_of(Partners(order, first, counts), sizes, limits)


def number_equal_rows(left: Side, right: Side, equal: Sequence[tuple[str, str]]) -> tuple[Array, Array]:
    """Returns numbers for the rows of both sides that are the same only for rows with equal keys and equal columns.

    So only pairs that may be equal are made, and not all pairs of a key.

    Args:
        left: rows; the number of no key is negative.
        right: as `left`.
        equal: names of left and right columns.
    """
    of_left, of_right = left.of, right.of
    for left_name, right_name in equal:
        if left.rows.type.get_field_index(left_name) < 0 or right.rows.type.get_field_index(right_name) < 0:
            continue  # The condition fails with the name.
        left_values, right_values = left.rows.field(left_name), right.rows.field(right_name)
        if left_values.type != right_values.type or not is_hashed(left_values.type):
            continue
        codes = _codes(left_values, right_values)
        both = np.concatenate([of_left, of_right]) * (int(codes.max(initial=0)) + 1) + codes
        # Small numbers again, so that the next column does not exceed 64 bits.
        numbers = np.unique(both, return_inverse=True)[1].astype(np.int64)
        # Null, and what is equal to nothing, has other numbers on the two sides.
        numbers = np.where(codes < 0, -1, numbers)
        of_left, of_right = numbers[: len(of_left)], numbers[len(of_left) :]
        of_right = np.where(of_right < 0, -2, of_right)
    return of_left, of_right


def is_hashed(of: pa.DataType) -> bool:
    """Returns whether equal values of a type are found by a hash."""
    checks = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal)
    return any(check(of) for check in (*checks, pa.types.is_floating, pa.types.is_binary))


def _codes(left: pa.Array, right: pa.Array) -> Array:
    """Returns a number for each value, the same for equal values, and -1 for null and NaN."""
    values = pa.concat_arrays([left, right])
    if pa.types.is_floating(values.type):
        # There are two zeros, which are equal.
        values = pc.if_else(pc.is_nan(values), None, pc.add(values, pa.scalar(0.0, values.type)))
    found = values.dictionary_encode().indices
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def pairs_within(left: Timed, right: Timed, bounds: tuple[int, int]) -> Partners:
    """Returns the right rows with the number of each left row whose time is within bounds of its own.

    Args:
        bounds: the lowest and the highest difference of the right time to the left one, both included.
    """
    order = np.lexsort((right.times, right.of))
    known, rank = np.unique(right.times, return_inverse=True)
    # Numbers and ranks of times as one integer, by which rows are found without an overflow.
    width = len(known) + 1
    in_order = (right.of * width + rank)[order]
    lower = left.of * width + np.searchsorted(known, left.times + bounds[0], "left")
    upper = left.of * width + np.searchsorted(known, left.times + bounds[1], "right")
    first = np.searchsorted(in_order, lower, "left")
    return Partners(order, first, np.searchsorted(in_order, upper, "left") - first)


def partners_of(
    partners: Partners, sizes: tuple[Array, Array] | None = None, limits: PairLimits = _LIMITS
) -> Iterator[tuple[Array, Array]]:
    """Yields the positions of left and right rows of pairs, in order of the left rows; arguments as for `pairs_of`."""
    order, first, counts = partners.order, partners.first, partners.counts
    # Each pair costs its bytes and a share of them, so that one sum is within both limits.
    share = -(-limits.bytes // limits.pairs)
    of_left = np.full(len(first), share) if sizes is None else sizes[0] + share
    of_right = np.zeros(len(order), np.int64) if sizes is None else sizes[1][order]
    before = np.append(0, np.cumsum(of_right))
    until = np.cumsum(counts * of_left + before[first + counts] - before[first])
    start = 0
    while start < len(first):
        spent = until[start - 1] if start else 0
        end = int(np.searchsorted(until, spent + limits.bytes, "right"))
        if end > start:
            some = counts[start:end]
            total = int(some.sum())
            if total:
                within = np.arange(total) - np.repeat(np.cumsum(some) - some, some)
                yield np.repeat(np.arange(start, end), some), order[np.repeat(first[start:end], some) + within]
        else:
            end = start + 1
            every = slice(int(first[start]), int(first[start] + counts[start]))
            costs = np.cumsum(of_right[every] + of_left[start])
            for part in _parts(costs, limits.bytes):
                yield np.full(part.stop - part.start, start), order[every][part]
        start = end


def _parts(until: Array, limit: int) -> Iterator[slice]:
    """Yields slices of rows, each of which costs no more than a limit, or has one row; `until` are sums of costs."""
    start = 0
    while start < len(until):
        spent = until[start - 1] if start else 0
        end = max(int(np.searchsorted(until, spent + limit, "right")), start + 1)
        yield slice(start, end)
        start = end
