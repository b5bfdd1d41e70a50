"""The function of `KeyedStream.over_columns`: Flink SQL's aggregates ``OVER`` rows in the order of event time.

A row waits until the watermark reaches its time, so that no earlier row can follow. Rows of a time are processed in the
order of their arrival. A row whose time the watermark has reached already is late, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias

from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.over.running import AGGREGATES, Running, Value, aggregated
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor

_WAITING, _BEFORE, _RUNNING = "waiting-rows", "rows-before", "running-aggregates"
"""Names of states, which are part of the stored format."""
_NUMBERS = ("bigint", "double")


@dataclass(frozen=True)
class Frame:
    """The rows that are aggregated for a row, which is one of them.

    Attributes:
        rows: number of rows before the row; None for no bound.
        milliseconds: rows that are at most so much earlier; None for no bound. Rows of the same time are peers, all of
            which belong to it.
    """

    rows: int | None = None
    milliseconds: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether rows leave it."""
        return self.rows is not None or self.milliseconds is not None


@dataclass(frozen=True)
class OverColumns:
    """What is computed: kind of aggregate and column, by output column.

    Raises:
        JobDefinitionError: an aggregate does not exist or does not fit, or the output has other columns.
    """

    wanted: Mapping[str, tuple[str, str]]
    given: RowSchema
    output: RowSchema

    def __post_init__(self) -> None:
        made = {column.name: column.spark_type for column in self.given.columns}
        for name, spec in self.wanted.items():
            if isinstance(spec, str) or len(spec) != 2 or spec[0] not in AGGREGATES or name in made:
                raise JobDefinitionError(
                    "there is no such aggregate over rows",
                    hint=f"pass name=(kind, column), with a new name; kinds are {', '.join(AGGREGATES)}",
                    name=name,
                    given=repr(spec),
                )
            made[name] = self._result_type(*spec)
        declared = {column.name: column.spark_type for column in self.output.columns}
        if declared != made:
            raise JobDefinitionError(
                "the output class does not have exactly the columns of the rows and the aggregates",
                hint="declare each column once, with the type of the row or the aggregate",
                declared=declared,
                made=made,
            )

    def _result_type(self, kind: str, column: str) -> str:
        found = self.given.column(column).spark_type
        if kind != "count" and found not in _NUMBERS:
            raise JobDefinitionError(
                "an aggregate over rows needs a column of int or float", hint="cast it", aggregate=kind, column=column
            )
        return {"count": "bigint", "mean": "double"}.get(kind, found)

    def values(self, row: object) -> list[Value]:
        """Returns the value of each aggregate's column; 1 in place of a value that is only counted."""
        found: list[Value] = []
        for kind, column in self.wanted.values():
            value = getattr(row, column)
            found.append(value if kind != "count" or value is None else 1)
        return found

    def emitted(self, row: object, results: Sequence[Value]) -> object:
        """Returns an output row."""
        made = dict(zip(self.wanted, results, strict=True))
        made |= {name: getattr(row, name) for name in self.given.names}
        return self.output.row_class(**made)


class OverAggregates(KeyedProcessFunction[object, object]):
    """Emits each row with aggregates over its frame.

    Args:
        columns: what is computed.
        frame: the rows that are aggregated.
    """

    def __init__(self, columns: OverColumns, frame: Frame) -> None:
        self._columns = columns
        self._frame = frame

    def open(self, ctx: RuntimeContext) -> None:
        rows: object = GenericAlias(list, (self._columns.given.row_class,))
        waiting: MapStateDescriptor[int, list[object]] = MapStateDescriptor(_WAITING, int, rows)
        self._waiting: MapState[int, list[object]] = ctx.get_map_state(waiting)
        before = ValueStateDescriptor[list[tuple[int, list[Value]]]](
            _BEFORE, list[tuple[int, list[int | float | None]]]
        )
        self._before: ValueState[list[tuple[int, list[Value]]]] = ctx.get_state(before)
        running = ValueStateDescriptor[list[list[Value]]](_RUNNING, list[list[int | float | None]])
        self._running: ValueState[list[list[Value]]] = ctx.get_state(running)

    def process_element(self, row: object, ctx: Context) -> Iterator[object]:
        time = ctx.timestamp()
        if time is None:
            raise StateError("a row has no event time", hint="filter rows whose timestamp column is null before key_by")
        if time > ctx.timer_service().current_watermark():
            self._waiting.put(time, [*(self._waiting.get(time) or []), row])
            ctx.timer_service().register_event_time_timer(time)
        else:
            self.late_rows_dropped += 1
        return iter(())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        rows = self._waiting.get(timestamp) or []
        self._waiting.remove(timestamp)
        values = [self._columns.values(row) for row in rows]
        results = self._bounded(timestamp, values) if self._frame.is_bounded else self._unbounded(values)
        for row, result in zip(rows, results, strict=True):
            yield self._columns.emitted(row, result)

    def _bounded(self, time: int, values: list[list[Value]]) -> list[list[Value]]:
        kinds = [kind for kind, _ in self._columns.wanted.values()]
        before = self._before.value() or []
        every = [*before, *((time, each) for each in values)]
        if self._frame.rows is not None:
            size = self._frame.rows + 1
            frames = [every[max(0, end - size) : end] for end in range(len(before) + 1, len(every) + 1)]
            kept = every[len(every) - self._frame.rows :] if self._frame.rows < len(every) else every
        else:
            kept = [each for each in every if each[0] >= time - (self._frame.milliseconds or 0)]
            frames = [kept] * len(values)
        self._before.update(kept)
        return [[aggregated(kind, [row[at] for _, row in each]) for at, kind in enumerate(kinds)] for each in frames]

    def _unbounded(self, values: list[list[Value]]) -> list[list[Value]]:
        kinds = [kind for kind, _ in self._columns.wanted.values()]
        stored = self._running.value()
        running = [Running(stored[at] if stored else None) for at in range(len(kinds))]
        results = []
        for row in values:
            for each, value in zip(running, row, strict=True):
                each.add(value)
            results.append([each.result(kind) for each, kind in zip(running, kinds, strict=True)])
        self._running.update([each.stored for each in running])
        return results
