"""The environment of commands: replaces storages, job file and threads below `stateflow.operations`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from stateflow.checkpoint.gc import collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.plan_document import RestorePlan
from stateflow.checkpoint.savepoints import catalog, create
from stateflow.errors import ConfigError
from stateflow.operations import forks, restores, savepoint_disposal, savepoints
from stateflow.runtime.driver import fence_watch, request_server
from stateflow.runtime.driver.checkpointing import pipeline, uploads
from stateflow.runtime.job.job import Job
from stateflow.runtime.restore.executor import RestoreRequest
from stateflow.storage import Storage
from tests.model.fixture_world import Site
from tests.model.invariants import Checker
from tests.model.runs import job_of
from tests.model.store import SavepointStorage, SimStorage
from tests.model.threads import InlinePool, NoThreads, Pool, simulated_threading

JOB_URI = "sim://job"


class Office:
    """The job and its forks, for commands.

    Attributes:
        sites: by URI.
        restores: restores that began; another process may repeat one, as a retried task does.
        busy_until: the step until which no run starts, because a restore happens.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sites = {JOB_URI: site}
        self.restores: list[tuple[RestorePlan, RestoreRequest]] = []
        self.busy_until = 0
        self._names = 0

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def new_site(self) -> Site:
        """Returns an empty job for a fork, with shadow tables of its own."""
        site, uri = self.site, self.name("sim://fork")
        storage = SimStorage(site.world, site.rng, uri)
        self.sites[uri] = replace(site, storage=storage, checker=Checker(storage, site.plan.retain, site.checker))
        return self.sites[uri]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replaces what the real commands and runs use."""
        threading, pool = simulated_threading(self.site.world), partial(Pool, self.site.world)
        opening = {"open_root": self._root, "open_storage": self.storage}
        replacements: list[tuple[Any, dict[str, Any]]] = [
            (savepoints, {**opening, "open_existing": self._job}),
            (savepoint_disposal, opening),
            (restores, {"open_existing": self._job}),
            (forks, {**opening, "probe_storage": lambda *_: None}),
            (catalog, {"open_storage": self.storage}),
            (create, {"ThreadPoolExecutor": InlinePool}),
            (collector, {"ThreadPoolExecutor": InlinePool}),
            (request_server, {"threading": threading, "ThreadPoolExecutor": pool}),
            (uploads, {"threading": threading}),
            (pipeline, {"ThreadPoolExecutor": pool}),
            # The watch only stops a fenced run earlier. Without it the run continues until its next append, which is
            # the harder case for the protocol.
            (fence_watch, {"threading": NoThreads()}),
        ]
        with ExitStack() as stack:
            for module, names in replacements:
                stack.enter_context(patch.multiple(module, **names))
            yield

    def storage(self, uri: str) -> Storage:
        """Opens a job root, or a savepoint below one."""
        for root, site in self.sites.items():
            if uri == root:
                return site.storage
            if uri.startswith(f"{root}/"):
                return SavepointStorage(site.storage, uri.removeprefix(f"{root}/"))
        raise ConfigError("no such location", uri=uri)

    def _root(self, uri: str) -> JobRoot:
        site = self.sites[uri]
        return site.open(site.world.actor)

    def _job(self, file: object, uri: str, layers: object = ()) -> Job:
        return job_of(self.sites[uri], self._root(uri))
