"""One history from its seed: processes with faults, a healthy run without new faults, and the checks at rest."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

from stateflow.checkpoint.gc.collector import Collector
from stateflow.errors import ConfigError
from stateflow.storage.paths import FORMAT
from tests.model import other_actors
from tests.model.actors import PEOPLE
from tests.model.command_env import Office
from tests.model.fixture_world import Site
from tests.model.invariants import Checker
from tests.model.mutants import MUTANTS, Mutant
from tests.model.plan import PLANS, Plan
from tests.model.rules import Violation
from tests.model.runs import RealRun, make_run
from tests.model.store import SimStorage
from tests.model.world import SimClock, World

_CALM_STEPS = 120


@dataclass(frozen=True)
class Search:
    """Which histories are played.

    Attributes:
        mutant: the name of a planted bug; none by default.
        plan: the name of a directed search; by default the mutant's, or each history draws its own plan.
    """

    mutant: str = ""
    plan: str = ""

    @property
    def planted(self) -> Mutant | None:
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
        """Returns the history's last steps, and the command that replays it."""
        trace: deque[str] = deque(maxlen=steps)
        with suppress(Exception, Violation):
            play(self.seed, self.search, trace)
        options = "".join(f" --{k} {v}" for k, v in vars(self.search).items() if v)
        again = f"replay: python -m tests.model --seed {self.seed}{options} --trace 500"
        return "\n".join([f"seed {self.seed}: {self.text}", *trace, again])


@dataclass
class Report:
    """The results of a number of histories."""

    histories: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Adds the results of another report."""
        self.histories += other.histories
        self.stats += other.stats
        self.failures += other.failures


class History:
    """One history.

    Args:
        seed: decides everything.
        plan: drawn from the seed when not given.
        trace: receives a line for each step.
    """

    def __init__(self, seed: int, plan: Plan | None = None, trace: deque[str] | None = None) -> None:
        self.rng = random.Random(seed)
        self.plan = plan or Plan.draw(self.rng)
        self.world = World(self.rng, self.plan, trace)
        storage = SimStorage(self.world, self.rng, denied=self.plan.denied)
        checker = Checker(storage, self.plan.retain)
        self.site = Site(self.world, storage, checker, SimClock(self.world), self.plan, self.rng)
        self.office = Office(self.site)
        self._runs = 0

    def run(self) -> Counter[str]:
        """Plays the history and returns its statistics. Raises Violation."""
        with self.office.applied():
            try:
                self._play()
            finally:
                self.world.close()
        stats = self.world.stats + self.site.checker.counts
        return stats + Counter(steps=self.world.steps, entries=self.site.checker.head.seq)

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
        # A healthy run starts; then paused processes wake, and late writes arrive.
        self.world.calm()
        self._start_run(0)
        self.world.run(_CALM_STEPS)
        self.world.settle()
        for site in self.office.sites.values():
            self._check_rest(site)

    def _populate(self) -> None:
        plan = self.plan
        for i in range(plan.drivers):
            self._start_run(self.rng.randint(0, 50 * i))
        for i in range(plan.collectors):
            self._spawn(f"gc{i}", partial(other_actors.collect, self.site))
        for i in range(plan.admins):
            self._spawn(f"admin{i}", partial(other_actors.administrate, self.site, f"admin{i}"))
        for kind, count in plan.people:
            for i in range(count):
                self._spawn(f"{kind}{i}", PEOPLE[kind](self.office, f"{kind}{i}"), plan.steps // 2)
        for i in range(plan.appenders):
            self._spawn(f"appender{i}", partial(other_actors.append, self.site))
        if plan.vacuum:
            self.world.spawn("vacuum", partial(other_actors.vacuum, self.site))

    def _spawn(self, name: str, body: Callable[[], None], latest: int = 80) -> None:
        self.world.spawn(name, body, self.rng.randint(20, latest))

    def _start_run(self, after: int) -> None:
        self._runs += 1
        name = f"run{self._runs}"
        self.world.spawn(name, make_run(self.site, name, self.plan.batches), after)

    def _check_rest(self, site: Site) -> None:
        """Without other processes, one start and one collection leave only what is live, in each fork as well."""
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
            raise Violation("I8", f"unknown names: {collection.unknown}")
        site.checker.check_rest()
        if site is not self.site and site.checker.lines:
            site.count("forks that went on")
        for sink in site.sinks:
            if odd := sorted(sink.files.keys() ^ sink.named):
                raise Violation("S3", f"{sink.uid}: {odd} are left over or gone")


def play(seed: int, search: Search = Search(), trace: deque[str] | None = None) -> Counter[str]:
    """Plays one history, of the code as it is or with a planted bug. Raises Violation."""
    planted = search.planted
    plan = PLANS[search.plan or (planted.plan if planted else "")]
    with planted.applied() if planted else nullcontext():
        history = History(seed, plan, trace)
        history.site.name_by_seq = planted is not None and planted.name_by_seq
        return history.run()


def explore(seeds: Iterable[int], search: Search = Search(), failures: int = 1) -> Report:
    """Plays histories until all are played, or so many have failed."""
    report = Report()
    for seed in seeds:
        report.histories += 1
        try:
            report.stats += play(seed, search)
        except Violation as e:
            report.failures.append(Failure(search, seed, e.rule, str(e)))
        except Exception as e:
            # A process met an error that no real caller expects.
            report.failures.append(Failure(search, seed, type(e).__name__, repr(e)))
        if len(report.failures) == failures:
            break
    return report


def first_finding(name: str, bound: int = 5_000) -> Failure | None:
    """Returns the first history that breaks a rule which the mutant is for; others may end with an assertion."""
    start = 0
    while failures := explore(range(start, bound), Search(name)).failures:
        if failures[0].rule in MUTANTS[name].rules:
            return failures[0]
        start = failures[0].seed + 1
    return None
