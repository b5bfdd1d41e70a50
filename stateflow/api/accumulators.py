"""The accumulators of aggregates by name, over the rows of many keys at once. Nulls do not count."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api import hyperloglog
from stateflow.api.partial_aggregation import Half, Partial, joined
from stateflow.api.schema import Column
from stateflow.api.vectorized import VectorState
from stateflow.errors import StateError

Array = np.ndarray[Any, Any]
Parts = Mapping[str, pa.Array]
"""Columns of an accumulator by the part's name, one value per key."""
_PYTHON: dict[str, Any] = {
    "bigint": int,
    "double": float,
    "string": str,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
    "timestamp": Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}
_NUMBERS = ("bigint", "double")
_SAFE_SUM = float(1 << 62)


@dataclass(frozen=True)
class Values:
    """A column of a batch, and which rows of it are which key's."""

    column: pa.Array
    state: VectorState

    @property
    def valid(self) -> Array:
        found: Array = self.column.is_valid().to_numpy(zero_copy_only=False)
        return found

    @property
    def counts(self) -> Array:
        """How many values each key has."""
        if not self.column.null_count:
            return self.state.counts
        return np.add.reduceat(self.valid.astype(np.int64), self.state.starts)

    def filled(self, instead: object) -> Array:
        found: Array = self.column.fill_null(instead).to_numpy(zero_copy_only=False)
        return found

    def reduced(self, function: np.ufunc, instead: object) -> Array:
        found: Array = function.reduceat(self.filled(instead), self.state.starts)
        return found

    @property
    def summed(self) -> Array:
        return self.reduced(np.add, 0)


class Aggregate(ABC):
    """One aggregate over one column."""

    over: tuple[str, ...] = tuple(_PYTHON)
    """Spark types of columns that it takes."""

    def __init__(self, column: Column) -> None:
        self.column = column

    @property
    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Types of the accumulator's parts."""

    @property
    def result_type(self) -> str:
        """Spark type of the result."""
        return self.column.spark_type

    @property
    def may_be_null(self) -> bool:
        """Whether a key with rows may have no result."""
        return self.column.nullable

    @abstractmethod
    def add(self, before: Parts, values: Values) -> Parts:
        """The accumulators with a batch's values in them."""

    @abstractmethod
    def result(self, parts: Parts) -> pa.Array:
        """What the accumulators stand for."""

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        """What is aggregated before the shuffle; empty where the result would depend on how rows were divided.

        Args:
            prefix: of the columns' names.
            divide_floats: whether that does not matter for sums of floats.
        """
        return ()

    def merge(self, before: Parts, partials: Mapping[str, Values]) -> Parts:
        """The accumulators with partial results in them, which are given by name without the prefix."""
        raise NotImplementedError(f"{type(self).__name__} has no partial results")

    def _summed(self, prefix: str, divide_floats: bool) -> tuple[Partial, ...]:
        if self.column.spark_type == "double":
            whole = Partial(f"{prefix}sum", self.column.name, "sum", pa.float64(), "double")
            return (whole,) if divide_floats else ()
        return tuple(
            Partial(f"{prefix}{half.value}", self.column.name, "sum", pa.int64(), "bigint", half)
            for half in Half
        )

    def _counted(self, prefix: str) -> tuple[Partial, ...]:
        return (Partial(f"{prefix}count", self.column.name, "count", pa.int64(), "bigint"),)


class _Count(Aggregate):
    parts = {"count": int}
    result_type = "bigint"
    may_be_null = False

    def add(self, before: Parts, values: Values) -> Parts:
        return {"count": pa.array(_numbers(before["count"]) + values.counts)}

    def result(self, parts: Parts) -> pa.Array:
        return parts["count"]

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return self._counted(prefix)

    def merge(self, before: Parts, partials: Mapping[str, Values]) -> Parts:
        return {"count": pa.array(_numbers(before["count"]) + partials["count"].summed)}


class _Sum(Aggregate):
    over = _NUMBERS

    @property
    def parts(self) -> dict[str, Any]:
        return {"sum": _PYTHON[self.column.spark_type]}

    def add(self, before: Parts, values: Values) -> Parts:
        is_whole = self.column.spark_type == "bigint"
        old = _numbers(before["sum"], 0 if is_whole else 0.0)
        added = values.reduced(np.add, 0 if is_whole else 0.0)
        if is_whole:
            self._refuse_overflow(old, values)
        nothing = before["sum"].is_null().to_numpy(zero_copy_only=False) & (values.counts == 0)
        return {"sum": pa.array(old + added, mask=nothing)}

    def result(self, parts: Parts) -> pa.Array:
        return parts["sum"]

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return self._summed(prefix, divide_floats)

    def merge(self, before: Parts, partials: Mapping[str, Values]) -> Parts:
        if "sum" in partials:
            return self.add(before, partials["sum"])
        old = _numbers(before["sum"])
        high, low = partials[Half.HIGH.value], partials[Half.LOW.value]
        above, below = high.summed, low.summed
        near = np.abs(joined(above.astype(np.float64), below)) + np.abs(old.astype(np.float64))
        for at in np.flatnonzero(near >= _SAFE_SUM).tolist():
            self._refuse_beyond(int(old[at]) + joined(int(above[at]), int(below[at])), at, high.state)
        nothing = before["sum"].is_null().to_numpy(zero_copy_only=False) & (high.counts == 0)
        # What wraps on the way comes back: the whole fits.
        return {"sum": pa.array(old + joined(above, below), mask=nothing)}

    def _refuse_overflow(self, before: Array, values: Values) -> None:
        """Whole numbers wrap silently; floats of them tell where that could be."""
        numbers, starts = values.filled(0), values.state.starts
        near = np.add.reduceat(np.abs(numbers.astype(np.float64)), starts) + np.abs(before.astype(np.float64))
        for at in np.flatnonzero(near >= _SAFE_SUM).tolist():
            start = int(starts[at])
            exact = int(before[at]) + sum(numbers[start : start + int(values.state.counts[at])].tolist())
            self._refuse_beyond(exact, at, values.state)

    def _refuse_beyond(self, exact: int, at: int, state: VectorState) -> None:
        if not -(1 << 63) <= exact < 1 << 63:
            raise StateError("a sum is beyond 64 bits", hint="sum a float of the column", column=self.column.name,
                             key=repr(state.keys.slice(at, 1).to_pylist()), sum=exact)  # fmt: skip


class _Mean(Aggregate):
    over = _NUMBERS
    parts = {"count": int, "sum": float}
    result_type = "double"

    def add(self, before: Parts, values: Values) -> Parts:
        added = np.add.reduceat(values.filled(0).astype(np.float64), values.state.starts)
        return {
            "count": pa.array(_numbers(before["count"]) + values.counts),
            "sum": pa.array(_numbers(before["sum"], 0.0) + added),
        }

    def result(self, parts: Parts) -> pa.Array:
        count = _numbers(parts["count"])
        return pa.array(_numbers(parts["sum"], 0.0) / np.maximum(count, 1), mask=count == 0)

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        summed = self._summed(prefix, divide_floats)
        return (*summed, *self._counted(prefix)) if summed else ()

    def merge(self, before: Parts, partials: Mapping[str, Values]) -> Parts:
        if "sum" in partials:
            added = partials["sum"].summed
        else:
            added = joined(
                partials[Half.HIGH.value].summed.astype(np.float64), partials[Half.LOW.value].summed
            )
        return {
            "count": pa.array(_numbers(before["count"]) + partials["count"].summed),
            "sum": pa.array(_numbers(before["sum"], 0.0) + added),
        }


class _Variance(Aggregate):
    """Of a sample, as Spark's `variance`; accumulated as by Chan, Golub and LeVeque, 1979."""

    over = _NUMBERS
    parts = {"count": int, "mean": float, "m2": float}
    result_type = "double"
    may_be_null = True

    def add(self, before: Parts, values: Values) -> Parts:
        old, count = _numbers(before["count"]), values.counts
        mean, m2 = _moments(values, count)
        total = np.maximum(old + count, 1)
        delta = mean - _numbers(before["mean"], 0.0)
        # Without old values the mean is the new one exactly, and without new ones the old one.
        merged = np.where(old == 0, mean, _numbers(before["mean"], 0.0) + delta * (count / total))
        return {
            "count": pa.array(old + count),
            "mean": pa.array(np.where(count == 0, _numbers(before["mean"], 0.0), merged)),
            "m2": pa.array(
                _numbers(before["m2"], 0.0)
                + np.where((old == 0) | (count == 0), m2, m2 + delta**2 * (old * count / total))
            ),
        }

    def result(self, parts: Parts) -> pa.Array:
        count = _numbers(parts["count"])
        return pa.array(_numbers(parts["m2"], 0.0) / np.maximum(count - 1, 1), mask=count < 2)


def _moments(values: Values, count: Array) -> tuple[Array, Array]:
    """Mean, and sum of squared distances from it, of a batch's values."""
    numbers, starts = values.filled(0).astype(np.float64), values.state.starts
    mean = np.add.reduceat(numbers, starts) / np.maximum(count, 1)
    squares = (numbers - mean[values.state.key_of_row]) ** 2
    if values.column.null_count:
        squares[~values.valid] = 0.0
    return mean, np.add.reduceat(squares, starts)


class _Extreme(Aggregate):
    """The smallest or the largest value; a NaN is larger than all other floats, as in Spark."""

    largest: bool

    @property
    def parts(self) -> dict[str, Any]:
        return {self._part: _PYTHON[self.column.spark_type]}

    def add(self, before: Parts, values: Values) -> Parts:
        old, count = before[self._part], values.counts
        if self.column.spark_type == "double":
            return {self._part: self._float(old, values, count)}
        if self.column.spark_type == "bigint":
            limit = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
            new = pa.array(values.reduced(self._ufunc, limit), mask=count == 0)
        else:
            new = _by_rank(values, self._ufunc, count)
        combine = pc.max_element_wise if self.largest else pc.min_element_wise
        if self.column.spark_type == "boolean":
            old, new = old.cast(pa.uint8()), new.cast(pa.uint8())
        return {self._part: combine(old, new, skip_nulls=True).cast(self.column.arrow_type)}

    def result(self, parts: Parts) -> pa.Array:
        return parts[self._part]

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        # Arrow passes over NaN, which is the largest float.
        if self.column.spark_type == "double":
            return ()
        column = self.column
        return (
            Partial(f"{prefix}{self._part}", column.name, self._part, column.arrow_type, column.spark_type),
        )

    def merge(self, before: Parts, partials: Mapping[str, Values]) -> Parts:
        return self.add(before, partials[self._part])

    @property
    def _part(self) -> str:
        return "max" if self.largest else "min"

    @property
    def _ufunc(self) -> np.ufunc:
        return np.maximum if self.largest else np.minimum

    def _float(self, old: pa.Array, values: Values, count: Array) -> pa.Array:
        # maximum gives a NaN where there is one, fmin another number where there is one.
        function, nothing = (np.maximum, -np.inf) if self.largest else (np.fmin, np.nan)
        new = function(_numbers(old, nothing), values.reduced(function, nothing))
        return pa.array(new, mask=old.is_null().to_numpy(zero_copy_only=False) & (count == 0))


class _Min(_Extreme):
    largest = False


class _Max(_Extreme):
    largest = True


def _by_rank(values: Values, function: np.ufunc, count: Array) -> pa.Array:
    """The smallest or largest value of each key, of a type that numpy does not compare."""
    encoded = values.column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    # Behind all others, or in front of them.
    rank[len(order)] = -1 if function is np.maximum else len(order)
    found = function.reduceat(rank[encoded.indices.fill_null(len(order)).to_numpy()], values.state.starts)
    chosen = np.where(count == 0, 0, found)
    at = pa.array(order[chosen] if len(order) else chosen, mask=count == 0)
    return encoded.dictionary.take(at)


class _First(Aggregate):
    """The first value that is not null; within a batch by the order that `key_by` declares."""

    @property
    def parts(self) -> dict[str, Any]:
        return {"first": _PYTHON[self.column.spark_type]}

    def add(self, before: Parts, values: Values) -> Parts:
        return {"first": pc.coalesce(before["first"], _at_end(values, np.minimum, len(values.column)))}

    def result(self, parts: Parts) -> pa.Array:
        return parts["first"]


class _Last(Aggregate):
    """The last value that is not null; as `_First`."""

    @property
    def parts(self) -> dict[str, Any]:
        return {"last": _PYTHON[self.column.spark_type]}

    def add(self, before: Parts, values: Values) -> Parts:
        return {"last": pc.coalesce(_at_end(values, np.maximum, -1), before["last"])}

    def result(self, parts: Parts) -> pa.Array:
        return parts["last"]


def _at_end(values: Values, function: np.ufunc, nowhere: int) -> pa.Array:
    places = np.where(values.valid, np.arange(len(values.column)), nowhere)
    found = function.reduceat(places, values.state.starts)
    return values.column.take(pa.array(found, mask=found == nowhere))


class _ApproxDistinct(Aggregate):
    parts = {"registers": bytes}
    result_type = "bigint"
    may_be_null = False

    def add(self, before: Parts, values: Values) -> Parts:
        new = hyperloglog.sketch(values.column, values.state.key_of_row, len(values.state))
        merged = hyperloglog.decode(before["registers"].to_pylist()).merged(new)
        return {"registers": pa.array(merged.encode(), pa.binary())}

    def result(self, parts: Parts) -> pa.Array:
        return pa.array(hyperloglog.decode(parts["registers"].to_pylist()).estimates())


AGGREGATES: dict[str, type[Aggregate]] = {
    "sum": _Sum,
    "count": _Count,
    "min": _Min,
    "max": _Max,
    "mean": _Mean,
    "variance": _Variance,
    "first": _First,
    "last": _Last,
    "approx_distinct": _ApproxDistinct,
}


def _numbers(column: pa.Array, instead: float = 0) -> Array:
    found: Array = column.fill_null(instead).to_numpy(zero_copy_only=False)
    return found
