"""Runs of the accounts job in the test's own process, over a storage of the test's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateflow.clock import SystemClock
from stateflow.config.sources import parse_assignments
from stateflow.environment import declare
from stateflow.observability import MemoryRecorder
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult
from stateflow.runtime.job_loader import create_or_open_job, load_job
from stateflow.runtime.local_run import LocalExecutor, run_local
from stateflow.storage import Storage
from tests.support.job_fixture import AccountsJob


def run_with(
    job: AccountsJob, storage: Storage, on_batch: Callable[[BatchResult], None] = lambda _: None, **more: object
) -> MemoryRecorder:
    """A run to its end; names of settings have two underscores for each dot."""
    given = {
        "job.folder": job.folder,
        "local_dir": job.local,
        "requests.interval": "10ms",
        "checkpoints.asynchronous": "no",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    layer = parse_assignments(tuple(f"{name}={value}" for name, value in given.items()))
    file = Path(job.job_file)
    env, settings = declare(load_job(file).build, file.stem, (layer,))
    recorder = MemoryRecorder()
    opened = replace(create_or_open_job(env.graph, settings, storage, SystemClock()), recorder=recorder)
    run = JobRun(opened, LocalExecutor())
    run.start("a test")
    sources: Any = {n.uid: n.source for n in env.graph.sources}
    run_local(run, sources, on_batch)
    return recorder
