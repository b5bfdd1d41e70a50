"""Days and hours whose output is complete, because the watermark has passed their ends.

`next_announcement` is pure: what was announced, the state of the job, and the calendar give what to announce next. The
caller stores the position with each announcement in one step, so that a killed caller loses and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import islice
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import RestoreStep
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError
from stateflow.operations.job_root import open_root
from stateflow.outputs import EventTime

LONGEST_ANNOUNCEMENT = 200
"""Maximum number of partitions in one announcement; the next one continues."""

MOST_AHEAD = timedelta(days=1)
"""How long after the present an announced partition may end: clocks and time zones of the sources differ."""

Unit = Literal["day", "hour"]

_DAY = timedelta(days=1)
_HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 2, 9998
"""Event times beyond these years belong to no partition: no calendar of Python has them in each time zone."""


@dataclass(frozen=True)
class Partition:
    """A day or an hour: its key, its first millisecond, and the first one after it, since 1970."""

    key: str
    begins: int
    ends: int


@dataclass(frozen=True)
class Calendar:
    """Divides event time into partitions.

    Attributes:
        unit: ``day`` or ``hour``; hours are in UTC.
        zone: time zone of the days.
    """

    unit: Unit
    zone: tzinfo = UTC

    @classmethod
    def of(cls, unit: str, zone: str) -> Calendar:
        """Returns the calendar of a unit and the name of a time zone. Raises ConfigError for other values."""
        if unit == "hour" and zone == "UTC":
            return cls("hour")
        if unit == "day":
            try:
                return cls("day", ZoneInfo(zone))
            except (ZoneInfoNotFoundError, ValueError, OSError) as e:
                hint = "use a name of the IANA database, such as Europe/Berlin"
                raise ConfigError("the time zone is unknown", hint=hint, zone=zone) from e
        raise ConfigError("a partition is a day of a time zone, or an hour of UTC", unit=unit, zone=zone)

    def at(self, time: int) -> Partition:
        """Returns the partition that contains an event time, in milliseconds since 1970."""
        if self.unit == "hour":
            begins = time - time % _HOUR_MS
            return Partition(f"{_moment(begins):%Y-%m-%dT%H}", begins, begins + _HOUR_MS)
        day = _moment(time).astimezone(self.zone).date()
        # Where a clock was set back at midnight, a part of the day before follows the first part of a day.
        while time < self._end(day - _DAY):
            day -= _DAY
        return Partition(day.isoformat(), self._end(day - _DAY), self._end(day))

    def begin(self, day: date) -> int:
        """Returns the first millisecond of a day."""
        return self._end(day - _DAY) if self.unit == "day" else _milliseconds(_midnight(day, UTC))

    def _end(self, day: date) -> int:
        """Returns the first millisecond after a day, which follows each moment whose local date is not later."""
        midnight = _midnight(day + _DAY, self.zone)
        # Twice if the clock is set back over it. Where it is set forward over it, both are about that moment.
        first, last = sorted(_milliseconds(midnight.replace(fold=fold)) for fold in (0, 1))
        return last if _moment(last - 1).astimezone(self.zone).date() <= day else first


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _milliseconds(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


_EARLIEST, _LATEST = (_milliseconds(datetime(year, 1, 1, tzinfo=UTC)) for year in (_FIRST_YEAR, _LAST_YEAR))


@dataclass(frozen=True)
class Progress:
    """How far the published output of a job is complete.

    Attributes:
        job_uuid: uuid of the job.
        seq: number of the newest log entry.
        checkpoint_id: the newest checkpoint whose output is published in each table.
        watermark: `Manifest.output_watermark` of that checkpoint.
        restores: the restores in the ancestry of the job's state, oldest first.
    """

    job_uuid: str
    seq: int
    checkpoint_id: int
    watermark: int | None
    restores: tuple[RestoreStep, ...] = ()


def read_progress(job_root: str) -> Progress | None:
    """Returns how far the published output is complete; None while no checkpoint is published.

    Reads the newest log entry, and one manifest.

    Raises:
        ConfigError: the job root does not exist.
        StorageError: the storage failed; a retry may succeed.
        DataError: the newest log entry or the manifest is damaged.
    """
    root = open_root(job_root)
    return root.read_kept(lambda head: _progress(root, head)) if root.log.read_head() else None


def _progress(root: JobRoot, head: Head) -> Progress | None:
    pending = min((output.checkpoint_id for output in pending_of(head)), default=head.entry.seq + 1)
    # Rows of a checkpoint that is not published yet are in no table.
    published = [ref for ref in root.checkpoints.restorable(head) if ref.id < pending]
    if not published:
        return None
    watermark = root.checkpoints.manifest_of(published[-1]).output_watermark
    restores = tuple(head.entry.ancestry.restores)
    return Progress(root.job.job_uuid, head.entry.seq, published[-1].id, watermark, restores)


@dataclass(frozen=True)
class Position:
    """What was announced.

    Attributes:
        number: number of the announcement, counted from 1.
        job_uuid: uuid of the job.
        seq: number of the newest log entry whose restores are announced.
        first_at: begin of the first announced partition.
        through_at: end of the last announced partition that no restore has reopened.
    """

    number: int
    job_uuid: str
    seq: int
    first_at: EventTime
    through_at: EventTime


def parse_position(value: object) -> Position | None:
    """Returns the position that `to_object` has encoded; None for any other value."""
    match value:
        case {
            "number": int(number),
            "job_uuid": str(uuid),
            "seq": int(seq),
            "first_at": str(first),
            "through_at": str(through),
        }:
            try:
                times = [_milliseconds(parse_timestamp(text)) for text in (first, through)]
            except ValueError:
                return None
            return Position(number, uuid, seq, *times)
    return None


@dataclass(frozen=True)
class Announcement:
    """Partitions that were closed, or that restores have reopened.

    Attributes:
        undone: whether restores have reopened them.
        partitions: their keys, in order: days as ``2026-01-31``, hours as ``2026-01-31T05``.
        checkpoint_id: the checkpoint with the output of closed partitions; of reopened ones, the one that was restored,
            and None for one of another job.
        watermark_at: the watermark of that checkpoint; None before the first one.
        position: the position after this announcement.
        complete: whether nothing is left to announce.
    """

    undone: bool
    partitions: tuple[str, ...]
    checkpoint_id: int | None
    watermark_at: EventTime | None
    position: Position
    complete: bool


def next_announcement(
    position: Position | None,
    progress: Progress,
    calendar: Calendar,
    now: datetime,
    *,
    since: date | None = None,
    limit: int = LONGEST_ANNOUNCEMENT,
) -> Announcement | None:
    """Returns what to announce next; None for nothing. Reopened partitions come first, and then closed ones.

    Args:
        position: the newest position; None before the first announcement.
        progress: the state of the job.
        calendar: the partitions.
        now: no partition is announced that ends more than `MOST_AHEAD` later: one row with a wrong event time would
            otherwise announce centuries.
        since: without a position, the day that the announcements begin with; None for the newest closed partition.
        limit: maximum number of partitions.
    """
    reached = _reached(progress.watermark)
    if reached is not None:
        reached = min(reached, _milliseconds(now + MOST_AHEAD))
    if position is None:
        position = _first_position(progress, calendar, reached, since)
        if position is None:
            return None
    elif position.job_uuid != progress.job_uuid:
        # A new job root continues from a savepoint; the numbers of its log are others.
        position = replace(position, job_uuid=progress.job_uuid, seq=progress.seq)
    reopened = _reopened(position, progress, calendar, limit)
    return reopened or _closed(position, progress, calendar, reached, limit)


def is_ahead(progress: Progress, now: datetime) -> bool:
    """Returns whether the watermark is so far in the future that an event time must be wrong."""
    return (_reached(progress.watermark) or _EARLIEST) > _milliseconds(now + MOST_AHEAD)


def _first_position(progress: Progress, calendar: Calendar, reached: int | None, since: date | None) -> Position | None:
    if since is not None:
        begins = calendar.begin(since)
    elif reached is None:
        return None
    else:
        begins = calendar.at(calendar.at(reached).begins - 1).begins
    return Position(0, progress.job_uuid, progress.seq, begins, begins)


def _reached(watermark: int | None) -> int | None:
    """Returns the first event time that the watermark has not passed; None without a watermark, or before year 2."""
    if watermark is None or watermark < _EARLIEST:
        return None
    return min(watermark + 1, _LATEST)


def _reopened(position: Position, progress: Progress, calendar: Calendar, limit: int) -> Announcement | None:
    steps = [step for step in progress.restores if step.seq > position.seq]
    if not steps:
        return None
    lowest = min(steps, key=lambda step: (_reached(step.watermark) or _EARLIEST, -step.seq))
    reached = _reached(lowest.watermark)
    floor = max(position.first_at, _EARLIEST if reached is None else calendar.at(reached).begins)
    found = list(islice(_before(calendar, position.through_at, floor), limit + 1))
    complete, taken = len(found) <= limit, found[:limit]
    if not taken:
        return None
    moved = replace(
        position,
        number=position.number + 1,
        seq=progress.seq if complete else position.seq,
        through_at=taken[-1].begins,
    )
    keys = tuple(partition.key for partition in reversed(taken))
    return Announcement(True, keys, lowest.base or None, lowest.watermark, moved, complete=False)


def _before(calendar: Calendar, end: int, floor: int) -> Iterator[Partition]:
    """Yields the partitions that are completely between `floor` and `end`, newest first."""
    partition = calendar.at(end - 1)
    if partition.ends > end:
        partition = calendar.at(partition.begins - 1)
    while partition.begins >= floor:
        yield partition
        partition = calendar.at(partition.begins - 1)


def _closed(
    position: Position, progress: Progress, calendar: Calendar, reached: int | None, limit: int
) -> Announcement | None:
    if reached is None:
        return None
    found = list(islice(_after(calendar, position.through_at, reached), limit + 1))
    taken = found[:limit]
    if not taken:
        return None
    moved = replace(position, number=position.number + 1, seq=progress.seq, through_at=taken[-1].ends)
    keys = tuple(partition.key for partition in taken)
    return Announcement(False, keys, progress.checkpoint_id, progress.watermark, moved, complete=len(found) <= limit)


def _after(calendar: Calendar, begin: int, reached: int) -> Iterator[Partition]:
    """Yields the partitions that end after `begin`, and of which every event time is before `reached`."""
    partition = calendar.at(begin)
    while partition.ends <= reached:
        yield partition
        partition = calendar.at(partition.ends)
