"""A keyed stream that is matched with a pattern."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Never, Self, TypeVar, cast

from stateflow.api.changelog import check_appends
from stateflow.api.graph import ProcessNode, event_time_of
from stateflow.api.patterns.functions import PatternProcessFunction, Select, SelectRow, SelectRows, TimedOut
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.patterns.pattern_operator import PatternOperator, PatternSettings
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag, check_late_tag
from stateflow.api.streams.operator_input import OperatorInput, Stream, check_callable, check_function
from stateflow.errors import JobDefinitionError

Row = TypeVar("Row")


class PatternStream(OperatorInput[Stream]):
    """A keyed stream with a pattern; `select`, `flat_select` or `process` adds the operator.

    The methods that set something return a new object.
    """

    _settings: PatternSettings[object]

    @classmethod
    def of(cls, keyed: OperatorInput[Stream], pattern: Pattern) -> PatternStream[Stream]:
        """Returns a keyed stream with a pattern.

        Raises:
            JobDefinitionError: `pattern` is not a pattern or cannot be matched, or the stream has no event time or is a
                changelog.
        """
        if not isinstance(pattern, Pattern):
            raise JobDefinitionError(
                "match_pattern needs a Pattern",
                hint='such as Pattern.begin("low", lambda row: …).next("high", lambda row: …)',
                given=repr(pattern)[:200],
            )
        check_appends(keyed._changelog, "match_pattern")
        if not event_time_of(keyed._node):
            raise JobDefinitionError(
                "patterns need a stream with event time",
                hint="declare it: source.assign_timestamps_and_watermarks(…), and keep the column in the row class",
                columns=list(keyed._node.schema.names),
            )
        pattern.check_whole()
        stream = cls(keyed._graph, keyed._node, keyed._keying, keyed._add_operator)
        stream._settings = PatternSettings(pattern, keyed._node.schema.row_class)
        return stream

    def side_output_late_data(self, tag: OutputTag[Row]) -> Self:
        """Sets the side output for rows that arrive after the watermark; by default they are dropped.

        Raises:
            JobDefinitionError: `tag` is not an OutputTag, or is of another class than the rows.
        """
        check_late_tag(tag, self._node.schema.row_class)
        return self._with(replace(self._settings, late_rows=cast("OutputTag[object]", tag)))

    def side_output_timed_out(self, tag: OutputTag[Row], function: Callable[..., Row]) -> Self:
        """Sets the side output for partial matches that exceed the time limit of the pattern.

        Args:
            tag: the side output.
            function: returns the row to emit for the rows of a partial match by stage.

        Raises:
            JobDefinitionError: `tag` is not an OutputTag, or the pattern has no time limit.
        """
        if not isinstance(tag, OutputTag) or self._settings.pattern.within_ms is None:
            raise JobDefinitionError(
                "the side output of partial matches needs a tag, and a pattern with a time limit",
                hint='side_output_timed_out(OutputTag("timed-out", Row), …), and Pattern.within(…)',
                given=repr(tag)[:200],
            )
        check_callable("side_output_timed_out", function, "")
        return self._with(replace(self._settings, timed_out=TimedOut(cast("OutputTag[object]", tag), function)))

    def select(self, function: Select, *, output: type[object], uid: str = "") -> Stream:
        """Emits one row per match.

        Args:
            function: returns the row for a match: a dictionary from the name of each stage to the list of its rows. A
                stage that matched no row is missing.
            output: class of the rows that it returns.
            uid: identifies the operator's state across all versions of the job.
        """
        check_callable("select", function, uid)
        return self._matched(SelectRow(function), output, uid, "select")

    def flat_select(
        self, function: Callable[..., Iterable[object] | None], *, output: type[object], uid: str = ""
    ) -> Stream:
        """Emits the rows that a function returns for each match. Args: as `select`."""
        check_callable("flat_select", function, uid)
        return self._matched(SelectRows(function), output, uid, "flat_select")

    def process(
        self, function: PatternProcessFunction[Never, object], *, output: type[object], uid: str = ""
    ) -> Stream:
        """Calls a function with each match, with context, state and side outputs.

        Args:
            function: an instance; tasks receive a new copy for each batch.
            output: class of the rows that it emits.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: `function` is not a `PatternProcessFunction`.
        """
        check_function("process of patterns", function, PatternProcessFunction, uid)
        return self._matched(function, output, uid, "process")

    def _matched(
        self, function: PatternProcessFunction[Never, object], output: type[object], uid: str, method: str
    ) -> Stream:
        operator = PatternOperator(self._settings, cast("PatternProcessFunction[object, object]", function))
        # Not in the order of event time, unless `order_by` declares it: then timers do not fire between rows, and a
        # key is processed once for each batch.
        node = ProcessNode(uid, (self._edge,), operator, RowSchema.of(output), f"{method} pattern")
        return self._add_operator(node)

    def _with(self, settings: PatternSettings[object]) -> Self:
        changed = copy.copy(self)
        changed._settings = settings
        return changed
