"""What one history is like: how many actors of which kind, and how often which fault strikes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

PUT, READ, WRITE, TABLE, START = "put", "read", "write", "table", "start"
"""Kinds of calls, by what can go wrong: put-if-absent, reads, writes that may be repeated, a sink's commit. START is
the first step of an actor, which is no call."""

FOREIGN = "foreign/"
"""What the names of other applications' files in a table begin with."""

GO, PAUSE, CRASH, LOST, FAILED, LATE, MASKED, ERROR, HOLD = range(9)
VERDICTS = (
    "ok",
    "PAUSE",
    "CRASH",
    "LOST RESPONSE",
    "FAILED REQUEST",
    "LATE WRITE",
    "MASKED BY RETRY",
    "ERROR",
    "HELD BACK",
)
"""What happens to a call. MASKED: it was executed, its answer was lost, and the client library asked again and reports
what the second request met: `exists`, or a conflict."""


@dataclass(frozen=True)
class Plan:
    """One history's parameters. Sinks exclude adopting older checkpoints: rewinding a sink is another protocol."""

    steps: int = 250
    drivers: int = 3
    batches: int = 5
    collectors: int = 2
    admins: int = 1
    shorten: float = 0.3
    """How likely a command shortens the retention, instead of reading a checkpoint under a pin."""
    sinks: int = 1
    adopts: float = 0.0
    """How likely a start goes back to a retained checkpoint."""
    retain: int = 2
    inline: int = 1
    """How many retained checkpoints an entry lists itself, before they move into a segment of at most `segment`."""
    segment: int = 2
    inline_output: int = 0
    """Bytes of pending output in an entry itself; more is in objects, one for each file."""
    publish: float = 0.8
    """How likely a driver publishes after a commit, instead of carrying the output on."""
    abort: float = 0.1
    """How likely a checkpoint is given up, its files and output passing to the next."""
    real: bool = False
    """Whether runs are the real `JobRun`, or freer ones."""
    asynchronous: bool = False
    """Whether the real ones store files and commit in the background; a file may then never be stored."""
    lost_uploads: float = 0.0
    """How likely such a file is lost with its host."""
    denied: float = 0.0
    """How likely a deletion is refused, as by a policy of the storage that denies it."""
    vacuum: bool = False
    """Whether somebody deletes output before it is published."""
    appenders: int = 0
    """How many other applications append to the tables."""
    people: tuple[tuple[str, int], ...] = ()
    """Who comes with savepoints, restores, stops and forks, and how many of each."""
    keep: float = 0.3
    """How likely a restore leaves the tables as they are."""
    idle: int = 40
    """How many steps a collector or a command rests at most before it comes again."""
    newcomers: float = 0.01
    """How likely, at each step, another run starts while others work."""
    crowd: int = 1
    """How many runs start when none is left."""
    pause: float = 0.02
    hold: float = 0.0
    """How likely an adversary holds back a call to a log slot until something happens to that slot: a put until the
    slot was collected, a read until it was created anew."""
    held: tuple[tuple[str, str], ...] = (("run", "put"), ("run", "get"), ("admin", "put"), ("gc", "get"))
    """Whose calls those are, and which."""
    drowsy: float = 0.0
    """How likely, beyond that, somebody falls asleep just before a table changes."""
    pauses: tuple[int, ...] = (20, 80, 200)
    crash: float = 0.004
    faults: float = 1.0
    """Scales how often answers and requests are lost, and writes arrive late."""

    @classmethod
    def draw(cls, rng: random.Random) -> Plan:
        """A plan for one history. Leaving whole kinds of actors or faults out of some finds more than an average."""
        sinks = rng.choice((0, 1, 1, 2))
        plan = cls(
            drivers=rng.randint(2, 4),
            collectors=rng.randint(1, 3),
            admins=rng.choice((0, 1, 2)),
            sinks=sinks,
            adopts=0.0 if sinks else rng.choice((0.2, 0.5)),
            batches=rng.randint(2, 6),
            retain=rng.choice((1, 2, 3, 6)),
            publish=rng.choice((0.5, 0.9)),
            abort=rng.choice((0.0, 0.2)),
            newcomers=rng.choice((0.0, 0.01, 0.02)),
            pause=rng.choice((0.005, 0.02, 0.06)),
            faults=rng.choice((0.0, 1.0, 1.0, 3.0)),
            crash=rng.choice((0.0, 0.005)),
            real=rng.random() < 0.3,
            inline=rng.choice((0, 1, 16)),
            segment=rng.choice((1, 2, 3)),
            inline_output=rng.choice((0, 200, 1000)),
        )
        if rng.random() < 0.35:
            return plan._with_people(rng)
        return replace(plan, hold=0.1) if rng.random() < 0.2 else plan

    def _with_people(self, rng: random.Random) -> Plan:
        people = {
            "saver": rng.randint(0, 2),
            "asker": rng.randint(0, 2),
            "stopper": rng.choice((0, 0, 1)),
            "restorer": rng.choice((0, 1, 1, 2)),
            "disposer": rng.choice((0, 1)),
            "dropper": rng.choice((0, 0, 1)),
            "forker": rng.choice((0, 0, 1)),
        }
        return replace(
            self,
            steps=350,
            people=tuple(people.items()),
            sinks=2,
            adopts=0.0,
            real=rng.random() < 0.7,
            keep=rng.choice((0.0, 0.3)),
            crash=rng.choice((0.0, 0.005, 0.01)),
            drowsy=rng.choice((0.0, 0.3)),
            retain=rng.randint(1, 4),
        )


REWINDS = Plan(
    steps=400,
    drivers=3,
    batches=3,
    collectors=1,
    admins=0,
    sinks=2,
    publish=0.5,
    abort=0.0,
    retain=3,
    pause=0.01,
    drowsy=0.6,
    pauses=(30, 60, 120),
    faults=0.0,
    newcomers=0.01,
    people=(("saver", 2), ("restorer", 2)),
)
"""Drivers that sleep long before they publish, while people take the job back."""

KEEPING = Plan(
    steps=300,
    drivers=1,
    batches=6,
    collectors=3,
    admins=1,
    shorten=0.8,
    sinks=1,
    abort=0.0,
    retain=1,
    real=True,
    idle=15,
    pause=0.03,
    faults=0.0,
    crash=0.01,
    newcomers=0.0,
    people=(("saver", 2), ("asker", 2), ("disposer", 1)),
)
"""Savepoints are made and taken away among many collectors, by people and runs that die or sleep."""

TOMBSTONE = replace(
    KEEPING, pause=0.1, pauses=(30, 60, 100), people=(("saver", 4), ("asker", 1), ("dropper", 3), ("disposer", 1))
)
"""Makers of savepoints that sleep, and somebody who takes them for dead."""

HELD = Plan(
    steps=350,
    drivers=1,
    batches=2,
    collectors=5,
    admins=4,
    shorten=0.0,
    sinks=0,
    adopts=0.9,
    abort=0.0,
    idle=15,
    newcomers=0.0,
    pause=0.0,
    crash=0.0,
    faults=0.0,
    hold=0.7,
    held=(("gc1", "get"), ("gc2", "get"), ("gc3", "get"), ("gc4", "get"), ("admin", "put")),
)
"""An adversary holds commands and all collectors but one at the log, while runs keep going back to the checkpoint
before the newest: the way to a slot that is created anew under a collector's eyes."""

VACUUM = Plan(
    steps=300,
    drivers=1,
    batches=4,
    collectors=1,
    sinks=2,
    retain=3,
    vacuum=True,
    newcomers=0.0,
    crowd=2,
    pause=0.0,
    crash=0.01,
    faults=0.0,
)
"""Runs die, and while none works somebody deletes output that waits to be published."""

BEREFT = replace(
    VACUUM,
    steps=700,
    batches=3,
    retain=9,
    real=True,
    adopts=0.0,
    keep=0.1,
    newcomers=0.005,
    crash=0.02,
    people=(("saver", 3), ("restorer", 3)),
)
"""The same, while people take the job back: a start must not go behind what they went back to."""

SHARED = replace(REWINDS, appenders=2, crash=0.01, people=(("saver", 1), ("restorer", 3)), keep=0.2)
"""Other applications append to the tables while people take the job back, and die on the way."""

SHARED_LOST = replace(BEREFT, appenders=2, crash=0.04, keep=0.0)
"""The same, while the job goes back by itself as well, because output is deleted."""

BUSY = Plan(
    steps=300,
    drivers=1,
    batches=10,
    collectors=3,
    admins=3,
    shorten=0.9,
    sinks=0,
    retain=3,
    real=True,
    abort=0.0,
    newcomers=0.0,
    pause=0.0,
    crash=0.0,
    faults=0.0,
)
"""One healthy run among many collectors and commands that shorten the retention."""

COMMANDS = Plan(
    steps=250,
    drivers=2,
    batches=2,
    collectors=1,
    admins=5,
    shorten=0.5,
    sinks=0,
    adopts=0.8,
    retain=3,
    newcomers=0.02,
    faults=0.0,
)
"""Pins, adoptions and shortened retentions meet at the head."""

ASYNCHRONOUS = Plan(
    steps=600,
    drivers=1,
    batches=8,
    collectors=2,
    admins=1,
    sinks=2,
    retain=2,
    real=True,
    asynchronous=True,
    abort=0.0,
    lost_uploads=0.03,
    pause=0.01,
    crash=0.003,
    newcomers=0.005,
    people=(("saver", 1), ("asker", 2), ("stopper", 1), ("restorer", 1)),
)
"""Runs whose files come late, or never, and whose commits happen in the background."""

DENIED = Plan(
    steps=400,
    drivers=2,
    batches=6,
    collectors=2,
    admins=2,
    shorten=0.3,
    sinks=1,
    retain=2,
    real=True,
    abort=0.1,
    denied=0.5,
    people=(("saver", 2), ("asker", 1), ("restorer", 1)),
)
"""A storage that refuses some deletions: runs and commands go on, and a later collection deletes what is left."""

PLANS: dict[str, Plan | None] = {
    "": None,
    "held": HELD,
    "vacuum": VACUUM,
    "lost": BEREFT,
    "busy": BUSY,
    "commands": COMMANDS,
    "rewinds": REWINDS,
    "shared": SHARED,
    "shared-lost": SHARED_LOST,
    "keeping": KEEPING,
    "given-up": TOMBSTONE,
    "asynchronous": ASYNCHRONOUS,
    "denied": DENIED,
}
"""Directed searches by name; without a name each history draws its own plan."""


def odds(plan: Plan) -> dict[str, list[tuple[float, int]]]:
    """For each kind of call, faults with cumulative probabilities."""
    f = plan.faults
    alone = [(plan.pause, PAUSE), (plan.crash, CRASH)]
    tables = [(plan.pause + plan.drowsy, PAUSE), (plan.crash, CRASH)]
    chances = {
        START: [],
        READ: [*alone, (0.01 * f, FAILED), (0.001 * f, ERROR)],
        WRITE: [*alone, (0.01 * f, LOST), (0.01 * f, FAILED), (0.005 * f, LATE), (0.002 * f, ERROR)],
        PUT: [*alone, (0.02 * f, LOST), (0.02 * f, FAILED), (0.01 * f, LATE), (0.01 * f, MASKED)],
        TABLE: [*tables, (0.02 * f, LOST), (0.02 * f, FAILED), (0.02 * f, LATE), (0.02 * f, MASKED)],
    }
    return {kind: _cumulative(pairs) for kind, pairs in chances.items()}


def _cumulative(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    total, result = 0.0, []
    for probability, verdict in pairs:
        total += probability
        result.append((total, verdict))
    return result
