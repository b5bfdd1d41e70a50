"""Two streams that are joined by columns, within windows: `join` and `co_group`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, Never, Self, TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.graph import ProcessNode
from stateflow.api.joins.regular_join import Condition, Selected
from stateflow.api.joins.window_join import (
    CoGroup,
    CoGroupRows,
    Join,
    JoinRows,
    TaggedRow,
    WindowColumnJoin,
    WindowJoin,
    bounds_of,
)
from stateflow.api.schema import RowSchema
from stateflow.api.streams.joins.inputs import join_pair, resolve_columns, time_readers
from stateflow.api.streams.operator_input import OperatorInput, Stream, check_callable
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
    windows_kind,
)
from stateflow.api.windows.column_windows import Slicing
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import ProcessWindowFunction
from stateflow.api.windows.trigger import Trigger
from stateflow.api.windows.triggers import EventTimeTrigger
from stateflow.errors import JobDefinitionError

Left = TypeVar("Left")
Right = TypeVar("Right")
Element = TypeVar("Element")
Joined = TypeVar("Joined")
KeyBy = Callable[..., OperatorInput[Stream]]
"""`key_by` of a stream."""
_SELECTED = (TumblingEventTimeWindows, SlidingEventTimeWindows)
"""The windows whose pairs `select` joins by columns."""


class JoinedWindows(Generic[Stream]):
    """Two keyed streams whose rows are in the same windows. The methods that set something return a new object.

    Assigners, triggers and evictors are called with `TaggedRow` elements of both streams.
    """

    def __init__(
        self, pair: tuple[OperatorInput[Stream], OperatorInput[Stream]], assigner: WindowAssigner[Never], method: str
    ) -> None:
        left, right = pair
        self._inputs = join_pair(left, right, method)
        self._windows = WindowedStream.of(left, assigner)
        WindowedStream.of(right, assigner)

    def trigger(self, trigger: Trigger[Element]) -> Self:
        """Sets the trigger, in place of the default one of the assigner. Raises as `WindowedStream.trigger`."""
        return self._with(self._windows.trigger(trigger))

    def evictor(self, evictor: Evictor[Element]) -> Self:
        """Sets an evictor, which removes elements of both streams. Raises JobDefinitionError."""
        return self._with(self._windows.evictor(evictor))

    def allowed_lateness(self, lateness: timedelta) -> Self:
        """Sets for how long after its end a window accepts rows. As `WindowedStream.allowed_lateness`."""
        return self._with(self._windows.allowed_lateness(lateness))

    def _with(self, windows: WindowedStream[Stream]) -> Self:
        changed = copy.copy(self)
        changed._windows = windows
        return changed

    def _apply(
        self,
        function: ProcessWindowFunction[TaggedRow[Left, Right], object],
        name: str,
        *,
        output: type[object],
        uid: str,
        on_error: str | DeadLetters,
    ) -> Stream:
        left, right = (edge.node.schema.row_class for edge in self._inputs)
        settings = self._windows._settings
        operator = WindowJoin(
            settings,
            function,
            row_classes=(left, right),
            times=time_readers(self._inputs),
            evictor=self._windows._evictor,
        )
        name = f"{name} {type(settings.assigner).__name__}"
        node = ProcessNode(uid, self._inputs, operator, RowSchema.of(output), name, check_policy(on_error))
        return self._windows._add_operator(node)


class WindowedJoin(JoinedWindows[Stream]):
    """The windows of `join`."""

    def apply(
        self, function: Join[object], *, output: type[object], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> Stream:
        """Calls a function with each pair of a left and a right row of a window; it returns the row to emit.

        Args:
            output: class of the rows that the function returns.
            uid: identifies the operator's state across all versions of the job.
            on_error: see `KeyedStream.process`.
        """
        check_callable("apply", function, uid)
        return self._apply(JoinRows(function), "join", output=output, uid=uid, on_error=on_error)

    def select(
        self,
        output: type[object],
        columns: Mapping[str, str] | None = None,
        *,
        where: Condition | None = None,
        uid: str = "",
    ) -> Stream:
        """Emits columns of both rows of each pair of a window.

        The operator works on Arrow columns, without a call for each row or pair. It stores the same as for `apply`,
        so a job can change from one to the other. The windows are tumbling or sliding, of event time, without evictor,
        allowed lateness and trigger of their own.

        Args:
            output: class of the emitted rows. A field has the value of the column of its name, of either stream.
            columns: for fields with another name, or with a name that both streams have: ``{"seller": "right.id"}``;
                or with a bound of the window: ``{"start": "window_start"}``, ``window_end`` or ``window_time``, the
                last instant of the window, as a datetime in UTC or as an int in milliseconds since 1970.
            where: takes the columns of the left and of the right rows of many pairs; returns a boolean Arrow array.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: a field has no column, or one of another type; or the windows need each row.
        """
        if where is not None:
            check_callable("select", where, uid)
        settings, schema, given = self._windows._settings, RowSchema.of(output), dict(columns or {})
        bounds = bounds_of(given, schema)
        left, right = (edge.node.schema for edge in self._inputs)
        found = resolve_columns((left, right), schema, given, uid, bounds.bounds)
        function = WindowColumnJoin(
            (left, right),
            Selected(schema, found, where),
            bounds,
            self._slicing(uid),
            kind=windows_kind(settings.assigner),
            text=settings.text,
        )
        name = f"join {type(settings.assigner).__name__}"
        return self._windows._add_operator(ProcessNode(uid, self._inputs, function, schema, name))

    def _slicing(self, uid: str) -> Slicing:
        settings, assigner = self._windows._settings, self._windows._settings.assigner
        is_plain = self._windows._evictor is None and not settings.allowed_lateness
        if not is_plain or type(settings.trigger) is not EventTimeTrigger or not isinstance(assigner, _SELECTED):
            raise JobDefinitionError(
                "select does not support these windows",
                hint="call apply, or join tumbling or sliding windows of event time without other settings",
                assigner=type(assigner).__name__,
                uid=uid,
            )
        return Slicing(assigner.size, assigner.slide, assigner.offset)


class WindowedCoGroup(JoinedWindows[Stream]):
    """The windows of `co_group`."""

    def apply(
        self, function: CoGroup[object], *, output: type[object], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> Stream:
        """Calls a function with key, window, left rows and right rows of a window, of which one list may be empty.

        It returns or yields rows. Arguments: see `WindowedJoin.apply`.
        """
        check_callable("apply", function, uid)
        return self._apply(CoGroupRows(function), "co-group", output=output, uid=uid, on_error=on_error)


class JoinedStreams(Generic[Stream, Joined]):
    """Two streams, before the columns are declared that must be equal.

    Args:
        key_by: `key_by` of both streams.
        windows: makes the windows of both keyed streams.
    """

    def __init__(self, key_by: tuple[KeyBy[Stream], KeyBy[Stream]], windows: _MakeWindows[Stream, Joined]) -> None:
        self._key_by = key_by
        self._windows = windows

    def where(self, *columns: str) -> Where[Stream, Joined]:
        """Sets the key of the left stream. Raises as `DataStream.key_by`."""
        left, right = self._key_by
        return Where(left(*columns), right, self._windows)


class Where(Generic[Stream, Joined]):
    """Two streams, of which the left one is keyed."""

    def __init__(
        self, left: OperatorInput[Stream], key_right: KeyBy[Stream], windows: _MakeWindows[Stream, Joined]
    ) -> None:
        self._left = left
        self._key_right = key_right
        self._windows = windows

    def equal_to(self, *columns: str) -> EqualTo[Stream, Joined]:
        """Sets the key of the right stream, of the same types. Raises as `DataStream.key_by`."""
        return EqualTo(self._left, self._key_right(*columns), self._windows)


class EqualTo(Generic[Stream, Joined]):
    """Two keyed streams, before their windows are declared."""

    def __init__(
        self, left: OperatorInput[Stream], right: OperatorInput[Stream], windows: _MakeWindows[Stream, Joined]
    ) -> None:
        self._pair = left, right
        self._windows = windows

    def window(self, assigner: WindowAssigner[Never]) -> Joined:
        """Divides the rows of each key into windows.

        Raises:
            JobDefinitionError: as `KeyedStream.window`, for either stream; or the keys have different types.
        """
        return self._windows(self._pair, assigner)


_MakeWindows = Callable[[tuple[OperatorInput[Stream], OperatorInput[Stream]], WindowAssigner[Never]], Joined]
