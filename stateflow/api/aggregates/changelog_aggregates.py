"""Column aggregates over rows that may be retracted; the results are a changelog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, to_numpy, type_of_column
from stateflow.api.aggregates.builtin import Count, CountDistinct, DecimalSum, Max, Mean, Min, Sum, Variance
from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.aggregates.partial import Pairs, mask_passing_rows, mask_values
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.columns.row_kind import RETRACTIONS, RowKind
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor


@dataclass(frozen=True)
class CountedRows:
    """The number of rows of each key, as it changes with each row of a batch.

    A retraction of a key without rows has no effect, and a key begins again when its last row is retracted: as in
    Flink, and whatever the size of batches.

    Attributes:
        after: the number of rows of each key after the batch.
        is_reset: for each key, whether it was without rows after some row of the batch.
        effects: for each row, 1 if it counts, -1 if it retracts another one; 0 if the key was without rows after it.
    """

    after: Array
    is_reset: Array
    effects: Array

    @classmethod
    def of(cls, before: Array, retracted: Array, state: VectorState) -> CountedRows:
        """Counts the rows of a batch.

        Args:
            before: the number of rows of each key before it.
            retracted: which rows of the batch retract another one.
            state: which rows belong to which key.
        """
        signs = np.where(retracted, -1, 1)
        key, last = state.key_of_row, state.starts + state.counts - 1
        sums = np.cumsum(signs)
        # The number after each row, if it could be negative.
        running = before[key] + sums - (sums[state.starts] - signs[state.starts])[key]
        # How far it was below zero up to each row: that many rows had no effect. With lower numbers for later keys, the
        # lowest number so far of all rows is that of the row's key.
        below = np.minimum(running, 0) - key * (len(signs) + 1)
        ignored = np.minimum.accumulate(below) + key * (len(signs) + 1)
        number = running - ignored
        # The last row of each key after which it had no rows; -1 without one.
        reset = np.maximum.reduceat(np.where(number == 0, np.arange(len(signs)), -1), state.starts)
        effects = np.where(np.arange(len(signs)) > reset[key], signs, 0)
        return cls(number[last], reset >= 0, effects)


class _Floats:
    """Values of a float column that are not finite, which a sum cannot retract: they are counted."""

    fields: FieldTypes = {"nans": int, "infinities": int, "negatives": int}

    @staticmethod
    def finite(values: Values) -> Values:
        """Returns the values with null in place of those that are not finite."""
        numbers = values.column.fill_null(0.0).to_numpy(zero_copy_only=False)
        kept = np.isfinite(numbers) & values.valid
        if kept.all():
            return values
        return Values(pa.array(np.where(kept, numbers, 0.0), mask=~kept), values.state, values.signs)

    @classmethod
    def add(cls, before: Accumulators, values: Values) -> Accumulators:
        """Returns how many values are NaN, infinite, and negative infinite after a batch."""
        numbers = values.column.fill_null(0.0).to_numpy(zero_copy_only=False)
        signs = np.ones(len(numbers), np.int64) if values.signs is None else values.signs
        found = {"nans": np.isnan(numbers), "infinities": numbers == np.inf, "negatives": numbers == -np.inf}
        return {
            name: pa.array(to_numpy(before[name]) + np.add.reduceat(np.where(is_one, signs, 0), values.state.starts))
            for name, is_one in found.items()
        }

    @classmethod
    def total(cls, accumulators: Accumulators, finite: Array) -> Array:
        """Returns the sum of all values from that of the finite ones."""
        nans, infinities, negatives = (to_numpy(accumulators[name]) > 0 for name in cls.fields)
        found: Array = np.where(infinities, np.inf, np.where(negatives, -np.inf, finite))
        return np.where(nans | (infinities & negatives), np.nan, found)


class RetractableSum(Sum):
    """The sum of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:
        return {**super().fields, "count": int, **(_Floats.fields if self._is_float else {})}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        count = {"count": pa.array(to_numpy(before["count"]) + values.counts)}
        if not self._is_float:
            return {**super().add(before, values), **count}
        return {**super().add(before, _Floats.finite(values)), **count, **_Floats.add(before, values)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        none = to_numpy(accumulators["count"]) <= 0
        if not self._is_float:
            return pa.array(to_numpy(accumulators["sum"]), mask=none)
        return pa.array(_Floats.total(accumulators, to_numpy(accumulators["sum"], 0.0)), mask=none)

    @property
    def _is_float(self) -> bool:
        return self.column.spark_type == "double"


class RetractableMean(Mean):
    """The mean of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:  # type: ignore[override]
        return {"count": int, "sum": float, **(_Floats.fields if self._is_float else {})}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        if not self._is_float:
            return super().add(before, values)
        finite = super().add(before, _Floats.finite(values))
        count = pa.array(to_numpy(before["count"]) + values.counts)
        return {**finite, "count": count, **_Floats.add(before, values)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        if not self._is_float:
            return super().result(accumulators)
        count = to_numpy(accumulators["count"])
        total = _Floats.total(accumulators, to_numpy(accumulators["sum"], 0.0))
        return pa.array(total / np.maximum(count, 1), mask=count <= 0)

    @property
    def _is_float(self) -> bool:
        return self.column.spark_type == "double"


class RetractableDecimalSum(DecimalSum):
    """The exact sum of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:
        return {**super().fields, "count": int}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        column = values.column
        if values.signs is not None:
            column = pc.if_else(pa.array(values.signs < 0), pc.negate(column), column)
        added = super().add(before, Values(column, values.state))
        return {**added, "count": pa.array(to_numpy(before["count"]) + values.counts)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        none = pa.array(to_numpy(accumulators["count"]) <= 0)
        return pc.if_else(none, pa.scalar(None, accumulators["sum"].type), accumulators["sum"])


class RetractableVariance(Variance):
    """The sample variance of rows that may be retracted; null for fewer than two values.

    The values of a batch that are retracted are subtracted as one group: the pairwise update of Chan, Golub and
    LeVeque, solved for the other part. Rounding errors of values that were retracted remain while a key has others.
    """

    fields = {**Variance.fields, **_Floats.fields}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        signs = np.ones(len(values.column), np.int64) if values.signs is None else values.signs
        # Nulls in place of the others; sums over 64 bits as floats.
        numbers = Values(values.column.cast(pa.float64()), values.state, values.signs)
        finite = _Floats.finite(numbers).column
        added, retracted = (
            super(RetractableVariance, self).add(
                start, Values(pc.if_else(pa.array(signs == sign), finite, pa.scalar(None, finite.type)), values.state)
            )
            for sign, start in ((1, before), (-1, self.nothing(len(values.state))))
        )
        return {**_without(added, retracted), **_Floats.add(before, numbers)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        others = sum(to_numpy(accumulators[name]) for name in _Floats.fields)
        variance = to_numpy(accumulators["m2"], 0.0) / np.maximum(to_numpy(accumulators["count"]) - 1, 1)
        count = to_numpy(accumulators["count"]) + others
        return pa.array(np.where(others > 0, np.nan, variance), mask=count < 2)


def _without(every: Accumulators, part: Accumulators) -> Accumulators:
    """Returns count, mean and squares of the values of `every` that are not in `part`."""
    total, fewer = to_numpy(every["count"]), to_numpy(part["count"])
    mean, of_part = to_numpy(every["mean"], 0.0), to_numpy(part["mean"], 0.0)
    count = total - fewer
    rest = np.where(count > 0, (total * mean - fewer * of_part) / np.maximum(count, 1), 0.0)
    between = (of_part - rest) ** 2 * (fewer * count / np.maximum(total, 1))
    squares = to_numpy(every["m2"], 0.0) - to_numpy(part["m2"], 0.0) - between
    # One value has no deviation, and rounding must not make one negative.
    m2 = np.where(count > 1, np.maximum(squares, 0.0), 0.0)
    is_same = fewer == 0
    return {
        "count": pa.array(count),
        "mean": pa.array(np.where(is_same, mean, rest)),
        "m2": pa.array(np.where(is_same, to_numpy(every["m2"], 0.0), m2)),
    }


@dataclass(frozen=True)
class CountedValues:
    """The values of a column in a batch, and the rows that have them.

    Attributes:
        of: the number of each value's key.
        values: the values; a key has each one once.
        before: how many rows of the key had the value before the batch.
        after: how many have it.
        read: returns all values of some keys, whose numbers are given, and before them the number of each one's key.
            It reads the whole map of a key.
    """

    of: Array
    values: pa.Array
    before: Array
    after: Array
    read: Callable[[Array], tuple[Array, pa.Array]]


class CountedColumn:
    """The values of a column that each key has, in a map state ``counted-<column>``.

    The map has the number of rows with each value, for each filter. As in Flink, the number of a value that was
    retracted before it was added is negative.

    Args:
        column: the column.
        filters: bool columns that filter rows; empty for all rows.
    """

    def __init__(self, column: Column, filters: Sequence[str]) -> None:
        self._column = column
        self._counts = {where: f"where_{where}" if where else "all" for where in filters}

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""
        counts = msgspec.defstruct("Counts", [(name, int, 0) for name in self._counts.values()])
        kind = _STORED[name] if (name := self._stored_as) else type_of_column(self._column)
        descriptor: MapStateDescriptor[object, object] = MapStateDescriptor(
            f"counted-{self._column.name}", kind, counts
        )
        self._counted: MapState[object, object] = ctx.get_map_state(descriptor)

    def add(self, batch: pa.RecordBatch, state: VectorState, counted: CountedRows) -> Mapping[str, CountedValues]:
        """Adds the rows of a batch; returns for each filter what has changed."""
        self._clear(state, np.flatnonzero(counted.is_reset))
        values, has_effect = self._stored(batch.column(self._column.name)), counted.effects != 0
        passed = {w: has_effect & mask_passing_rows(values, batch.column(w) if w else None) for w in self._counts}
        pairs = Pairs.in_rows(values, state.key_of_row, np.logical_or.reduce(list(passed.values())))
        stored = state.read_entries(self._counted, pairs.of, pairs.values)
        before, after = {}, {}
        for where, name in self._counts.items():
            before[where] = to_numpy(pc.struct_field(stored, name))
            rows = np.flatnonzero(passed[where])
            signs = np.bincount(pairs.pair_of_row[rows], counted.effects[rows], len(pairs.of)).astype(np.int64)
            after[where] = before[where] + signs
        numbers = pa.StructArray.from_arrays([pa.array(n) for n in after.values()], list(self._counts.values()))
        is_kept = pa.array(np.logical_or.reduce([number != 0 for number in after.values()]))
        state.write_entries(
            self._counted, pairs.of, pairs.values, pc.if_else(is_kept, numbers, pa.scalar(None, numbers.type))
        )
        found = self._column_of(pairs.values)
        return {w: CountedValues(pairs.of, found, before[w], after[w], partial(self._read, state, w)) for w in after}

    def _clear(self, state: VectorState, keys: Array) -> None:
        if len(keys):
            at, values, _ = state.states.at(keys).all_entries(self._counted)
            state.write_entries(self._counted, keys[at], values, pa.nulls(len(at), self._counted.columns.type))

    def _read(self, state: VectorState, where: str, keys: Array) -> tuple[Array, pa.Array]:
        at, values, numbers = state.states.at(keys).all_entries(self._counted)
        is_left = to_numpy(pc.struct_field(numbers, self._counts[where])) > 0
        return keys[at[is_left]], self._column_of(values.filter(pa.array(is_left)))

    @property
    def _stored_as(self) -> str:
        """The name in `_STORED` of the column's type; empty if its values are keys of maps."""
        kind = self._column.arrow_type
        if pa.types.is_decimal(kind):
            return "text"
        return "integer" if pa.types.is_time(kind) or pa.types.is_duration(kind) else ""

    def _stored(self, values: pa.Array) -> pa.Array:
        """Returns values as keys of the map, of which equal ones are equal: one zero and one NaN of floats."""
        if self._stored_as:
            return values.cast(pa.string() if self._stored_as == "text" else pa.int64())
        return _canonical(values)

    def _column_of(self, stored: pa.Array) -> pa.Array:
        return stored.cast(self._column.arrow_type) if self._stored_as else stored


_STORED: Mapping[str, type] = {"text": str, "integer": int}
"""Types of keys of maps for values of types that no map has as keys."""


def _canonical(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    return pa.array(np.where(np.isnan(numbers), np.nan, numbers), mask=values.is_null().to_numpy(zero_copy_only=False))


class OfCountedValues(Aggregate, ABC):
    """An aggregate of rows that may be retracted, over the values of its key and their numbers."""

    @abstractmethod
    def after(self, before: Accumulators, changes: CountedValues, state: VectorState) -> Accumulators:
        """Returns the accumulators after a batch."""


class RetractableDistinct(Count, OfCountedValues):
    """The number of distinct values of rows that may be retracted."""

    def after(self, before: Accumulators, changes: CountedValues, state: VectorState) -> Accumulators:
        more = (changes.after > 0).astype(np.int64) - (changes.before > 0)
        added = np.bincount(changes.of, more, len(state)).astype(np.int64)
        return {"count": pa.array(to_numpy(before["count"]) + added)}


class _RetractableExtreme(OfCountedValues):
    """The minimum or maximum of rows that may be retracted; null for a key without values.

    Only if a key has lost the extreme itself, its other values are read, as in Flink.
    """

    def after(self, before: Accumulators, changes: CountedValues, state: VectorState) -> Accumulators:
        is_lost = (changes.before > 0) & (changes.after <= 0)
        of = changes.of[is_lost]
        (old,) = before.values()
        keys = np.unique(of[_equal(old.take(pa.array(of)), changes.values.filter(pa.array(is_lost)))])
        of_remaining, remaining = changes.read(keys) if len(keys) else (of[:0], changes.values[:0])
        has_lost = np.zeros(len(state), bool)
        has_lost[keys] = True
        kept = {n: pc.if_else(pa.array(has_lost), pa.scalar(None, old.type), old) for n, old in before.items()}
        is_new = (changes.after > 0) & ~has_lost[changes.of]
        new = changes.values.filter(pa.array(is_new))
        # A null for each key: every key needs a row.
        of = np.concatenate([np.arange(len(state)), changes.of[is_new], of_remaining])
        values = pa.concat_arrays([pa.nulls(len(state), new.type), new, remaining])
        order = np.argsort(of, kind="stable")
        starts = np.searchsorted(of[order], np.arange(len(state)))
        groups = VectorState(state.keys, starts, len(of), state.states)
        return self.add(kept, Values(values.take(pa.array(order)), groups))


def _equal(left: pa.Array, right: pa.Array) -> Array:
    """Returns where two columns without nulls are equal; NaN equals NaN."""
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    found: Array = equal.fill_null(True).to_numpy(zero_copy_only=False)
    return found


class RetractableMin(_RetractableExtreme, Min):
    """The minimum of rows that may be retracted."""


class RetractableMax(_RetractableExtreme, Max):
    """The maximum of rows that may be retracted."""


RETRACTABLE: Mapping[type[Aggregate], type[Aggregate]] = {
    Sum: RetractableSum,
    Mean: RetractableMean,
    DecimalSum: RetractableDecimalSum,
    Variance: RetractableVariance,
    CountDistinct: RetractableDistinct,
    Min: RetractableMin,
    Max: RetractableMax,
}
"""The aggregate of a changelog, by the aggregate of a stream without retractions."""


def counted_columns(aggregates: Sequence[Aggregate]) -> dict[str, CountedColumn]:
    """Returns the columns whose values are counted, by name."""
    filters: dict[str, dict[str, Column]] = {}
    for each in aggregates:
        if isinstance(each, OfCountedValues):
            filters.setdefault(each.column.name, {})[each.where] = each.column
    return {name: CountedColumn(next(iter(of.values())), list(of)) for name, of in filters.items()}


_ROWS = "aggregated-rows"
"""Name of the state with the number of rows of a key, which is part of the stored format."""


@dataclass(frozen=True)
class Changes:
    """Columns that a changelog of aggregates reads and emits.

    Attributes:
        taken: the column with the kind of each row; empty if rows only append.
        made: the column with the kind of each result.
        retracts: whether a result that is replaced is emitted before, with the kind `UPDATE_BEFORE`.
    """

    taken: str
    made: str
    retracts: bool


class ChangelogAggregates(ColumnAggregates):
    """Emits the changes of the results of each key that has rows in a batch.

    Args:
        wanted, keys, given, output: as for `ColumnAggregates`.
        changes: the kinds of rows and results.

    Raises:
        JobDefinitionError: as for `ColumnAggregates`; or an aggregate cannot retract rows.
    """

    def __init__(
        self,
        wanted: Mapping[str, Sequence[str]],
        keys: Sequence[str],
        given: RowSchema,
        output: RowSchema,
        changes: Changes,
    ) -> None:
        results = replace(output, columns=tuple(column for column in output.columns if column.name != changes.made))
        super().__init__(wanted, keys, given, results)
        self._changes = changes
        self._signs: Array | None = None
        if changes.taken:
            self._aggregates = {name: _retractable(name, each) for name, each in self._aggregates.items()}
            self._distinct = {}
        self._counted_columns = counted_columns(list(self._aggregates.values()))
        self._counted_values: dict[str, Mapping[str, CountedValues]] = {}

    def open(self, ctx: RuntimeContext) -> None:
        super().open(ctx)
        if self._changes.taken:
            self._rows: ValueState[int] = ctx.get_state(ValueStateDescriptor(_ROWS, int))
        for column in self._counted_columns.values():
            column.open(ctx)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.Table:
        before = state.read(self._state)
        known: Array = before.is_valid().to_numpy(zero_copy_only=False)
        counted = self._counted(batch, state, known)
        exists = np.ones(len(state), bool) if counted is None else counted.after > 0
        self._signs = None if counted is None else counted.effects
        if counted is not None:
            columns = self._counted_columns.items()
            self._counted_values = {name: column.add(batch, state, counted) for name, column in columns}
        kept = before
        if counted is not None and counted.is_reset.any():
            kept = pc.if_else(pa.array(~counted.is_reset), before, pa.scalar(None, before.type))
        stored, results = self._add_batch(batch, state, kept)
        state.write(self._state, pc.if_else(pa.array(exists), stored, pa.scalar(None, stored.type)))
        earlier = self._results(state, before) if self._changes.retracts or not exists.all() else results
        parts = [
            (earlier, known & exists if self._changes.retracts else np.zeros(len(state), bool), RowKind.UPDATE_BEFORE),
            (earlier, known & ~exists, RowKind.DELETE),
            (results, ~known & exists, RowKind.INSERT),
            (results, known & exists, RowKind.UPDATE_AFTER),
        ]
        return pa.concat_tables([self._of_kind(*part) for part in parts])

    def _values(self, aggregate: Aggregate, batch: pa.RecordBatch, state: VectorState) -> Values:
        values = super()._values(aggregate, batch, state)
        if self._signs is None:
            return values
        return Values(mask_values(values.column, pa.array(self._signs != 0)), state, self._signs)

    def _after(self, name: str, before: Accumulators, batch: pa.RecordBatch, state: VectorState) -> Accumulators:
        aggregate = self._aggregates[name]
        if isinstance(aggregate, OfCountedValues):
            return aggregate.after(before, self._counted_values[aggregate.column.name][aggregate.where], state)
        return super()._after(name, before, batch, state)

    def _counted(self, batch: pa.RecordBatch, state: VectorState, known: Array) -> CountedRows | None:
        """Counts the rows of each key, if some are retracted.

        Raises:
            StateError: a key of `known`, which has a result, has no number of rows.
        """
        if not self._changes.taken:
            return None
        stored = state.read(self._rows)
        if (known & stored.is_null().to_numpy(zero_copy_only=False)).any():
            raise StateError(
                "an aggregate has a result of rows that were not counted: its input only appended rows before",
                hint="give the operator another uid, so that it begins without state",
                state=_ROWS,
            )
        # Not when the module is imported: this loads pandas if it is installed.
        kinds = pa.array([kind.value for kind in RETRACTIONS])
        retracted = pc.is_in(batch.column(self._changes.taken), value_set=kinds).to_numpy(zero_copy_only=False)
        counted = CountedRows.of(to_numpy(stored), retracted, state)
        state.write(self._rows, pa.array(counted.after, mask=counted.after == 0))
        return counted

    def _of_kind(self, results: pa.RecordBatch, where: Array, kind: RowKind) -> pa.Table:
        chosen = pa.Table.from_batches([results.filter(pa.array(where))])
        return chosen.append_column(self._changes.made, pa.array([kind.value] * len(chosen), pa.string()))


def _retractable(name: str, aggregate: Aggregate) -> Aggregate:
    if type(aggregate) is Count:
        return aggregate
    if (kind := RETRACTABLE.get(type(aggregate))) is not None:
        return kind(aggregate.column, aggregate.where)
    raise JobDefinitionError(
        "an aggregate cannot retract rows",
        hint="of a changelog, use count, count_distinct, sum, mean, variance, min or max; or call as_append_only() on "
        "the stream, if each change is to count as a row",
        name=name,
        aggregate=type(aggregate).__name__,
    )
