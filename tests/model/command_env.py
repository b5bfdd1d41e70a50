"""Where people give their commands: the real `stateflow.operations.restores`, over simulated storages and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
from tests.model.sink import SimSink
from tests.model.store import Below, SimStorage
from tests.model.threads import Idle, InlinePool, Threads

JOB_URI = "sim://job"


class Office:
    """Everybody's way to the job, and to the forks of it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sites = {JOB_URI: site}
        self.restores: list[tuple[RestorePlan, RestoreRequest]] = []
        """Restores that somebody began; another may try one again, as a retried task does."""
        self.busy_until = 0
        """Until when the schedule is paused, because somebody goes back."""
        self._names = 0

    def name(self, prefix: str) -> str:
        """A name that is new."""
        self._names += 1
        return f"{prefix}{self._names}"

    def new_site(self) -> Site:
        """An empty place for a fork, with shadow tables of its own."""
        site = self.site
        uri = self.name("sim://fork")
        storage = SimStorage(site.world, site.rng, uri)
        checker = Checker(storage, site.plan.retain, site.checker)
        storage.observer = checker
        sinks = [SimSink(site.world, sink.uid, checker) for sink in site.sinks]
        self.sites[uri] = replace(site, storage=storage, sinks=sinks, checker=checker)
        return self.sites[uri]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The real commands, with what they stand on replaced."""
        threads = Threads(self.site.world)
        places: list[tuple[Any, str, Any]] = [
            (savepoints, "open_root", self._root),
            (savepoints, "open_storage", self.storage),
            (savepoints, "open_existing", self._job),
            (savepoint_disposal, "open_root", self._root),
            (savepoint_disposal, "open_storage", self.storage),
            (restores, "open_existing", self._job),
            (forks, "open_root", self._root),
            (forks, "open_storage", self.storage),
            (forks, "probe_storage", lambda *_: None),
            (catalog, "open_storage", self.storage),
            (create, "ThreadPoolExecutor", InlinePool),
            (collector, "ThreadPoolExecutor", InlinePool),
            (request_server, "threading", threads),
            # The watch only stops a fenced run earlier. Without it the run goes on until its next append, which is
            # the harder case for the protocol.
            (fence_watch, "threading", Idle()),
            (request_server, "ThreadPoolExecutor", threads.pool),
            (uploads, "threading", threads),
            (pipeline, "ThreadPoolExecutor", threads.pool),
        ]
        with ExitStack() as stack:
            for place, name, replacement in places:
                stack.enter_context(patch.object(place, name, replacement))
            yield

    def storage(self, uri: str) -> Storage:
        """A job root, or a savepoint below one."""
        for root, site in self.sites.items():
            if uri == root:
                return site.storage
            if uri.startswith(f"{root}/"):
                return Below(site.storage, uri.removeprefix(f"{root}/"))
        raise ConfigError("no such place", uri=uri)

    def _root(self, uri: str) -> JobRoot:
        site = self.sites[uri]
        return site.open(site.world.actor)

    def _job(self, file: object, uri: str, layers: object = ()) -> Job:
        return job_of(self.sites[uri], self._root(uri))
