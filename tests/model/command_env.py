"""Where people give their commands: the real `stateflow.recovery`, with simulated storages and threads below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from stateflow.checkpoint import collector, savepoint, stored_savepoints
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.proposal import Proposal
from stateflow.errors import ConfigError
from stateflow.recovery import forks, restores, savepoints
from stateflow.runtime import committing, fence_watch, serving
from stateflow.runtime.job import Job
from stateflow.runtime.restoring import RestoreOrder
from stateflow.storage import Storage
from tests.model.invariants import Checker
from tests.model.runs import job_of
from tests.model.sink import SimSink
from tests.model.site import Site
from tests.model.store import Below, SimStorage
from tests.model.threads import Idle, InlinePool, Threads

JOB_URI = "sim://job"


class Office:
    """Everybody's way to the job, and to the forks of it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sites = {JOB_URI: site}
        self.orders: list[tuple[Proposal, RestoreOrder]] = []
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
            (savepoints, "open_root", self._root), (savepoints, "open_storage", self.storage),
            (savepoints, "open_existing", self._job), (restores, "open_existing", self._job),
            (forks, "open_root", self._root), (forks, "open_storage", self.storage),
            (forks, "probe_storage", lambda *_: None),
            (stored_savepoints, "open_storage", self.storage), (savepoint, "ThreadPoolExecutor", InlinePool),
            (collector, "ThreadPoolExecutor", InlinePool),
            (savepoint, "_version", lambda: "simulated"), (serving, "threading", threads),
            # The watch only stops a fenced run earlier. Without it the run goes on until its next append, which is
            # the harder case for the protocol.
            (fence_watch, "threading", Idle()),
            (serving, "ThreadPoolExecutor", threads.pool), (committing, "threading", threads),
            (committing, "ThreadPoolExecutor", threads.pool),
        ]  # fmt: skip
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
