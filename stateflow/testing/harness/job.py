"""What a harness runs: a job of one operator, or of a few, whose rows are pushed in and collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from stateflow.api.backends import StateBackend
from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.connected import BroadcastStream
from stateflow.api.dead_letters import DeadLetters
from stateflow.api.functions import KeyedFunction
from stateflow.api.graph import Graph, Node
from stateflow.api.keyed_stream import KeyedStream
from stateflow.api.rich_functions import (
    RichFilterFunction,
    RichFlatMapFunction,
    RichFunction,
    RichMapFunction,
)
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.api.source import LocalSource, Slice
from stateflow.api.streams import DataStream
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.runtime.rows import row_maker, to_batch, to_rows
from stateflow.settings import SourceSettings
from stateflow.state.handles import Committable

OPERATOR = "operator"
"""The uid of an operator that is given as a function object."""


@dataclass(frozen=True)
class KeyedInput:
    """Rows that a harness is pushed, and their key.

    Args:
        row_class: of the rows.
        key_by: the column of the key, or several.
        order_by: columns that order a key's rows within a push.
        event_time: the column that `ctx.timestamp()` gives; without it rows have no event time.
        out_of_orderness: how late rows may come: each push then moves the watermark, and fires a key's timers between
            its rows, as a run does. Without it the watermark moves by `advance_watermark` only.
    """

    row_class: type[Any]
    key_by: str | Sequence[str]
    order_by: Sequence[str] = ()
    event_time: str = ""
    out_of_orderness: timedelta | None = None


@dataclass(frozen=True)
class BroadcastInput:
    """Rows that every subtask gets; arguments as for `KeyedInput`."""

    row_class: type[Any]
    event_time: str = ""
    out_of_orderness: timedelta | None = None


Input = KeyedInput | BroadcastInput


@dataclass(frozen=True)
class Definition:
    """What a harness is made of; `KeyedHarness` explains each."""

    function: Any
    inputs: tuple[Input, ...]
    output: type[Any] | None
    side_outputs: tuple[OutputTag[Any], ...]
    on_error: str | DeadLetters
    backend: StateBackend
    settings: Mapping[str, Any]

    @property
    def moves_time(self) -> bool:
        """Whether event time follows from the rows that are pushed. Raises JobDefinitionError when it does for some
        inputs only."""
        bounds = [each.out_of_orderness for each in self.inputs if each.event_time]
        if any(bound is None for bound in bounds) and any(bound is not None for bound in bounds):
            raise JobDefinitionError("only one of two inputs has an out_of_orderness", hint="give it for both inputs "
                                     "with event time, or for none")  # fmt: skip
        return bool(bounds) and None not in bounds


class PushedRows(LocalSource):
    """A source that has no rows of its own."""

    def __init__(self, row_class: type[Any]) -> None:
        self.schema = RowSchema.of(row_class)

    @property
    def description(self) -> str:
        return f"PushedRows[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        return None


class CollectedRows(Sink):
    """Keeps rows in this process until the batch's end decides what becomes of them."""

    def __init__(self) -> None:
        self._rows: list[Any] = []

    def __deepcopy__(self, memo: object) -> CollectedRows:
        """Tasks get a copy of all that they are sent; this one they share."""
        return self

    def take(self) -> list[Any]:
        """The rows that were written since it was last asked."""
        rows, self._rows = self._rows, []
        return rows

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        return context.uid

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return _Collector(context.schema, self._rows)

    def open_table(self, context: SinkContext) -> SinkTable:
        raise JobDefinitionError("a harness publishes nothing", hint="use a sink of your own in a job")

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return CollectedRows()


class _Collector(SinkWriter):
    def __init__(self, schema: RowSchema, rows: list[Any]) -> None:
        self._maker = row_maker(schema)
        self._rows = rows

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += to_rows(rows.columns, self._maker)

    def close(self) -> list[Committable]:
        return []


@dataclass(frozen=True)
class HarnessGraph:
    """The job of a harness, and where its rows come out."""

    graph: Graph
    main: CollectedRows
    side: Mapping[str, CollectedRows]
    dead_letters: CollectedRows

    @property
    def sinks(self) -> tuple[CollectedRows, ...]:
        """All of them."""
        return (self.main, *self.side.values(), self.dead_letters)


def source_uid(number: int) -> str:
    """The uid of the input of that number, from 1."""
    return f"harness-input-{number}"


def declare_graph(env: StreamExecutionEnvironment, definition: Definition) -> HarnessGraph:
    """The job. Raises JobDefinitionError for a function and inputs that do not fit, as a job would."""
    env.set_state_backend(definition.backend)
    streams = [_stream(env, number, each) for number, each in enumerate(definition.inputs, 1)]
    result = _applied(definition, streams)
    if not isinstance(result, DataStream):
        raise JobDefinitionError("the function of a harness made no stream", hint="return what process, map or any "
                                 "other word on the keyed stream returned", given=repr(result))  # fmt: skip
    main, letters = CollectedRows(), CollectedRows()
    side: dict[str, CollectedRows] = {}
    result.sink_to(main, uid="harness-output")
    for number, tag in enumerate(definition.side_outputs, 1):
        stream, sink = result.get_side_output(tag), side.setdefault(tag.name, CollectedRows())
        stream.sink_to(sink, uid=f"harness-side-output-{number}")
    for number, stream in enumerate(_dead_letters(env.graph), 1):
        stream.sink_to(letters, uid=f"harness-dead-letters-{number}")
    return HarnessGraph(env.graph, main, side, letters)


def _stream(env: StreamExecutionEnvironment, number: int, given: Input) -> KeyedStream | BroadcastStream:
    if not isinstance(given, KeyedInput | BroadcastInput):
        raise JobDefinitionError("an input of a harness is none", hint="KeyedInput(Row, key_by=\"column\") or "
                                 "BroadcastInput(Row)", given=repr(given))  # fmt: skip
    stream = env.from_source(PushedRows(given.row_class), uid=source_uid(number))
    if given.event_time:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(given.out_of_orderness or timedelta())
        stream = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_column(given.event_time))
    if isinstance(given, BroadcastInput):
        return stream.broadcast()
    columns = (given.key_by,) if isinstance(given.key_by, str) else tuple(given.key_by)
    return stream.key_by(*columns, order_by=given.order_by)


def _applied(definition: Definition, streams: Sequence[Any]) -> Any:
    """The stream that the function makes of the inputs."""
    function, kinds = definition.function, [type(each) for each in definition.inputs]
    wanted = _wanted_inputs(function)
    if wanted is not None and kinds != wanted:
        raise JobDefinitionError("the inputs do not fit the function", hint=f"it takes "
                                 f"{', '.join(kind.__name__ for kind in wanted)}", function=type(function).__name__,
                                 given=[kind.__name__ for kind in kinds])  # fmt: skip
    if wanted is None:
        return _built(definition, streams)
    if isinstance(function, RichFilterFunction):
        return streams[0].filter(function, uid=OPERATOR, on_error=definition.on_error)
    if definition.output is None:
        raise JobDefinitionError("a harness needs the class of the rows that come out", hint="KeyedHarness(MyFunction("
                                 "), …, output=Row)", function=type(function).__name__)  # fmt: skip
    more = {"output": definition.output, "uid": OPERATOR, "on_error": definition.on_error}
    if isinstance(function, RichMapFunction):
        return streams[0].map(function, **more)
    if isinstance(function, RichFlatMapFunction):
        return streams[0].flat_map(function, **more)
    stream = streams[0] if len(streams) == 1 else streams[0].connect(streams[1])
    return stream.process(function, **more)


def _wanted_inputs(function: Any) -> list[type[Input]] | None:
    """What a function object takes; None for a callable that builds on whatever it is given."""
    if isinstance(function, KeyedCoProcessFunction):
        return [KeyedInput, KeyedInput]
    if isinstance(function, KeyedBroadcastProcessFunction):
        return [KeyedInput, BroadcastInput]
    if isinstance(function, KeyedFunction | RichFunction):
        return [KeyedInput]
    if callable(function) and not isinstance(function, type):
        return None
    raise JobDefinitionError("a harness needs a function object", hint="KeyedHarness(MyFunction(), …), or a callable "
                             "that makes a stream: lambda rows: rows.map_with_state(…)",
                             given=repr(function))  # fmt: skip


def _built(definition: Definition, streams: Sequence[Any]) -> Any:
    if definition.output is not None or definition.on_error != "fail":
        raise JobDefinitionError("output and on_error of a harness belong to a function object", hint="the callable "
                                 "gives them to what it calls: rows.process(…, output=Row, on_error=…)")  # fmt: skip
    return definition.function(*streams)


def _dead_letters(graph: Graph) -> Iterable[DataStream]:
    failing: list[Node] = [*(o for o in graph.operators if o.on_error is not None), *graph.caught]
    return [DataStream(graph, graph.dead_letters(node)) for node in failing]


def typed_rows(rows: Iterable[Any], row_class: type[Any]) -> list[Any]:
    """Objects of `row_class`. Raises SchemaMismatch that names the row.

    Args:
        rows: such objects, dictionaries by column, or tuples in the order of columns.
    """
    schema = RowSchema.of(row_class)
    result = [_typed(row, schema) for row in rows]
    try:
        to_batch(result, schema)
    except SchemaMismatch as e:
        raise SchemaMismatch("a row that is pushed is not of its class", hint="compare its values with the class",
                             **e.facts) from e  # fmt: skip
    return result


def _typed(row: Any, schema: RowSchema) -> Any:
    if isinstance(row, schema.row_class):
        return row
    try:
        if isinstance(row, Mapping):
            return schema.row_class(**row)
        if isinstance(row, tuple | list):
            return row_maker(schema)(*row)
        raise TypeError(f"it is of type {type(row).__name__}")
    except (TypeError, ValueError) as e:
        raise SchemaMismatch("a row that is pushed is not of its class", hint="push objects of it, dictionaries or "
                             "tuples", row_class=schema.row_class.__name__, row=repr(row)[:500],
                             reason=str(e)) from e  # fmt: skip
