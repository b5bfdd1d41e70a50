"""Look-up joins of queries: columns of a registered table are added to the rows of a stream."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stateflow.api.graph.event_time import event_time_of
from stateflow.api.graph.traversal import level_of
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin, name_of
from stateflow.api.sql.expressions.spark import spark_sql
from stateflow.api.sql.expressions.sql_types import row_class
from stateflow.api.sql.expressions.tree import Ref, replaced
from stateflow.api.sql.planning.plan import Joined, LookupTable
from stateflow.api.sql.problems import error_at
from stateflow.api.streams.data_stream import DataStream

if TYPE_CHECKING:
    from stateflow.api.joins.lookup_join import ReadTable


def looked_up(stream: DataStream, plan: Joined, lookups: Mapping[str, ReadTable]) -> DataStream:
    """Returns the rows of a stream with the columns of a table.

    Args:
        stream: the left side of the join.
        lookups: what reads the registered tables, by name.

    Raises:
        JobDefinitionError: rows of the stream are corrected later.
    """
    if stream._changelog is not None:
        # A row that retracts another one would be looked up in a later content of the table.
        raise error_at(
            plan.at, "a look-up join has rows that are corrected later", "look up before the rows are aggregated"
        )
    assert isinstance(plan.right, LookupTable)
    read, names = lookups[plan.right.name], [each.name for each in plan.fields]
    # The event time of the rows of sources is kept, also where the query does not name it.
    time = event_time_of(stream._node) if not level_of(stream._node) else ""
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    more = [(time, hints[time])] if time and time not in names else []
    condition = ""
    if plan.condition is not None:
        left, right = ({each.name: each.type for each in side.fields} for side in (plan.left, plan.right))
        named = {
            name: Ref(of, left[of]) if is_left else Ref(name_of(of), right[of]) for name, is_left, of in plan.tested
        }
        condition = spark_sql(replaced(plan.condition, named))
    columns = LookupColumns(
        on=dict(zip(plan.left_keys, plan.right_keys, strict=True)),
        output=[*names, *(name for name, _ in more)],
        how=plan.how,
        of_table={name: of for name, is_left, of in plan.columns if not is_left},
        condition=condition,
    )
    return stream.transform(LookupJoin(read, columns), row_class("LookedUp", plan.fields, more))
