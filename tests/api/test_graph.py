"""What a job may declare, and the errors of what it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow import KeyedCoProcessFunction, OutputTag, RichMapFunction, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.graph import event_time_of, level_of
from stateflow.api.schema import RowSchema
from stateflow.api.state_backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend, StateBackend
from stateflow.api.streams.data_stream import DataStream
from stateflow.config.settings import StateSettings
from stateflow.config.sources import resolve
from stateflow.environment import declare
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.helpers import closest_first, did_you_mean
from stateflow.runtime.job_loader import load_job
from tests.support.errors import raises
from tests.support.graphs import DeclaredJob, Nothing, Nowhere, Pass, Row, environment, process


@pytest.fixture
def job() -> DeclaredJob:
    return DeclaredJob()


def test_a_job_is_a_graph_of_what_was_declared(job: DeclaredJob) -> None:
    first = process(job.rows, "first")
    process(first.transform(lambda df: df), "second").sink_to(Nowhere(), uid="out")
    job.rows.sink_to(Nowhere(), uid="raw")
    graph = job.env.graph
    graph.check()
    assert [n.uid for n in graph.sources] == ["rows"]
    assert [(n.uid, level_of(n)) for n in graph.operators] == [("first", 1), ("second", 2)]
    assert [(n.uid, level_of(n.parent)) for n in graph.sinks] == [("out", 2), ("raw", 0)]


@pytest.mark.parametrize("order_by", ["other", ["other"]])
def test_a_key_keeps_columns_order_and_types(job: DeclaredJob, order_by: str | list[str]) -> None:
    job.rows.key_by("number", "key", order_by=order_by).process(Pass(), output=Row, uid="op")
    keying = job.env.graph.operators[0].keying
    assert (keying.columns, keying.order_by, keying.types) == (("number", "key"), ("other",), ("bigint", "string"))


def test_a_transform_may_change_the_row_class(job: DeclaredJob) -> None:
    class Wider(Row):
        more: int = 0

    assert job.rows.transform(lambda df: df).schema is job.rows.schema
    assert job.rows.transform(lambda df: df, Wider).schema.names == ("key", "number", "other", "more")


class Other(msgspec.Struct):
    """Other columns than `Row`."""

    key: int


class Identified(msgspec.Struct):
    """A key that is stored as text, and a nested column."""

    key: UUID
    parts: list[int]


class Named:
    """Shown by the name of its class, without an address."""

    def __repr__(self) -> str:
        return type(self).__name__


class One(Named, Pass):
    """A function of one stream."""


class Both(Named, KeyedCoProcessFunction[Row, Row, Row]):
    """A function of two streams."""


class Rich(Named, RichMapFunction[Row, Row]):
    """A row function."""


class Timeless(msgspec.Struct):
    """No column that is a time."""

    key: str


class Job(DeclaredJob):
    """With short names for the table below, where calls are wrong on purpose."""

    env: Any
    rows: Any

    def keyed(self, **options: Any) -> Any:
        return self.rows.key_by("key", **options)

    def other(self, row_class: type = Row) -> Any:
        return self.source("more", row_class).key_by("key")

    def again(self) -> Any:
        return DataStream(self.env.graph, self.env.graph.sources[0])

    def timed(self, strategy: Any) -> Any:
        return self.rows.assign_timestamps_and_watermarks(strategy)

    def side_output(self, tag: Any) -> Any:
        return process(self.rows).get_side_output(tag)

    def connected(self, other: Any) -> Any:
        return self.keyed().connect(other).process(One(), output=Row, uid="op")

    def check_after(self, stream: Any) -> None:
        process(stream, "last")
        self.env.graph.check()


for_bound: Any = WatermarkStrategy.for_bounded_out_of_orderness
LATE = OutputTag("late", Row)
TWO_TAGS: tuple[Any, ...] = (LATE, OutputTag("late", Other))
TIMED = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=5)).with_timestamp_column("number")
IDLE = TIMED.with_idleness(timedelta(1))

MISTAKES: dict[str, Callable[[Job], object]] = {
    "a source without uid": lambda job: job.env.from_source(Nothing()),
    "an operator without uid": lambda job: process(job.rows, ""),
    "a short form without uid": lambda job: job.keyed().reduce(max),
    "a sink without uid": lambda job: job.rows.sink_to(Nowhere()),
    "a uid of a source again": lambda job: job.rows.sink_to(Nowhere(), uid="rows"),
    "a uid of an operator again": lambda job: process(job.rows).sink_to(Nowhere(), uid="op"),
    "a uid of a sink again": lambda job: [job.rows.sink_to(Nowhere(), uid="x") for _ in "ab"],
    "a second print without uid": lambda job: [job.rows.print(), job.again().print()],
    "a negative number of lines": lambda job: job.rows.print(limit=-1),
    "no key column": lambda job: job.rows.key_by(),
    "no source object": lambda job: job.env.from_source("path", uid="x"),
    "no sink object": lambda job: job.rows.sink_to("table", uid="x"),
    "a class for a function": lambda job: process(job.rows, "op", Pass),
    "a callable for a function": lambda job: process(job.rows, "op", len),
    "a function of two streams": lambda job: process(job.rows, "op", Both()),
    "an output class without columns": lambda job: process(job.rows, output=dict),
    "a transform that cannot be called": lambda job: job.rows.transform("upper"),
    "a class for a row function": lambda job: job.rows.map(RichMapFunction),
    "a rich function of another kind": lambda job: job.rows.filter(Rich()),
    "no function to reduce with": lambda job: job.keyed().reduce("sum", uid="op"),
    "no aggregate function": lambda job: job.keyed().aggregate(sum, accumulator=int, output=Row, uid="op"),
    "a collection with other rows": lambda job: job.env.from_collection([Other(1)], Row, uid="x"),
    "a union with nothing": lambda job: job.rows.union(),
    "a union with other columns": lambda job: job.rows.union(job.source("more", Other)),
    "a union with a keyed stream": lambda job: job.rows.union(job.other()),
    "a stream of another job": lambda job: job.rows.union(Job().rows),
    "a connection to a stream without keys": lambda job: job.keyed().connect(job.source()),
    "a connection of keys of other types": lambda job: job.keyed().connect(job.other(Other)),
    "a connection of text keys and UUIDs": lambda job: job.keyed().connect(job.other(Identified)),
    "an order by lists": lambda job: job.source("more", Identified).key_by("key", order_by=["parts"]),
    "a connection of which one side is ordered": lambda job: job.keyed(order_by=["number"]).connect(job.other()),
    "a function of one stream for two": lambda job: job.connected(job.other()),
    "a function of one stream for a broadcast": lambda job: job.connected(job.source().broadcast()),
    "a side output of a source": lambda job: job.rows.get_side_output(LATE),
    "a side output by its name": lambda job: job.side_output("late"),
    "a side output with two row classes": lambda job: list(map(process(job.rows).get_side_output, TWO_TAGS)),
    "an output tag without a name": lambda job: OutputTag("", Row),
    "a strategy without a column": lambda job: job.timed(WatermarkStrategy.for_monotonous_timestamps()),
    "a column that is not a time": lambda job: job.timed(TIMED.with_timestamp_column("key")),
    "no strategy object": lambda job: job.timed("number"),
    "a negative bound": lambda job: for_bound(timedelta(-1)),
    "a bound without a unit": lambda job: for_bound(5),
    "a strategy after a union": lambda job: job.rows.union(job.source()).assign_timestamps_and_watermarks(TIMED),
    "a strategy after an operator": lambda job: process(job.rows).assign_timestamps_and_watermarks(TIMED),
    "two strategies for a source": lambda job: job.check_after(job.timed(TIMED).union(job.timed(IDLE))),
    "a time lost before the first key_by": lambda job: job.check_after(job.timed(TIMED).map(len, output=Timeless)),
    "no state backend": lambda job: job.env.set_state_backend("memory"),
    "a missing parameter": lambda job: job.env.parameter("none"),
    "a graph without a source": lambda job: replace(job.env.graph, sources=[]).check(),
    "a source that nothing reads": lambda job: job.check_after(job.source()),
}


def test_a_mistake_is_refused_with_its_facts(golden: SnapshotAssertion) -> None:
    found = []
    for name, mistake in MISTAKES.items():
        with pytest.raises(JobDefinitionError) as refused:
            mistake(Job())
        facts = ", ".join(f"{fact}={value!r}" for fact, value in refused.value.facts.items())
        assert refused.value.hint
        found.append(f"{name}: {facts}\n")
    assert "".join(found) == golden


@pytest.mark.parametrize("kind", [int, datetime])
def test_event_time_is_a_number_or_a_datetime_and_may_be_lost_after_an_operator(kind: type) -> None:
    job = DeclaredJob()
    timed = job.source("timed", msgspec.defstruct("Timed", [("key", str), ("number", kind)]))
    first = process(timed.assign_timestamps_and_watermarks(TIMED), "first")
    second = process(first, "second", output=Timeless)
    process(second, "third").sink_to(Nowhere(), uid="out")
    job.rows.sink_to(Nowhere(), uid="rest")
    job.env.graph.check()
    assert [event_time_of(o.inputs[0].node) for o in job.env.graph.operators] == ["number", "number", ""]


@pytest.mark.parametrize("uid", ["../x", "a/b", "a b", ".hidden", "ü", "x" * 101, "a\n", 5])
def test_a_uid_must_be_fit_for_paths(uid: Any) -> None:
    with raises(ConfigError, name=uid):
        environment().from_source(Nothing(), uid=uid)


def test_a_source_needs_an_operator_or_a_sink(job: DeclaredJob) -> None:
    job.rows.transform(lambda df: df)
    with raises(JobDefinitionError, sources=["rows"]):
        job.env.graph.check()
    process(job.rows)
    job.env.graph.check()


def test_a_parameter_has_a_value_or_a_default() -> None:
    env = StreamExecutionEnvironment({"tables": "/t"})
    assert (env.parameter("tables"), env.parameter("none", "default")) == ("/t", "default")


def test_defaults_in_code_have_dots() -> None:
    env = environment()
    env.configure(checkpoints__retained=5, parallelism=3)
    assert env.defaults == {"checkpoints.retained": 5, "parallelism": 3}


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        (MemoryStateBackend(limit_bytes=99), StateSettings(backend="memory", memory_limit_bytes=99)),
        (MemoryStateBackend(), StateSettings(backend="memory")),
        (FsStateBackend(inline_below_bytes=99), StateSettings(backend="filesystem", inline_below_bytes=99)),
        (FsStateBackend(), StateSettings(backend="filesystem")),
        (RocksDBStateBackend(incremental=False), StateSettings(incremental=False)),
        (RocksDBStateBackend(), StateSettings()),
    ],
)
def test_a_state_backend_in_code_sets_defaults(backend: StateBackend, settings: StateSettings) -> None:
    env = environment()
    env.set_state_backend(backend)
    assert resolve(env.defaults).state == settings
    assert resolve(env.defaults, {"state.backend": "memory"}).state.backend == "memory"


# -- unknown columns: the error names the call, the stream, the line of the job, and the closest column first ----------


class Order(msgspec.Struct):
    order_id: int
    amount: float
    customer_id: str
    time: datetime


MISSPELT = WatermarkStrategy.for_bounded_out_of_orderness(timedelta()).with_timestamp_column("custmer_id")


def _kept(rows: Any) -> Any:
    return rows.key_by("customer_id").process(Pass(), output=Order, uid="keep")


@pytest.mark.parametrize(
    ("call", "called", "stream"),
    [
        (lambda rows: rows.key_by("custmer_id"), "key_by", "orders"),
        (lambda rows: rows.key_by("time", order_by=["custmer_id"]), "order_by", "orders"),
        (lambda rows: rows.filter(lambda row: True).key_by("custmer_id"), "key_by", "orders"),
        (lambda rows: _kept(rows).key_by("custmer_id"), "key_by", "keep"),
        (lambda rows: _kept(rows).union(rows).key_by("custmer_id"), "key_by", "keep, orders"),
        (lambda rows: rows.assign_timestamps_and_watermarks(MISSPELT), "assign_timestamps_and_watermarks", "orders"),
    ],
)
def test_the_error_names_the_call_and_the_line(call: Callable[[Any], Any], called: str, stream: str) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        call(env.from_collection([], Order, uid="orders"))

    where = f"{__file__}:{call.__code__.co_firstlineno}"
    facts = {"column": "custmer_id", "row_class": "Order", "called": called, "stream": stream, "where": where}
    with raises(JobDefinitionError, **facts) as refused:
        declare(build, "job", ())
    assert "customer_id, order_id, amount, time" in refused.value.hint


def test_an_aggregate_over_an_unknown_column_names_the_operator() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([], Order, uid="orders").key_by("customer_id")
        rows.aggregate_columns({"total": ("sum", "amuont")}, output=Order, uid="totals").sink_to(Nowhere())

    with raises(JobDefinitionError, operator="totals"):
        declare(build, "job", ())


def test_an_error_at_the_top_of_a_job_file_names_its_line(tmp_path: Path) -> None:
    job = tmp_path / "top_level_mistake.py"
    job.write_text("from stateflow import FileSource\n\nROWS = FileSource('in', schema=int)\n")
    with raises(JobDefinitionError, where=f"{job}:3"):
        load_job(job)


def test_names_like_the_wrong_one_come_first() -> None:
    assert closest_first("ORDR", ["time", "order", "orders", "x"]) == ["order", "orders", "time", "x"]
    alike = did_you_mean("jsn", ["csv", "json"])
    assert "json" in alike and "csv" not in alike
    assert "csv, json" in did_you_mean("zzz", ["csv", "json"])
    schema = RowSchema.of(Order)
    assert schema.column("amount").spark_type == "double"
    with raises(JobDefinitionError, column="Amount", row_class="Order"):
        schema.column("Amount")
