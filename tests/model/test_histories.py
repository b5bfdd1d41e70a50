"""Random histories and directed searches break no rule, and reach the situations that they are for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.history import Search, explore, play
from tests.model.simulation.plan import PLANS, Fault

_HISTORIES = {
    "mixed": 600, "rewinds": 1500, "vacuum": 1200, "keeping": 600, "given-up": 1500, "asynchronous": 1000,
    "shared": 1000, "claims": 600,
}  # fmt: skip
"""Of directed searches; 300 by default."""
_FEW = {"held": 150, "vacuum": 120}
"""What finds the planted bugs in `make test`; 25 by default."""
_REACHED = {
    "": (
        *("commits", "fenced", "deletions", "publications seen", "adoptions", "checkpoints given up", "pins", "unpins"),
        *("retentions shortened", "entries in stale slots", "late writes that arrived", "savepoints complete"),
        *("savepoints made by runs", "savepoints given up", "savepoints disposed", "requests done"),
        *("requests withdrawn", "stops", "intents", "tables rewound (restore)", "forks that committed"),
        *("forks without state", *(fault for fault in Fault if fault is not Fault.NONE)),
    ),
    "rewinds": (
        *("intents to an older checkpoint", "tables rewound (restore) with rows undone", "tables rewound (keep)"),
        *("rewinds (restore) with a late publication before them", "restores repeated", "states imported"),
    ),
    "mixed": (
        *("restores planned that keep one table", "tables rewound (restore) with rows undone"),
        *("tables rewound (keep)", "restores repeated"),
    ),
    "keeping": (
        *("savepoints complete", "savepoints made by runs", "savepoints disposed", "savepoints given up"),
        *("requests withdrawn", "savepoints taken by the run"),
    ),
    "claims": (
        *("savepoints claimed", "savepoints released", "savepoints deleted", "claimed savepoints deleted"),
        "states imported",
    ),
    "shared": (
        *("appended by others before a rewind", "runs stopped by others' rows", "intents replaced"),
        *("commits of others undone", "tables rewound late for a replaced plan"),
    ),
    "shared-lost": ("appended by others before a rewind", "runs stopped by others' rows"),
    "denied": ("deletions refused", "collections that failed", "savepoints complete", "commits"),
    "leases": (
        *("leased pins", "leases renewed", "leases lost", "readers that left a pin", "reads that missed a file"),
        "pins dropped at the end of their lease",
    ),
    "given-up": ("savepoints given up", "abandoned pins dropped"),
    "asynchronous": ("late uploads", "uploads lost", "commits", "savepoints made by runs", "stops", "fenced"),
}
"""Situations that random histories, or a directed search, must reach."""


@pytest.mark.long(reason="plays hundreds of histories")
@pytest.mark.parametrize("histories", [150, pytest.param(24_000, marks=pytest.mark.slow(reason="takes minutes"))])
def test_no_random_history_breaks_a_rule(histories: int) -> None:
    _check("", range(histories), _REACHED[""] if histories > 1000 else ())


@pytest.mark.long(reason="plays hundreds of histories")
@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_few_histories_of_a_directed_search_break_no_rule(plan: str) -> None:
    _check(plan, range(_FEW.get(plan, 25)), ())


@pytest.mark.slow(reason="takes minutes")
@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_no_directed_search_breaks_a_rule(plan: str) -> None:
    _check(plan, range(_HISTORIES.get(plan, 300)), _REACHED.get(plan, ()))


@pytest.mark.parametrize(("plan", "seed"), [("vacuum", 874), ("vacuum", 3715)])
def test_a_history_that_found_a_bug_breaks_no_rule(plan: str, seed: int) -> None:
    """A run goes back by itself while a command releases retained checkpoints; their list is deleted, and then the
    checkpoint that the run has chosen."""
    play(seed, Search(plan=plan))


def _check(plan: str, seeds: range, wanted: Sequence[str]) -> None:
    report = explore(seeds, Search(plan=plan))
    assert not report.failures, report.failures[0].story()
    assert [what for what in wanted if not report.stats[what]] == []
