"""With any one rule of the protocol taken out, the simulator finds the mistake."""

from __future__ import annotations

import pytest

from tests.model.history import Search, explore, first_finding, play
from tests.model.invariants.violation import Violation
from tests.support.mutants import SIMULATED

_SEEDS = [
    ("plain-none", 2),
    ("unasked-savepoint", 7),
    ("late-copies", 165),
    ("outrun-request", 5),
    ("half-fork", 108),
    ("unconfirmed-savepoint", 36),
    ("kept-unpublished", 7),
]
"""Histories that showed a mistake in the code, by the mutant that brings the mistake back."""


@pytest.mark.parametrize(("name", "seed"), _SEEDS)
def test_a_history_that_detects_a_mutant_breaks_no_rule_without_the_mutant(name: str, seed: int) -> None:
    play(seed, Search(plan=SIMULATED[name].plan))
    with pytest.raises(Violation):
        play(seed, Search(name))


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_detects_that_a_rule_was_removed(name: str) -> None:
    assert first_finding(name), f"no history showed: {SIMULATED[name].what}"


def test_a_mutant_does_not_change_later_histories() -> None:
    before = [play(seed) for seed in range(5)]
    for name in SIMULATED:
        explore(range(2), Search(name))
    assert [play(seed) for seed in range(5)] == before
