"""How often a run reports its checkpoints, and what a bug in a lineage event may do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.api.datasets import Dataset
from stateflow.clock import ManualClock
from stateflow.environment import declare
from stateflow.lineage.events import LineageEvent, RunState
from stateflow.lineage.reporter import LineageReporter
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local_run import run_local
from stateflow.testing.sinks import FolderSink
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs


class _Kept:
    """Keeps events instead of sending them."""

    def __init__(self) -> None:
        self.events: list[LineageEvent] = []

    def put(self, event: LineageEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Has nothing to wait for."""


class _Folder(FolderSink):
    broken = False

    def datasets(self) -> list[Dataset]:
        if self.broken:
            raise ZeroDivisionError("a bug")
        return [Dataset("file", "/out")]


def _run(jobs: LocalJobs, sink: FolderSink, clock: ManualClock, pause: timedelta) -> list[LineageEvent]:
    """The events of a run of ten batches, with a pause after each."""
    rows = [Row("a", n, n) for n in range(40)]

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Growing(rows, Row), uid="rows").sink_to(sink, uid="out")

    env, settings = declare(build, "job", ({name.replace("__", "."): str(v) for name, v in jobs.settings.items()},))
    kept = _Kept()
    reporter = LineageReporter(env.graph, settings, kept, clock, "a test")
    run: JobRun = jobs.prepare(build)
    reporter.before_claim(run.job.root)
    run.job = replace(run.job, observer=reporter)

    def on_batch(_: BatchResult) -> None:
        clock.sleep(pause)

    run.start()
    reporter.started(run)
    reached = run_local(run, {"rows": Growing(rows, Row)}, on_batch)
    reporter.finished(run, reached)
    return kept.events


@pytest.mark.parametrize(("seconds", "reported"), [(1, 0), (25, 3), (60, 9)])
def test_a_checkpoint_is_reported_at_most_once_a_minute(tmp_path: Path, seconds: int, reported: int) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path, clock, checkpoints__asynchronous="no")
    events = _run(jobs, _Folder(tmp_path / "out"), clock, timedelta(seconds=seconds))
    states = [event.state for event in events]
    assert (states[0], states[-1]) == (RunState.START, RunState.COMPLETE)
    assert states[1:-1] == [RunState.RUNNING] * reported
    last = events[-1].checkpoint
    assert last is not None and (last.rows_in, last.rows_out) == (40, {"out": 40})
    # Consumers add the counts of all events of a run.
    counted = [each.row_count for event in events for each in event.outputs if each.row_count is not None]
    assert counted == [40]


def test_an_error_while_an_event_is_made_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    sink = _Folder(tmp_path / "out")
    sink.broken = True
    jobs = LocalJobs(tmp_path, clock, checkpoints__asynchronous="no")
    assert _run(jobs, sink, clock, timedelta(minutes=2)) == []
    assert "a lineage event could not be made" in caplog.text
