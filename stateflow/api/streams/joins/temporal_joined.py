"""A keyed stream whose rows are joined with the versions of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.graph import Edge, ProcessNode
from stateflow.api.joins.temporal_join import Join, TemporalJoin
from stateflow.api.schema import RowSchema
from stateflow.api.streams.joins.inputs import ChangelogEdge, check_event_times
from stateflow.api.streams.operator_input import Stream, check_callable
from stateflow.errors import JobDefinitionError

_KINDS = ("inner", "left")


class TemporalJoinedStreams(Generic[Stream]):
    """A keyed stream and a keyed stream of versions; `apply` adds the operator.

    Args:
        add_operator: adds the operator to the graph and returns its output.
        inputs: the stream of rows and the stream of versions, which may be a changelog.
        how: ``inner`` or ``left``.
    """

    def __init__(
        self, add_operator: Callable[[ProcessNode], Stream], inputs: tuple[Edge, ChangelogEdge], how: str
    ) -> None:
        if how not in _KINDS:
            raise JobDefinitionError(
                "how must be inner or left", hint="pass how='inner' or how='left'", given=repr(how)[:200]
            )
        rows, versions = inputs
        self._inputs = rows, versions.edge
        check_event_times(self._inputs, "temporal_join")
        self._add_operator = add_operator
        self._row_kind = versions.changelog.row_kind if versions.changelog else ""
        self._how = how

    def apply(
        self, function: Join, *, output: type[object], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> Stream:
        """Calls a function with each row and its version, which may be None in a left join; it returns the row to emit.

        Args:
            output: class of the rows that the function returns.
            uid: identifies the operator's state across all versions of the job.
            on_error: see `KeyedStream.process`. An error of the function is one of a timer, which fails the run.
        """
        check_callable("apply", function, uid)
        left, right = (edge.node.schema.row_class for edge in self._inputs)
        operator: TemporalJoin[object, object] = TemporalJoin(
            function, self._how == "left", (left, right), self._row_kind
        )
        policy = check_policy(on_error)
        node = ProcessNode(uid, self._inputs, operator, RowSchema.of(output), f"temporal join {self._how}", policy)
        return self._add_operator(node)
