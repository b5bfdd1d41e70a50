"""The end of bounded sources, and of a run that drains: every event-time timer fires, and nothing of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

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
from stateflow.api.streams.data_stream import DataStream
from stateflow.connectors.python import PythonSource
from stateflow.operations import describe
from stateflow.runtime.driver import batch_runner
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.state.kinds.timers import MAX_WATERMARK
from tests.support import root_files
from tests.support.local_jobs import Growing, LocalJobs

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
    """A timer of event time an hour after each row, and one of processing time; tells late rows."""

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(row.at + HOUR)
        timers.register_processing_time_timer(timers.current_processing_time() + HOUR)
        if row.at <= timers.current_watermark():
            yield Note("late", row.key, row.at, timers.current_watermark())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note(ctx.time_domain().value, ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark())


Streams = Callable[[StreamExecutionEnvironment], DataStream]


def _run(box: LocalJobs, streams: Streams, **settings: str) -> str:
    def build(env: StreamExecutionEnvironment) -> None:
        notes = streams(env).key_by("key").process(Alarm(), output=Note, uid="alarm")
        notes.sink_to(box.sink("notes"), uid="notes")

    box.results.clear()
    return box.run(build, **{"run.max_tick_batches": "3", **settings})


def _bounded(*times: int) -> Streams:
    rows = [Event("a", at) for at in times]
    return lambda env: env.from_collection(rows, Event, uid="rows").assign_timestamps_and_watermarks(STRATEGY)


def _growing(*times: int) -> Streams:
    source = Growing([Event("a", at) for at in times], Event)
    return lambda env: env.from_source(source, uid="rows").assign_timestamps_and_watermarks(STRATEGY)


def _watermarks(box: LocalJobs) -> set[int | None]:
    manifest = root_files.read_manifest(box.folder / "root", root_files.head(box.folder / "root").doc["manifest"])
    return {operator["watermark"] for operator in manifest["operators"]}


def test_at_the_end_of_a_bounded_source_every_event_time_timer_fires_and_no_other(tmp_path: Path) -> None:
    box = LocalJobs(tmp_path)
    assert _run(box, _bounded(1, 2)) == "caught-up"
    end = TimerService.MAX_WATERMARK
    assert box.rows("notes") == [("event", "a", HOUR + at, end) for at in (1, 2)]
    assert [result.rows_in for result in box.results] == [2, 0]


def test_a_later_run_has_nothing_to_do_and_rows_that_come_all_the_same_are_not_late(tmp_path: Path) -> None:
    box = LocalJobs(tmp_path)
    _run(box, _bounded(1, 2))
    assert _watermarks(box) == {1}
    _run(box, _bounded(1, 2))
    assert box.results == []
    _run(box, _bounded(1, 2, 2, 3))
    assert [(what, at) for what, _, at, _ in box.rows("notes")] == [("event", HOUR + at) for at in (1, 2, 2, 3)]


def test_a_source_that_may_grow_ends_only_when_the_run_drains(tmp_path: Path) -> None:
    box = LocalJobs(tmp_path)
    assert _run(box, _growing(1, 2)) == "caught-up"
    assert box.rows("notes") == []
    assert _run(box, _growing(1, 2), **{"run.drain": "true"}) == "drained"
    assert [at for _, _, at, _ in box.rows("notes")] == [HOUR + 1, HOUR + 2]
    assert _watermarks(box) == {1}
    assert _run(box, _growing(1, 2), **{"run.drain": "true"}) == "drained"
    assert box.results == []


def test_a_drained_checkpoint_is_marked_until_rows_follow_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    box, root = LocalJobs(tmp_path), str(tmp_path / "root")

    def warned_of() -> list[object]:
        """The checkpoints that runs have warned of."""
        name = batch_runner.__name__
        found = [r for r in caplog.records if (r.name, r.levelname) == (name, "WARNING")]
        return [number for record in found for number in record.args or ()]

    _run(box, _growing(1, 2))
    assert not describe(root).drained
    _run(box, _growing(1, 2), **{"run.drain": "true"})
    drained = describe(root)
    assert drained.drained and warned_of() == []
    # A run without rows goes on from it and makes nothing.
    _run(box, _growing(1, 2))
    assert describe(root).drained and warned_of() == []
    _run(box, _growing(1, 2, 3))
    assert not describe(root).drained
    assert warned_of() == [drained.checkpoint_id]
    _run(box, _growing(1, 2, 3, 4))
    assert len(warned_of()) == 1


def test_the_end_of_a_bounded_source_is_no_drain(tmp_path: Path) -> None:
    box = LocalJobs(tmp_path)
    _run(box, _bounded(1, 2))
    assert box.rows("notes")
    assert not describe(str(tmp_path / "root")).drained


def test_a_run_that_ends_at_a_bound_does_not_drain(tmp_path: Path) -> None:
    box = LocalJobs(tmp_path)
    limits = {"run.drain": "true", "run.max_batches": "1", "source.max_rows_per_batch": "1"}
    assert _run(box, _growing(1, 2), **limits) == "batches"
    assert box.rows("notes") == []


def test_a_source_that_has_ended_holds_no_other_back(tmp_path: Path) -> None:
    def streams(env: StreamExecutionEnvironment) -> DataStream:
        never_idle = STRATEGY.with_idleness(timedelta(days=1))
        ended = env.from_collection([Event("a", 1)], Event, uid="ended")
        source = Growing([Event("b", at) for at in (2, 5 * HOUR)], Event)
        growing = env.from_source(source, uid="rows").assign_timestamps_and_watermarks(never_idle)
        return ended.assign_timestamps_and_watermarks(never_idle).union(growing)

    box = LocalJobs(tmp_path)
    _run(box, streams)
    assert box.rows("notes") == [("event", key, HOUR + at, 5 * HOUR - 1) for key, at in (("a", 1), ("b", 2))]


@pytest.mark.parametrize(("source", "fires"), [(CollectionSource, True), (Growing, False)])
def test_without_watermarks_the_end_is_the_first_one(
    tmp_path: Path, source: type[CollectionSource], fires: bool
) -> None:
    box = LocalJobs(tmp_path)
    _run(box, lambda env: env.from_source(source([Event("a", 1)], Event), uid="rows"))
    assert [note[3] for note in box.rows("notes")] == [MAX_WATERMARK] * fires


def test_collections_are_bounded_files_are_when_declared_and_other_sources_when_they_say_so() -> None:
    env = StreamExecutionEnvironment()
    sources = {
        "files": FileSource("/in", schema=Event),
        "all-files": FileSource("/in", schema=Event, bounded=True),
        "list": CollectionSource([], Event),
        "growing": Growing([], Event),
        "on-spark": PythonSource(CollectionSource([], Event)),
        "growing-on-spark": PythonSource(Growing([], Event)),
    }
    first, *others = [env.from_source(source, uid=uid) for uid, source in sources.items()]
    first.union(*others).key_by("key").process(Alarm(), output=Note, uid="alarm")
    assert plan_job(env.graph, 1).bounded == {"all-files", "list", "on-spark"}
