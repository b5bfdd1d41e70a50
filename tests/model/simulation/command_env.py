"""The environment of commands: replaces storages, job file and threads below `stateflow.operations`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from stateflow.checkpoint import garbage_collector as garbage
from stateflow.checkpoint import history as index
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.plan_document import RestorePlan
from stateflow.checkpoint.savepoints import catalog, create
from stateflow.errors import ConfigError
from stateflow.operations import forks, job_savepoints, restores, savepoint_disposal
from stateflow.runtime.driver import checkpointing, job_run, request_server
from stateflow.runtime.job import Job
from stateflow.runtime.restore import plan_execution
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.storage import Storage
from tests.model.invariants.log import Checker
from tests.model.simulation.job import SimJob
from tests.model.simulation.runs import job_of
from tests.model.simulation.storage import SavepointStorage, SimStorage
from tests.model.simulation.threads import InlinePool, NoThreads, Pool, simulated_threading

JOB_URI = "sim://job"


class CommandEnv:
    """The job and its forks, for commands.

    Attributes:
        jobs: by URI.
        restores: restores that began; another process may repeat one, as a retried task does.
        busy_until: the step until which no run starts, because a restore happens.
    """

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.jobs = {JOB_URI: job}
        self.restores: list[tuple[RestorePlan, RestoreRequest]] = []
        self.busy_until = 0
        self._names = 0

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def new_job(self) -> SimJob:
        """Returns an empty job for a fork, with shadow tables of its own."""
        job, uri = self.job, self.name("sim://fork")
        storage = SimStorage(job.scheduler, job.rng, uri)
        self.jobs[uri] = replace(job, storage=storage, checker=Checker(storage, job.plan.retain, job.checker))
        return self.jobs[uri]

    @contextmanager
    def applied(self) -> Iterator[None]:
        threading, pool = simulated_threading(self.job.scheduler), partial(Pool, self.job.scheduler)
        opening = {"open_root": self._root, "open_storage": self.storage}
        location = {"open_location": self._location}
        disposal = {"open_root": self._root, "open_root_in": self._root_in, "open_if_allowed": self.storage}
        replacements: list[tuple[Any, dict[str, Any]]] = [
            (job_savepoints, {**opening, "open_existing": self._job}),
            (savepoint_disposal, {**disposal, **location}),
            (restores, {"open_existing": self._job}),
            (forks, {"open_root": self._root, **location, "probe_storage": lambda *_: None}),
            (catalog, {**location, "open_if_allowed": self.storage}),
            (plan_execution, location),
            (create, {"ThreadPoolExecutor": InlinePool}),
            (garbage, {"ThreadPoolExecutor": InlinePool}),
            (index, {"DaemonExecutor": InlinePool}),
            (request_server, {"threading": threading, "ThreadPoolExecutor": pool}),
            (checkpointing, {"threading": threading, "ThreadPoolExecutor": pool}),
            # The watch only stops a fenced run earlier. Without it the run continues until its next append, which is
            # the harder case for the protocol.
            (job_run, {"threading": NoThreads()}),
        ]
        with ExitStack() as stack:
            for module, names in replacements:
                stack.enter_context(patch.multiple(module, **names))
            yield

    def storage(self, uri: str) -> Storage:
        for root, job in self.jobs.items():
            if uri == root:
                return job.storage
            if uri.startswith(f"{root}/"):
                return SavepointStorage(job.storage, uri.removeprefix(f"{root}/"))
        raise ConfigError("no such location", uri=uri)

    def _location(self, uri: str, own: str = "", within: object = None) -> Storage:
        return self.storage(uri)

    def _root_in(self, storage: Storage) -> JobRoot:
        return self._root(storage.uri)

    def _root(self, uri: str) -> JobRoot:
        job = self.jobs[uri]
        return job.open(job.scheduler.actor)

    def _job(self, file: object, uri: str, layers: object = ()) -> Job:
        return job_of(self.jobs[uri], self._root(uri))
