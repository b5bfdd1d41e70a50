"""Two keyed streams whose rows are joined if their event times are within bounds of each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Generic, Never, Self, TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.graph import Edge, ProcessNode
from stateflow.api.joins.functions import ProcessJoinFunction
from stateflow.api.joins.interval_join import IntervalColumnJoin, IntervalJoin, IntervalSettings
from stateflow.api.joins.regular_join import Condition, Selected
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.streams.joins.inputs import check_event_times, check_tag_of_late_rows, resolve_columns
from stateflow.api.streams.operator_input import Stream, check_callable, check_function
from stateflow.api.windows.window import duration_ms
from stateflow.errors import JobDefinitionError

Row = TypeVar("Row")


class IntervalJoinedStreams(Generic[Stream]):
    """Two keyed streams, before the bounds are declared with `between`.

    Args:
        add_operator: adds the operator to the graph and returns its output.
        inputs: the left and the right stream.
    """

    def __init__(self, add_operator: Callable[[ProcessNode], Stream], inputs: tuple[Edge, Edge]) -> None:
        check_event_times(inputs, "interval_join")
        self._add_operator = add_operator
        self._inputs = inputs

    def between(self, lower_bound: timedelta, upper_bound: timedelta) -> BoundedIntervalJoin[Stream]:
        """Joins a left row with the right rows from `lower_bound` to `upper_bound` after it, both included.

        Args:
            lower_bound: may be negative, for right rows before the left row.

        Raises:
            JobDefinitionError: an argument is not a timedelta, or no time is within the bounds.
        """
        lower = duration_ms("the lower bound of an interval join", lower_bound)
        upper = duration_ms("the upper bound of an interval join", upper_bound)
        return BoundedIntervalJoin(self._add_operator, self._inputs, _checked(IntervalSettings(lower, upper)))


class BoundedIntervalJoin(Generic[Stream]):
    """Two keyed streams and the bounds; `process` or `select` adds the operator. Other methods return a new object."""

    def __init__(
        self, add_operator: Callable[[ProcessNode], Stream], inputs: tuple[Edge, Edge], settings: IntervalSettings
    ) -> None:
        self._add_operator = add_operator
        self._inputs = inputs
        self._settings = settings

    def lower_bound_exclusive(self) -> Self:
        """Excludes the lower bound itself: it becomes a millisecond later. Raises as `between`."""
        return self._with(_checked(replace(self._settings, lower=self._settings.lower + 1)))

    def upper_bound_exclusive(self) -> Self:
        """Excludes the upper bound itself: it becomes a millisecond earlier. Raises as `between`."""
        return self._with(_checked(replace(self._settings, upper=self._settings.upper - 1)))

    def side_output_left_late_data(self, tag: OutputTag[Row]) -> Self:
        """Sets the side output for left rows that are earlier than the watermark; by default they are dropped.

        Raises:
            JobDefinitionError: `tag` is not an OutputTag, or is of another class than the rows.
        """
        return self._with(replace(self._settings, late_left=check_tag_of_late_rows(tag, self._inputs[0])))

    def side_output_right_late_data(self, tag: OutputTag[Row]) -> Self:
        """Sets the side output for late right rows. As `side_output_left_late_data`."""
        return self._with(replace(self._settings, late_right=check_tag_of_late_rows(tag, self._inputs[1])))

    def process(
        self,
        function: ProcessJoinFunction[Never, Never, object],
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function with each pair of rows, as soon as both have arrived.

        Args:
            output: class of the rows that the function emits.
            uid: identifies the operator's state across all versions of the job.
            on_error: see `KeyedStream.process`; a dead letter is the row that arrived later.

        Raises:
            JobDefinitionError: `function` is not a `ProcessJoinFunction`.
        """
        check_function("process of an interval join", function, ProcessJoinFunction, uid)
        left, right = self._inputs
        operator = IntervalJoin(self._settings, function, (left.node.schema.row_class, right.node.schema.row_class))
        name = f"interval join {type(function).__qualname__}"
        return self._add_operator(
            ProcessNode(uid, self._inputs, operator, RowSchema.of(output), name, check_policy(on_error))
        )

    def select(
        self,
        output: type[object],
        columns: Mapping[str, str] | None = None,
        *,
        where: Condition | None = None,
        uid: str = "",
    ) -> Stream:
        """Emits columns of both rows of each pair.

        The operator works on Arrow columns, without a call for each row or pair. It stores the same as the operator of
        `process`, so a job can change from one to the other.

        Args:
            output: class of the emitted rows. A field has the value of the column of its name, of either stream.
            columns: for fields with another name, or with a name that both streams have: ``{"paid": "right.time"}``.
            where: takes the columns of the left and of the right rows of many pairs; returns a boolean Arrow array.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: a field has no column, or one of another type.
        """
        if where is not None:
            check_callable("select", where, uid)
        schema, schemas = RowSchema.of(output), (self._inputs[0].node.schema, self._inputs[1].node.schema)
        selected = Selected(schema, resolve_columns(schemas, schema, columns or {}, uid), where)
        function = IntervalColumnJoin(self._settings, schemas, selected)
        return self._add_operator(ProcessNode(uid, self._inputs, function, schema, "interval join"))

    def _with(self, settings: IntervalSettings) -> Self:
        changed = copy.copy(self)
        changed._settings = settings
        return changed


def _checked(settings: IntervalSettings) -> IntervalSettings:
    if settings.lower > settings.upper:
        raise JobDefinitionError(
            "the lower bound of an interval join must not be above the upper bound",
            hint="pass bounds in order; an excluded bound moves by a millisecond",
            lower=settings.lower,
            upper=settings.upper,
        )
    return settings
