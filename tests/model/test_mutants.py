"""The simulator detects each removed rule of the protocol."""

from __future__ import annotations

import pytest

from tests.model.history import Search, explore, first_finding, play
from tests.support.mutants import SIMULATED


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_detects_that_a_rule_was_removed(name: str) -> None:
    """Without the mutant, the same history breaks no rule."""
    found = first_finding(name)
    assert found, f"no history showed: {SIMULATED[name].what}"
    play(found.seed, Search(plan=SIMULATED[name].plan))


def test_a_mutant_does_not_change_later_histories() -> None:
    before = [play(seed) for seed in range(5)]
    for name in SIMULATED:
        explore(range(2), Search(name))
    assert [play(seed) for seed in range(5)] == before
