"""Mode at-least-once publishes a batch's output before the run goes on from its state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateflow import KeyedProcessFunction, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.functions.process import Context, OnTimerContext
from stateflow.api.sink import SinkContext, SinkTable
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.errors import StorageError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import Positions
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.support.local_jobs import Growing

CLOSING_TIME = 2_000_000_000_000


@dataclass
class Visit:
    key: str
    at: datetime


@dataclass
class Closed:
    key: str


class Close(KeyedProcessFunction[Visit, Closed]):
    def process_element(self, row: Visit, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(CLOSING_TIME)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Closed]:
        yield Closed(str(ctx.get_current_key()))


class Unreliable(FolderSink):
    """A table whose storage can be switched off."""

    is_down = False

    def open_table(self, context: SinkContext) -> SinkTable:
        if self.is_down:
            raise StorageError("the table's storage does not answer")
        return super().open_table(context)


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_timers_fire_again_when_their_output_could_not_be_published(tmp_path: Path, asynchronous: str) -> None:
    visits = [Visit(key, datetime(2026, 1, 1, tzinfo=UTC)) for key in "ab"]
    source, sink = Growing(visits, Visit), Unreliable(tmp_path / "closed")

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
        stream = env.from_source(source, uid="visits").assign_timestamps_and_watermarks(strategy)
        stream.key_by("key").process(Close(), output=Closed, uid="close").sink_to(sink, uid="closed")

    given = {
        "local_dir": str(tmp_path / "local"),
        "checkpoints.mode": "at-least-once",
        "checkpoints.asynchronous": asynchronous,
    }
    env, settings = declare(build, "job", (given,))
    job = create_or_open_job(env.graph, settings, open_storage(str(tmp_path / "root")), SystemClock())
    run = JobRun(job, LocalExecutor())
    run.start()
    ((uid, description),) = job.sources
    slice_ = source.read(None, settings.source)
    at_end = SourcePosition(uid=uid, description=description, offset=slice_.position)
    run.run_batch({"visits": slice_.rows}, lambda _: Positions([at_end]))
    sink.is_down = True
    with pytest.raises(StorageError):
        run.drain()
    sink.is_down = False
    run.drain()
    run.finish()
    assert sorted(row["key"] for row in sink.rows()) == ["a", "b"]
