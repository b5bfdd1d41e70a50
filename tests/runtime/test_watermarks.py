"""How far event time has advanced: per source and per operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from stateflow import WatermarkStrategy
from stateflow.checkpoint.log.documents import SourceWatermark
from stateflow.runtime.task.row_conversion import latest_time
from stateflow.runtime.watermarks import advance_source_watermarks, combine_watermarks, epoch_milliseconds

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=5)).with_timestamp_column("at")
WITH_IDLENESS = STRATEGY.with_idleness(timedelta(milliseconds=10))


def _of(uid: str, watermark: int | None, active_at: int = 0, idle: bool = False) -> SourceWatermark:
    return SourceWatermark(uid=uid, watermark=watermark, active_at=active_at, idle=idle)


def test_a_source_s_watermark_stays_below_its_latest_row_and_never_decreases() -> None:
    first = advance_source_watermarks([], {"s": STRATEGY}, {"s": 100}, 1)
    assert first == [_of("s", 94, 1)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, {"s": 90}, 2) == [_of("s", 94, 2)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, {"s": 110}, 2) == [_of("s", 104, 2)]


def test_a_source_without_new_rows_is_idle_at_once_or_after_the_declared_time() -> None:
    before = [_of("p", 50, 100), _of("s", 50, 100)]
    found = advance_source_watermarks(before, {"p": WITH_IDLENESS, "s": STRATEGY}, {}, 109)
    assert found == [_of("p", 50, 100), _of("s", 50, 100, idle=True)]
    assert advance_source_watermarks(found, {"p": WITH_IDLENESS}, {}, 110) == [_of("p", 50, 100, idle=True)]
    assert advance_source_watermarks(found, {"p": WITH_IDLENESS}, {"p": 60}, 111) == [_of("p", 54, 111)]
    first = advance_source_watermarks([], {"p": WITH_IDLENESS}, {}, 100)
    assert first == [_of("p", None, 100)], "one that never had a row waits from the first batch on"
    assert advance_source_watermarks(first, {"p": WITH_IDLENESS}, {}, 110) == [_of("p", None, 100, idle=True)]


@pytest.mark.parametrize(
    ("before", "sources", "wanted"),
    [
        (None, [], None),
        (None, [_of("a", 10), _of("b", 7)], 7),
        (None, [_of("a", 10), _of("b", 7, idle=True)], 10),
        (8, [_of("a", 10), _of("b", 7)], 8),
        (8, [_of("a", 10), _of("b", None)], 8),
        (None, [_of("a", 10), _of("b", None)], None),
        (8, [_of("a", 10, idle=True), _of("b", 9, idle=True)], 8),
    ],
    ids=["none", "smallest", "idle-is-ignored", "never-back", "unknown-waits", "unknown-from-the-start", "all-idle"],
)
def test_an_operator_s_watermark_is_the_smallest_of_its_sources_that_are_not_idle(
    before: int | None, sources: list[SourceWatermark], wanted: int | None
) -> None:
    assert combine_watermarks(before, sources) == wanted


def test_event_time_is_in_milliseconds() -> None:
    at = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert epoch_milliseconds(at) == epoch_milliseconds(at.replace(tzinfo=None)) == -1
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns")):
        assert latest_time(pa.array([at.replace(tzinfo=UTC if kind.tz else None), None], kind)) == -1
    assert latest_time(pa.array([3, None, 7], pa.int64())) == 7
    assert latest_time(pa.array([None], pa.int64())) is None
