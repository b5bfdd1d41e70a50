"""Searches that lead to rare situations break no rule, and reach the situations they are for."""

from __future__ import annotations

import pytest

from tests.model.history import Search, explore, play
from tests.model.plan import PLANS

_HISTORIES = {"rewinds": 1500, "vacuum": 1200, "keeping": 600, "given-up": 1500, "asynchronous": 600, "shared": 500}

_AT_LEAST: dict[str, dict[str, int]] = {
    "rewinds": {
        "intents": 200,
        "intents to an older checkpoint": 70,
        "tables rewound (restore) with rows undone": 70,
        "tables rewound (keep)": 50,
        "rewinds (restore) with a late publication before them": 20,
        "restores begun again": 50,
        "states imported": 5,
    },
    "keeping": {
        "savepoints complete": 500,
        "savepoints made by runs": 80,
        "savepoints disposed": 60,
        "savepoints given up": 80,
        "requests withdrawn": 500,
        "savepoints taken by the run": 5,
    },
    "shared": {
        "appended by others to a table in limbo": 400,
        "runs stopped by others' rows": 50,
        "intents replaced": 8,
        "commits of others undone": 40,
        "tables rewound late for a replaced plan": 2,
    },
    "shared-lost": {"appended by others to a table in limbo": 300, "runs stopped by others' rows": 50},
    "denied": {"deletions refused": 1_000, "collections that failed": 500, "savepoints complete": 200, "commits": 400},
    "given-up": {"savepoints given up": 100, "abandoned pins dropped": 100},
    "asynchronous": {
        "uploads during a batch": 4_000,
        "uploads lost": 100,
        "runs that waited in vain": 5,
        "commits": 3_000,
        "savepoints made by runs": 40,
        "stops": 50,
        "fenced": 200,
    },
}
"""What each search must have seen."""


_SLICE = 4
"""`make test` plays one of so many histories, `make test-all` all of them."""


@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_a_slice_of_each_directed_search_breaks_no_rule(plan: str) -> None:
    _check(plan, slices=_SLICE)


@pytest.mark.parametrize(("plan", "seed"), [("vacuum", 874), ("vacuum", 3715)])
def test_a_history_that_showed_a_mistake_is_sound_now(plan: str, seed: int) -> None:
    """A run goes back by itself while a command shortens the list of retained checkpoints, and its objects go; then
    the checkpoint that it has chosen."""
    play(seed, Search(plan=plan))


@pytest.mark.slow
@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_no_directed_search_breaks_a_rule(plan: str) -> None:
    _check(plan, slices=1)


def _check(plan: str, slices: int) -> None:
    report = explore(range(_HISTORIES.get(plan, 300) // slices), Search(plan=plan))
    assert not report.failures, report.failures[0].story()
    # A rare situation can be rarer in a slice than in the whole.
    wanted = {what: least // (2 * slices) if slices > 1 else least for what, least in _AT_LEAST.get(plan, {}).items()}
    assert {what: report.stats[what] for what, least in wanted.items() if report.stats[what] < least} == {}
