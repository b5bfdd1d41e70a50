"""A time to live that is changed to another kind of time: clocks that are decades apart are never compared."""

from __future__ import annotations

import pytest

from stateflow.state.kinds.ttl.entry_ttl import expiry_id, expiry_ids
from stateflow.types.ttl_config import StateTtlConfig
from tests.state.test_ttl import EVENT, GROUPS, HUNDRED, KINDS, Kind, Life

DECADES = 1 << 41
"""Milliseconds by which processing time is ahead of the watermark."""
CHANGES = pytest.mark.parametrize(
    ("before", "after"), [(HUNDRED, EVENT), (EVENT, HUNDRED)], ids=["to event time", "to processing time"]
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=[True, False], ids=["prefetched", "read"])
def life(kind: Kind, request: pytest.FixtureRequest) -> Life:
    return Life(kind, prefetch=request.param, ahead=DECADES)


def _indexed(life: Life, time: str) -> list[bytes]:
    return [key for key in life.entries if key[2:6] == expiry_id("s", time)]


@CHANGES
def test_what_is_there_counts_from_the_change(life: Life, before: StateTtlConfig, after: StateTtlConfig) -> None:
    life.ttl = before
    life.write(0, 7)
    life.ttl = after
    life.clean(10, limit=0)
    assert life.read(109) == 7
    assert life.read(110) is None


@CHANGES
def test_what_is_there_is_removed_when_its_new_time_is_over(
    kind: Kind, before: StateTtlConfig, after: StateTtlConfig
) -> None:
    life = Life(kind, before, ahead=DECADES)
    life.write(0)
    life.ttl = after
    life.clean(10)
    life.clean(109)
    assert len(life.entries) == 2
    life.clean(110)
    assert life.entries == []


@CHANGES
def test_a_full_snapshot_removes_it_too(kind: Kind, before: StateTtlConfig, after: StateTtlConfig) -> None:
    life = Life(kind, before, ahead=DECADES)
    life.write(0)
    life.ttl = after
    life.clean(10, limit=0)
    with life.at(110) as batch:
        batch.owner.end_key_batch()
        batch.owner.ttl_cleanup(GROUPS).remove_all()
    assert life.entries == []


@CHANGES
def test_what_is_written_again_lives_in_the_new_time(life: Life, before: StateTtlConfig, after: StateTtlConfig) -> None:
    life.ttl = before
    life.write(0)
    life.ttl = after
    life.clean(10)
    life.write(50, 8)
    assert life.read(149) == 8
    life.clean(150)
    assert life.entries == []


@CHANGES
def test_there_and_back_counts_from_the_second_change(
    life: Life, before: StateTtlConfig, after: StateTtlConfig
) -> None:
    life.ttl = before
    life.write(0, 7)
    life.ttl = after
    life.clean(10, limit=1)
    life.ttl = before
    life.clean(20)
    assert life.read(119) == 7
    life.clean(120)
    assert life.entries == []


@CHANGES
def test_the_old_index_goes_in_bounded_slices(before: StateTtlConfig, after: StateTtlConfig) -> None:
    life = Life(KINDS["value"], before, ahead=DECADES)
    for n in range(40):
        life.write(0, key=f"k{n}")
    life.ttl = after
    old, new = (c.ttl_time_characteristic.value for c in (before, after))
    left = []
    while _indexed(life, old):
        life.clean(10, limit=4)
        left.append(len(_indexed(life, old)))
        assert len(left) < 200
    assert len(left) > 8
    assert len(_indexed(life, new)) == 40


def test_before_the_first_watermark_nothing_moves_and_nothing_is_lost(kind: Kind) -> None:
    life = Life(kind, ahead=DECADES)
    life.write(None)
    life.ttl = EVENT
    life.clean(None)
    assert len(_indexed(life, "processing")) == 1
    life.clean(10)
    assert len(life.entries) == 2 and len(_indexed(life, "event")) == 1
    life.clean(110)
    assert life.entries == []


@CHANGES
def test_a_time_to_live_that_is_removed_behind_a_change_leaves_no_index(
    kind: Kind, before: StateTtlConfig, after: StateTtlConfig
) -> None:
    life = Life(kind, before, ahead=DECADES)
    life.write(0, key="a")
    life.ttl = after
    life.write(10, key="b")
    assert _indexed(life, "event") and _indexed(life, "processing")
    life.ttl = None
    life.clean(20)
    assert not [key for key in life.entries if key[2:6] in expiry_ids("s")]
    assert life.read(10_000, "a") == life.read(10_000, "b") == 1
