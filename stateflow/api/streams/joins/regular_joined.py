"""Two keyed streams whose rows are joined whenever they arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic

from stateflow.api.changelog import Changelog, row_kind_of
from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.graph import ProcessNode
from stateflow.api.joins.changelog_join import ChangelogInput, ChangelogJoin, JoinedPairs, JoinKind, OuterJoin
from stateflow.api.joins.functions import PairColumns, Untyped
from stateflow.api.joins.regular_join import (
    ColumnCondition,
    ColumnJoin,
    Condition,
    EveryPair,
    KeptRows,
    Matching,
    RegularJoin,
    RowCondition,
    Schemas,
    Selected,
)
from stateflow.api.joins.window_join import Join
from stateflow.api.schema import Column, RowSchema
from stateflow.api.streams.joins.inputs import ChangelogEdge, resolve_columns
from stateflow.api.streams.operator_input import Stream, check_callable
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.ttl_config import StateTtlConfig

_KINDS = {
    "inner": JoinKind(False, False),
    "left": JoinKind(True, False),
    "right": JoinKind(False, True),
    "full": JoinKind(True, True),
}


class RegularJoinedStreams(Generic[Stream]):
    """Two keyed streams; `select` or `apply` adds the operator. Both store the same, so a job can switch between them.

    Args:
        add_operator: adds the operator to the graph and returns its output.
        inputs: the left and the right stream.
        how: ``inner``, ``left``, ``right`` or ``full``.
        ttl: how long a row is kept; None for ever.
    """

    def __init__(
        self,
        add_operator: Callable[[ProcessNode], Stream],
        inputs: tuple[ChangelogEdge, ChangelogEdge],
        how: str,
        ttl: StateTtlConfig | None,
    ) -> None:
        if how not in _KINDS:
            raise JobDefinitionError(
                f"how must be one of {', '.join(_KINDS)}", hint="the default is inner", given=repr(how)[:200]
            )
        self._kind = _KINDS[how]
        self._add_operator = add_operator
        left, right = inputs
        self._inputs = left.edge, right.edge
        self._changelogs = left.changelog, right.changelog
        self._rows = KeptRows(left.edge.node.schema, right.edge.node.schema, ttl)

    def select(
        self,
        output: type[object],
        columns: Mapping[str, str] | None = None,
        *,
        where: Condition | None = None,
        uid: str = "",
    ) -> Stream:
        """Emits columns of both rows of each pair.

        In an inner join of streams that only append rows, the operator works on Arrow columns, without a call for each
        row. In other joins, the stream is a changelog, as that of `apply`. The columns of a missing row are null.

        Args:
            output: class of the emitted rows. A field has the value of the column of its name, of either stream. For an
                outer join, and for inputs that are changelogs, it has a field of type `RowKind`, which the operator
                sets.
            columns: for fields with another name, or with a name that both streams have: ``{"seller": "right.id"}``.
            where: takes the columns of the left and of the right rows of many pairs; returns a boolean Arrow array:
                ``lambda left, right: pc.less_equal(left["time"], right["expires"])``. By default, all pairs of a key.
                In an outer join, a row has no partner if this is true for none of its pairs.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: a field has no column, or one of another type; or the output class lacks the field of
                type `RowKind`.
        """
        if where is not None:
            check_callable("select", where, uid)
        schema = RowSchema.of(output)
        kind = "" if self._is_appended else row_kind_of(schema)
        found = resolve_columns(self._emitted, schema, columns or {}, uid, {kind} if kind else ())
        function: KeyedFunction[object]
        if self._is_appended:
            function = ColumnJoin(self._rows, Selected(schema, found, where))
        else:
            made = PairColumns(output, ((name, *origin) for name, origin in found.items()), {kind: RowKind.INSERT})
            condition = None if where is None else ColumnCondition(self._schemas, where)
            function = self._operator(made, condition, schema, uid)
        return self._add_operator(ProcessNode(uid, self._inputs, function, schema, "regular join"))

    def apply(
        self,
        function: Join[object],
        *,
        output: type[object],
        where: Callable[[Untyped, Untyped], object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function with the left and the right row of each pair; it returns the row to emit.

        In an outer join, the function is also called with None for a missing row. That result is deleted when the first
        partner of the row arrives, so the stream is a changelog. It is also one if an input is a changelog: then the
        function is called again to retract a result, and must return the same row.

        Args:
            output: class of the rows that the function returns; for an outer join, and for inputs that are changelogs,
                with a field of type `RowKind`, which the operator sets.
            where: takes a left and a right row, and returns whether they are joined; by default, all pairs of a key
                are. In an outer join, a row has no partner if this is true for none of its pairs.
            uid: identifies the operator's state across all versions of the job.
            on_error: see `KeyedStream.process`.

        Raises:
            JobDefinitionError: the output class lacks the field of type `RowKind`.
        """
        check_callable("apply", function, uid)
        if where is not None:
            check_callable("apply", where, uid)
        schema, policy = RowSchema.of(output), check_policy(on_error)
        operator = self._operator(function, None if where is None else RowCondition(where), schema, uid)
        return self._add_operator(ProcessNode(uid, self._inputs, operator, schema, "regular join", policy))

    def _operator(
        self, function: Join[object], condition: Matching | None, schema: RowSchema, uid: str
    ) -> KeyedFunction[object]:
        if self._is_appended:
            return RegularJoin[object, object](self._rows, function, condition)
        row_kind = row_kind_of(schema)
        if not row_kind:
            raise JobDefinitionError(
                "the output class of a join whose results are retracted needs a row kind",
                hint="declare a field: kind: RowKind; a result is deleted when a partner of its row arrives or leaves",
                row_class=schema.row_class.__name__,
                uid=uid,
            )
        if self._only_appends and condition is None:
            return OuterJoin(self._rows, self._kind, function, row_kind)
        left, right = (ChangelogInput(*each) for each in zip(self._schemas, self._given_changelogs(), strict=True))
        pairs = JoinedPairs(self._kind, row_kind, condition or EveryPair())
        return ChangelogJoin((left, right), pairs, function, self._rows.ttl)

    @property
    def _only_appends(self) -> bool:
        return self._changelogs == (None, None)

    @property
    def _is_appended(self) -> bool:
        """Whether results are never retracted."""
        return self._only_appends and self._kind == _KINDS["inner"]

    @property
    def _emitted(self) -> Schemas:
        """The columns of the rows of a result; those of a row that may be missing are nullable."""
        left, right = self._schemas
        return (_nullable(left) if self._kind.right else left), (_nullable(right) if self._kind.left else right)

    @property
    def _schemas(self) -> Schemas:
        return self._rows.left, self._rows.right

    def _given_changelogs(self) -> tuple[Changelog, Changelog]:
        left, right = self._changelogs
        return left or Changelog(), right or Changelog()


def _nullable(schema: RowSchema) -> RowSchema:
    columns = (Column(each.name, replace(each.shape, nullable=True)) for each in schema.columns)
    return replace(schema, columns=tuple(columns))
