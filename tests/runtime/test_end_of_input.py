"""The end of bounded sources and of a draining run: every event-time timer fires, and none of it is kept as state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from stateflow import FileSource, StreamExecutionEnvironment, TimerService
from stateflow.api.sink import SinkContext, SinkTable
from stateflow.api.source import CollectionSource, Source
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.connectors.python import PythonSource
from stateflow.errors import StorageError
from stateflow.operations import describe
from stateflow.runtime.driver import batch_runner
from stateflow.runtime.job import Positions
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.testing.sinks import FolderSink
from tests.runtime.timer_jobs import Alarm, Event, Note, Streams, TimerJobs, timed
from tests.support import root_files
from tests.support.errors import raises
from tests.support.local_jobs import Growing

HOUR = 3_600_000


@pytest.fixture
def jobs(tmp_path: Path) -> TimerJobs:
    return TimerJobs(tmp_path)


def _run(jobs: TimerJobs, *times: int, kind: type[CollectionSource] = Growing, **settings: Any) -> str:
    """Runs a job with two timers an hour after each row; returns why it ended."""
    rows = [Event("a", at) for at in times]
    jobs.process(partial(timed, uid="rows", rows=rows, kind=kind), Alarm(HOUR, HOUR), **settings)
    return jobs.reason


def _watermarks(jobs: TimerJobs) -> set[int | None]:
    manifest = root_files.read_manifest(jobs.folder / "root", root_files.head(jobs.folder / "root").doc["manifest"])
    return {operator["watermark"] for operator in manifest["operators"]}


def test_the_end_of_a_bounded_source_fires_every_event_time_timer_and_no_other(jobs: TimerJobs) -> None:
    assert _run(jobs, 1, 2, kind=CollectionSource) == "caught-up"
    fired = [(note.at, note.watermark, note.domain) for note in jobs.notes("timer")]
    assert fired == [(HOUR + at, TimerService.MAX_WATERMARK, "event") for at in (1, 2)]
    assert [result.rows_in for result in jobs.results] == [2, 0]
    assert _watermarks(jobs) == {1}
    assert not describe(str(jobs.folder / "root")).drained


def test_after_the_end_a_run_without_rows_does_nothing_and_additional_rows_are_not_late(jobs: TimerJobs) -> None:
    _run(jobs, 1, 2, kind=CollectionSource)
    _run(jobs, 1, 2, kind=CollectionSource)
    assert jobs.results == []
    _run(jobs, 1, 2, 2, 3, kind=CollectionSource)
    assert jobs.timers() == [("a", HOUR + at) for at in (1, 2, 2, 3)]
    assert all(note.at > note.watermark for note in jobs.notes("row"))


def test_a_growing_source_ends_only_when_a_run_drains(jobs: TimerJobs) -> None:
    assert _run(jobs, 1, 2) == "caught-up"
    assert _run(jobs, 1, 2, 3, 4, run__drain=True, run__max_batches=1, source__max_rows_per_batch=1) == "batches"
    assert jobs.timers() == []
    assert _run(jobs, 1, 2, run__drain=True) == "drained"
    assert jobs.timers() == [("a", HOUR + at) for at in (1, 2, 3)]
    assert _watermarks(jobs) == {2}
    assert _run(jobs, 1, 2, run__drain=True) == "drained"
    assert jobs.results == []


def test_rows_that_a_filter_drops_do_not_follow_a_drain(jobs: TimerJobs) -> None:
    def streams(rows: Sequence[Event]) -> Streams:
        return lambda env: timed(env, uid="rows", rows=rows, kind=Growing).filter(lambda row: row.key == "a")

    jobs.process(streams([Event("a", 1)]), Alarm(HOUR), run__drain=True)
    jobs.process(streams([Event("a", 1), Event("b", 2)]), Alarm(HOUR))
    assert [result.rows_in for result in jobs.results] == [1]
    assert describe(str(jobs.folder / "root")).drained


def test_a_drained_checkpoint_is_marked_until_rows_follow(jobs: TimerJobs, caplog: pytest.LogCaptureFixture) -> None:
    root = str(jobs.folder / "root")

    def warned_of() -> list[object]:
        """The checkpoints that runs have warned of."""
        name = batch_runner.__name__
        found = [r for r in caplog.records if (r.name, r.levelname) == (name, "WARNING")]
        return [number for record in found for number in record.args or ()]

    _run(jobs, 1, 2)
    assert not describe(root).drained
    _run(jobs, 1, 2, run__drain=True)
    drained = describe(root)
    _run(jobs, 1, 2)
    assert drained.drained and describe(root).drained and warned_of() == []
    _run(jobs, 1, 2, 3)
    assert not describe(root).drained
    _run(jobs, 1, 2, 3, 4)
    assert warned_of() == [drained.checkpoint_id]


def test_collections_and_sources_that_are_declared_bounded_are_bounded() -> None:
    env = StreamExecutionEnvironment()
    sources = {
        "files": FileSource("/in", schema=Event), "all-files": FileSource("/in", schema=Event, bounded=True),
        "list": CollectionSource([], Event), "growing": Growing([], Event),
        "on-spark": PythonSource(CollectionSource([], Event)), "growing-on-spark": PythonSource(Growing([], Event)),
    }  # fmt: skip
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


def test_at_least_once_timers_fire_again_when_their_output_could_not_be_published(jobs: TimerJobs) -> None:
    rows, sink = [Event("a", 1), Event("b", 2)], UnreliableSink(jobs.folder / "out")

    def build(env: StreamExecutionEnvironment) -> None:
        made = timed(env, "rows", rows).key_by("key").process(Alarm(HOUR), output=Note, uid="op")
        made.sink_to(sink, uid="out")

    run = jobs.prepare(build, checkpoints__mode="at-least-once")
    run.start()
    ((uid, description),) = run.job.sources
    at_end = SourcePosition(uid=uid, description=description, offset='{"row": 2}')
    run.run_batch({uid: rows}, lambda _: Positions([at_end]))
    sink.is_down = True
    with raises(StorageError):
        run.drain()
    sink.is_down = False
    run.drain()
    run.finish()
    assert sorted(jobs.timers()) == [("a", HOUR + 1), ("b", HOUR + 2)]
