"""The function of `KeyedStream.over_columns`: Flink SQL's aggregates ``OVER`` rows in the order of event time.

A row waits until the watermark reaches its time, so that no earlier row can follow. Rows of a time are processed in the
order of their arrival. A row whose time the watermark has reached already is late, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import GenericAlias

from stateflow.api.column_origins import Derivation, Origin, Origins
from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.over.frames import AGGREGATES, Frame, Position, Row, SlidingFrame, Summaries, Summary, Values
from stateflow.api.schema import RowSchema, check_nullable
from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor

_WAITING, _ROWS, _POSITION, _RUNNING = "waiting-rows", "rows-of-frame", "frame", "running-aggregates"
"""Names of states, which are part of the stored format."""
_NUMBERS = ("bigint", "double")


@dataclass(frozen=True)
class OverColumns:
    """The aggregates to compute: kind of aggregate and column, by output column.

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
                    "the aggregate over rows does not exist",
                    hint=f"pass name=(kind, column), with a new name; kinds are {', '.join(AGGREGATES)}",
                    name=name,
                    given=repr(spec),
                )
            made[name] = self._result_type(*spec)
        declared = {column.name: column.spark_type for column in self.output.columns}
        if not self.wanted or declared != made:
            raise JobDefinitionError(
                "the output class does not have exactly the columns of the rows and the aggregates",
                hint="declare each column once, with the type of the row or the aggregate; pass at least one aggregate",
                declared=declared,
                made=made,
            )
        nulls = {column.name: column.nullable for column in self.given.columns}
        check_nullable(
            nulls | {name: kind != "count" and nulls[of] for name, (kind, of) in self.wanted.items()}, self.output
        )

    def _result_type(self, kind: str, column: str) -> str:
        found = self.given.column(column).spark_type
        if kind != "count" and found not in _NUMBERS:
            raise JobDefinitionError(
                "an aggregate over rows needs a column of int or float", hint="cast it", aggregate=kind, column=column
            )
        return {"count": "bigint", "mean": "double"}.get(kind, found)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are aggregated, each once."""
        return tuple(dict.fromkeys(column for _, column in self.wanted.values()))

    def values(self, row: object) -> Values:
        """Returns the value of each column; 1 in place of a value that is not a number, which is only counted."""
        found: Values = []
        for name, is_number in self._are_numbers:
            value = getattr(row, name)
            found.append(value if is_number or value is None else 1)
        return found

    def emitted(self, row: object, summaries: Summaries) -> object:
        """Returns an output row."""
        made = {name: summaries[at].result(kind) for name, kind, at in self._results}
        made |= {name: getattr(row, name) for name in self.given.names}
        return self.output.row_class(**made)

    @cached_property
    def _are_numbers(self) -> list[tuple[str, bool]]:
        return [(name, self.given.column(name).spark_type in _NUMBERS) for name in self.columns]

    @cached_property
    def _results(self) -> list[tuple[str, str, int]]:
        return [(name, kind, self.columns.index(column)) for name, (kind, column) in self.wanted.items()]


class OverAggregates(KeyedProcessFunction[object, object]):
    """Emits each row with aggregates over its frame.

    Args:
        columns: what is computed.
        frame: the rows that are aggregated.
    """

    def __init__(self, columns: OverColumns, frame: Frame) -> None:
        self._columns = columns
        self._frame = frame

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        made = {n: (Origin(c, Derivation.AGGREGATION),) for n, (_, c) in self._columns.wanted.items()}
        return Origins(made, passes_on=True)

    def open(self, ctx: RuntimeContext) -> None:
        rows: object = GenericAlias(list, (self._columns.given.row_class,))
        waiting: MapStateDescriptor[int, list[object]] = MapStateDescriptor(_WAITING, int, rows)
        self._waiting: MapState[int, list[object]] = ctx.get_map_state(waiting)
        arguments = f"{self._frame.text} of {', '.join(self._columns.columns)}"
        if self._frame.bound is None:
            running = ValueStateDescriptor[Summaries](_RUNNING, list[Summary], arguments=arguments)
            self._running: ValueState[Summaries] = ctx.get_state(running)
            return
        self._rows: MapState[int, Row] = ctx.get_map_state(MapStateDescriptor(_ROWS, int, Row, arguments=arguments))
        self._position: ValueState[Position] = ctx.get_state(
            ValueStateDescriptor(_POSITION, Position, arguments=arguments)
        )

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
        if rows:
            self._waiting.remove(timestamp)
        values = [self._columns.values(row) for row in rows]
        summaries = self._unbounded(values) if self._frame.bound is None else self._bounded(timestamp, values, ctx)
        for row, found in zip(rows, summaries, strict=True):
            yield self._columns.emitted(row, found)

    def _bounded(self, time: int, values: list[Values], ctx: OnTimerContext) -> list[Summaries]:
        bound = self._frame.bound
        assert bound is not None
        position = self._position.value() or Position()
        frame, found = SlidingFrame(self._rows, position), []
        for row in values:
            frame.push(time, row)
            if not self._frame.is_range:
                frame.keep_newest(bound + 1)
                found.append(frame.summaries())
        if self._frame.is_range:
            frame.remove_before(time - bound)
            found = [frame.summaries()] * len(values)
            self._clean_up(time, position, ctx)
        if position.first == position.end:
            self._position.clear()
        else:
            self._position.update(position)
        return found

    def _clean_up(self, time: int, position: Position, ctx: OnTimerContext) -> None:
        """Registers a timer for the time at which no row is in the frame, if no other one follows.

        A key has one such timer: when it is reached, the next one is registered for the rows since.
        """
        if position.cleanup is not None and position.cleanup > time:
            return
        position.cleanup = None
        if position.first < position.end:
            position.cleanup = position.newest + (self._frame.bound or 0) + 1
            ctx.timer_service().register_event_time_timer(position.cleanup)

    def _unbounded(self, values: list[Values]) -> list[Summaries]:
        summaries = self._running.value() or [Summary()] * len(self._columns.columns)
        found = []
        for row in values:
            summaries = [before + Summary.of(value) for before, value in zip(summaries, row, strict=True)]
            found.append(summaries)
        self._running.update(summaries)
        return [summaries] * len(values) if self._frame.is_range else found
