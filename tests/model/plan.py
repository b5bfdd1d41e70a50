"""What one history is like: how many actors of which kind, and how often which fault strikes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

PUT, READ, WRITE, TABLE, START = "put", "read", "write", "table", "start"
"""Kinds of calls, by what can go wrong: put-if-absent, reads, writes that may be repeated, a sink's commit. START is
the first step of an actor, which is no call."""

GO, PAUSE, CRASH, LOST, FAILED, LATE, MASKED, ERROR, HOLD = range(9)
VERDICTS = ("ok", "PAUSE", "CRASH", "LOST RESPONSE", "FAILED REQUEST", "LATE WRITE", "MASKED BY RETRY", "ERROR",
            "HELD BACK")  # fmt: skip
"""What happens to a call. MASKED: it was executed, its answer was lost, and the client library asked again and reports
what the second request met: `exists`, or a conflict."""


@dataclass(frozen=True)
class Plan:
    """One history's parameters. A sink excludes adopting older checkpoints: rewinding a sink is another protocol."""

    steps: int = 280
    drivers: int = 3
    batches: int = 5
    collectors: int = 2
    admins: int = 1
    sinks: int = 1
    adopts: float = 0.0
    """How likely a start goes back to a retained checkpoint."""
    retain: int = 2
    publish: float = 0.8
    """How likely a driver publishes after a commit, instead of carrying the output on."""
    abort: float = 0.1
    """How likely a checkpoint is given up, its files and output passing to the next."""
    newcomers: float = 0.01
    pause: float = 0.02
    hold: float = 0.0
    """How likely an adversary holds back a call to a log slot until something happens to that slot: a put until the
    slot was collected, a read until it was created anew."""
    held: tuple[str, ...] = ("run", "gc", "admin")
    """Whose calls those are."""
    pauses: tuple[int, ...] = (20, 80, 200)
    crash: float = 0.004
    faults: float = 1.0
    """Scales how often answers and requests are lost, and writes arrive late."""

    @classmethod
    def draw(cls, rng: random.Random) -> Plan:
        """A plan for one history. Leaving whole kinds of actors or faults out of some finds more than an average."""
        sinks = rng.choice((0, 1, 1, 2))
        plan = cls(
            drivers=rng.randint(2, 4), collectors=rng.randint(1, 3), admins=rng.choice((0, 1, 2)), sinks=sinks,
            adopts=0.0 if sinks else rng.choice((0.2, 0.5)), batches=rng.randint(2, 6), retain=rng.randint(1, 3),
            publish=rng.choice((0.5, 0.9)), abort=rng.choice((0.0, 0.2)), newcomers=rng.choice((0.0, 0.01, 0.02)),
            pause=rng.choice((0.005, 0.02, 0.06)), faults=rng.choice((0.0, 1.0, 1.0, 3.0)),
            crash=rng.choice((0.0, 0.005)),
        )  # fmt: skip
        return replace(plan, hold=0.1) if rng.random() < 0.2 else plan


def odds(plan: Plan) -> dict[str, list[tuple[float, int]]]:
    """For each kind of call, faults with cumulative probabilities."""
    f = plan.faults
    alone = [(plan.pause, PAUSE), (plan.crash, CRASH)]
    chances = {
        START: [],
        READ: [*alone, (0.01 * f, FAILED), (0.001 * f, ERROR)],
        WRITE: [*alone, (0.01 * f, LOST), (0.01 * f, FAILED), (0.005 * f, LATE), (0.002 * f, ERROR)],
        PUT: [*alone, (0.02 * f, LOST), (0.02 * f, FAILED), (0.01 * f, LATE), (0.01 * f, MASKED)],
        TABLE: [*alone, (0.02 * f, LOST), (0.02 * f, FAILED), (0.02 * f, LATE), (0.02 * f, MASKED)],
    }
    return {kind: _cumulative(pairs) for kind, pairs in chances.items()}


def _cumulative(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    total, result = 0.0, []
    for probability, verdict in pairs:
        total += probability
        result.append((total, verdict))
    return result
