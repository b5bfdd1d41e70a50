"""The simulator detects each removed rule of the protocol."""

from __future__ import annotations

import pytest

from tests.model.history import Search, explore, first_finding, play
from tests.support.mutants import SIMULATED

_FROM = {
    "go-back-anyway": 622, "half-fork": 283, "kept-token": 115, "kept-unpublished": 118, "late-copies": 64,
    "lease-by-clock": 124, "no-savepoint-pin": 394, "pin-checked-once": 174, "pins-first": 117, "unannounced-claim": 41,
    "unconfirmed-savepoint": 48, "unreserved-deletion": 51, "unslotted-undo": 468,
}  # fmt: skip
"""Seeds from which the search finds at once what few histories show. After changes it takes longer, from anywhere."""


@pytest.mark.long(reason="plays histories until one breaks a rule")
@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_detects_that_a_rule_was_removed(name: str) -> None:
    """Without the mutant, the same history breaks no rule."""
    found = first_finding(name, _FROM.get(name, 0))
    assert found, f"no history showed: {SIMULATED[name].what}"
    play(found.seed, Search(plan=SIMULATED[name].plan))


@pytest.mark.long(reason="plays many histories")
def test_a_mutant_does_not_change_later_histories() -> None:
    before = [play(seed) for seed in range(3)]
    for name in SIMULATED:
        explore(range(1), Search(name))
    assert [play(seed) for seed in range(3)] == before
