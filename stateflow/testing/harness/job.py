"""The job that a harness runs: its inputs, the function, and a collecting sink per output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.functions.rich import RichFilterFunction, RichFlatMapFunction, RichFunction, RichMapFunction
from stateflow.api.graph import Graph, Node
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.api.source import LocalSource, Slice
from stateflow.api.state_backends import StateBackend
from stateflow.api.streams.connected_streams import BroadcastStream
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.config.settings import SourceSettings
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import maker_of

Rows = list[Any]
"""Rows of any class: a job's rows have one class for each of its streams, which type checkers cannot infer here."""


class PushedRows(LocalSource):
    """A source without rows; the harness passes the pushed rows to the tasks itself."""

    def __init__(self, row_class: type[object]) -> None:
        self.schema = RowSchema.of(row_class)

    @property
    def description(self) -> str:
        return f"PushedRows[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        return None


class CollectedRows(Sink):
    """A sink that keeps the rows of a batch in this process; the harness drops them if the batch fails."""

    def __init__(self) -> None:
        self._rows: Rows = []

    def __deepcopy__(self, memo: object) -> CollectedRows:
        """Returns the object itself: tasks, which receive a copy of their operators, write to this sink."""
        return self

    def add(self, rows: pa.RecordBatch, schema: RowSchema) -> None:
        """Adds rows that a task has emitted."""
        self._rows += to_rows(rows.columns, schema)

    def take(self) -> Rows:
        """Returns the rows that were written since the last call, and removes them."""
        rows, self._rows = self._rows, []
        return rows

    def for_changelog(self, changelog: Changelog) -> CollectedRows:
        return self

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        return context.uid

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return _RowCollector(context.schema, self)

    def open_table(self, context: SinkContext) -> SinkTable:
        raise JobDefinitionError("a harness has no table", hint="declare a sink in a job and run the job")

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return CollectedRows()


class _RowCollector(SinkWriter):
    def __init__(self, schema: RowSchema, sink: CollectedRows) -> None:
        self._schema = schema
        self._sink = sink

    def write(self, rows: pa.RecordBatch) -> None:
        self._sink.add(rows, self._schema)

    def close(self) -> list[Committable]:
        return []


def convert_rows(rows: Iterable[object], row_class: type[object]) -> list[object]:
    """Returns the rows as objects of `row_class`.

    Args:
        rows: such objects, dictionaries by column, or tuples in the order of columns.
        row_class: the row class of the input.

    Raises:
        SchemaMismatch: a row does not fit; the error names it.
    """
    schema = RowSchema.of(row_class)
    result = [_typed(row, schema) for row in rows]
    try:
        to_batch(result, schema)
    except SchemaMismatch as e:
        raise SchemaMismatch(
            "a pushed row does not match its class", hint="compare the row's values with the class", **e.facts
        ) from e
    return result


def _typed(row: object, schema: RowSchema) -> object:
    if isinstance(row, schema.row_class):
        return row
    try:
        if isinstance(row, Mapping):
            return schema.row_class(**row)
        if isinstance(row, tuple | list):
            return maker_of(schema.row_class, schema.names)(*row)
        raise TypeError(f"it is of type {type(row).__name__}")
    except (TypeError, ValueError) as e:
        raise SchemaMismatch(
            "a pushed row does not match its class",
            hint="push objects of the class, dictionaries or tuples",
            row_class=schema.row_class.__name__,
            row=repr(row)[:500],
            reason=str(e),
        ) from e


OPERATOR = "operator"
"""The uid of an operator that is declared by a function object."""


@dataclass(frozen=True)
class KeyedInput:
    """A keyed input of a harness.

    Args:
        row_class: class of the rows.
        key_by: the key column, or several; empty for a callable that takes the stream without a key, for `window_all`.
        order_by: columns that order a key's rows within a push.
        event_time: the column that `ctx.timestamp()` returns; by default rows have no event time.
        out_of_orderness: how late rows may arrive. With it, each push advances the watermark and fires a key's timers
            between its rows, as a run does. By default, only `advance_watermark` advances the watermark.
    """

    row_class: type[object]
    key_by: str | Sequence[str] = ()
    order_by: Sequence[str] = ()
    event_time: str = ""
    out_of_orderness: timedelta | None = None


@dataclass(frozen=True)
class BroadcastInput:
    """A broadcast input of a harness, which every subtask receives. Arguments: see `KeyedInput`."""

    row_class: type[object]
    event_time: str = ""
    out_of_orderness: timedelta | None = None


Input = KeyedInput | BroadcastInput
HarnessFunction = KeyedFunction[object] | RichFunction | Callable[..., DataStream]
"""A function object, or a callable that takes the input streams and returns a stream."""


def sql_query(text: str, *tables: str, allowed_lateness: timedelta = timedelta()) -> Callable[..., DataStream]:
    """Returns the declaration of an SQL query, for a harness of its operators.

    Args:
        text: the query.
        tables: the names of its tables, in the order of the inputs of the harness, which have no keys.
        allowed_lateness: as of `StreamExecutionEnvironment.sql_query`.

    Raises:
        JobDefinitionError: from the harness, as of `StreamExecutionEnvironment.sql_query`.
    """

    def declare(*streams: DataStream) -> DataStream:
        env = StreamExecutionEnvironment()
        for name, stream in zip(tables, streams, strict=True):
            env.register_table(name, stream)
        return env.sql_query(text, uid=OPERATOR, allowed_lateness=allowed_lateness)

    return declare


@dataclass(frozen=True)
class Definition:
    """The arguments of a harness; see `KeyedHarness`."""

    function: HarnessFunction
    inputs: tuple[Input, ...]
    output: type[object] | None
    side_outputs: tuple[OutputTag[Any], ...]
    on_error: str | DeadLetters
    backend: StateBackend
    settings: Mapping[str, object]

    @property
    def derives_watermark(self) -> bool:
        """Whether pushed rows advance the watermark.

        Raises:
            JobDefinitionError: only some of the inputs with event time have an `out_of_orderness`.
        """
        bounds = [each.out_of_orderness for each in self.inputs if each.event_time]
        if any(bound is None for bound in bounds) and any(bound is not None for bound in bounds):
            raise JobDefinitionError(
                "only one of two inputs has an out_of_orderness",
                hint="pass it for both inputs with event time, or for none",
            )
        return bool(bounds) and None not in bounds


@dataclass(frozen=True)
class HarnessJob:
    """The job of a harness, and the sinks that collect its outputs.

    Attributes:
        main: sink of the main output.
        side: sinks of side outputs, by tag name.
        dead_letters: sink of all dead letters.
    """

    graph: Graph
    main: CollectedRows
    side: Mapping[str, CollectedRows]
    dead_letters: CollectedRows

    @property
    def sinks(self) -> tuple[CollectedRows, ...]:
        """All sinks."""
        return (self.main, *self.side.values(), self.dead_letters)


def source_uid(number: int) -> str:
    """Returns the uid of an input, by its number from 1."""
    return f"harness-input-{number}"


def declare_job(
    env: StreamExecutionEnvironment, definition: Definition, new_sink: Callable[[], CollectedRows]
) -> HarnessJob:
    """Declares the job in `env`, with a new sink for each output.

    Raises:
        JobDefinitionError: function and inputs do not fit, as for a job.
    """
    env.set_state_backend(definition.backend)
    streams = [_input_stream(env, number, each) for number, each in enumerate(definition.inputs, 1)]
    result = _result(definition, streams)
    if not isinstance(result, DataStream):
        raise JobDefinitionError(
            "the function of a harness must return a stream",
            hint="return the result of process, map or another method of the keyed stream",
            given=repr(result),
        )
    main, letters = new_sink(), new_sink()
    side: dict[str, CollectedRows] = {}
    result.sink_to(main, uid="harness-output")
    for number, tag in enumerate(definition.side_outputs, 1):
        stream, sink = result.get_side_output(tag), side.setdefault(tag.name, new_sink())
        stream.sink_to(sink, uid=f"harness-side-output-{number}")
    for number, stream in enumerate(_dead_letters(env.graph), 1):
        stream.sink_to(letters, uid=f"harness-dead-letters-{number}")
    return HarnessJob(env.graph, main, side, letters)


def _input_stream(
    env: StreamExecutionEnvironment, number: int, given: Input
) -> KeyedStream[DataStream] | BroadcastStream | DataStream:
    if not isinstance(given, KeyedInput | BroadcastInput):
        raise JobDefinitionError(
            "an input of a harness is neither a KeyedInput nor a BroadcastInput",
            hint='KeyedInput(Row, key_by="column") or BroadcastInput(Row)',
            given=repr(given),
        )
    stream = env.from_source(PushedRows(given.row_class), uid=source_uid(number))
    if given.event_time:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(given.out_of_orderness or timedelta())
        stream = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_column(given.event_time))
    if isinstance(given, BroadcastInput):
        return stream.broadcast()
    columns = (given.key_by,) if isinstance(given.key_by, str) else tuple(given.key_by)
    return stream.key_by(*columns, order_by=given.order_by) if columns else stream


def _result(definition: Definition, streams: Sequence[Any]) -> object:
    """Returns the stream that the function produces from the inputs."""
    function, kinds = definition.function, [type(each) for each in definition.inputs]
    wanted = _input_kinds(function)
    if wanted is None:
        return _build(definition, streams)
    if kinds != wanted:
        raise JobDefinitionError(
            "the inputs do not fit the function",
            hint=f"it takes {', '.join(kind.__name__ for kind in wanted)}",
            function=type(function).__name__,
            given=[kind.__name__ for kind in kinds],
        )
    if not all(each.key_by for each in definition.inputs if isinstance(each, KeyedInput)):
        raise JobDefinitionError(
            "the input of a function object has no key",
            hint='KeyedInput(Row, key_by="column"), or a callable: lambda rows: rows.window_all(…).process(…)',
            function=type(function).__name__,
        )
    if isinstance(function, RichFilterFunction):
        return streams[0].filter(function, uid=OPERATOR, on_error=definition.on_error)
    if definition.output is None:
        raise JobDefinitionError(
            "a harness needs the class of the emitted rows",
            hint="KeyedHarness(MyFunction(), …, output=Row)",
            function=type(function).__name__,
        )
    more = {"output": definition.output, "uid": OPERATOR, "on_error": definition.on_error}
    if isinstance(function, RichMapFunction):
        return streams[0].map(function, **more)
    if isinstance(function, RichFlatMapFunction):
        return streams[0].flat_map(function, **more)
    stream = streams[0] if len(streams) == 1 else streams[0].connect(streams[1])
    return stream.process(function, **more)


def _input_kinds(function: object) -> list[type[Input]] | None:
    """Returns the kinds of input that a function object takes; None for a callable, which takes any."""
    if isinstance(function, KeyedCoProcessFunction):
        return [KeyedInput, KeyedInput]
    if isinstance(function, KeyedBroadcastProcessFunction):
        return [KeyedInput, BroadcastInput]
    if isinstance(function, KeyedFunction | RichFunction):
        return [KeyedInput]
    if callable(function) and not isinstance(function, type):
        return None
    raise JobDefinitionError(
        "a harness needs a function object",
        hint="KeyedHarness(MyFunction(), …), or a callable that returns a stream: lambda rows: rows.map_with_state(…)",
        given=repr(function),
    )


def _build(definition: Definition, streams: Sequence[object]) -> object:
    given = {"output": definition.output is not None, "on_error": definition.on_error != FAIL}
    if any(given.values()):
        raise JobDefinitionError(
            "output and on_error of a harness require a function object",
            hint="pass them in the callable: rows.process(…, output=Row, on_error=…)",
            given=[name for name, is_given in given.items() if is_given],
        )
    assert callable(definition.function)
    return definition.function(*streams)


def _dead_letters(graph: Graph) -> Iterable[DataStream]:
    nodes: list[Node] = [*(o for o in graph.operators if o.on_error is not None), *graph.row_dead_letters]
    return [DataStream(graph, graph.dead_letters(node)) for node in nodes]
