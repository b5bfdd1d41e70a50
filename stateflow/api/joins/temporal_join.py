"""The operator of temporal joins: each left row with the version of its key that was valid at its event time.

The semantics are as in Flink's `TemporalRowTimeJoinOperator`. A left row waits until the watermark reaches its time,
because a version of that time may still come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Generic, TypeVar, cast

from stateflow.api.column_origins import Origins, origins_of
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, OnTimerContext, RuntimeContext
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.joins.times import time_of_row
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import MapStateDescriptor

Left = TypeVar("Left")
Right = TypeVar("Right")

LEFT_ROWS, VERSIONS = "left-rows", "versions"
"""Names of the states with the waiting left rows and with the versions, by event time; part of the stored format."""
Join = Callable[[Untyped, Untyped], object]


class TemporalJoin(KeyedCoProcessFunction[Left, Right, object], Generic[Left, Right]):
    """Joins left rows with versions.

    Args:
        function: takes a left row and its version, and returns the row to emit.
        is_left_outer: whether the function is also called, with None, for a row without a version.
        row_classes: the classes of the rows of both sides.
        row_kind: the field of a version with its `RowKind`; empty without one.
    """

    _rows: MapState[int, list[Left]]
    _versions: MapState[int, Right]

    def __init__(
        self, function: Join, is_left_outer: bool, row_classes: tuple[type[Left], type[Right]], row_kind: str = ""
    ) -> None:
        self.function = function
        self._is_left_outer = is_left_outer
        self._row_kind = row_kind
        left, right = row_classes
        self._row_type = cast("type[list[Left]]", GenericAlias(list, (left,)))
        self._version_type = right

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return origins_of(self.function)

    def open(self, ctx: RuntimeContext) -> None:
        self._rows = ctx.get_map_state(MapStateDescriptor(LEFT_ROWS, int, self._row_type))
        self._versions = ctx.get_map_state(MapStateDescriptor(VERSIONS, int, self._version_type))

    def process_element1(self, row: Left, ctx: Context) -> None:
        if not self._is_left_outer and has_null(ctx.get_current_key()):
            return
        time = time_of_row(ctx)
        self._rows.put(time, [*(self._rows.get(time) or ()), row])
        ctx.timer_service().register_event_time_timer(time)

    def process_element2(self, row: Right, ctx: Context) -> None:
        if self._kind(row) is RowKind.UPDATE_BEFORE:
            return  # its time is that of the version that ends; the next version has the time of the end
        if has_null(ctx.get_current_key()):
            return
        time = time_of_row(ctx)
        self._versions.put(time, row)
        ctx.timer_service().register_event_time_timer(time)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        version = self._valid_version(timestamp)
        if version is not None and self._kind(version).is_retraction:
            version = None
        rows = self._rows.get(timestamp)
        if rows is None:
            return
        self._rows.remove(timestamp)
        if version is not None or self._is_left_outer:
            join = self.function
            for row in rows:
                yield join(row, version)

    def _kind(self, version: Right) -> RowKind:
        return RowKind(getattr(version, self._row_kind)) if self._row_kind else RowKind.INSERT

    def _valid_version(self, time: int) -> Right | None:
        """Returns the last version up to a time that the watermark has reached; removes those before it.

        A row that deletes is kept as a version, so that a late version before it is not valid after it.
        """
        valid, valid_since = None, 0
        for since, version in self._versions.items():
            if since > time:
                break
            if valid is not None:
                self._versions.remove(valid_since)
            valid, valid_since = version, since
        return valid
