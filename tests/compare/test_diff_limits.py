"""How much two snapshots may differ."""

from __future__ import annotations

import pytest

from stateflow.compare.summary import DiffLimits, StateDiff, states_beyond

COUNT = StateDiff("op", "count", "value", added=1, removed=2, changed=3, old_keys=59, new_keys=58)
EQUAL = StateDiff("op", "seen", "map", old_keys=10, new_keys=10)


@pytest.mark.parametrize(
    ("limits", "fails"),
    [
        (DiffLimits(), True),
        (DiffLimits(keys=5), True),
        (DiffLimits(keys=6), False),
        (DiffLimits(keys=None), False),
        (DiffLimits(keys=None, fraction=0.1), False),
        (DiffLimits(keys=None, fraction=0.09), True),
        (DiffLimits(keys=5, fraction=0.5), True),
    ],
)
def test_each_state_has_to_be_within_the_limits(limits: DiffLimits, fails: bool) -> None:
    assert COUNT.fraction == 6 / 60
    assert states_beyond([COUNT, EQUAL], limits) == ([COUNT] if fails else [])
    for ignored in ("op", "op.count"):
        assert states_beyond([COUNT, EQUAL], limits, [ignored]) == []


def test_a_fraction_of_keys_that_were_not_counted_is_exceeded_by_any_difference() -> None:
    uncounted = StateDiff("op", "_operator/list", "split-list", added=1)
    assert uncounted.fraction is None
    assert states_beyond([uncounted], DiffLimits(None, 0.99)) == [uncounted]
