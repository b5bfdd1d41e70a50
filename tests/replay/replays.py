"""Replays of jobs that are functions of a test, or files."""

from __future__ import annotations

from pathlib import Path

from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.launch import PreparedJob
from stateflow.replay.run import ReplayRequest
from stateflow.runtime.preflight import StartContext
from tests.support.local_jobs import Build, LocalJobs


def prepared(jobs: LocalJobs, build: Build) -> PreparedJob:
    """A job that is a function, as if it had been loaded from a file."""
    given = {name.replace("__", "."): str(value) for name, value in jobs.settings.items()}
    env, resolved = declare(build, "job", (given,))
    env.graph.check()
    start = StartContext(env.graph, resolved, on_spark=False, clock=SystemClock(), storage=jobs.storage)
    return PreparedJob(start)


def request(jobs: LocalJobs, batch: int, max_rows: int | None = None) -> ReplayRequest:
    """A request for a replay of such a job, with all rows."""
    return ReplayRequest(Path("job.py"), jobs.storage.uri, batch, max_rows=max_rows)
