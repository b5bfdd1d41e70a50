"""The function of `KeyedStream.top_n`, which keeps the first rows of each key in an order."""

from __future__ import annotations

from dataclasses import dataclass
from types import GenericAlias

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.partial.key_numbers import ranks
from stateflow.api.changelog import KIND_HINT, NO_KIND, Changelog, row_kind_of
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.ranking.selection import Selection
from stateflow.api.schema import RowSchema, check_nullable
from stateflow.errors import JobDefinitionError
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig


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
            raise JobDefinitionError("a rank is an int", hint=f"declare {rank}: int", column=rank)
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
