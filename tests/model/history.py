"""One history from its seed: processes with faults, a healthy run without new faults, and the checks at rest."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.errors import ConfigError
from stateflow.storage.paths import FORMAT
from tests.model.invariants.log import Checker
from tests.model.invariants.violation import Violation
from tests.model.simulation import processes
from tests.model.simulation.command_env import CommandEnv
from tests.model.simulation.commands import COMMANDS
from tests.model.simulation.job import SimJob
from tests.model.simulation.plan import PLANS, Plan
from tests.model.simulation.runs import JobRunProcess, make_run
from tests.model.simulation.scheduler import Scheduler, SimClock
from tests.model.simulation.storage import SimStorage
from tests.support.mutants import MUTANTS, planted

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


@dataclass(frozen=True)
class Failure:
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
    histories: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Report) -> None:
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
        self.scheduler = Scheduler(self.rng, self.plan, trace)
        storage = SimStorage(self.scheduler, self.rng, denied=self.plan.denied)
        checker = Checker(storage, self.plan.retain)
        self.job = SimJob(self.scheduler, storage, checker, SimClock(self.scheduler), self.plan, self.rng)
        self.env = CommandEnv(self.job)
        self._runs = 0

    def run(self) -> Counter[str]:
        with self.env.applied():
            try:
                self._play()
            finally:
                self.scheduler.end_all()
        stats = self.scheduler.stats + self.job.checker.counts
        return stats + Counter(steps=self.scheduler.steps, entries=self.job.checker.head.seq)

    def _play(self) -> None:
        self._populate()
        for _ in range(self.plan.steps // 10):
            self.scheduler.run(10)
            if not self.scheduler.alive("run"):
                if self.scheduler.now < self.env.busy_until and self.rng.random() < 0.97:
                    continue
                for _ in range(self.plan.restarts):
                    self._start_run(0)
            elif self.rng.random() < 10 * self.plan.new_runs:
                self._start_run(0)
        # A healthy run starts; then paused processes wake, and late writes arrive.
        self.scheduler.stop_faults()
        self._start_run(0)
        self.scheduler.run(_CALM_STEPS)
        self.scheduler.finish()
        for job in self.env.jobs.values():
            self._check_rest(job)

    def _populate(self) -> None:
        plan = self.plan
        for i in range(plan.drivers):
            self._start_run(self.rng.randint(0, 50 * i))
        for i in range(plan.collectors):
            self._spawn(f"gc{i}", partial(processes.collect, self.job))
        for i in range(plan.admins):
            self._spawn(f"admin{i}", partial(processes.administrate, self.job, f"admin{i}"))
        for i in range(plan.readers):
            self._spawn(f"reader{i}", partial(processes.read_leased, self.job, f"reader{i}"))
        for kind, count in plan.commands:
            for i in range(count):
                self._spawn(f"{kind}{i}", COMMANDS[kind](self.env, f"{kind}{i}"), plan.steps // 2)
        for i in range(plan.appenders):
            self._spawn(f"appender{i}", partial(processes.append, self.job))
        if plan.vacuum:
            self.scheduler.spawn("vacuum", partial(processes.vacuum, self.job))

    def _spawn(self, name: str, body: Callable[[], None], latest: int = 80) -> None:
        self.scheduler.spawn(name, body, self.rng.randint(20, latest))

    def _start_run(self, after: int) -> None:
        self._runs += 1
        name = f"run{self._runs}"
        self.scheduler.spawn(name, make_run(self.job, name, self.plan.batches), after)

    def _check_rest(self, job: SimJob) -> None:
        """Without other processes, one start and one collection leave only what is live, in each fork as well."""
        if job is not self.job and job.storage.peek(FORMAT) is None:
            return
        last = JobRunProcess(job, "last", self.rng.randint(0, 1))
        try:
            last()
        except ConfigError:
            if job is self.job or job.checker.head.seq:
                raise
            job.count("forks without state")
            return
        if last.needs_user:
            return
        root = job.open("command")
        for pin in root.head().entry.pinned:
            job.checker.pins.discard(pin.id)
            root.admin.unpin(pin.id)
        collection = Collector(root).collect()
        if collection.unknown:
            raise Violation("I8", f"unknown names: {collection.unknown}")
        job.checker.check_rest()
        if job is not self.job and job.checker.lines:
            job.count("forks that committed")
        for sink in job.sinks:
            if odd := sorted(sink.files.keys() ^ sink.named):
                raise Violation("S3", f"{sink.uid}: {odd} are left over or gone")


def play(seed: int, search: Search = Search(), trace: deque[str] | None = None) -> Counter[str]:
    """Plays one history, of the code as it is or with a planted bug. Raises Violation."""
    plan = PLANS[search.plan or (MUTANTS[search.mutant].plan if search.mutant else "")]
    with planted(search.mutant):
        history = History(seed, plan, trace)
        history.job.name_by_seq = search.mutant == "no-ordinals"
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


def first_finding(name: str, start: int = 0) -> Failure | None:
    """Returns the first history that breaks a rule which the mutant is for; others may end with an assertion."""
    end = start + 5_000
    while failures := explore(range(start, end), Search(name)).failures:
        if failures[0].rule in MUTANTS[name].rules:
            return failures[0]
        start = failures[0].seed + 1
    return None
