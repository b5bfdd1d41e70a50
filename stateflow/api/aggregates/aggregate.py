"""Base class of column aggregates, and the columns of a batch that they aggregate."""

from __future__ import annotations

import decimal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.partial import Half, Partial, is_true, mask_values
from stateflow.api.column_origins import Derivation, Origin, Origins
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column
from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import Leaf, shape_of
from stateflow.types.declared_types import python_type

Accumulators = Mapping[str, pa.Array]
"""Columns of an accumulator by field name, with one value per key."""
FieldTypes = Mapping[str, Any]
"""Python types of an accumulator's fields, as msgspec takes them."""
NUMBERS = (int, float)
"""Python types of numbers that fit into 64 bits."""


@dataclass(frozen=True)
class Values:
    """A column of a batch.

    Attributes:
        column: one value per row.
        state: which rows belong to which key.
        signs: -1 for each row that is retracted, and 1 for others; None if rows only append.
    """

    column: pa.Array
    state: VectorState
    signs: Array | None = None

    @property
    def valid(self) -> Array:
        """For each row, whether its value is not null."""
        found: Array = self.column.is_valid().to_numpy(zero_copy_only=False)
        return found

    @property
    def counts(self) -> Array:
        """Number of non-null values per key, less those that are retracted."""
        if self.signs is not None:
            return np.add.reduceat(np.where(self.valid, self.signs, 0), self.state.starts)
        if not self.column.null_count:
            return self.state.counts
        return np.add.reduceat(self.valid.astype(np.int64), self.state.starts)

    def fill_nulls(self, default: object) -> Array:
        """Returns the values of all rows, with nulls replaced by `default`; negative for rows that are retracted."""
        found: Array = self.column.fill_null(default).to_numpy(zero_copy_only=False)
        return found if self.signs is None else found * self.signs

    def reduce(self, function: np.ufunc, default: object) -> Array:
        """Returns the reduction of each key's values by `function`, with nulls replaced by `default`."""
        found: Array = function.reduceat(self.fill_nulls(default), self.state.starts)
        return found

    @property
    def summed(self) -> Array:
        """Sum per key."""
        return self.reduce(np.add, 0)


class Aggregate(ABC):
    """An aggregate over one column. Nulls are ignored."""

    over: tuple[type, ...] = ()
    """Python types of the columns that it accepts; empty for all scalars."""

    is_distinct = False
    """Whether it aggregates each value of a key once."""

    optional: frozenset[str] = frozenset()
    """Fields that stored accumulators may lack: of an aggregate that the job declared with another order before."""

    def __init__(self, column: Column, where: str = "") -> None:
        """Aggregates a column of the rows in which the bool column `where` is true; of all rows if it is empty."""
        assert isinstance(column.shape, Leaf)
        self.column = column
        self.where = where
        self.kind = column.shape.kind

    @property
    @abstractmethod
    def fields(self) -> FieldTypes:
        """Types of the accumulator's fields. Their names are part of the stored format."""

    @property
    def result_type(self) -> str:
        """Spark type of the result."""
        return self.column.spark_type

    @property
    def may_be_null(self) -> bool:
        """Whether the result of a key with rows may be null."""
        return self.column.nullable or bool(self.where)

    def values(self, batch: pa.RecordBatch, state: VectorState) -> Values:
        """Returns the values of a batch that it aggregates, with null for those that it ignores."""
        column = batch.column(self.column.name)
        return Values(mask_values(column, is_true(batch.column(self.where))) if self.where else column, state)

    @abstractmethod
    def add(self, before: Accumulators, values: Values) -> Accumulators:
        """Returns the accumulators after a batch."""

    @abstractmethod
    def result(self, accumulators: Accumulators) -> pa.Array:
        """Returns the result of each key."""

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        """Returns the aggregates to compute before the shuffle; empty if the result would depend on partitioning.

        Args:
            prefix: prefix of the column names.
            divide_floats: whether sums of floats may depend on partitioning.
        """
        return ()

    def merge(self, before: Accumulators, partials: Mapping[str, Values]) -> Accumulators:
        """Returns the accumulators after partial results, which are given by column name without the prefix."""
        raise NotImplementedError(f"{type(self).__name__} has no partial results")

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        """Returns the accumulators of groups of accumulators, such as those of slices of a window.

        Args:
            accumulators: columns with one value per accumulator, grouped as the rows of a batch are grouped by key;
                null where nothing was added.
            groups: the groups.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot merge accumulators")

    def nothing(self, count: int) -> Accumulators:
        """Returns accumulators to which nothing was added."""
        kinds = {name: shape_of(kind | None).arrow for name, kind in self.fields.items()}
        return {name: pa.nulls(count, kind) for name, kind in kinds.items()}

    def _sum_partials(self, prefix: str, divide_floats: bool) -> tuple[Partial, ...]:
        if self.column.spark_type == "double":
            whole = Partial(f"{prefix}sum", self.column.name, "sum", shape_of(float))
            return (whole,) if divide_floats else ()
        return tuple(Partial(f"{prefix}{half.value}", self.column.name, "sum", shape_of(int), half) for half in Half)

    def _count_partials(self, prefix: str) -> tuple[Partial, ...]:
        return (Partial(f"{prefix}count", self.column.name, "count", shape_of(int)),)


def partials_of(aggregates: Mapping[str, Aggregate], divide_floats: bool = False) -> dict[str, tuple[Partial, ...]]:
    """Returns what is aggregated before the shuffle, by output column; see `Aggregate.partials`."""
    return {
        name: tuple(replace(part, where=each.where) for part in each.partials(f"{name}__", divide_floats))
        for name, each in aggregates.items()
    }


def values_of(partials: Sequence[Partial], name: str, batch: pa.RecordBatch, state: VectorState) -> dict[str, Values]:
    """Returns the partial results of the output column `name` in a batch, as `Aggregate.merge` takes them."""
    return {part.name.removeprefix(f"{name}__"): Values(batch.column(part.name), state) for part in partials}


def type_of_column(column: Column) -> Any:
    """Returns the Python type of a column's values, as msgspec takes it."""
    shape = column.shape
    assert isinstance(shape, Leaf)
    if pa.types.is_timestamp(shape.arrow):
        return python_type(shape.arrow)
    if pa.types.is_decimal(shape.arrow):
        return Annotated[decimal.Decimal, precision(shape.arrow.precision, shape.arrow.scale)]
    return shape.kind


def to_numpy(column: pa.Array, default: float = 0) -> Array:
    """Returns a column of numbers with nulls replaced by `default`."""
    found: Array = column.fill_null(default).to_numpy(zero_copy_only=False)
    return found


def aggregate_origins(keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Origins:
    """Returns the origins of the rows of keys and aggregates."""
    columns: dict[str, tuple[Origin, ...]] = {key: (Origin(key),) for key in keys}
    for name, aggregate in aggregates.items():
        of = [aggregate.column.name, *([aggregate.where] if aggregate.where else ())]
        columns[name] = tuple(Origin(column, Derivation.AGGREGATION) for column in of)
    return Origins(columns)
