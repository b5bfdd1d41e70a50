"""The planted bugs replace code that exists, so that the scoreboard, which runs rarely, can plant them."""

from __future__ import annotations

import pytest

from tests.support.mutants import MUTANTS, planted


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_replaces_code_that_exists(name: str) -> None:
    changed = {(owner, attribute): getattr(owner, attribute) for owner, attribute, _ in MUTANTS[name].patches}
    assert changed
    with planted(name):
        assert all(getattr(owner, attribute) is not before for (owner, attribute), before in changed.items())
