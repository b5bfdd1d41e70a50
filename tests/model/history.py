"""One history from its seed: set-up, the storm, the calm after it, and rest."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.jobroot import JobRoot
from tests.model.actors import Admin, Cleaner, Driver, Site
from tests.model.invariants import Checker, Violation
from tests.model.mutants import MUTANTS
from tests.model.plan import Plan
from tests.model.sink import SimSink
from tests.model.store import SimStorage
from tests.model.world import SimClock, World

_CALM_STEPS = 150


@dataclass
class Failure:
    """A history that broke a rule."""

    seed: int
    rule: str
    text: str


@dataclass
class Report:
    """What a number of histories did."""

    histories: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Takes over what another report counted."""
        self.histories += other.histories
        self.stats += other.stats
        self.failures += other.failures


class History:
    """One history.

    Args:
        seed: decides everything.
        plan: drawn from the seed when not given.
        trace: takes a line for each step.
    """

    def __init__(self, seed: int, plan: Plan | None = None, trace: deque[str] | None = None) -> None:
        rng = random.Random(seed)
        self.plan = plan or Plan.draw(rng)
        self.world = World(rng, self.plan, trace)
        self.rng = rng
        storage = SimStorage(self.world, rng)
        checker = Checker(storage, self.plan.retain)
        storage.observer = checker
        sinks = [SimSink(self.world, f"sink{i}", checker.published) for i in range(self.plan.sinks)]
        self.site = Site(self.world, storage, sinks, checker, SimClock(), self.plan, rng)
        self._names = 0

    def run(self) -> Counter[str]:
        """Plays the history. Raises Violation."""
        self._populate()
        for _ in range(self.plan.steps // 10):
            self.world.run(10)
            if self.rng.random() < 10 * self.plan.newcomers or not self.world.alive:
                self._driver(0)
        self._calm()
        self._rest()
        stats = self.world.stats
        stats["steps"], stats["entries in stale slots"] = self.world.steps, self.site.checker.stale_slots
        stats["entries"] = self.site.checker.head.seq
        return stats

    def _populate(self) -> None:
        for i in range(self.plan.drivers):
            self._driver(self.rng.randint(0, 50 * i))
        for i in range(self.plan.collectors):
            self.world.spawn(f"gc{i}", Cleaner(self.site, 10), self.rng.randint(20, 80))
        for i in range(self.plan.admins):
            self.world.spawn(f"admin{i}", Admin(self.site, f"admin{i}", 6), self.rng.randint(20, 80))

    def _driver(self, after: int) -> None:
        self._names += 1
        name = f"run{self._names}"
        self.world.spawn(name, Driver(self.site, name, self.plan.batches), after)

    def _calm(self) -> None:
        """A healthy run starts; sleepers wake behind it and late writes arrive."""
        self.world.calm()
        self._driver(0)
        self.world.run(_CALM_STEPS)
        self.world.settle()

    def _rest(self) -> None:
        """Nothing else goes on: one start and one collection must tidy up everything."""
        site = self.site
        site.plan = replace(site.plan, adopts=0.0, abort=0.0, publish=1.0)
        Driver(site, "last", self.rng.randint(0, 1))()
        root = JobRoot.open(site.storage, site.clock, "command")
        for pin in root.head().entry.pinned:
            site.checker.pins.discard(pin.id)
            root.unpin(pin.id)
        collection = Collector(root).collect()
        if collection.unknown:
            raise Violation("I8", f"names that nobody knows: {collection.unknown}")
        site.checker.check_rest()


def play(seed: int, mutant: str = "", trace: deque[str] | None = None) -> Counter[str]:
    """Plays one history, of the code as it is or with a mistake. Raises Violation."""
    with MUTANTS[mutant].applied() if mutant else nullcontext():
        history = History(seed, MUTANTS[mutant].plan if mutant else None, trace)
        history.site.name_by_seq = bool(mutant) and MUTANTS[mutant].name_by_seq
        return history.run()


def explore(seeds: Iterable[int], mutant: str = "", failures: int = 3) -> Report:
    """Plays histories until they are done, or so many have failed."""
    report = Report()
    for seed in seeds:
        report.histories += 1
        try:
            report.stats += play(seed, mutant)
        except Violation as e:
            report.failures.append(Failure(seed, e.rule, str(e)))
            if len(report.failures) == failures:
                break
    return report
