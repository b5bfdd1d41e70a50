"""Random histories and directed searches break no rule, and reach the situations that they are for."""

from __future__ import annotations

import pytest

from tests.model.history import Search, explore, play
from tests.model.simulation.plan import PLANS, Fault

_CHUNK = 3_000
_CHUNKS, _QUICK_CHUNKS = 8, 2
"""`make test` plays the quick chunks; `make test-all` and the scoreboard play all."""
_SLICE = 4
"""`make test` plays one of so many histories of each directed search, `make test-all` all of them."""
_SLOW = pytest.mark.slow(reason="thousands of histories more")
_HISTORIES = {
    "mixed": 600,
    "rewinds": 1500,
    "vacuum": 1200,
    "keeping": 600,
    "given-up": 1500,
    "asynchronous": 1000,
    "shared": 1000,
    "claims": 600,
}
"""Of directed searches; 300 by default."""

_AT_LEAST: dict[str, dict[str, int]] = {
    # A history has a bounded number of steps.
    "": {
        "steps": 400_000,
        "commits": 8_000,
        "fenced": 4_500,
        "deletions": 50_000,
        "publications seen": 6_500,
        "adoptions": 100,
        "checkpoints given up": 1_000,
        "pins": 1_000,
        "unpins": 1_000,
        "retentions shortened": 1_000,
        "entries in stale slots": 300,
        "late writes that arrived": 500,
        "savepoints complete": 300,
        "savepoints made by runs": 15,
        "savepoints given up": 30,
        "savepoints disposed": 10,
        "requests done": 200,
        "requests withdrawn": 300,
        "stops": 50,
        "intents": 20,
        "intents to an older checkpoint": 1,
        "tables rewound (restore)": 25,
        "forks that committed": 10,
        "forks without state": 5,
    }
    | {fault: 200 for fault in Fault if fault is not Fault.NONE},
    "rewinds": {
        "intents": 200,
        "intents to an older checkpoint": 70,
        "tables rewound (restore) with rows undone": 70,
        "tables rewound (keep)": 50,
        "rewinds (restore) with a late publication before them": 20,
        "restores repeated": 50,
        "states imported": 5,
    },
    "mixed": {
        "restores planned that keep one table": 150,
        "tables rewound (restore) with rows undone": 10,
        "tables rewound (keep)": 30,
        "restores repeated": 20,
    },
    "keeping": {
        "savepoints complete": 500,
        "savepoints made by runs": 80,
        "savepoints disposed": 60,
        "savepoints given up": 80,
        "requests withdrawn": 500,
        "savepoints taken by the run": 5,
    },
    "claims": {
        "savepoints claimed": 80,
        "savepoints released": 25,
        "savepoints deleted": 100,
        "claimed savepoints deleted": 60,
        "states imported": 70,
    },
    "shared": {
        "appended by others before a rewind": 400,
        "runs stopped by others' rows": 50,
        "intents replaced": 8,
        "commits of others undone": 40,
        "tables rewound late for a replaced plan": 2,
    },
    "shared-lost": {"appended by others before a rewind": 300, "runs stopped by others' rows": 50},
    "denied": {"deletions refused": 1_000, "collections that failed": 500, "savepoints complete": 200, "commits": 400},
    "leases": {
        "leased pins": 500,
        "leases renewed": 250,
        "leases lost": 400,
        "reads that missed a file": 5,
        "readers that left a pin": 80,
        "pins dropped at the end of their lease": 400,
    },
    "given-up": {"savepoints given up": 100, "abandoned pins dropped": 100},
    "asynchronous": {
        "late uploads": 4_000,
        "uploads lost": 100,
        "runs that timed out": 5,
        "commits": 3_000,
        "savepoints made by runs": 40,
        "stops": 50,
        "fenced": 200,
    },
}
"""Situations that a chunk of random histories, or a directed search, must reach at least so often."""


@pytest.mark.parametrize(
    "chunk", [*range(_QUICK_CHUNKS), *(pytest.param(n, marks=_SLOW) for n in range(_QUICK_CHUNKS, _CHUNKS))]
)
def test_no_random_history_breaks_a_rule(chunk: int) -> None:
    _check("", range(chunk * _CHUNK, (chunk + 1) * _CHUNK), _AT_LEAST[""])


@pytest.mark.parametrize("slices", [_SLICE, pytest.param(1, marks=_SLOW)])
@pytest.mark.parametrize("plan", [name for name in PLANS if name])
def test_no_directed_search_breaks_a_rule(plan: str, slices: int) -> None:
    # A rare situation can be rarer in a slice than in the whole.
    share = 2 * slices if slices > 1 else 1
    wanted = {what: least // share for what, least in _AT_LEAST.get(plan, {}).items()}
    _check(plan, range(_HISTORIES.get(plan, 300) // slices), wanted)


@pytest.mark.parametrize(("plan", "seed"), [("vacuum", 874), ("vacuum", 3715)])
def test_a_history_that_found_a_bug_breaks_no_rule(plan: str, seed: int) -> None:
    """A run goes back by itself while a command releases retained checkpoints; their list is deleted, and then the
    checkpoint that the run has chosen."""
    play(seed, Search(plan=plan))


def _check(plan: str, seeds: range, wanted: dict[str, int]) -> None:
    report = explore(seeds, Search(plan=plan))
    assert not report.failures, report.failures[0].story()
    assert {what: report.stats[what] for what, least in wanted.items() if report.stats[what] < least} == {}
