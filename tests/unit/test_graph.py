"""What `build` may declare, and the errors of what it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stateflow import KeyedCoProcessFunction, OutputTag, RichMapFunction
from stateflow.api.graph.traversal import level_of
from stateflow.api.state_backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend, StateBackend
from stateflow.api.streams.data_stream import DataStream
from stateflow.config.sources import resolve
from stateflow.config.state_settings import StateSettings
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError, JobDefinitionError
from tests.support.errors import raises
from tests.support.graphs import Nothing, Nowhere, Pass, Row, environment


def _rows(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(Nothing(), uid="rows")


def _processed(stream: DataStream, uid: str = "op") -> DataStream:
    return stream.key_by("key").process(Pass(), output=Row, uid=uid)


def test_a_job_is_a_graph_of_what_was_declared() -> None:
    env = environment()
    rows = _rows(env)
    first = _processed(rows, "first")
    _processed(first.transform(lambda df: df), "second").sink_to(Nowhere(), uid="out")
    rows.sink_to(Nowhere(), uid="raw")
    env.graph.check()
    assert [n.uid for n in env.graph.sources] == ["rows"]
    assert [n.uid for n in env.graph.operators] == ["first", "second"]
    assert [n.uid for n in env.graph.sinks] == ["out", "raw"]
    assert [level_of(n) for n in env.graph.operators] == [1, 2]
    assert [level_of(n.parent) for n in env.graph.sinks] == [2, 0]


def test_a_key_keeps_columns_order_and_types() -> None:
    env = environment()
    _rows(env).key_by("number", "key", order_by=["other"]).process(Pass(), output=Row, uid="op")
    keying = env.graph.operators[0].keying
    assert (keying.columns, keying.order_by, keying.types) == (("number", "key"), ("other",), ("bigint", "string"))


def test_a_transform_may_change_the_row_class() -> None:
    class Other(Row):
        more: int = 0

    rows = _rows(environment())
    assert rows.transform(lambda df: df).schema is rows.schema
    assert rows.transform(lambda df: df, Other).schema.names == ("key", "number", "other", "more")


# -- mistakes -----------------------------------------------------------------------------------------------------


def _twice(kind: str) -> Callable[[StreamExecutionEnvironment], object]:
    def declare(env: StreamExecutionEnvironment) -> None:
        rows = env.from_source(Nothing(), uid="x" if kind == "source" else "rows")
        stream = _processed(rows, "x" if kind == "operator" else "op")
        if kind == "sink":
            stream.sink_to(Nowhere(), uid="x")
        stream.sink_to(Nowhere(), uid="x")

    return declare


class Other(msgspec.Struct):
    """Other columns than `Row`."""

    key: int


class Both(KeyedCoProcessFunction[Row, Row, Row]):
    """A function that is only declared."""


_BOTH = Both()


def _more(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(Nothing(), uid="more")


def _rows_again(env: StreamExecutionEnvironment) -> DataStream:
    return DataStream(env.graph, env.graph.sources[0])


def _two_classes(env: StreamExecutionEnvironment) -> None:
    stream = _processed(_rows(env))
    stream.get_side_output(OutputTag("late", Row))
    stream.get_side_output(OutputTag("late", Other))


MISTAKES: dict[str, tuple[Callable[[StreamExecutionEnvironment], object], dict[str, Any]]] = {
    "a source without uid": (lambda env: env.from_source(Nothing()), {"kind": "source"}),
    "an operator without uid": (lambda env: _processed(_rows(env), ""), {"kind": "operator"}),
    "a sink without uid": (lambda env: _rows(env).sink_to(Nowhere()), {"kind": "sink"}),
    "a uid of a source again": (_twice("source"), {"uid": "x"}),
    "a uid of an operator again": (_twice("operator"), {"uid": "x"}),
    "a uid of a sink again": (_twice("sink"), {"uid": "x"}),
    "no key column": (lambda env: _rows(env).key_by(), {"called": "key_by", "stream": "rows"}),
    "an unknown key column": (
        lambda env: _rows(env).key_by("kye"),
        {"column": "kye", "row_class": "Row", "called": "key_by", "stream": "rows"},
    ),
    "an unknown order column": (
        lambda env: _rows(env).key_by("key", order_by=["time"]),
        {"column": "time", "row_class": "Row", "called": "order_by", "stream": "rows"},
    ),
    "no source object": (
        lambda env: env.from_source("path", uid="rows"),
        {"given": "'path'", "uid": "rows"},  # type: ignore[arg-type]
    ),
    "a class for a function": (
        lambda env: _rows(env).key_by("key").process(Pass, output=Row, uid="op"),  # type: ignore[arg-type]
        {"given": repr(Pass), "uid": "op"},
    ),
    "a function for a function": (
        lambda env: _rows(env).key_by("key").process(len, output=Row, uid="op"),  # type: ignore[arg-type]
        {"given": repr(len), "uid": "op"},
    ),
    "no sink object": (
        lambda env: _rows(env).sink_to("table", uid="out"),
        {"given": "'table'", "uid": "out"},  # type: ignore[arg-type]
    ),
    "a transform that cannot be called": (
        lambda env: _rows(env).transform("upper"),
        {"given": "'upper'"},  # type: ignore[arg-type]
    ),
    "a union of streams with other columns": (
        lambda env: _rows(env).union(env.from_source(Nothing(Other), uid="others")),
        {"first": "`key` string, `number` bigint, `other` double", "other": "`key` bigint"},
    ),
    "a union with nothing": (lambda env: _rows(env).union(), {"called": "union"}),
    "a union with a keyed stream": (
        lambda env: _rows(env).union(env.from_source(Nothing(), uid="others").key_by("key")),  # type: ignore[arg-type]
        {"called": "union", "given": "KeyedStream"},
    ),
    "a stream of another job": (
        lambda env: _rows(env).union(_rows(environment())),
        {"called": "union", "given": "DataStream"},
    ),
    "a connection to a stream that is not keyed": (
        lambda env: _rows(env).key_by("key").connect(env.from_source(Nothing(), uid="others")),  # type: ignore[arg-type]
        {"given": "DataStream"},
    ),
    "a connection of keys of other types": (
        lambda env: _rows(env).key_by("key").connect(env.from_source(Nothing(Other), uid="others").key_by("key")),
        {"first": ("string",), "second": ("bigint",)},
    ),
    "a connection of which one side is ordered": (
        lambda env: _rows(env).key_by("key", order_by=["number"]).connect(_more(env).key_by("key")),
        {"first": ("bigint",), "second": ()},
    ),
    "a function of one stream for two": (
        lambda env: _rows(env).key_by("key").connect(_more(env).key_by("key")).process(Pass(), output=Row, uid="op"),
        {"wanted": "KeyedCoProcessFunction", "uid": "op"},
    ),
    "a function of one stream for a broadcast": (
        lambda env: _rows(env).key_by("key").connect(_more(env).broadcast()).process(Pass(), output=Row, uid="op"),
        {"wanted": "KeyedBroadcastProcessFunction", "uid": "op"},
    ),
    "a function of two streams for one": (
        lambda env: _rows(env).key_by("key").process(_BOTH, output=Row, uid="op"),  # type: ignore[arg-type]
        {"given": repr(_BOTH), "uid": "op"},
    ),
    "a side output of a source": (lambda env: _rows(env).get_side_output(OutputTag("late", Row)), {"tag": "late"}),
    "a side output by its name": (
        lambda env: _processed(_rows(env)).get_side_output("late"),
        {"given": "'late'"},  # type: ignore[arg-type]
    ),
    "a side output with two row classes": (_two_classes, {"uid": "op", "tag": "late"}),
    "an output tag without a name": (lambda env: OutputTag("", Row), {"given": "''"}),
    "a class for a row function": (
        lambda env: _rows(env).map(RichMapFunction),
        {"called": "map", "given": repr(RichMapFunction)},  # type: ignore[arg-type]
    ),
    "a rich function of another kind": (lambda env: _rows(env).filter(RichMapFunction()), {"called": "filter"}),
    "no function to reduce with": (
        lambda env: _rows(env).key_by("key").reduce("sum", uid="op"),  # type: ignore[arg-type]
        {"called": "reduce", "given": "'sum'", "uid": "op"},
    ),
    "no aggregate function": (
        lambda env: _rows(env).key_by("key").aggregate(sum, accumulator=int, output=Row, uid="op"),  # type: ignore[arg-type]
        {"given": repr(sum), "uid": "op"},
    ),
    "a short form without uid": (lambda env: _rows(env).key_by("key").reduce(lambda a, b: a), {"kind": "operator"}),
    "a second print without uid": (lambda env: (_rows(env).print(), _rows_again(env).print()), {"uid": "print"}),
    "a negative number of lines": (lambda env: _rows(env).print(limit=-1), {"limit": -1}),
    "a collection with other rows": (
        lambda env: env.from_collection([Other(1)], Row, uid="rows"),
        {"given": "Other(key=1)"},
    ),
    "an output class without columns": (
        lambda env: _rows(env).key_by("key").process(Pass(), output=dict, uid="op"),
        {"given": repr(dict)},
    ),
}


@pytest.mark.parametrize(("declare", "facts"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_where_it_is_made(declare: Any, facts: dict[str, Any]) -> None:
    with raises(JobDefinitionError, **facts) as refused:
        declare(environment())
    # Else it is the error of another mistake; "given" may have the address of an object.
    assert refused.value.facts.keys() <= facts.keys() | {"given"}
    assert refused.value.hint


@pytest.mark.parametrize("uid", ["../x", "a/b", "a b", ".hidden", "ü", "x" * 101, "a\n", 5])
def test_a_uid_becomes_part_of_paths(uid: Any) -> None:
    with raises(ConfigError, name=uid):
        environment().from_source(Nothing(), uid=uid)


def test_a_graph_needs_a_source() -> None:
    env = environment()
    _rows(env).sink_to(Nowhere(), uid="out")
    with raises(JobDefinitionError):
        replace(env.graph, sources=[]).check()


def test_a_graph_needs_an_operator_or_a_sink() -> None:
    env = environment()
    _rows(env).transform(lambda df: df)
    with raises(JobDefinitionError, sources=["rows"]):
        env.graph.check()


def test_an_operator_without_a_sink_is_enough() -> None:
    env = environment()
    _processed(_rows(env))
    env.graph.check()


def test_a_source_that_nothing_reads_is_refused_by_its_uid() -> None:
    env = environment()
    _rows(env).sink_to(Nowhere(), uid="out")
    env.from_source(Nothing(), uid="more")
    with raises(JobDefinitionError, sources=["more"]):
        env.graph.check()


def test_parameters_are_asked_for_by_name() -> None:
    env = StreamExecutionEnvironment({"tables": "/t"})
    assert (env.parameter("tables"), env.parameter("none", "default")) == ("/t", "default")
    with raises(JobDefinitionError, name="none", given=["tables"]) as refused:
        env.parameter("none")
    assert "--set job.none=" in refused.value.hint


def test_defaults_in_code_have_dots() -> None:
    env = environment()
    env.configure(checkpoints__retained=5, parallelism=3)
    assert env.defaults == {"checkpoints.retained": 5, "parallelism": 3}


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        (MemoryStateBackend(), StateSettings(backend="memory")),
        (MemoryStateBackend(limit_bytes=99), StateSettings(backend="memory", memory_limit_bytes=99)),
        (FsStateBackend(), StateSettings(backend="filesystem")),
        (FsStateBackend(inline_below_bytes=99), StateSettings(backend="filesystem", inline_below_bytes=99)),
        (RocksDBStateBackend(), StateSettings()),
        (RocksDBStateBackend(incremental=False), StateSettings(incremental=False)),
    ],
)
def test_a_state_backend_in_code_stands_for_settings_and_is_weaker_than_a_file(
    backend: StateBackend, settings: StateSettings
) -> None:
    env = environment()
    env.set_state_backend(backend)
    assert resolve(env.defaults).state == settings
    assert resolve(env.defaults, {"state.backend": "memory"}).state.backend == "memory"


def test_what_is_no_state_backend_is_refused() -> None:
    with raises(JobDefinitionError, given="'memory'"):
        environment().set_state_backend("memory")  # type: ignore[arg-type]
