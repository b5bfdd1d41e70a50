"""How much input waits at a job's sources after its newest checkpoint, and how long a run would take to read it.

Sources are asked in threads that are abandoned after a time: an answer that is late or an error, whatever its kind,
makes a backlog unknown, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

import msgspec

from stateflow.api.source import NO_BACKLOG, Backlog, LocalSource, Source, local_position
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import COMPLETED, NOT_BEGUN, CheckpointRecord, Manifest
from stateflow.clock import Clock, parse_timestamp
from stateflow.errors import DataError, StateflowError
from stateflow.observability import Recorder
from stateflow.outputs import OptionalText, Timestamp
from stateflow.runtime.spark.checkpoint_location import source_log
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import BACKLOG, backlog_generation
from stateflow.types.decoders import decode_json

log = logging.getLogger(__name__)

LONGEST = timedelta(seconds=10)
"""How long all sources together may take to answer."""
RATE_RECORDS = 20
"""Checkpoints from which the rate of the last runs is computed."""
NOT_MEASURED = "the job root has no report of a run since the newest restore"
"""Why the stored backlog is not known."""
_LONGEST_REASON = 300
_STORED_SOURCES = 100
_LARGEST_REPORT = 1 << 20


@dataclass(frozen=True)
class SourceBacklog:
    """The input of one source that waits. A number is None if it is not known.

    Attributes:
        uid: the source.
        rows: number of rows.
        size_bytes: their size at the source.
        files: number of files.
        oldest_at: when the oldest of it was written; None also if nothing waits.
        exact: whether `rows` is exact, and not an estimate or an upper bound.
        unknown: why a number is not known; empty if the source has told all that it can.
    """

    uid: str
    rows: int | None
    size_bytes: int | None
    files: int | None
    oldest_at: Timestamp | None
    exact: bool
    unknown: OptionalText


@dataclass(frozen=True)
class JobBacklog:
    """The input of a job that waits after its newest checkpoint. A number is None if it is not known.

    Attributes:
        measured_at: when it was measured.
        rows: rows of all sources; None if one of them does not know.
        exact: whether `rows` is exact.
        files: files of all sources; None if one of them does not know.
        size_bytes: size at all sources; None if one of them does not know.
        oldest_at: when the oldest of it was written; None also if nothing waits or a source does not know.
        rows_per_second: the rows that the last runs have read in a second of work.
        catch_up_ms: how long a run takes to read `rows` at that rate, without the time of its start.
        sources: the backlog of each source, by uid.
    """

    measured_at: Timestamp
    rows: int | None
    exact: bool
    files: int | None
    size_bytes: int | None
    oldest_at: Timestamp | None
    rows_per_second: float | None
    catch_up_ms: int | None
    sources: tuple[SourceBacklog, ...]


@dataclass(frozen=True)
class StoredBacklog:
    """The newest report of the input that waits.

    Attributes:
        generation: generation of the run that has measured it.
        backlog: the input after the newest barrier of the run at that time.
    """

    generation: int
    backlog: JobBacklog


@dataclass(frozen=True)
class ReadPosition:
    """The position of one source.

    Attributes:
        source: the source as the job declares it.
        offset: its position, as in the manifest; `NOT_BEGUN` for one that was not read yet.
        logs: returns the contents of the files of Spark's log of the source; called in the thread that asks it.
        on_spark: whether the position is one of Spark.
    """

    source: Source | LocalSource
    offset: str
    logs: Callable[[], Sequence[bytes]] = lambda: ()
    on_spark: bool = False

    def backlog(self) -> Backlog:
        """Asks the source."""
        if isinstance(self.source, Source):
            return self.source.backlog(self.offset, self.logs())
        if self.offset == NOT_BEGUN:
            return self.source.backlog(None)
        return self.source.backlog(local_position(self.offset) if self.on_spark else self.offset)


def read_positions(
    sources: Mapping[str, Source | LocalSource], manifest: Manifest | None, storage: Storage
) -> dict[str, ReadPosition]:
    """Returns the position of each source at a checkpoint, by uid.

    Args:
        sources: the sources that the job declares, by uid.
        manifest: the manifest of the checkpoint; None before the first one.
        storage: the job root.
    """
    spark = manifest.spark if manifest else None
    stored = {p.uid: (number, p.offset) for number, p in enumerate(manifest.sources)} if manifest else {}

    def logs_of(number: int) -> Callable[[], Sequence[bytes]]:
        files = [f for f in spark.source_files if f.path.startswith(f"{number}/")] if spark else []
        return lambda: [source_log(storage, file) for file in files]

    return {
        uid: ReadPosition(source, stored[uid][1], logs_of(stored[uid][0]), spark is not None)
        if uid in stored
        else ReadPosition(source, NOT_BEGUN)
        for uid, source in sorted(sources.items())
    }


def measure(
    positions: Mapping[str, ReadPosition], rate: float | None, clock: Clock, longest: timedelta = LONGEST
) -> JobBacklog:
    """Asks all sources, each in a thread; never raises an error of a source.

    Args:
        rate: as of `rows_per_second`.
        longest: how long all of them may take together.
    """
    began = clock.monotonic()
    asked = [_ask(uid, position) for uid, position in positions.items()]
    found = []
    for question in asked:
        if isinstance(question, SourceBacklog):
            found.append(question)
            continue
        question.join(max(0.0, longest.total_seconds() - (clock.monotonic() - began)))
        found.append(question.answer or _unknown(question.uid, f"no answer within {longest.total_seconds():g} s"))
    return sum_up(found, rate, clock.now())


def sum_up(sources: Iterable[SourceBacklog], rate: float | None, now: datetime) -> JobBacklog:
    """Returns the backlog of a job. Pure."""
    found = tuple(sources)
    rows = _total(each.rows for each in found)
    oldest = [each.oldest_at for each in found if each.oldest_at is not None]
    # The oldest of another source may be older.
    is_hidden = any(each.oldest_at is None and each.rows != 0 and each.files != 0 for each in found)
    catch_up = 0 if rows == 0 else None if rows is None or not rate else round(rows / rate * 1000)
    return JobBacklog(
        measured_at=now.isoformat(timespec="milliseconds"),
        rows=rows,
        exact=rows is not None and all(each.exact for each in found),
        files=_total(each.files for each in found),
        size_bytes=_total(each.size_bytes for each in found),
        oldest_at=None if is_hidden or not oldest else min(oldest, key=datetime.fromisoformat),
        rows_per_second=None if rate is None else round(rate, 3),
        catch_up_ms=catch_up,
        sources=found,
    )


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(each or 0 for each in known)


def rows_per_second(records: Iterable[CheckpointRecord]) -> float | None:
    """Returns how many rows checkpoints have read per second of work; None if they read none. Pure.

    Checkpoints of one run overlap if they are asynchronous, so the time in which any of them worked counts.
    """
    read = [record for record in records if record.status == COMPLETED and record.rows_in]
    spans = sorted(_span(record) for record in read)
    seconds, until = 0.0, float("-inf")
    for start, end in spans:
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return sum(record.rows_in for record in read) / seconds if seconds > 0 else None


def input_waits(backlog: JobBacklog) -> bool | None:
    """Returns whether any input waits; None if it is not known."""
    if backlog.rows:
        return True
    found = [_waits(each) for each in backlog.sources]
    return True if True in found else None if None in found else False


def _waits(source: SourceBacklog) -> bool | None:
    numbers = [each for each in (source.rows, source.files, source.size_bytes) if each is not None]
    return any(numbers) if numbers else None


def write_backlog(storage: Storage, key: str, backlog: JobBacklog, former: Sequence[str]) -> None:
    """Stores the input that waits in place of earlier reports. Raises StorageError or ConfigError.

    Args:
        storage: the job root.
        key: key of the report; see `backlog_key`.
        backlog: the input; of more than `_STORED_SOURCES` sources, the report has the totals and those whose input
            waits, or is not known, before others.
        former: keys of the reports that it replaces.
    """
    sources = backlog.sources
    if len(sources) > _STORED_SOURCES:
        sources = tuple(sorted(sources, key=lambda each: _waits(each) is False)[:_STORED_SOURCES])
    stored = storage.put_new(key, msgspec.json.encode(replace(backlog, sources=sources)))
    # Without an answer, the report may not exist.
    if stored is not PutResult.UNKNOWN:
        storage.delete([each for each in former if each != key])


def read_stored_backlog(storage: Storage, head: Head) -> StoredBacklog | None:
    """Returns the input that waited when a run last measured it.

    None if no run has, if a restore has changed the positions since, or if the report cannot be decoded.
    """
    keys = [blob.key for blob in storage.list(BACKLOG) if backlog_generation(blob.key)]
    generation = backlog_generation(keys[-1]) if keys else 0
    if not generation or any(step.seq > generation for step in head.entry.ancestry.restores):
        return None
    try:
        data = storage.get(keys[-1], _LARGEST_REPORT)
        return StoredBacklog(generation, decode_json(JobBacklog, data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DataError):
        # Also if a newer report has just replaced it.
        return None


def record_backlog(recorder: Recorder, backlog: JobBacklog, now: datetime) -> None:
    """Reports the known numbers of a backlog as metrics, and whether a number is unknown."""
    for each in backlog.sources:
        values = {
            "rows": each.rows,
            "size": each.size_bytes,
            "files": each.files,
            "age": _age(each, now),
            # A gauge keeps its last value, which is an old one if the source does not answer any more.
            "unknown": 1 if each.unknown else 0,
        }
        for name, value in values.items():
            if value is not None:
                recorder.gauge(f"stateflow.source.backlog.{name}", value, source=each.uid)
    if backlog.catch_up_ms is not None:
        recorder.gauge("stateflow.backlog.catch_up_time", backlog.catch_up_ms / 1000)


def _age(source: SourceBacklog, now: datetime) -> float | None:
    if source.oldest_at is not None:
        return max(0.0, (now - datetime.fromisoformat(source.oldest_at)).total_seconds())
    return 0.0 if source.rows == 0 or source.files == 0 else None


_newest_questions = WeakValueDictionary[int, "_Question"]()
"""The newest question to each source, by the source's id: a question that runs keeps its source, and so the id."""


def _ask(uid: str, position: ReadPosition) -> _Question | SourceBacklog:
    """Starts a question, unless the source has not answered an earlier one: threads would pile up at a dead server."""
    earlier = _newest_questions.get(id(position.source))
    if earlier is not None and earlier.is_alive():
        return _unknown(uid, "the source has not answered an earlier question yet")
    question = _newest_questions[id(position.source)] = _Question(uid, position)
    try:
        question.start()
    except RuntimeError as e:
        # The process has as many threads as it may have.
        return _unknown(uid, str(e))
    return question


class _Question(threading.Thread):
    """Asks one source; `answer` is None until it has answered."""

    def __init__(self, uid: str, position: ReadPosition) -> None:
        # A daemon: a client that waits for a dead server must not keep the process from ending.
        super().__init__(name=f"stateflow-backlog-{uid}", daemon=True)
        self.uid = uid
        self._position = position
        self.answer: SourceBacklog | None = None

    def run(self) -> None:
        try:
            self.answer = _of_source(self.uid, self._position.backlog())
        except BaseException as e:
            # A client's library or a user's source may raise anything, and even exit. What waits is then unknown.
            reason = f"[{e.code}] {e.sentence}" if isinstance(e, StateflowError) else f"{type(e).__name__}: {e}"
            log.info("the backlog of source %s is unknown: %s", self.uid, reason)
            self.answer = _unknown(self.uid, reason[:_LONGEST_REASON])


def _of_source(uid: str, found: Backlog) -> SourceBacklog:
    """Returns the answer of a source. Raises ValueError for a number that no source can mean."""
    for name in ("rows", "size_bytes", "files"):
        number = getattr(found, name)
        if number is not None and (type(number) is not int or not 0 <= number < 1 << 63):
            raise ValueError(f"{name} is {number!r}, and must be None, or a whole number from 0 on")
    oldest = found.oldest_at
    if oldest is not None:
        zoned = oldest if oldest.tzinfo else oldest.replace(tzinfo=UTC)
        return SourceBacklog(**{**asdict(found), "uid": uid, "oldest_at": zoned.isoformat(timespec="milliseconds")})
    return SourceBacklog(**{**asdict(found), "uid": uid})


def _unknown(uid: str, reason: str) -> SourceBacklog:
    return SourceBacklog(**{**asdict(NO_BACKLOG), "uid": uid, "exact": False, "unknown": reason})


def _span(record: CheckpointRecord) -> tuple[float, float]:
    end = parse_timestamp(record.ended_at).timestamp()
    return end - record.duration_ms / 1000, end
