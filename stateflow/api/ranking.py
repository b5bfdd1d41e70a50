"""Top-n and deduplication of the rows of a key.

Also: the order of rows, the ranking before the shuffle, and Flink's `SinkUpsertMaterializer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import GenericAlias
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.api.aggregates.aggregate import type_of_column
from stateflow.api.aggregates.partial import BYTES_AT_ONCE, ROWS_AT_ONCE, group_batches_in_memory, key_numbers, ranks
from stateflow.api.changelog import KIND_HINT, NO_KIND, Changelog, row_kind_of, with_kind
from stateflow.api.column_origins import Derivation, Influence, Origin, Origins
from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.schema import Column, RowIdentity, RowSchema, check_nullable
from stateflow.errors import JobDefinitionError
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import ListStateDescriptor, ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

Numbers = NDArray[np.int64]
Order = str | Sequence[str]
"""A column that orders rows: its name, or ``(name, "asc")`` or ``(name, "desc")``."""


@dataclass(frozen=True)
class SortKey:
    """A column that orders rows, ascending or descending. Null is the lowest value and NaN the highest, as in Flink."""

    column: str
    descending: bool = False

    def numbers(self, rows: pa.RecordBatch | pa.Table) -> Numbers:
        """Returns an integer for each row: rows with lower integers come first."""
        found = rank_values(rows.column(self.column))
        # Not the negative number, which the lowest integer does not have.
        return ~found if self.descending else found


def sort_keys(given: str | Sequence[Order], schema: RowSchema) -> tuple[SortKey, ...]:
    """Returns the order that an argument declares.

    Args:
        given: a column, or several, each alone or with ``"asc"`` or ``"desc"``.
        schema: the columns of the rows.

    Raises:
        JobDefinitionError: no column is given, a column is not a scalar, or a direction is another text.
    """
    keys = []
    for each in [given] if isinstance(given, str) else given:
        name, direction = _name_and_direction(each)
        schema.column(name).check_sortable()
        keys.append(SortKey(name, direction == "desc"))
    if not keys:
        raise JobDefinitionError("an order needs at least one column", hint='pass order_by=[("price", "desc")]')
    return tuple(keys)


def _name_and_direction(order: Order) -> tuple[str, str]:
    if isinstance(order, str):
        return order, "asc"
    if len(order) != 2 or not isinstance(order[0], str):
        raise JobDefinitionError(
            "an order must be a column, or a column with its direction",
            hint='pass "price" or ("price", "desc")',
            given=repr(order),
        )
    if order[1] not in ("asc", "desc"):
        raise JobDefinitionError(
            "the direction of an order must be ascending or descending", hint='use "asc" or "desc"', given=repr(order)
        )
    return order[0], order[1]


def rank_values(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """Returns integers in the order of a column's values; null is the lowest value, and NaN the highest."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kinds = pa.types
    if not column.null_count and (kinds.is_integer(column.type) or kinds.is_temporal(column.type)):
        if kinds.is_date32(column.type) or kinds.is_time32(column.type):
            column = column.cast(pa.int32())
        numbers: Numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers
    # By default ascending, with NaN after all other values, and null after NaN.
    ranks: Numbers = pc.rank(column, tiebreaker="dense").to_numpy()
    ranks = ranks.astype(np.int64)
    if column.null_count:
        ranks[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return ranks


@dataclass(frozen=True)
class Selection:
    """Which rows of a key are kept.

    Attributes:
        n: number of rows.
        order: what orders them; empty for the order of arrival.
        newest_first: whether of equal rows the one that arrived last comes first, of which one row is kept; otherwise,
            it comes last.
        state: name of the state, which is part of the stored format.

    Raises:
        JobDefinitionError: the number is not a positive int.
    """

    n: int
    order: tuple[SortKey, ...]
    newest_first: bool = False
    state: str = "top-n"

    @property
    def text(self) -> str:
        """The settings that the stored rows depend on."""
        order = ", ".join(f"{key.column}{' desc' if key.descending else ''}" for key in self.order)
        return f"{self.n} by {order or 'arrival'}{', newest first' if self.newest_first else ''}"

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise JobDefinitionError("a top-n needs at least one row", hint="pass n=1 or more", n=repr(self.n))

    def sorted_rows(self, rows: pa.Table, keys: Array) -> Array:
        """Returns the numbers of rows in order of their keys, and of a key in the order of the selection.

        Args:
            rows: rows, in the order of arrival.
            keys: for each row, the number of its key.
        """
        columns = [key.numbers(rows) for key in reversed(self.order)]
        if self.newest_first:
            columns.insert(0, -np.arange(len(rows)))
        # Stable, so that rows that compare equal stay in the order of arrival.
        found: Array = np.lexsort([*columns, keys])
        return found


@dataclass(frozen=True)
class TopNOutput:
    """The rows that a top-n emits.

    Attributes:
        schema: their columns.
        rank: the column with the number of a row, from 1; empty without.
        row_kind: the column with the kind; empty if each row is an upsert.
        retracts: whether a row that is replaced is emitted before, with the kind `UPDATE_BEFORE`.
    """

    schema: RowSchema
    rank: str
    row_kind: str
    retracts: bool

    @classmethod
    def of(cls, given: RowSchema, output: RowSchema, rank: str, retracts: bool) -> TopNOutput:
        """Returns the output of a class.

        Raises:
            JobDefinitionError: the class has other columns than the input, the rank and the row kind.
        """
        # Rows of a stream that was made append-only may have a row kind as a column like others.
        kind = "" if row_kind_of(given) else row_kind_of(output)
        made = {column.name: column for column in output.columns}
        kept = {name: made[name].spark_type for name in made if name not in (rank, kind)}
        if kept != {column.name: column.spark_type for column in given.columns} or (rank and rank not in made):
            raise JobDefinitionError(
                "the output class of a top-n does not have exactly the columns of its input, rank and row kind",
                hint='declare each column once; the rank is an int that rank="…" names, the kind a RowKind',
                declared=list(made),
                input=list(given.names),
                rank=rank,
            )
        check_nullable({column.name: column.nullable for column in given.columns}, output)
        if rank and made[rank].spark_type != "bigint":
            raise JobDefinitionError("the column of a rank must be an int", hint=f"declare {rank}: int", column=rank)
        if retracts and not kind:
            raise JobDefinitionError(NO_KIND, hint=KIND_HINT, output=output.row_class.__name__)
        return cls(output, rank, kind, retracts)

    def changelog(self, keys: tuple[str, ...], n: int) -> Changelog:
        """Returns how the rows correct earlier ones.

        Args:
            keys: the key columns.
            n: number of rows of a key.

        Raises:
            JobDefinitionError: rows leave the top-n, and the class has no column for that.
        """
        if self.rank or n == 1:
            return Changelog((*keys, self.rank) if self.rank else keys, self.row_kind, self.retracts)
        if not self.row_kind:
            raise JobDefinitionError(
                "a top-n without rank retracts rows, which needs a column of type RowKind",
                hint='declare a field in the output class: kind: RowKind; or add the rank: rank="rank"',
                output=self.schema.row_class.__name__,
            )
        return Changelog(row_kind=self.row_kind, retracts=True)


@dataclass(frozen=True)
class _Ranked:
    """The rows of all keys of a batch, stored and new, and which of them are in the top-n.

    Attributes:
        rows: the stored rows, then the new ones.
        stored: number of stored rows.
        chosen: the numbers of the rows of the new top-n, in order of keys and ranks.
        key: the key of each of them.
        rank: the rank of each of them, from 0.
        lengths: number of stored rows of each key.
        starts: for each key, the number of its first stored row.
    """

    rows: pa.Table
    stored: int
    chosen: Array
    key: Array
    rank: Array
    lengths: Array
    starts: Array

    @property
    def before(self) -> Array:
        """The number of the stored row that had the rank of each chosen row; -1 without one."""
        found: Array = np.where(self.rank < self.lengths[self.key], self.starts[self.key] + self.rank, -1)
        return found


class TopN(VectorizedKeyedFunction):
    """Keeps the first rows of each key, and emits what changes.

    Args:
        selection: which rows are kept.
        given: columns of the rows.
        output: what is emitted.
        ttl: TTL of the stored rows of a key; None for none.
    """

    def __init__(self, selection: Selection, given: RowSchema, output: TopNOutput, ttl: StateTtlConfig | None) -> None:
        self._selection = selection
        self._given = given
        self._output = output
        self._ttl = ttl

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`; a rank comes from the columns of the order."""
        order = tuple(Origin(key.column, Derivation.TRANSFORMATION) for key in self._selection.order)
        more = {self._output.rank: order} if self._output.rank else {}
        if self._output.row_kind:
            more[self._output.row_kind] = ()
        rows = tuple((Origin(key.column), Influence.SORT) for key in self._selection.order)
        return Origins(more, rows, passes_on=True)

    def open(self, ctx: RuntimeContext) -> None:
        rows: object = GenericAlias(list, (self._given.row_class,))
        descriptor: ValueStateDescriptor[object] = ValueStateDescriptor(
            self._selection.state, rows, ttl=self._ttl, arguments=self._selection.text
        )
        self._top: ValueState[object] = ctx.get_state(descriptor)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.Table:
        ranked = self._ranked(batch, state, state.read(self._top))
        changed = ranked.chosen != ranked.before
        self._store(ranked, changed, state)
        if not self._output.rank and self._selection.n > 1:
            return self._entered_and_left(ranked)
        return self._replaced(ranked, np.flatnonzero(changed))

    def _ranked(self, batch: pa.RecordBatch, state: VectorState, before: pa.ListArray) -> _Ranked:
        lengths: Array = before.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        old = before.flatten()
        fields = {name: old.field(at) for at, name in enumerate(self._given.names)}
        columns = [
            pa.chunked_array([fields[field.name].cast(field.type), batch.column(field.name)])
            for field in self._given.arrow
        ]
        rows = pa.table(columns, schema=self._given.arrow).combine_chunks()
        keys = np.concatenate([np.repeat(np.arange(len(state)), lengths), state.key_of_row])
        # The stored rows arrived before the others.
        sorted_rows = self._selection.sorted_rows(rows, keys)
        rank = ranks(lengths + state.counts)
        is_chosen = rank < self._selection.n
        chosen = sorted_rows[is_chosen]
        starts = np.cumsum(lengths) - lengths
        return _Ranked(rows, len(old), chosen, keys[chosen], rank[is_chosen], lengths, starts)

    def _store(self, ranked: _Ranked, changed: Array, state: VectorState) -> None:
        where = np.zeros(len(state), bool)
        where[ranked.key[changed]] = True
        if not where.any():
            return
        written = where[ranked.key]
        counts = np.bincount(ranked.key[written], minlength=len(state))[where]
        top = ranked.rows.take(pa.array(ranked.chosen[written])).combine_chunks()
        fields = [self._given.shape.arrow.field(at) for at in range(len(self._given.names))]
        structs = pa.StructArray.from_arrays(
            [column.combine_chunks().cast(field.type) for column, field in zip(top.columns, fields, strict=True)],
            fields=fields,
        )
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        of_rows = pa.list_(pa.field("item", structs.type, nullable=False))
        lists = pa.ListArray.from_arrays(pa.array(offsets), structs, type=of_rows)
        # Scattered to all keys, because `write` takes one value per key.
        at = np.cumsum(where) - 1
        state.write(self._top, lists.take(pa.array(at, mask=~where)), where)

    def _entered_and_left(self, ranked: _Ranked) -> pa.Table:
        stays = np.zeros(ranked.stored, bool)
        stays[ranked.chosen[ranked.chosen < ranked.stored]] = True
        left, entered = np.flatnonzero(~stays), ranked.chosen[ranked.chosen >= ranked.stored]
        # Rows leave first: a sink by key that has both in one checkpoint then keeps the row that entered.
        kinds = [RowKind.DELETE.value] * len(left) + [RowKind.INSERT.value] * len(entered)
        return self._emitted(ranked, np.concatenate([left, entered]), None, kinds)

    def _replaced(self, ranked: _Ranked, changed: Array) -> pa.Table:
        """Returns the rows that have a rank which another row had, or none."""
        rows, ranks, before = ranked.chosen[changed], ranked.rank[changed], ranked.before[changed]
        kinds = np.where(before < 0, RowKind.INSERT.value, RowKind.UPDATE_AFTER.value)
        if not self._output.retracts:
            return self._emitted(ranked, rows, ranks, kinds.tolist())
        had = before >= 0
        both = np.concatenate([before[had], rows])
        kinds = np.concatenate([np.full(int(had.sum()), RowKind.UPDATE_BEFORE.value), kinds])
        return self._emitted(ranked, both, np.concatenate([ranks[had], ranks]), kinds.tolist())

    def _emitted(self, ranked: _Ranked, rows: Array, ranks: Array | None, kinds: list[str]) -> pa.Table:
        made = ranked.rows.take(pa.array(rows))
        if self._output.rank and ranks is not None:
            made = made.append_column(self._output.rank, pa.array(ranks + 1))
        if self._output.row_kind:
            made = made.append_column(self._output.row_kind, pa.array(kinds, pa.string()))
        return made


DEDUPLICATED = "deduplicated"
"""Name of the state, which is part of the stored format. All ways to deduplicate share it, so that none can take the
state of another one."""


def check_order(column: Column) -> None:
    """Raises JobDefinitionError if rows cannot be deduplicated by a column: it may be null, or is not a scalar."""
    column.check_sortable()
    if column.nullable:
        raise JobDefinitionError(
            "rows cannot be deduplicated by a column that may be null",
            hint="filter such rows, and declare the column without None",
            column=column.name,
        )


class KeepFirst(VectorizedKeyedFunction):
    """Emits the first row of each key that arrives.

    Args:
        ttl: after this time, the next row of a key is a first one again; None for never.
    """

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self._ttl = ttl

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return Origins(passes_on=True)

    def open(self, ctx: RuntimeContext) -> None:
        self._seen: ValueState[bool] = ctx.get_state(ValueStateDescriptor(DEDUPLICATED, bool, ttl=self._ttl))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        is_new: Array = state.read(self._seen).is_null().to_numpy(zero_copy_only=False)
        # Only new keys are written: the TTL counts from the first row.
        state.write(self._seen, np.ones(len(state), bool), is_new)
        return batch.take(pa.array(state.starts[is_new]))


class KeepLast(VectorizedKeyedFunction):
    """Emits the last row of each key that arrived with a batch; it needs no state."""

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return Origins(passes_on=True)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        return batch.take(pa.array(state.starts + state.counts - 1))


class KeepByOrder(VectorizedKeyedFunction):
    """Emits a row of a key if it comes before all earlier ones, or after them, in the order of a column.

    Of rows with the same value, the one that arrives first is the first, and the one that arrives last the last.

    Args:
        column: the column, as `check_order` accepts it.
        is_first: whether the first row is kept.
        ttl: TTL of the value that is compared; None for none.
    """

    def __init__(self, column: Column, *, is_first: bool, ttl: StateTtlConfig | None) -> None:
        self._column = column
        self._is_first = is_first
        self._ttl = ttl
        self._arguments = f"{'first' if is_first else 'last'} by {column.name}"

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return Origins(rows=((Origin(self._column.name), Influence.SORT),), passes_on=True)

    def open(self, ctx: RuntimeContext) -> None:
        descriptor: ValueStateDescriptor[object] = ValueStateDescriptor(
            DEDUPLICATED, type_of_column(self._column), ttl=self._ttl, arguments=self._arguments
        )
        self._order: ValueState[object] = ctx.get_state(descriptor)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self._order)
        given = batch.column(self._column.name)
        known = before.is_valid().to_numpy(zero_copy_only=False)
        old, new = self._comparable(before, given)
        rows = self._kept_rows(new, state)
        # As in Flink: an equal value that arrives later is the last one, and not the first one.
        is_kept = ~known | (new[rows] < old if self._is_first else new[rows] >= old)
        kept = pa.array(rows[is_kept])
        values = given.take(pa.array(rows))
        state.write(self._order, values, is_kept)
        return batch.take(kept)

    def _comparable(self, before: pa.Array, given: pa.Array) -> tuple[Array, Array]:
        """Returns integers that are ordered as the values of both columns; arbitrary for null."""
        filled = before.fill_null(given[0]) if before.null_count else before
        both = rank_values(pa.concat_arrays([filled.cast(given.type), given]))
        return both[: len(before)], both[len(before) :]

    def _kept_rows(self, order: Array, state: VectorState) -> Array:
        """Returns for each key the number of the row that is kept of those in the batch."""
        best = (np.minimum if self._is_first else np.maximum).reduceat(order, state.starts)
        numbers = np.arange(len(order))
        is_best = order == best[state.key_of_row]
        if self._is_first:
            found: Array = np.minimum.reduceat(np.where(is_best, numbers, len(order)), state.starts)
            return found
        found = np.maximum.reduceat(np.where(is_best, numbers, -1), state.starts)
        return found


@dataclass(frozen=True)
class PartialRanking:
    """The rows of a partition that a ranking may keep, in their order.

    A row that is not kept of the rows that are ranked together, which are some of its key, is not kept of all of them.

    Attributes:
        keys: names of the key columns.
        selection: which rows of a key are kept.
        schema: columns of the rows.
        rows_at_once, bytes_at_once: number and size of the rows that are ranked together, in memory.
    """

    keys: tuple[str, ...]
    selection: Selection
    schema: RowSchema
    # Less than aggregates hold, because the kept rows are copied. Equal keys are often near one another.
    rows_at_once: int = ROWS_AT_ONCE // 4
    bytes_at_once: int = BYTES_AT_ONCE // 4

    name: ClassVar[str] = "partial ranking"

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        for held in group_batches_in_memory(batches, self.rows_at_once, self.bytes_at_once):
            kept = self._kept(pa.Table.from_batches(held))
            ends = accumulate(map(len, held))
            for batch, end in zip(held, ends, strict=True):
                yield batch.filter(pa.array(kept[end - len(batch) : end]))

    def _kept(self, rows: pa.Table) -> Array:
        """Returns for each row whether it is one of the kept rows of its key."""
        numbers = key_numbers(rows, self.keys)
        in_order = self.selection.sorted_rows(rows, numbers)
        kept: Array = np.zeros(len(rows), bool)
        kept[in_order[ranks(np.bincount(numbers)) < self.selection.n]] = True
        return kept


MATERIALIZED = "materialized"
"""Name of the state with the rows of a key, in the order of arrival; part of the stored format."""


class Materialize(KeyedProcessFunction[object, object]):
    """Keeps the rows of a key that are not retracted. A restore with fields of other names or types is refused.

    Args:
        schema: the columns of the rows.
        row_kind: their field of type `RowKind`.
        ttl: for how long a row is kept, from its arrival, and again from when another row of its key was retracted,
            because the list is then written again; None for ever.
    """

    _rows: ListState[object]

    def __init__(self, schema: RowSchema, row_kind: str, ttl: StateTtlConfig | None) -> None:
        self._row_class = schema.row_class
        self._identity = RowIdentity.of(column for column in schema.columns if column.name != row_kind)
        self._row_kind = row_kind
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        # Of a field that was added later, a stored row has the default, and an equal row may arrive with another value.
        content = f"content: {self._identity.text}"
        descriptor = ListStateDescriptor(MATERIALIZED, self._row_class, ttl=self._ttl, arguments=content)
        self._rows = ctx.get_list_state(descriptor)

    def process_element(self, row: object, ctx: Context) -> Iterator[object]:
        kept = with_kind(row, self._row_kind, RowKind.INSERT)
        if RowKind(getattr(row, self._row_kind)).is_retraction:
            yield from self._retract(kept)
            return
        is_first = next(iter(self._rows.get()), None) is None
        self._rows.add(kept)
        yield kept if is_first else with_kind(row, self._row_kind, RowKind.UPDATE_AFTER)

    def _retract(self, row: object) -> Iterator[object]:
        rows, wanted = list(self._rows.get()), self._identity.content(row)
        found = next((at for at, each in enumerate(rows) if self._identity.content(each) == wanted), None)
        if found is None:
            return  # it has expired, or was never added
        is_newest = found == len(rows) - 1
        del rows[found]
        if not rows:
            self._rows.clear()
            yield with_kind(row, self._row_kind, RowKind.DELETE)
            return
        self._rows.update(rows)
        if is_newest:
            yield with_kind(rows[-1], self._row_kind, RowKind.UPDATE_AFTER)
