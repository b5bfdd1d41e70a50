"""Two keyed streams whose rows are joined whenever they arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.graph.nodes import Edge, ProcessNode
from stateflow.api.joins.regular_join import ColumnJoin, Condition, KeptRows, RegularJoin, Selected
from stateflow.api.joins.window_join import Join
from stateflow.api.schema import Column, RowSchema
from stateflow.api.streams.keyed_input import Stream, check_callable
from stateflow.errors import JobDefinitionError
from stateflow.types.ttl_config import StateTtlConfig


class RegularJoinedStreams(Generic[Stream]):
    """Two keyed streams; `select` or `apply` adds the operator. Both store the same, so a job can switch between them.

    Args:
        add_operator: adds the operator to the graph and returns its output.
        inputs: the left and the right stream.
    """

    def __init__(
        self, add_operator: Callable[[ProcessNode], Stream], inputs: tuple[Edge, Edge], ttl: StateTtlConfig | None
    ) -> None:
        self._add_operator = add_operator
        self._inputs = inputs
        left, right = inputs
        self._rows = KeptRows(left.node.schema, right.node.schema, ttl)

    def select(
        self,
        output: type[object],
        columns: Mapping[str, str] | None = None,
        *,
        where: Condition | None = None,
        uid: str = "",
    ) -> Stream:
        """Emits columns of both rows of each pair. The operator works on Arrow columns, without a call for each row.

        Args:
            output: class of the emitted rows. A field has the value of the column of its name, of either stream.
            columns: for fields with another name, or with a name that both streams have: ``{"seller": "right.id"}``.
            where: takes the columns of the left and of the right rows of many pairs; returns a boolean Arrow array:
                ``lambda left, right: pc.less_equal(left["time"], right["expires"])``. By default, all pairs of a key.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: a field has no column, or one of another type.
        """
        if where is not None:
            check_callable("select", where, uid)
        schema = RowSchema.of(output)
        given = dict(columns or {})
        unknown = sorted(given.keys() - set(schema.names))
        if unknown:
            raise JobDefinitionError(
                "select names columns that its output does not have",
                hint="name the fields of the output class: {field: 'left.column'}",
                unknown=unknown,
                uid=uid,
            )
        found = [self._origin(column, given.get(column.name, ""), uid) for column in schema.columns]
        function = ColumnJoin(self._rows, Selected(schema, found, where))
        return self._add_operator(ProcessNode(uid, self._inputs, function, schema, "regular join"))

    def apply(
        self, function: Join[object], *, output: type[object], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> Stream:
        """Calls a function with the left and the right row of each pair; it returns the row to emit.

        Args:
            output: class of the rows that the function returns.
            uid: identifies the operator's state across all versions of the job.
            on_error: see `KeyedStream.process`.
        """
        check_callable("apply", function, uid)
        operator: RegularJoin[object, object] = RegularJoin(self._rows, function)
        policy = checked_policy(on_error)
        node = ProcessNode(uid, self._inputs, operator, RowSchema.of(output), "regular join", policy)
        return self._add_operator(node)

    def _origin(self, column: Column, given: str, uid: str) -> tuple[bool, str]:
        """Returns the side of a column of the output, and its name there."""
        is_left, name = self._named(column.name, given, uid)
        source = (self._rows.left if is_left else self._rows.right).column(name)
        if source.dtype != column.dtype or (source.nullable and not column.nullable):
            raise JobDefinitionError(
                "a field of a join's output has another type than its column",
                hint="declare the field with the type of the column",
                field=f"{column.name}: {column.dtype}{' | None' if column.nullable else ''}",
                column=f"{source.name}: {source.dtype}{' | None' if source.nullable else ''}",
                uid=uid,
            )
        return is_left, name

    def _named(self, field: str, given: str, uid: str) -> tuple[bool, str]:
        side, dot, name = given.partition(".")
        if dot and side in ("left", "right"):
            return side == "left", name
        sides = [is_left for is_left, of in ((True, self._rows.left), (False, self._rows.right)) if field in of.names]
        if given or len(sides) != 1:
            raise JobDefinitionError(
                "the column of a field of a join's output is not known",
                hint=f'pass columns={{"{field}": "left.name"}}, or right.name',
                field=field,
                given=given,
                left=list(self._rows.left.names),
                right=list(self._rows.right.names),
                uid=uid,
            )
        return sides[0], field
