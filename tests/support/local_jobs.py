"""A job root, and runs without Spark of jobs that are functions of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateflow import DeadLetter
from stateflow.api.collection import CollectionSource
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink


class Growing(CollectionSource):
    """A list that may be longer in a later run: it has no end."""

    bounded = False


class LocalJobs:
    """A job root, and runs of jobs that are given as functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[BatchResult] = []

    def run(self, build: Any, **settings: str) -> str:
        """Runs the job until it ends; returns why it ended."""
        given = {"local_dir": str(self.folder / "local"), "source.max_rows_per_batch": "4", **settings}
        env, resolved = declare(build, "job", (given,))
        job = create_or_open_job(env.graph, resolved, open_storage(str(self.folder / "root")), SystemClock())
        run = JobRun(job, LocalExecutor())
        run.start()
        sources = {n.uid: n.source for n in env.graph.sources}
        return run_local(run, sources, self.results.append)  # type: ignore[arg-type]

    def sink(self, name: str) -> FolderSink:
        return FolderSink(self.folder / name)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.sink(name).rows()]

    def letters(self, name: str = "letters") -> list[DeadLetter]:
        return [DeadLetter(**row) for row in self.sink(name).rows()]
