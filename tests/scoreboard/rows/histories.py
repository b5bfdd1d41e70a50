"""Interleavings of drivers, collectors and people in the simulator: crashes, long pauses, lost answers, late writes."""

from __future__ import annotations

from tests.model.history import Search, explore
from tests.scoreboard.row import Round, Row, Tier

_HISTORIES = 100


def _play(round_: Round) -> int:
    report = explore(range(round_.seed * _HISTORIES, (round_.seed + 1) * _HISTORIES), Search(mutant=round_.plant))
    assert not report.failures, report.failures[0].story()
    return report.histories


ROWS = [
    Row(
        1,
        "histories",
        "random interleavings of drivers, collectors and people: crashes, pauses, lost answers, late "
        "writes, in the simulator (one history each)",
        "the rules I1 to I8 and those of the sinks after every step, by a checker that knows only what is stored",
        _play,
        {Tier.SLICE: 5, Tier.HALF_HOUR: 200, Tier.NIGHTLY: 10_000},
        plant="no-list",
        plant_rounds=30,
        what="no LIST behind the creation of a log entry",
    )
]
