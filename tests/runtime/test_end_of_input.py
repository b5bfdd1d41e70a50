"""The end of bounded sources and of a draining run: every event-time timer fires, and none of it is kept as state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from stateflow import (
    Context,
    FileSource,
    KeyedProcessFunction,
    OnTimerContext,
    StreamExecutionEnvironment,
    TimerService,
    WatermarkStrategy,
)
from stateflow.api.collection import CollectionSource
from stateflow.api.sink import SinkContext, SinkTable
from stateflow.api.source import Source
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.connectors.python import PythonSource
from stateflow.errors import StorageError
from stateflow.operations import describe
from stateflow.runtime.driver import batch_runner
from stateflow.runtime.job.job import Positions
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.testing.sinks import FolderSink
from tests.support import root_files
from tests.support.errors import raises
from tests.support.local_jobs import Build, Growing, LocalJobs

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
HOUR = 3_600_000


class Event(msgspec.Struct):
    key: str
    at: int


class Note(msgspec.Struct):
    what: str
    key: str
    at: int
    watermark: int


class Alarm(KeyedProcessFunction[Event, Note]):
    """Sets a timer of event time an hour after each row, and one of processing time; reports late rows."""

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(row.at + HOUR)
        timers.register_processing_time_timer(timers.current_processing_time() + HOUR)
        if row.at <= timers.current_watermark():
            yield Note("late", row.key, row.at, timers.current_watermark())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note(ctx.time_domain().value, ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark())


Streams = Callable[[StreamExecutionEnvironment], DataStream]


def _alarms(streams: Streams, sink: FolderSink) -> Build:
    def build(env: StreamExecutionEnvironment) -> None:
        streams(env).key_by("key").process(Alarm(), output=Note, uid="alarm").sink_to(sink, uid="out")

    return build


def _run(jobs: LocalJobs, streams: Streams, **settings: Any) -> str:
    return jobs.run(_alarms(streams, jobs.sink("out")), **{"run__max_tick_batches": 3, **settings})


def _events(*times: int, source: type[CollectionSource] = Growing) -> Streams:
    rows = source([Event("a", at) for at in times], Event)
    return lambda env: env.from_source(rows, uid="rows").assign_timestamps_and_watermarks(STRATEGY)


def _bounded(*times: int) -> Streams:
    return _events(*times, source=CollectionSource)


def _watermarks(jobs: LocalJobs) -> set[int | None]:
    manifest = root_files.read_manifest(jobs.folder / "root", root_files.head(jobs.folder / "root").doc["manifest"])
    return {operator["watermark"] for operator in manifest["operators"]}


def test_the_end_of_a_bounded_source_fires_every_event_time_timer_and_no_other(jobs: LocalJobs) -> None:
    assert _run(jobs, _bounded(1, 2)) == "caught-up"
    end = TimerService.MAX_WATERMARK
    assert jobs.rows() == [("event", "a", HOUR + at, end) for at in (1, 2)]
    assert [result.rows_in for result in jobs.results] == [2, 0]
    assert _watermarks(jobs) == {1}
    assert not describe(str(jobs.folder / "root")).drained


def test_after_the_end_a_run_without_rows_does_nothing_and_additional_rows_are_not_late(jobs: LocalJobs) -> None:
    _run(jobs, _bounded(1, 2))
    _run(jobs, _bounded(1, 2))
    assert jobs.results == []
    _run(jobs, _bounded(1, 2, 2, 3))
    assert [(what, at) for what, _, at, _ in jobs.rows()] == [("event", HOUR + at) for at in (1, 2, 2, 3)]


def test_a_growing_source_ends_only_when_a_run_drains(jobs: LocalJobs) -> None:
    assert _run(jobs, _events(1, 2)) == "caught-up"
    limits = {"run__max_batches": 1, "source__max_rows_per_batch": 1}
    assert _run(jobs, _events(1, 2, 3, 4), run__drain=True, **limits) == "batches"
    assert jobs.rows() == []
    assert _run(jobs, _events(1, 2), run__drain=True) == "drained"
    assert [at for _, _, at, _ in jobs.rows()] == [HOUR + 1, HOUR + 2, HOUR + 3]
    assert _watermarks(jobs) == {2}
    assert _run(jobs, _events(1, 2), run__drain=True) == "drained"
    assert jobs.results == []


def test_a_drained_checkpoint_is_marked_until_rows_follow_it(jobs: LocalJobs, caplog: pytest.LogCaptureFixture) -> None:
    root = str(jobs.folder / "root")

    def warned_of() -> list[object]:
        """The checkpoints that runs have warned of."""
        name = batch_runner.__name__
        found = [r for r in caplog.records if (r.name, r.levelname) == (name, "WARNING")]
        return [number for record in found for number in record.args or ()]

    _run(jobs, _events(1, 2))
    assert not describe(root).drained
    _run(jobs, _events(1, 2), run__drain=True)
    drained = describe(root)
    _run(jobs, _events(1, 2))
    assert drained.drained and describe(root).drained and warned_of() == []
    _run(jobs, _events(1, 2, 3))
    assert not describe(root).drained
    _run(jobs, _events(1, 2, 3, 4))
    assert warned_of() == [drained.checkpoint_id]


def test_a_source_that_has_ended_does_not_hold_the_watermark_back(jobs: LocalJobs) -> None:
    def streams(env: StreamExecutionEnvironment) -> DataStream:
        never_idle = STRATEGY.with_idleness(timedelta(days=1))
        ended = env.from_collection([Event("a", 1)], Event, uid="ended")
        source = Growing([Event("b", at) for at in (2, 5 * HOUR)], Event)
        growing = env.from_source(source, uid="rows").assign_timestamps_and_watermarks(never_idle)
        return ended.assign_timestamps_and_watermarks(never_idle).union(growing)

    _run(jobs, streams)
    assert jobs.rows() == [("event", key, HOUR + at, 5 * HOUR - 1) for key, at in (("a", 1), ("b", 2))]


@pytest.mark.parametrize(("source", "fires"), [(CollectionSource, True), (Growing, False)])
def test_without_a_watermark_strategy_the_end_gives_the_only_watermark(
    jobs: LocalJobs, source: type[CollectionSource], fires: bool
) -> None:
    _run(jobs, lambda env: env.from_source(source([Event("a", 1)], Event), uid="rows"))
    assert [note[3] for note in jobs.rows()] == [MAX_WATERMARK] * fires


def test_a_source_is_bounded_if_it_is_a_collection_or_is_declared_bounded() -> None:
    env = StreamExecutionEnvironment()
    sources = {
        "files": FileSource("/in", schema=Event),
        "all-files": FileSource("/in", schema=Event, bounded=True),
        "list": CollectionSource([], Event),
        "growing": Growing([], Event),
        "on-spark": PythonSource(CollectionSource([], Event)),
        "growing-on-spark": PythonSource(Growing([], Event)),
    }
    first, *others = [env.from_source(cast(Source, source), uid=uid) for uid, source in sources.items()]
    first.union(*others).key_by("key").process(Alarm(), output=Note, uid="alarm")
    assert plan_job(env.graph, 1).bounded == {"all-files", "list", "on-spark"}


class UnreliableSink(FolderSink):
    """A table whose storage can be switched off."""

    is_down = False

    def open_table(self, context: SinkContext) -> SinkTable:
        if self.is_down:
            raise StorageError("the table's storage does not answer")
        return super().open_table(context)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_at_least_once_timers_fire_again_when_their_output_could_not_be_published(
    jobs: LocalJobs, asynchronous: bool
) -> None:
    source, sink = Growing([Event(key, 1) for key in "ab"], Event), UnreliableSink(jobs.folder / "out")
    build = _alarms(lambda env: env.from_source(source, uid="rows").assign_timestamps_and_watermarks(STRATEGY), sink)
    run = jobs.prepare(build, checkpoints__mode="at-least-once", checkpoints__asynchronous=asynchronous)
    run.start()
    ((uid, description),) = run.job.sources
    slice_ = source.read(None, run.job.settings.source)
    assert slice_ is not None
    at_end = SourcePosition(uid=uid, description=description, offset=slice_.position)
    run.run_batch({"rows": slice_.rows}, lambda _: Positions([at_end]))
    sink.is_down = True
    with raises(StorageError):
        run.drain()
    sink.is_down = False
    run.drain()
    run.finish()
    assert sorted(key for _, key, _, _ in jobs.rows()) == ["a", "b"]
