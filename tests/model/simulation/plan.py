"""Parameters of one history: how many actors of which kind, and how often which fault happens."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

PUT, READ, WRITE, TABLE, START = "put", "read", "write", "table", "start"
"""Kinds of calls, by what can go wrong: put-if-absent, reads, writes that may be repeated, a sink's commit. START is
the first step of an actor, or its step after a wait, which is not a call."""


class Fault(StrEnum):
    """What happens to a call. MASKED: it was executed, its answer was lost, and the client library repeated the request
    and reports the second answer: `exists`, or a conflict. HOLD: an adversary delays it."""

    NONE = "ok"
    PAUSE = "PAUSE"
    CRASH = "CRASH"
    LOST = "LOST RESPONSE"
    FAILED = "FAILED REQUEST"
    LATE = "LATE WRITE"
    MASKED = "MASKED BY RETRY"
    ERROR = "ERROR"
    HOLD = "HELD BACK"


@dataclass(frozen=True)
class Plan:
    """One history's parameters. A plan with sinks has no adoptions: rewinding a sink is another protocol.

    Attributes:
        steps, batches: of the history; of each run.
        drivers, collectors, admins, appenders, commands: numbers of runs at the beginning, collectors, processes that
            pin and release checkpoints, applications that append to the tables, commands by kind.
        readers: number of processes that read checkpoints under pins with a lease.
        shorten: how likely an admin process shortens the retention, instead of reading a checkpoint under a pin.
        adopts: how likely a start adopts a retained checkpoint.
        inline, segment: how many retained checkpoints an entry lists itself; how many a segment has.
        inline_output: bytes of pending output in an entry itself; more is in objects, one for each file.
        publish: how likely a run publishes after a commit, instead of later.
        abort: how likely a checkpoint is aborted; its files and output pass to the next.
        uses_job_run: whether runs are `JobRun`s, or use the log directly.
        asynchronous, lost_uploads: whether a `JobRun` stores files and commits in the background; how likely such a
            file is never stored.
        denied: how likely a deletion is refused, as by a policy of the storage.
        vacuum: whether output is deleted before it is published.
        keep: how likely a restore keeps the tables.
        keep_one: how likely a restore keeps the table of one sink, and restores the others.
        claim: how likely a restore claims its savepoint; half as likely, a user deletes a claimed one.
        idle: how many steps a collector or an admin process waits at most.
        new_runs: how likely, at each step, another run starts while others work.
        restarts: how many runs start when none is left.
        pauses, pause: lengths of pauses in steps; how likely one is.
        table_pause: how much likelier a pause is before a change of a table.
        hold, held: how likely an adversary holds a call to a log slot (a put until the slot was collected, a read until
            it was created again); whose calls, and which.
        faults: scales how often answers and requests are lost, and writes arrive late.
    """

    steps: int = 250
    drivers: int = 3
    batches: int = 5
    collectors: int = 2
    admins: int = 1
    readers: int = 0
    shorten: float = 0.3
    sinks: int = 1
    adopts: float = 0.0
    retain: int = 2
    inline: int = 1
    segment: int = 2
    inline_output: int = 0
    publish: float = 0.8
    abort: float = 0.1
    uses_job_run: bool = False
    asynchronous: bool = False
    lost_uploads: float = 0.0
    denied: float = 0.0
    vacuum: bool = False
    appenders: int = 0
    commands: tuple[tuple[str, int], ...] = ()
    keep: float = 0.3
    keep_one: float = 0.0
    claim: float = 0.0
    idle: int = 40
    new_runs: float = 0.01
    restarts: int = 1
    pause: float = 0.02
    hold: float = 0.0
    held: tuple[tuple[str, str], ...] = (("run", "put"), ("run", "get"), ("admin", "put"), ("gc", "get"))
    table_pause: float = 0.0
    pauses: tuple[int, ...] = (20, 80, 200)
    crash: float = 0.004
    faults: float = 1.0

    @classmethod
    def draw(cls, rng: random.Random) -> Plan:
        """Draws a plan. Histories without whole kinds of actors or faults find more than average ones."""
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
            new_runs=rng.choice((0.0, 0.01, 0.02)),
            pause=rng.choice((0.005, 0.02, 0.06)),
            faults=rng.choice((0.0, 1.0, 1.0, 3.0)),
            crash=rng.choice((0.0, 0.005)),
            uses_job_run=rng.random() < 0.3,
            inline=rng.choice((0, 1, 16)),
            segment=rng.choice((1, 2, 3)),
            inline_output=rng.choice((0, 200, 1000)),
        )
        if rng.random() < 0.35:
            return plan._with_commands(rng)
        return replace(plan, hold=0.1) if rng.random() < 0.2 else plan

    def _with_commands(self, rng: random.Random) -> Plan:
        commands = (
            ("savepoint", rng.randint(0, 2)), ("request", rng.randint(0, 2)), ("stop", rng.choice((0, 0, 1))),
            ("restore", rng.choice((0, 1, 1, 2))), ("dispose", rng.choice((0, 1))), ("unpin", rng.choice((0, 0, 1))),
            ("fork", rng.choice((0, 0, 1))),
        )  # fmt: skip
        return replace(
            self,
            steps=350,
            commands=commands,
            sinks=2,
            adopts=0.0,
            uses_job_run=rng.random() < 0.7,
            keep=rng.choice((0.0, 0.3)),
            claim=rng.choice((0.0, 0.5)),
            crash=rng.choice((0.0, 0.005, 0.01)),
            table_pause=rng.choice((0.0, 0.3)),
            retain=rng.randint(1, 4),
        )


_NO_FAULTS = Plan(steps=300, drivers=1, new_runs=0.0, pause=0.0, crash=0.0, faults=0.0)
"""One run after the other, without faults."""

REWINDS = replace(
    Plan(
        steps=400, batches=3, collectors=1, admins=0, sinks=2, publish=0.5, abort=0.0, retain=3, pause=0.01, faults=0.0
    ),
    table_pause=0.6,
    pauses=(30, 60, 120),
    commands=(("savepoint", 2), ("restore", 2)),
)
"""Runs that are paused long before they publish, while restores happen."""

SAVEPOINTS = replace(
    replace(_NO_FAULTS, uses_job_run=True, abort=0.0, pause=0.03, crash=0.01), batches=6, collectors=3, shorten=0.8,
    retain=1, idle=15, commands=(("savepoint", 2), ("request", 2), ("dispose", 1)),
)  # fmt: skip
"""Savepoints are made and disposed of among many collectors; all processes die or pause."""

CLAIMS = replace(
    replace(REWINDS, steps=900, batches=2, drivers=1, new_runs=0.0, retain=1, collectors=2, table_pause=0.0),
    claim=0.9,
    pause=0.02,
    pauses=(30, 120, 400),
    crash=0.006,
    commands=(("savepoint", 2), ("restore", 2), ("dispose", 2)),
)
"""Restores claim savepoints, and users delete them."""

VACUUM = replace(_NO_FAULTS, batches=4, collectors=1, sinks=2, retain=3, vacuum=True, restarts=2, crash=0.01)
"""Runs die, and while none runs, output that waits to be published is deleted."""

LOST = replace(
    replace(VACUUM, steps=700, batches=3, retain=9, uses_job_run=True, keep=0.1, new_runs=0.005, crash=0.02),
    commands=(("savepoint", 3), ("restore", 3)),
)
"""The same with restores: a start must not go back further than a restore did."""

PLANS: dict[str, Plan | None] = {
    "": None,
    # An adversary holds admin processes and all collectors but one at the log, while runs adopt the checkpoint before
    # the newest: a collector then meets a slot that is created again.
    "held": replace(
        replace(_NO_FAULTS, steps=350, batches=2, collectors=5, admins=4, shorten=0.0, sinks=0, adopts=0.9, abort=0.0),
        idle=15,
        hold=0.7,
        held=(("gc1", "get"), ("gc2", "get"), ("gc3", "get"), ("gc4", "get"), ("admin", "put")),
    ),
    "vacuum": VACUUM,
    "lost": LOST,
    # One healthy run among many collectors and commands that shorten the retention.
    "busy": replace(
        replace(_NO_FAULTS, uses_job_run=True, abort=0.0), batches=10, collectors=3, admins=3, shorten=0.9, sinks=0,
        retain=3,
    ),
    # Pins, adoptions and shortened retentions meet at the head.
    "commands": Plan(
        drivers=2, batches=2, collectors=1, admins=5, shorten=0.5, sinks=0, adopts=0.8, retain=3, new_runs=0.02,
        faults=0.0,
    ),
    "rewinds": REWINDS,
    # Other applications append to the tables while restores happen, and die.
    "shared": replace(REWINDS, appenders=2, crash=0.01, commands=(("savepoint", 1), ("restore", 3)), keep=0.2),
    # The same, while runs go back by themselves as well, because output is deleted.
    "shared-lost": replace(LOST, appenders=2, crash=0.04, keep=0.0),
    # Restores keep one table and rewind the other one; restores and runs are paused or die in between.
    "mixed": replace(REWINDS, keep=0.1, keep_one=0.7, claim=0.5, crash=0.01),
    "keeping": SAVEPOINTS,
    # Restores claim their savepoints, users delete them, and all of these die or pause.
    "claims": CLAIMS,
    # Makers of savepoints that are paused, and a user who drops their pins.
    "given-up": replace(
        replace(SAVEPOINTS, pause=0.1, pauses=(30, 60, 100)),
        commands=(("savepoint", 4), ("request", 1), ("unpin", 3), ("dispose", 1)),
    ),
    # Readers whose pins have an end and whose clocks differ, among collectors; runs and readers die or pause.
    "leases": Plan(
        steps=400, drivers=2, batches=6, collectors=3, readers=4, retain=1, inline=1, pauses=(30, 60, 120), crash=0.005
    ),
    # Runs whose files are stored late, or never, and whose commits happen in the background.
    "asynchronous": Plan(
        steps=600, drivers=1, batches=8, sinks=2, uses_job_run=True, asynchronous=True, abort=0.0, lost_uploads=0.03,
        pause=0.01, crash=0.003, new_runs=0.005,
        commands=(("savepoint", 1), ("request", 2), ("stop", 1), ("restore", 1)),
    ),
    # A storage that refuses some deletions: runs and commands continue, and a later collection deletes what is left.
    "denied": Plan(
        steps=400, drivers=2, batches=6, admins=2, uses_job_run=True, denied=0.5,
        commands=(("savepoint", 2), ("request", 1), ("restore", 1)),
    ),
}  # fmt: skip
"""Directed searches by name. Without a name each history draws its own plan."""


def fault_table(plan: Plan) -> dict[str, list[tuple[float, Fault]]]:
    """Returns, for each kind of call, faults with cumulative probabilities."""
    f = plan.faults
    alone = [(plan.pause, Fault.PAUSE), (plan.crash, Fault.CRASH)]
    tables = [(plan.pause + plan.table_pause, Fault.PAUSE), (plan.crash, Fault.CRASH)]
    answers = {
        READ: [(0.01, Fault.FAILED), (0.001, Fault.ERROR)],
        WRITE: [(0.01, Fault.LOST), (0.01, Fault.FAILED), (0.005, Fault.LATE), (0.002, Fault.ERROR)],
        PUT: [(0.02, Fault.LOST), (0.02, Fault.FAILED), (0.01, Fault.LATE), (0.01, Fault.MASKED)],
        TABLE: [(0.02, Fault.LOST), (0.02, Fault.FAILED), (0.02, Fault.LATE), (0.02, Fault.MASKED)],
    }
    result: dict[str, list[tuple[float, Fault]]] = {START: []}
    for kind, faults in answers.items():
        total, result[kind] = 0.0, []
        for probability, fault in [*(tables if kind == TABLE else alone), *((p * f, fault) for p, fault in faults)]:
            total += probability
            result[kind].append((total, fault))
    return result
