"""Another application appends to the job's tables at any step of a job that goes back and is killed on the way."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from typing import Any

from tests.recovery.other_writer import TABLES, append, check_tables, newest_version
from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.job_fixture import Row as TableRow
from tests.support.restores import execute, plan

_KILLED, _REFUSED = -9, 4
_BEFORE_TABLES = ("rewind.table:1", "rewind.table:2")
_STEPS = ("restore.intent", *_BEFORE_TABLES, *_BEFORE_TABLES, "rewind.tables", "rewind.recorded", "rewind.done")
_PLANS = 20


class _Writer:
    """Appends now and then, and knows what must be there: all of it but what an executed plan named."""

    def __init__(self, box: AccountsJob, dice: random.Random) -> None:
        self.appended = 0
        self._box = box
        self._dice = dice
        self._there: dict[tuple[str, int], list[TableRow]] = {}

    def act(self, chance: float = 0.6) -> None:
        """Perhaps appends to some of the tables."""
        for table in TABLES:
            if self._dice.random() < chance:
                rows = append(self._box, table, self._dice.randint(1, 3))
                self._there[table, newest_version(self._box, table)] = rows
                self.appended += 1

    def approved(self, sinks: Iterable[dict[str, Any]]) -> None:
        """A person let this plan be carried out."""
        for sink in sinks:
            for text in sink["others"]:
                # The version is the first number of a text.
                (version, *_) = map(int, re.findall(r"\d+", text))
                self._there.pop((sink["uid"], version), None)

    def check(self) -> None:
        """Tables have the job's rows once, and every row of this writer that no plan named."""
        wanted: dict[str, list[TableRow]] = {table: [] for table in TABLES}
        for (table, _), rows in self._there.items():
            wanted[table] += rows
        check_tables(self._box, wanted)


def _play(round_: Round) -> int:
    dice = random.Random(round_.seed)
    with box_of(round_) as box:
        box.settings = {**box.settings, "checkpoints__retained": 100, "checkpoints__asynchronous": "no"}
        writer = _Writer(box, dice)
        box.deliver(50)
        box.finish()
        writer.act()
        point = root_files.head(box.root).checkpoint
        box.deliver(100)
        _lose_output(box, writer, dice) if round_.seed % 2 else _restore(box, writer, point, dice)
        writer.act(0.9)
        _go_through(box, writer, dice)
        writer.check()
    return writer.appended


def _lose_output(box: AccountsJob, writer: _Writer, dice: random.Random) -> None:
    """A start goes back by itself, and is killed there."""
    assert box.run(f"commit.after:{dice.randint(2, 4)}").code == _KILLED
    writer.act()
    newest = root_files.head(box.root)
    table = dice.choice(TABLES)
    (box.table(table) / "data" / newest.pending[table][0]).unlink()
    box.marker.unlink()
    assert box.run(dice.choice(("log.created:2", *_STEPS[1:]))).code == _KILLED
    box.marker.unlink()


def _restore(box: AccountsJob, writer: _Writer, point: int, dice: random.Random) -> None:
    """A person takes the job back, and the command is killed."""
    box.finish()
    writer.act()
    shown = plan(box, str(point))
    assert execute(box, failpoint=dice.choice(_STEPS)).code == _KILLED
    writer.approved(shown["sinks"])
    box.marker.unlink()


def _go_through(box: AccountsJob, writer: _Writer, dice: random.Random) -> None:
    """Starts; where a run stops because of the other writer, a person plans anew and approves what is shown."""
    for _ in range(_PLANS):
        ended = box.run()
        if ended.code == 0:
            return
        assert (ended.code, ended.error.code) == (_REFUSED, "foreign-rows"), str(ended)
        shown = plan(box, "latest")
        writer.act(0.2)
        ended = execute(box, failpoint=dice.choice(("", *_STEPS)))
        if ended.code == _REFUSED:
            assert ended.error.code == "plan-outdated", str(ended)
            continue
        assert ended.code in (0, _KILLED), str(ended)
        box.marker.unlink(missing_ok=True)
        writer.approved(shown["sinks"])
        writer.act(0.2)
    raise AssertionError(f"{_PLANS} plans did not get the job through: {json.dumps(shown)}")


ROWS = [
    Row(
        22,
        "other-writers",
        "another application appends to a table of a job that goes back, by itself or for a "
        "person, and is killed at any step of that",
        "tables have the job's rows once, and each row of the other writer that no executed plan named",
        _play,
        {Tier.SLICE: 4, Tier.HALF_HOUR: 40, Tier.NIGHTLY: 400},
        plant="blind-rewind",
        plant_rounds=10,
    )
]
