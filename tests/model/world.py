"""The scheduler: every call of the storage or a sink is one step, and a seed decides whose comes next and its fate."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from stateflow.clock import Clock
from stateflow.errors import StorageError
from stateflow.storage import PutResult
from tests.model.plan import (
    CRASH,
    FAILED,
    GO,
    HOLD,
    LATE,
    LOST,
    MASKED,
    PAUSE,
    PUT,
    READ,
    START,
    TABLE,
    VERDICTS,
    WRITE,
    Plan,
    odds,
)

T = TypeVar("T")
_LATE_LANDS = 0.05
_HOLD = 400
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Actor(greenlet):
    """A process of the simulated world. It runs only between two of its calls."""

    def __init__(self, name: str, body: Callable[[], None], hub: greenlet, wake: int) -> None:
        super().__init__(body, hub)
        self.name = name
        self.wake = wake
        self.kind = START
        self.op = ""
        self.key = ""
        self.act: Callable[[], object] = _nothing
        self.slept = False
        self.killed = False
        self.threads = 0

    @property
    def process(self) -> str:
        """Threads are named after the actor that began them, and die with it."""
        return self.name.partition(".")[0]


class World:
    """Actors, their pending calls, and the writes still on their way.

    Args:
        trace: receives one line for each step when given.
    """

    def __init__(self, rng: random.Random, plan: Plan, trace: deque[str] | None = None) -> None:
        self.rng = rng
        self.stats: Counter[str] = Counter()
        self.now = 0
        self.steps = 0
        self.quiet = False
        """No scheduling any more: calls are executed where they are made."""
        self.is_calm = False
        """No new fault strikes any more."""
        self._plan = plan
        self._trace = trace
        self._actors: list[Actor] = []
        self._late: list[tuple[str, str, str, Callable[[], object]]] = []
        self._hub = getcurrent()
        self._random = rng.random
        self._hold = plan.hold
        self._newest = ""
        self._drowsy: list[Actor] = []
        """Those who sleep before a table changes."""
        self._held: dict[tuple[str, str], list[Actor]] = defaultdict(list)
        self._odds = odds(plan)
        self._total = {kind: pairs[-1][0] if pairs else 0.0 for kind, pairs in self._odds.items()}

    # -- what actors use ----------------------------------------------------------------------------------------------

    def call(self, kind: str, op: str, key: str, act: Callable[[], T]) -> T:
        """Makes one call: gives way to others, then executes `act`, or suffers a fault.

        Args:
            kind: which faults there are.
            op: what the call is, for the trace.
        """
        actor = getcurrent()
        if getattr(actor, "killed", False):
            # A process that is gone does not tidy up behind itself.
            raise GreenletExit
        if self.quiet:
            return act()
        actor.kind, actor.op, actor.key, actor.act = kind, op, key, act
        verdict = self._hub.switch()
        if verdict == GO:
            if self._trace is None:
                return act()
            return self._traced(actor, act)
        return self._unclear(actor, act, verdict)

    def sleep(self, steps: int) -> None:
        """Lets others go on for about so many steps."""
        if not self.quiet:
            actor = getcurrent()
            if actor.killed:
                raise GreenletExit
            actor.kind, actor.op, actor.key, actor.wake = START, "wakes", "", self.now + steps
            self._hub.switch()

    def changed(self, key: str, *, created: bool) -> None:
        """An object appeared or is about to go: whoever is held back for that moment may run."""
        if created and key.startswith("log/"):
            self._newest = max(self._newest, key)
        if self._held:
            for actor in self._held.pop((key, "get" if created else "put"), ()):
                actor.wake = min(actor.wake, self.now + 1)

    def intent(self) -> None:
        """A restore is about to touch tables: whoever sleeps in front of one may wake now."""
        for actor in self._drowsy:
            if self.rng.random() < 0.7:
                actor.wake = min(actor.wake, self.now + self.rng.randint(1, 6))
        self._drowsy = []

    # -- what a history uses ------------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None], after: int = 0) -> None:
        """Starts an actor in `after` steps."""
        self._actors.append(Actor(name, body, self._hub, self.now + after))

    def spawn_thread(self, body: Callable[[], None]) -> None:
        """Starts a thread of the process that calls."""
        actor = getcurrent()
        actor.threads += 1
        self.spawn(f"{actor.process}.{actor.threads}", body)

    @property
    def actor(self) -> str:
        """The name of the process that is at work."""
        return getattr(getcurrent(), "process", "command")

    def alive(self, prefix: str) -> int:
        """How many actors there are whose name begins so."""
        return sum(actor.name.startswith(prefix) for actor in self._actors)

    def awake(self, prefix: str) -> bool:
        """Whether an actor whose name begins so is at work, neither paused nor yet to come."""
        return any(actor.wake <= self.now for actor in self._actors if actor.name.startswith(prefix))

    def run(self, steps: int) -> None:
        """Makes `steps` steps, or as many as there are."""
        end = self.steps + steps
        while self._actors and self.steps < end:
            self._step()

    def calm(self) -> None:
        """From here on no new fault strikes; what is late or asleep comes when it comes."""
        self.is_calm = True
        self._odds = {kind: [] for kind in self._odds}
        self._total = dict.fromkeys(self._odds, 0.0)
        self._hold = 0.0

    def settle(self) -> None:
        """Ends every actor and lets every late write arrive."""
        self.close()
        while self._late:
            self._land()
        self.quiet = True

    def close(self) -> None:
        """Ends every actor where it stands."""
        for actor in self._actors:
            actor.killed = True
        for actor in self._actors:
            actor.throw(GreenletExit)
        self._actors = []

    # -- inside -------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        self.now += 1
        if self._late and self._random() < _LATE_LANDS:
            self._land()
        actor = self._pick()
        kind = actor.kind
        if actor.slept or (x := self._random()) >= self._total[kind] + self._holdable(actor):
            actor.slept = False
            self._resume(actor, GO)
            return
        for bound, verdict in self._odds[kind]:
            if x < bound:
                self._strike(actor, verdict)
                return
        self._strike(actor, HOLD)

    def _pick(self) -> Actor:
        now = self.now
        ready = [a for a in self._actors if a.wake <= now]
        if not ready:
            self.now = now = min(a.wake for a in self._actors)
            ready = [a for a in self._actors if a.wake <= now]
        return ready[int(self._random() * len(ready))]

    def _holdable(self, actor: Actor) -> float:
        if self._hold == 0.0 or not actor.key.startswith("log/") or actor.op not in ("put", "get"):
            return 0.0
        if actor.op == "get" and actor.key >= self._newest:
            return 0.0
        held = any(actor.op == op and actor.name.startswith(name) for name, op in self._plan.held)
        return self._hold if held else 0.0

    def _strike(self, actor: Actor, verdict: int) -> None:
        self._log(actor.name, actor.op, actor.key, VERDICTS[verdict])
        self.stats[VERDICTS[verdict]] += 1
        if verdict == PAUSE:
            actor.wake = self.now + self.rng.choice(self._plan.pauses)
            actor.slept = True
            if actor.kind == TABLE:
                self._drowsy.append(actor)
        elif verdict == HOLD:
            actor.wake = self.now + _HOLD
            actor.slept = True
            self._held[actor.key, actor.op].append(actor)
        elif verdict == CRASH:
            self._kill(actor.process)
        elif verdict in (LOST, FAILED) and actor.kind in (READ, WRITE):
            # A retrying wrapper asks again: the call stays pending, executed once already or not.
            if verdict == LOST:
                actor.act()
        else:
            self._resume(actor, verdict)

    def _kill(self, process: str) -> None:
        dying = [a for a in self._actors if a.process == process]
        for actor in dying:
            actor.killed = True
            self._actors.remove(actor)
        for actor in dying:
            actor.throw(GreenletExit)

    def _resume(self, actor: Actor, verdict: int) -> None:
        if actor:
            actor.switch(verdict)
        else:
            actor.switch()
        if actor.dead:
            self._actors.remove(actor)

    def _land(self) -> None:
        name, op, key, act = self._late.pop(int(self._random() * len(self._late)))
        self.stats["late writes landed"] += 1
        self._log(name, op, key, "LANDS NOW")
        act()

    def _unclear(self, actor: Actor, act: Callable[[], T], verdict: int) -> T:
        """The answer to a call that did not go well; some of it is executed, or will be."""
        if verdict in (LOST, MASKED):
            act()
        elif verdict == LATE:
            self._late.append((actor.name, actor.op, actor.key, act))
        if actor.kind == PUT:
            return PutResult.EXISTS if verdict == MASKED else PutResult.UNKNOWN  # type: ignore[return-value]
        if actor.kind == TABLE and verdict == MASKED:
            return None  # type: ignore[return-value]
        raise StorageError("no answer", key=actor.key)

    def _traced(self, actor: Actor, act: Callable[[], T]) -> T:
        try:
            result = act()
        except Exception as e:
            self._log(actor.name, actor.op, actor.key, f"{type(e).__name__}: {e}")
            raise
        self._log(actor.name, actor.op, actor.key, _brief(result))
        return result

    def _log(self, who: str, op: str, key: str, what: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self.now:6d}  {who:6s} {op:10s} {_short(key):34s} {what}")


def _nothing() -> None:
    """What an actor calls before its first call."""


def _short(text: str) -> str:
    return re.sub(r"0{5,}(?=\d)", "", text)


def _brief(result: object) -> str:
    if isinstance(result, bytes):
        return f"{len(result)} bytes"
    if isinstance(result, list):
        return _short(" ".join(getattr(r, "key", str(r)) for r in result)) or "nothing"
    return getattr(result, "value", None) or str(result)


class SimClock(Clock):
    """The date stands still, seconds are steps, ids count up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ids = 0

    def now(self) -> datetime:
        return _EPOCH

    def monotonic(self) -> float:
        return float(self._world.now)

    def new_id(self) -> str:
        self._ids += 1
        # Some names have only the first characters of an id.
        return f"{self._ids:08x}{self._ids:024x}"

    def sleep(self, duration: timedelta) -> None:
        if self._world.quiet:
            self._world.now += 100
        self._world.sleep(self._world.rng.randint(2, 20))
