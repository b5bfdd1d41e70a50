"""Days and hours that a watermark has closed: calendars, and announcements whatever happens in between."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import TumblingEventTimeWindows, WatermarkStrategy
from stateflow.checkpoint.log.documents import RestoreStep
from stateflow.clock import ManualClock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError
from stateflow.operations.partitions import (
    Announcement,
    Calendar,
    Position,
    Progress,
    Unit,
    is_ahead,
    next_announcement,
    parse_position,
    read_progress,
)
from stateflow.outputs import to_object
from stateflow.runtime.planning.physical_plan import OperatorChain
from stateflow.runtime.watermarks import output_watermark
from tests.support.local_jobs import Growing, LocalJobs, restore

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MS = timedelta(milliseconds=1)

# Days of 23, 24.5 and 25 hours, one that does not exist, and clocks that are set forward and back at midnight.
CHANGES = [
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 11, 1)),
    ("Asia/Kolkata", date(2026, 1, 1)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Pacific/Kwajalein", date(1993, 8, 21)),
    ("America/Sao_Paulo", date(2017, 10, 15)),
    ("America/Sao_Paulo", date(2018, 2, 18)),
    ("America/Havana", date(2025, 11, 2)),
    ("America/St_Johns", date(2006, 10, 29)),
    ("America/St_Johns", date(2006, 4, 2)),
    ("UTC", date(2024, 2, 29)),
]


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // MS


def utc(day: int, hour: int = 0, minute: int = 0) -> int:
    """A moment of January 2026."""
    return ms(datetime(2026, 1, 1, hour, minute, tzinfo=UTC) + (day - 1) * DAY)


def ends_by_enumeration(zone: ZoneInfo, about: date) -> dict[date, int]:
    """The oracle: converts each minute of two weeks to local time; a day ends after its last minute."""
    first = datetime(about.year, about.month, about.day, tzinfo=UTC) - 7 * DAY
    ends: dict[date, int] = {}
    for minute in range(14 * 24 * 60):
        moment = first + timedelta(minutes=minute)
        ends[moment.astimezone(zone).date()] = ms(moment) + 60_000
    # The first and the last day are not whole.
    return {day: end for day, end in ends.items() if day not in (min(ends), max(ends))}


@pytest.mark.parametrize(("name", "day"), CHANGES, ids=[f"{name}-{day}" for name, day in CHANGES])
def test_a_day_ends_after_its_last_moment_also_where_clocks_change(name: str, day: date) -> None:
    zone, calendar = ZoneInfo(name), Calendar.of("day", name)
    ends = ends_by_enumeration(zone, day)
    for (_, begin), (of, end) in pairwise(sorted(ends.items())):
        for time in (begin, (begin + end) // 2, end - 1):
            found = calendar.at(time)
            assert (found.key, found.begins, found.ends) == (of.isoformat(), begin, end)


@given(st.integers(-60_000_000_000_000, 250_000_000_000_000), st.sampled_from(["day", "hour"]))
def test_partitions_follow_each_other_without_gap_or_overlap(time: int, unit: str) -> None:
    calendar = Calendar.of(unit, "UTC")
    found = calendar.at(time)
    assert found.begins <= time < found.ends
    assert calendar.at(found.begins) == calendar.at(found.ends - 1) == found
    assert calendar.at(found.ends).begins == found.ends
    moment = EPOCH + timedelta(milliseconds=found.begins)
    form = "%Y-%m-%dT%H" if unit == "hour" else "%Y-%m-%d"
    length = HOUR if unit == "hour" else DAY
    assert datetime.strptime(found.key, form).replace(tzinfo=UTC) == moment
    assert found.ends - found.begins == length // MS


@pytest.mark.parametrize(
    ("unit", "zone"),
    [("week", "UTC"), ("hour", "Europe/Berlin"), ("day", "Mars/Base"), ("day", ""), ("day", "../etc"), ("day", "\0")],
)
def test_other_units_and_unknown_time_zones_are_refused(unit: str, zone: str) -> None:
    with pytest.raises(ConfigError):
        Calendar.of(unit, zone)


def progress(watermark: int | None, *restores: RestoreStep, seq: int = 10, uuid: str = "job") -> Progress:
    return Progress(uuid, seq, seq, watermark, restores)


def announced(found: Announcement | None) -> Announcement:
    assert found is not None
    return found


DAYS = Calendar("day")
LATER = datetime(9999, 1, 1, tzinfo=UTC)
"""A present after all partitions of the tests."""


def test_the_first_announcement_is_of_the_newest_closed_day_unless_a_day_is_given() -> None:
    now = progress(utc(20, 5))
    first = announced(next_announcement(None, now, DAYS, LATER))
    assert (first.partitions, first.undone, first.checkpoint_id, first.complete) == (("2026-01-19",), False, 10, True)
    assert first.position == Position(1, "job", 10, utc(19), utc(20))
    since = announced(next_announcement(None, now, DAYS, LATER, since=date(2026, 1, 17)))
    assert since.partitions == ("2026-01-17", "2026-01-18", "2026-01-19")
    assert next_announcement(None, now, DAYS, LATER, since=date(2026, 1, 20)) is None


@pytest.mark.parametrize(
    ("watermark", "partitions"),
    [
        (None, ()),
        (utc(3) - 2, ("2026-01-01",)),
        (utc(3) - 1, ("2026-01-01", "2026-01-02")),
        (utc(3), ("2026-01-01", "2026-01-02")),
        (-(2**63), ()),
    ],
    ids=["none", "before-the-end", "at-the-last-moment", "after", "lowest"],
)
def test_a_day_is_closed_once_the_watermark_has_reached_its_last_millisecond(
    watermark: int | None, partitions: tuple[str, ...]
) -> None:
    found = next_announcement(None, progress(watermark), DAYS, LATER, since=date(2026, 1, 1))
    assert (found.partitions if found else ()) == partitions


def test_the_highest_watermark_announces_no_more_than_the_limit_and_the_next_one_continues() -> None:
    position: Position | None = None
    keys: list[str] = []
    for _ in range(3):
        found = announced(
            next_announcement(position, progress(2**63 - 1), DAYS, LATER, since=date(2026, 1, 1), limit=4)
        )
        assert not found.complete
        position, keys = found.position, [*keys, *found.partitions]
    assert keys == [(date(2026, 1, 1) + n * DAY).isoformat() for n in range(12)]
    last = announced(next_announcement(None, progress(2**63 - 1), DAYS, LATER))
    assert (last.partitions, last.complete) == (("9997-12-31",), True)


def test_a_row_from_the_future_closes_only_days_that_are_over_in_each_time_zone() -> None:
    now = datetime(2026, 1, 9, 12, tzinfo=UTC)
    wrong = progress(2**63 - 1)
    assert is_ahead(wrong, now) and not is_ahead(progress(utc(10, 12) - 1), now) and not is_ahead(progress(None), now)
    first = announced(next_announcement(None, wrong, DAYS, now, since=date(2026, 1, 7)))
    assert (first.partitions, first.complete) == (("2026-01-07", "2026-01-08", "2026-01-09"), True)
    assert announced(next_announcement(None, wrong, DAYS, now)).partitions == ("2026-01-09",)
    # The next ones follow as time passes, without rows.
    assert next_announcement(first.position, wrong, DAYS, now) is None
    assert announced(next_announcement(first.position, wrong, DAYS, now + DAY)).partitions == ("2026-01-10",)


def test_a_restore_reopens_the_days_that_it_has_not_closed_newest_first_if_there_are_many() -> None:
    position = Position(7, "job", 10, utc(1), utc(9))
    step = RestoreStep(seq=12, base=4, watermark=utc(3, 5))
    now = progress(utc(3, 5), step, seq=12)
    first = announced(next_announcement(position, now, DAYS, LATER, limit=4))
    assert (first.undone, first.checkpoint_id, first.watermark_at) == (True, 4, utc(3, 5))
    assert first.partitions == tuple(f"2026-01-0{n}" for n in (5, 6, 7, 8))
    # The rest follows, whatever has been closed in between.
    later = progress(utc(7, 1), step, seq=20)
    second = announced(next_announcement(first.position, later, DAYS, LATER, limit=4))
    assert (second.undone, second.partitions) == (True, ("2026-01-03", "2026-01-04"))
    third = announced(next_announcement(second.position, later, DAYS, LATER, limit=4))
    assert (third.undone, third.partitions) == (False, tuple(f"2026-01-0{n}" for n in (3, 4, 5, 6)))
    assert third.checkpoint_id == 20 and next_announcement(third.position, later, DAYS, LATER) is None


def test_the_lowest_of_several_restores_counts_and_one_without_a_watermark_reopens_all() -> None:
    position = Position(7, "job", 10, utc(2), utc(9))
    steps = [RestoreStep(seq=12, base=6, watermark=utc(6)), RestoreStep(seq=14, base=8, watermark=utc(8))]
    found = announced(next_announcement(position, progress(utc(8), *steps, seq=14), DAYS, LATER))
    assert (found.partitions, found.checkpoint_id) == (("2026-01-06", "2026-01-07", "2026-01-08"), 6)
    # It was announced before the position.
    old = RestoreStep(seq=9, base=1, watermark=utc(1))
    assert next_announcement(position, progress(utc(9), old), DAYS, LATER) is None
    begin = RestoreStep(seq=13, base=0, watermark=None)
    found = announced(next_announcement(position, progress(None, begin, seq=13), DAYS, LATER))
    assert found.partitions[0] == "2026-01-02" and len(found.partitions) == 7 and found.checkpoint_id is None


def test_a_new_job_root_of_the_same_name_continues() -> None:
    position = Position(7, "old", 1000, utc(2), utc(5))
    step = RestoreStep(seq=2, base=1, watermark=utc(1))
    found = announced(next_announcement(position, progress(utc(6), step, seq=5, uuid="new"), DAYS, LATER))
    assert (found.undone, found.partitions) == (False, ("2026-01-05",))
    assert (found.position.job_uuid, found.position.seq) == ("new", 5)


def test_a_position_is_read_as_it_was_written_and_anything_else_is_not_one() -> None:
    position = Position(7, "job", 12, utc(1), utc(9))
    assert parse_position(to_object(position)) == position
    for wrong in (None, {}, "x", {**to_object(position), "seq": "12"}, {**to_object(position), "first_at": "soon"}):
        assert parse_position(wrong) is None


# -- histories --------------------------------------------------------------------------------------------------------


class History:
    """A job's log with its checkpoints and restores, and a task that announces partitions and may be killed.

    The oracle follows each partition on its own: its events alternate, none contradicts the watermark, and one that is
    closed twice was reopened by a restore in between.
    """

    def __init__(self, since: date, unit: Unit) -> None:
        self.since, self.calendar = since, Calendar(unit)
        self.length = DAY if unit == "day" else HOUR
        self.seq = 0
        self.checkpoints: dict[int, int] = {}
        self.lineage: list[int] = []
        self.restores: list[RestoreStep] = []
        self.position: Position | None = None
        self.is_closed: dict[str, bool] = {}
        self.reopened: set[str] = set()

    @property
    def watermark(self) -> int | None:
        return self.checkpoints[self.lineage[-1]] if self.lineage else None

    def commit(self, parts: int) -> None:
        """Adds a checkpoint whose watermark is later, by so many 24th parts of a partition."""
        self.seq += 1
        self.checkpoints[self.seq] = (self.watermark or ms(datetime(2026, 1, 1, tzinfo=UTC))) + parts * (
            self.length // 24 // MS
        )
        self.lineage.append(self.seq)

    def restore(self, back: int) -> None:
        if not self.lineage:
            return
        self.seq += 1
        kept = self.lineage[: max(1, len(self.lineage) - back)]
        self.lineage = kept
        base = kept[-1]
        self.restores.append(RestoreStep(seq=self.seq, base=base, watermark=self.checkpoints[base]))
        for key, closed in self.is_closed.items():
            if closed and self._end(key) > self.checkpoints[base] + 1:
                self.reopened.add(key)

    def announce(self, limit: int, is_killed: bool = False) -> bool:
        """Runs a task; returns whether it had events."""
        now = Progress("job", self.seq, self.lineage[-1] if self.lineage else 0, self.watermark, tuple(self.restores))
        found = next_announcement(self.position, now, self.calendar, LATER, since=self.since, limit=limit)
        if found is None or is_killed:
            return found is not None
        assert 0 < len(found.partitions) <= limit and list(found.partitions) == sorted(set(found.partitions))
        for key in found.partitions:
            assert self.is_closed.get(key, False) is found.undone, key
            if found.undone:
                assert key in self.reopened
                self.reopened.remove(key)
            else:
                assert self.watermark is not None and self._end(key) <= self.watermark + 1
            self.is_closed[key] = not found.undone
        # As stored, and read again by the next task.
        self.position = parse_position(to_object(found.position))
        return True

    def check_complete(self) -> None:
        assert not self.reopened
        watermark, begin = self.watermark, datetime(self.since.year, self.since.month, self.since.day, tzinfo=UTC)
        wanted = set()
        while watermark is not None and ms(begin + self.length) <= watermark + 1:
            wanted.add(begin.strftime("%Y-%m-%d" if self.length == DAY else "%Y-%m-%dT%H"))
            begin += self.length
        assert {key for key, closed in self.is_closed.items() if closed} == wanted

    def _end(self, key: str) -> int:
        return ms(datetime.fromisoformat(key).replace(tzinfo=UTC) + self.length)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 60)),
        st.tuples(st.just("restore"), st.integers(0, 6)),
        st.tuples(st.just("announce"), st.integers(1, 4)),
        st.tuples(st.just("killed"), st.integers(1, 4)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("unit", ["day", "hour"])
@given(steps=STEPS, day=st.integers(0, 3))
def test_each_partition_is_announced_once_each_time_it_is_closed_or_reopened(
    unit: Unit, steps: list[tuple[str, int]], day: int
) -> None:
    history = History(date(2026, 1, 1) + day * DAY, unit)
    for kind, number in steps:
        match kind:
            case "commit":
                history.commit(number)
            case "restore":
                history.restore(number)
            case _:
                history.announce(number, is_killed=kind == "killed")
    while history.announce(3):
        pass
    history.check_complete()


# -- job roots --------------------------------------------------------------------------------------------------------


class Reading(msgspec.Struct):
    sensor: str
    at: int
    value: int


class Total(msgspec.Struct):
    sensor: str
    value: int


class Totals(LocalJobs):
    """Totals of hours, of readings at times that are given as (day, hour) of January 2026."""

    def read(self, *times: tuple[int, int], **settings: object) -> None:
        self.run(lambda env: self.build(env, times), **settings)

    def build(self, env: StreamExecutionEnvironment, times: tuple[tuple[int, int], ...]) -> None:
        rows = Growing([Reading("a", utc(*time), 1) for time in times], Reading)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
        stream = env.from_source(rows, uid="readings").assign_timestamps_and_watermarks(strategy)
        hours = stream.key_by("sensor").window(TumblingEventTimeWindows.of(HOUR))
        totals = hours.aggregate_columns({"value": ("sum", "value")}, output=Total, uid="totals")
        totals.sink_to(self.sink("out"), uid="out")
        # It has no operator, and no watermark.
        stream.sink_to(self.sink("raw"), uid="raw")

    @property
    def progress(self) -> Progress | None:
        return read_progress(str(self.folder / "root"))


@pytest.fixture
def totals(tmp_path: Path) -> Totals:
    clock = ManualClock()
    return Totals(
        tmp_path, clock, max_parallelism=8, parallelism=2, source__max_rows_per_batch=1, checkpoints__asynchronous="no"
    )


def test_the_watermark_is_that_of_the_batches_whose_output_is_published(totals: Totals) -> None:
    with pytest.raises(ConfigError):
        assert totals.progress
    totals.read((1, 5))
    # The watermark of a batch comes from the rows before it.
    assert totals.progress and totals.progress.watermark is None
    times = ((1, 5), (2, 5), (4, 1), (4, 2))
    totals.read(*times)
    found = totals.progress
    assert found is not None and found.watermark == utc(4, 1) - 1 and found.restores == ()
    keys = announced(next_announcement(None, found, DAYS, LATER, since=date(2026, 1, 1))).partitions
    assert keys == ("2026-01-01", "2026-01-02", "2026-01-03")


def test_an_operator_without_a_watermark_yet_closes_nothing() -> None:
    def chain(uid: str, *sources: str) -> OperatorChain:
        return cast(OperatorChain, SimpleNamespace(uid=uid, watermark_sources=frozenset(sources)))

    chains = [chain("a", "s"), chain("b", "s", "t"), chain("timeless")]
    assert output_watermark(chains, {"a": 5, "b": None, "timeless": None}) is None
    assert output_watermark(chains, {"a": 5, "b": 3, "timeless": None}) == 3
    assert output_watermark(chains[2:], {"timeless": None}) is None


def test_a_drain_closes_no_day_whose_rows_may_still_come(totals: Totals) -> None:
    totals.read((1, 5), (2, 5), (2, 6), run__drain="true")
    assert totals.progress is not None and totals.progress.watermark == utc(2, 6) - 1
    assert len(totals.rows()) == 3


def test_a_restore_has_the_watermark_of_the_state_that_it_has_restored(totals: Totals) -> None:
    times = ((1, 5), (2, 5), (4, 1), (4, 2))
    totals.read(*times, checkpoints__retained=100)
    before = totals.progress
    assert before is not None
    first = announced(next_announcement(None, before, DAYS, LATER, since=date(2026, 1, 1)))
    base = before.checkpoint_id - 1
    restore(totals, lambda env: totals.build(env, times), target=str(base))
    after = totals.progress
    assert after is not None
    (step,) = after.restores
    assert (step.base, step.watermark) == (base, utc(2, 5) - 1)
    undone = announced(next_announcement(first.position, after, DAYS, LATER))
    assert (undone.undone, undone.partitions, undone.checkpoint_id) == (True, ("2026-01-02", "2026-01-03"), base)
    # The run after the restore has closed them again.
    again = announced(next_announcement(undone.position, after, DAYS, LATER))
    assert (again.undone, again.partitions) == (False, ("2026-01-02", "2026-01-03"))
    assert next_announcement(again.position, after, DAYS, LATER) is None


def test_output_that_is_not_published_yet_closes_nothing(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    times = ((1, 5), (2, 5), (4, 1), (4, 2))
    totals.read(*times[:3])
    before = totals.progress
    with monkeypatch.context() as patched, pytest.raises(OSError, match="no table"):
        patched.setattr("stateflow.testing.sinks._Table.commit", _fail)
        totals.read(*times)
    pending = totals.progress
    assert before is not None and pending is not None
    assert (pending.watermark, pending.seq > before.seq) == (before.watermark, True)
    totals.read(*times)
    assert totals.progress is not None and totals.progress.watermark == utc(4, 1) - 1


def _fail(*_: object, **__: object) -> None:
    raise OSError("no table")
