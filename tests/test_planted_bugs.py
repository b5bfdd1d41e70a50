"""The planted bugs change code that exists, so that the scoreboard, which runs rarely, can plant them."""

from __future__ import annotations

import pytest

from tests.support.mutants import MUTANTS, patches, planted


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_changes_code_that_exists(name: str) -> None:
    places = [(place, attribute, getattr(place, attribute)) for place, attribute, _ in patches(name)]
    with planted(name):
        assert all(getattr(place, attribute) is not before for place, attribute, before in places)
    assert all(getattr(place, attribute) is before for place, attribute, before in places)
