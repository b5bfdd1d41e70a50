"""The scheduler: every call of the storage or a sink is one step, and a seed decides whose comes next and its fate."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import get_ident
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from stateflow.clock import Clock
from stateflow.errors import StorageError
from stateflow.storage import PutResult
from tests.model.simulation.plan import PUT, READ, START, TABLE, WRITE, Fault, Plan, fault_table

T = TypeVar("T")
_LATE_WRITE = 0.05
"""How likely, at each step, a late write arrives."""
_HOLD_STEPS = 400
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class CalledByThread(BaseException):
    """A thread calls the simulated storage, where no schedule can interrupt it: the simulation has to replace it.

    Not an Exception: a run logs those of work in the background and continues, so no test would fail.
    """


class Actor(greenlet):  # type: ignore[misc]  # the package has no types
    """A simulated process, or a thread of one. It is interrupted only between two of its calls.

    Attributes:
        wake: the step before which it does not run.
        kind, op, key, act: its pending call, as in `Scheduler.call`.
        slept: whether it was paused before its pending call, which then has no other fault.
    """

    act: Callable[[], object]
    kind, op, key = START, "", ""
    slept = killed = False
    threads = 0

    def __init__(self, name: str, body: Callable[[], None], hub: greenlet, wake: int) -> None:
        super().__init__(body, hub)
        self.name = name
        self.wake = wake

    @property
    def process(self) -> str:
        """A thread has the name of its process, and a number."""
        return self.name.partition(".")[0]


class Scheduler:
    """Actors, their pending calls, and late writes.

    Args:
        trace: receives one line for each step when given.

    Attributes:
        is_unscheduled: whether scheduling has ended: calls are executed immediately.
        faults_stopped: whether new faults have ended.
    """

    def __init__(self, rng: random.Random, plan: Plan, trace: deque[str] | None = None) -> None:
        self.rng = rng
        self.stats: Counter[str] = Counter()
        self.now = 0
        self.steps = 0
        self.is_unscheduled = False
        self.faults_stopped = False
        self._plan = plan
        self._trace = trace
        self._actors: list[Actor] = []
        self._author: Actor | None = None
        self._late: list[tuple[Actor, str, Callable[[], object]]] = []
        self._hub = getcurrent()
        self._thread = get_ident()
        self._random = rng.random
        self._hold = plan.hold
        self._newest = ""
        self._paused_at_tables: list[Actor] = []
        self._held: dict[tuple[str, str], list[Actor]] = defaultdict(list)
        self._faults = fault_table(plan)

    # -- what actors use ----------------------------------------------------------------------------------------------

    def call(self, kind: str, op: str, key: str, act: Callable[[], T]) -> T:
        """Makes one call: lets other actors run, then executes `act`, or has a fault.

        Args:
            kind: decides which faults there are.
            op: names the call in the trace.
        """
        if get_ident() != self._thread:
            raise CalledByThread(f"a thread calls the simulated storage: {op} {key}")
        actor = getcurrent()
        if getattr(actor, "killed", False):
            # A process that was killed does not clean up.
            raise GreenletExit
        if self.is_unscheduled:
            self.stats["calls without faults"] += 1
            return act()
        actor.kind, actor.op, actor.key, actor.act = kind, op, key, act
        fault = self._hub.switch()
        if fault is Fault.NONE:
            return act() if self._trace is None else self._traced(actor, act)
        unclear: T = self._unclear(actor, act, fault)
        return unclear

    def sleep(self, steps: int) -> None:
        if not self.is_unscheduled:
            actor = getcurrent()
            if actor.killed:
                raise GreenletExit
            actor.kind, actor.op, actor.key, actor.wake = START, "wakes", "", self.now + steps
            self._hub.switch()

    def changed(self, key: str, *, created: bool) -> None:
        """An object was created or is about to be deleted: actors that the adversary holds for that wake."""
        if created and key.startswith("log/"):
            self._newest = max(self._newest, key)
        for actor in self._held.pop((key, "get" if created else "put"), ()):
            actor.wake = min(actor.wake, self.now + 1)

    def wake_before_tables(self) -> None:
        """A restore is about to change tables: actors that are paused before a change of a table may wake."""
        for actor in self._paused_at_tables:
            if self.rng.random() < 0.7:
                actor.wake = min(actor.wake, self.now + self.rng.randint(1, 6))
        self._paused_at_tables = []

    # -- what a history uses ------------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None], after: int = 0) -> None:
        self._actors.append(Actor(name, body, self._hub, self.now + after))

    def spawn_thread(self, body: Callable[[], None]) -> None:
        actor = getcurrent()
        actor.threads += 1
        self.spawn(f"{actor.process}.{actor.threads}", body)

    @property
    def actor(self) -> str:
        return getattr(self._author or getcurrent(), "process", "command")

    def alive(self, prefix: str) -> bool:
        """Whether there is an actor whose name begins so."""
        return any(actor.name.startswith(prefix) for actor in self._actors)

    def awake(self, prefix: str) -> bool:
        """Whether there is such an actor that is neither paused nor starts later."""
        return any(actor.wake <= self.now for actor in self._actors if actor.name.startswith(prefix))

    def run(self, steps: int) -> None:
        end = self.steps + steps
        while self._actors and self.steps < end:
            self._step()

    def stop_faults(self) -> None:
        """From now on no new fault happens; late writes and paused actors come when they come."""
        self.faults_stopped = True
        self._faults = {kind: [] for kind in self._faults}
        self._hold = 0.0

    def finish(self) -> None:
        """Ends every actor and lets every late write arrive; later calls are executed immediately."""
        self.end_all()
        while self._late:
            self._execute_late()
        self.is_unscheduled = True

    def end_all(self) -> None:
        self._end(self._actors)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        self.now += 1
        if self._late and self._random() < _LATE_WRITE:
            self._execute_late()
        actor = self._pick()
        if actor.slept:
            actor.slept = False
            self._resume(actor, Fault.NONE)
            return
        x, faults = self._random(), self._faults[actor.kind]
        total = faults[-1][0] if faults else 0.0
        if x >= total + self._hold_chance(actor):
            self._resume(actor, Fault.NONE)
            return
        self._apply(actor, next((fault for bound, fault in faults if x < bound), Fault.HOLD))

    def _pick(self) -> Actor:
        now = self.now
        ready = [a for a in self._actors if a.wake <= now]
        if not ready:
            self.now = now = min(a.wake for a in self._actors)
            ready = [a for a in self._actors if a.wake <= now]
        return ready[int(self._random() * len(ready))]

    def _hold_chance(self, actor: Actor) -> float:
        if self._hold == 0.0 or not actor.key.startswith("log/") or actor.op not in ("put", "get"):
            return 0.0
        if actor.op == "get" and actor.key >= self._newest:
            return 0.0
        held = any(actor.op == op and actor.name.startswith(name) for name, op in self._plan.held)
        return self._hold if held else 0.0

    def _apply(self, actor: Actor, fault: Fault) -> None:
        self._log(actor, fault)
        self.stats[fault] += 1
        if fault is Fault.PAUSE:
            actor.wake = self.now + self.rng.choice(self._plan.pauses)
            actor.slept = True
            if actor.kind == TABLE:
                self._paused_at_tables.append(actor)
        elif fault is Fault.HOLD:
            actor.wake = self.now + _HOLD_STEPS
            actor.slept = True
            self._held[actor.key, actor.op].append(actor)
        elif fault is Fault.CRASH:
            self._end([a for a in self._actors if a.process == actor.process])
        elif fault in (Fault.LOST, Fault.FAILED) and actor.kind in (READ, WRITE):
            # A wrapper repeats the call: it stays pending, executed once already or not.
            if fault is Fault.LOST:
                self._act_for(actor, actor.act)
        else:
            self._resume(actor, fault)

    def _end(self, actors: list[Actor]) -> None:
        for actor in actors:
            actor.killed = True
        self._actors = [actor for actor in self._actors if not actor.killed]
        for actor in actors:
            actor.throw(GreenletExit)

    def _resume(self, actor: Actor, fault: Fault) -> None:
        # The first switch starts the body, which has no parameter.
        actor.switch(*([fault] if actor else []))
        if actor.dead:
            self._actors.remove(actor)

    def _execute_late(self) -> None:
        actor, key, act = self._late.pop(int(self._random() * len(self._late)))
        self.stats["late writes that arrived"] += 1
        self._log(actor, f"LATE WRITE ARRIVES: {key}")
        self._act_for(actor, act)

    def _act_for(self, actor: Actor, act: Callable[[], object]) -> None:
        """Executes a call of an actor that does not run at this time."""
        self._author = actor
        try:
            act()
        finally:
            self._author = None

    def _unclear(self, actor: Actor, act: Callable[[], object], fault: Fault) -> Any:
        """The answer to a call with a fault; the call may have been executed, or may be later."""
        if fault in (Fault.LOST, Fault.MASKED):
            act()
        elif fault is Fault.LATE:
            self._late.append((actor, actor.key, act))
        if actor.kind == PUT:
            return PutResult.EXISTS if fault is Fault.MASKED else PutResult.UNKNOWN
        if actor.kind == TABLE and fault is Fault.MASKED:
            return None
        raise StorageError("no answer", key=actor.key)

    def _traced(self, actor: Actor, act: Callable[[], T]) -> T:
        try:
            result = act()
        except Exception as e:
            self._log(actor, f"{type(e).__name__}: {e}")
            raise
        self._log(actor, _brief(result))
        return result

    def _log(self, actor: Actor, what: str) -> None:
        if self._trace is not None:
            key = re.sub(r"0{5,}(?=\d)", "", actor.key)
            self._trace.append(f"{self.now:6d}  {actor.name:6s} {actor.op:10s} {key:34s} {what}")


def _brief(result: object) -> str:
    if isinstance(result, list):
        return " ".join(str(getattr(each, "key", each)) for each in result)
    return f"{len(result)} bytes" if isinstance(result, bytes) else str(result)


class SimClock(Clock):
    """A second is a step, ids are numbers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ids = 0

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self._scheduler.now)

    def monotonic(self) -> float:
        return float(self._scheduler.now)

    def new_id(self) -> str:
        self._ids += 1
        # Some names have only the first characters of an id.
        return f"{self._ids:08x}{self._ids:024x}"

    def sleep(self, duration: timedelta) -> None:
        if self._scheduler.is_unscheduled:
            self._scheduler.now += 100
        self._scheduler.sleep(self._scheduler.rng.randint(2, 20))
