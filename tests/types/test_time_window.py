"""Time windows as values: their last instant, their order and their text."""

from __future__ import annotations

import pytest

from stateflow.types.time_window import TimeWindow


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((0, 10), (10, 20), True), ((0, 10), (11, 20), False), ((0, 10), (3, 4), True), ((5, 6), (0, 4), False)],
)
def test_windows_that_overlap_or_touch_intersect(one: tuple[int, int], other: tuple[int, int], expected: bool) -> None:
    assert TimeWindow(*one).intersects(TimeWindow(*other)) is expected
    assert TimeWindow(*other).intersects(TimeWindow(*one)) is expected


def test_a_window_ends_before_its_end_and_covers_another_one() -> None:
    assert TimeWindow(0, 10).max_timestamp == 9
    assert TimeWindow(0, 10).cover(TimeWindow(-5, 3)) == TimeWindow(-5, 10)


@pytest.mark.parametrize("window", [TimeWindow(0, 86_400_000), TimeWindow(-1, 1), TimeWindow(-(1 << 62), 1 << 62)])
def test_a_window_is_read_from_its_text(window: TimeWindow) -> None:
    assert TimeWindow.parse(str(window)) == window
