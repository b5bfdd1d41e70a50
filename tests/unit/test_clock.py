"""Time and ids."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from stateflow.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_moves_when_it_is_told_to() -> None:
    clock = ManualClock(start=datetime(2026, 3, 1, tzinfo=UTC))
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 3, 1, tzinfo=UTC), 0.0)
    clock.sleep(timedelta(hours=1, milliseconds=500))
    assert clock.now() == datetime(2026, 3, 1, 1, 0, 0, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 3600.5


def test_a_seed_decides_the_ids() -> None:
    first, again, other = ManualClock(1), ManualClock(1), ManualClock(2)
    ids = [first.new_id() for _ in range(100)]
    assert ids == [again.new_id() for _ in range(100)]
    assert len({*ids, *(other.new_id() for _ in range(100))}) == 200


def test_ids_are_fit_for_names_and_time_is_aware() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    for clock in clocks:
        assert re.fullmatch(r"[0-9a-f]{32}", clock.new_id())
        assert clock.new_id() != clock.new_id()
        assert clock.now().tzinfo is UTC


def test_the_system_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(timedelta(milliseconds=1))
    assert clock.monotonic() - before >= 0.001
