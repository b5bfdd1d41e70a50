"""A job root, and runs and restores without Spark of jobs that are functions of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from stateflow import DeadLetter
from stateflow.api.graph import JobFile
from stateflow.api.source import CollectionSource, LocalSource
from stateflow.checkpoint.restore.plan_document import GraphChanges, RestorePlan
from stateflow.clock import Clock, SystemClock
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import JobDefinitionError
from stateflow.observability import NullRecorder, Recorder
from stateflow.outputs import encode_json
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.executor import Executor
from stateflow.runtime.job import BatchResult, Job, LaunchFacts
from stateflow.runtime.job_loader import create_or_open_job
from stateflow.runtime.local_run import LocalExecutor, run_local
from stateflow.runtime.planning.explain import explain_job
from stateflow.runtime.restore.new_job_root import NewJobRoot
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from stateflow.runtime.task import store_cache
from stateflow.storage import Storage, open_storage
from stateflow.testing.sinks import FolderSink

Build = Callable[[StreamExecutionEnvironment], object]


class Growing(CollectionSource):
    """A list that may be longer in a later run: it has no end."""

    bounded = False


class LocalJobs:
    """A job root, and runs of jobs that are given as functions.

    Args:
        folder: holds the job root, local files and tables.
        clock: of the runs.
        storage: the job root, unless it is a folder.
        settings: of all runs, with two underscores for each dot.

    Attributes:
        results: the batches of the newest run.
        reason: why the newest run ended.
        recorder: gets the metrics of later runs.
        file: the job file that the history records with the start of each run; None to record no starts.
    """

    def __init__(
        self, folder: Path, clock: Clock | None = None, storage: Storage | None = None, **settings: Any
    ) -> None:
        self.folder = folder
        self.clock = clock or SystemClock()
        self.storage = storage or open_storage(str(folder / "root"))
        self.settings = {"local_dir": folder / "local", "source__max_rows_per_batch": 4, **settings}
        self.results: list[BatchResult] = []
        self.reason = ""
        self.recorder: Recorder = NullRecorder()
        self.file: JobFile | None = None

    def prepare(self, build: Build, executor: Executor | None = None, **settings: Any) -> JobRun:
        given = {name.replace("__", "."): str(value) for name, value in {**self.settings, **settings}.items()}
        env, resolved = declare(build, "job", (given,))
        job = create_or_open_job(env.graph, resolved, self.storage, self.clock)
        launch = None
        if self.file is not None:
            graph = encode_json(explain_job(env.graph, resolved, on_spark=False, with_states=False)).encode()
            launch = LaunchFacts(self.clock.monotonic(), self.file, graph)
        return JobRun(replace(job, recorder=self.recorder, launch=launch), executor or LocalExecutor())

    def new_root(self, build: Build) -> NewJobRoot:
        """Returns a job root that is to begin with a savepoint."""
        given = {name.replace("__", "."): str(value) for name, value in self.settings.items()}
        env, resolved = declare(build, "job", (given,))
        return NewJobRoot(self.storage, self.clock, env.graph, resolved, reads_by_spark=False)

    def execute(self, run: JobRun, note: str = "") -> str:
        """Starts a run and reads its sources until it ends; returns why it ended."""
        self.results.clear()
        sources = {node.uid: cast(LocalSource, node.source) for node in run.job.plan.sources}
        try:
            run.start(note)
            self.reason = run_local(run, sources, self.results.append)
        finally:
            store_cache.close_all()
        return self.reason

    def run(self, build: Build, **settings: Any) -> str:
        return self.execute(self.prepare(build, **settings))

    def apply(self, rows: Sequence[Any], operators: Callable[[Any], Any], **settings: Any) -> str:
        """Runs `operators` on a stream of `rows`: what they emit goes to `out`, dead letters to `letters`."""

        def build(env: StreamExecutionEnvironment) -> None:
            made = operators(env.from_collection(rows, type(rows[0]), uid="rows"))
            made.sink_to(self.sink("out"), uid="out")
            try:
                letters = made.get_dead_letters()
            except JobDefinitionError:
                return
            letters.sink_to(self.sink("letters"), uid="letters")

        return self.run(build, **settings)

    def sink(self, name: str) -> FolderSink:
        return FolderSink(self.folder / name)

    def rows(self, name: str = "out") -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.sink(name).rows()]

    def letters(self, name: str = "letters") -> list[DeadLetter]:
        return [DeadLetter(**row) for row in self.sink(name).rows()]


def prepared_job(jobs: LocalJobs, build: Build) -> Job:
    return jobs.prepare(build).job


def plan_restore(jobs: LocalJobs, build: Build, *maps: str, target: str = "latest", **more: Any) -> RestorePlan:
    """Plans a restore; further arguments are those of `RestoreOptions`, and the positions of `sources`."""
    changes = GraphChanges(maps, tuple(more.pop("sources", ())))
    more["drop"] = frozenset(more.get("drop", ()))
    return make_restore_plan(prepared_job(jobs, build), target, RestoreOptions(changes=changes, **more))


def restore(jobs: LocalJobs, build: Build, *maps: str, **more: Any) -> RestorePlan:
    plan = plan_restore(jobs, build, *maps, **more)
    execute_plan(prepared_job(jobs, build), plan, RestoreRequest(f"restore-{plan.digest}"))
    jobs.run(build)
    return plan
