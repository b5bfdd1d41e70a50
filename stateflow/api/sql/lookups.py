"""Look-up joins of queries: columns of a registered table are added to the rows of a stream."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from stateflow.api.graph.event_time import event_time_of
from stateflow.api.sql.expressions.sql_types import row_class
from stateflow.api.sql.planning.plan import Joined, LookupTable
from stateflow.api.sql.problems import error_at
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.api.joins.lookup_join import ReadTable


@dataclass(frozen=True)
class Lookup:
    """How a table is read.

    Attributes:
        read: returns the table.
        cache: how long the content that was read is used again; None to read the table in each batch.
    """

    read: ReadTable
    cache: timedelta | None


@dataclass(frozen=True)
class _Renamed:
    """Returns columns of a table by the names that they have in a result.

    Attributes:
        columns: name in the result to column of the table.
    """

    read: ReadTable
    columns: Mapping[str, str]

    def __call__(self, spark: SparkSession) -> DataFrame:
        table = self.read(spark)
        missing = sorted({*self.columns.values()} - {*table.columns})
        if missing:
            raise JobDefinitionError(
                "a look-up table does not have columns that its row class declares",
                hint="correct the class, or the function that reads the table",
                missing=missing,
                table=table.columns,
            )
        return table.select([table[of].alias(name) for name, of in self.columns.items()])


def looked_up(stream: DataStream, plan: Joined, lookups: Mapping[str, Lookup]) -> DataStream:
    """Returns the rows of a stream with the columns of a table.

    Args:
        stream: the left side of the join.
        lookups: the registered tables by name.

    Raises:
        JobDefinitionError: rows of the stream are corrected later.
    """
    if stream._changelog is not None:
        # A row that takes another one back would be looked up in a later content of the table.
        raise error_at(plan.at, "rows of a look-up are corrected later", "look up first, and aggregate the result")
    assert isinstance(plan.right, LookupTable)
    lookup = lookups[plan.right.name]
    # A column may be equal to several values.
    keys = {f"key{number}_{column}": column for number, column in enumerate(plan.right_keys)}
    columns = {name: of for name, is_left, of in plan.columns if not is_left}
    time = event_time_of(stream._node)
    names = [each.name for each in plan.fields]
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    more = [(time, hints[time])] if time and time not in names else []
    return stream.lookup_join(
        _Renamed(lookup.read, {**columns, **keys}),
        on=dict(zip(plan.left_keys, keys, strict=True)),
        output=row_class("LookedUp", plan.fields, more),
        how=plan.how,
        cache=lookup.cache,
    )
