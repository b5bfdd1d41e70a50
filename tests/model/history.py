"""One history from its seed: set-up, the storm, the calm after it, and rest."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from stateflow.checkpoint.gc.collector import Collector
from stateflow.errors import ConfigError
from stateflow.storage.paths import FORMAT
from tests.model.actors import PEOPLE
from tests.model.command_env import Office
from tests.model.fixture_world import Site
from tests.model.invariants import Checker
from tests.model.mutants import MUTANTS, Mutant
from tests.model.other_actors import Admin, Appender, Cleaner, Vacuum
from tests.model.plan import PLANS, Plan
from tests.model.rules import Violation
from tests.model.runs import RealRun, make_run
from tests.model.sink import SimSink
from tests.model.store import SimStorage
from tests.model.world import SimClock, World

_CALM_STEPS = 120


@dataclass(frozen=True)
class Search:
    """Which histories are played.

    Attributes:
        mutant: the mistake that the code has; none by default.
        plan: the name of a directed search; by default the mutant's, or each history draws its own plan.
    """

    mutant: str = ""
    plan: str = ""

    @property
    def mistake(self) -> Mutant | None:
        """The mutant itself."""
        return MUTANTS[self.mutant] if self.mutant else None


@dataclass(frozen=True)
class Failure:
    """A history that broke a rule."""

    search: Search
    seed: int
    rule: str
    text: str

    def story(self, steps: int = 60) -> str:
        """The history's last steps, and how to see more of them."""
        trace: deque[str] = deque(maxlen=steps)
        with suppress(Exception, Violation):
            play(self.seed, self.search, trace)
        options = "".join(f" --{k} {v}" for k, v in vars(self.search).items() if v)
        again = f"replay: python -m tests.model --seed {self.seed}{options} --trace 500"
        return "\n".join([f"seed {self.seed}: {self.text}", *trace, again])


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
        storage = SimStorage(self.world, rng, denied=self.plan.denied)
        checker = Checker(storage, self.plan.retain)
        storage.observer = checker
        sinks = [SimSink(self.world, f"sink{i}", checker) for i in range(self.plan.sinks)]
        self.site = Site(self.world, storage, sinks, checker, SimClock(self.world), self.plan, rng)
        self.office = Office(self.site)
        self._names = 0

    def run(self) -> Counter[str]:
        """Plays the history. Raises Violation."""
        with self.office.applied():
            try:
                self._play()
            finally:
                self.world.close()
        stats, checker = self.world.stats, self.site.checker
        stats["steps"], stats["entries"] = self.world.steps, checker.head.seq
        stats["entries in stale slots"], stats["publications seen"] = (checker.stale_slots, checker.publications)
        stats += checker.counts + checker.keeping.counts
        return stats

    def _play(self) -> None:
        self._populate()
        for _ in range(self.plan.steps // 10):
            self.world.run(10)
            if not self.world.alive("run"):
                if self.world.now < self.office.busy_until and self.rng.random() < 0.97:
                    continue
                for _ in range(self.plan.crowd):
                    self._start_run(0)
            elif self.rng.random() < 10 * self.plan.newcomers:
                self._start_run(0)
        self._calm()
        self._rest()

    def _populate(self) -> None:
        for i in range(self.plan.drivers):
            self._start_run(self.rng.randint(0, 50 * i))
        for i in range(self.plan.collectors):
            self.world.spawn(f"gc{i}", Cleaner(self.site, 10), self.rng.randint(20, 80))
        for i in range(self.plan.admins):
            self.world.spawn(f"admin{i}", Admin(self.site, f"admin{i}", 6), self.rng.randint(20, 80))
        for kind, count in self.plan.people:
            for i in range(count):
                body = PEOPLE[kind](self.office, f"{kind}{i}")
                self.world.spawn(f"{kind}{i}", body, self.rng.randint(20, self.plan.steps // 2))
        for i in range(self.plan.appenders):
            self.world.spawn(f"appender{i}", Appender(self.site), self.rng.randint(20, 80))
        if self.plan.vacuum:
            self.world.spawn("vacuum", Vacuum(self.site))

    def _start_run(self, after: int) -> None:
        self._names += 1
        name = f"run{self._names}"
        self.world.spawn(name, make_run(self.site, name, self.plan.batches), after)

    def _calm(self) -> None:
        """A healthy run starts; sleepers wake behind it and late writes arrive."""
        self.world.calm()
        self._start_run(0)
        self.world.run(_CALM_STEPS)
        self.world.settle()

    def _rest(self) -> None:
        """Nothing else goes on: one start and one collection must tidy up everything, in each fork as well."""
        for site in self.office.sites.values():
            self._rest_at(site)

    def _rest_at(self, site: Site) -> None:
        if site is not self.site and site.storage.peek(FORMAT) is None:
            return
        last = RealRun(site, "last", self.rng.randint(0, 1))
        try:
            last()
        except ConfigError:
            if site is self.site or site.checker.head.seq:
                raise
            site.count("forks half made")
            return
        if last.needs_person:
            return
        root = site.open("command")
        for pin in root.head().entry.pinned:
            site.checker.pins.discard(pin.id)
            root.admin.unpin(pin.id)
        collection = Collector(root).collect()
        if collection.unknown:
            raise Violation("I8", f"names that nobody knows: {collection.unknown}")
        site.checker.check_rest()
        if site is not self.site and site.checker.newest:
            site.count("forks that went on")
        for sink in site.sinks:
            if sink.files.keys() != sink.named:
                odd = sorted(sink.files.keys() ^ sink.named)[0]
                raise Violation("S3", f"{sink.uid}: {odd} is left over or gone")


def play(seed: int, search: Search = Search(), trace: deque[str] | None = None) -> Counter[str]:
    """Plays one history, of the code as it is or with a mistake. Raises Violation."""
    mistake = search.mistake
    plan = PLANS[search.plan or (mistake.plan if mistake else "")]
    with mistake.applied() if mistake else nullcontext():
        history = History(seed, plan, trace)
        history.site.name_by_seq = mistake is not None and mistake.name_by_seq
        return history.run()


def explore(seeds: Iterable[int], search: Search = Search(), failures: int = 1) -> Report:
    """Plays histories until they are done, or so many have failed."""
    report = Report()
    for seed in seeds:
        report.histories += 1
        try:
            report.stats += play(seed, search)
        except Violation as e:
            report.failures.append(Failure(search, seed, e.rule, str(e)))
        except Exception as e:
            # An actor met an error that no real caller expects.
            report.failures.append(Failure(search, seed, type(e).__name__, repr(e)))
        if len(report.failures) == failures:
            break
    return report


def first_finding(name: str, bound: int = 5_000) -> Failure | None:
    """The first history that breaks a rule which the mutant is for; others may end with an assertion."""
    start = 0
    while failures := explore(range(start, bound), Search(name)).failures:
        if failures[0].rule in MUTANTS[name].rules:
            return failures[0]
        start = failures[0].seed + 1
    return None
