"""Work of a run that no result depends on, such as history and garbage collection.

The guarantees of a run depend on checkpoints, publication and the log alone; an error in one of these ends the run.
Everything else goes through `BackgroundWork`: an error is logged, counted by kind, recorded in the history, and
followed by a growing delay, so that a storage that refuses requests is not called at full speed. `RunContext` is what
all parts of the driver share about a run.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import msgspec

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.history import (
    BACKGROUND,
    HistoryIndexWriter,
    store_pending_records,
    trim_history,
    write_action,
    write_records,
)
from stateflow.checkpoint.job_requests import trim_requests
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.errors import Fenced, InternalError, StateflowError
from stateflow.observability import Recorder
from stateflow.runtime.backlog import RATE_RECORDS
from stateflow.runtime.job import Job
from stateflow.runtime.publisher import Publisher
from stateflow.state.handles import FileHandle

log = logging.getLogger(__name__)


_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=5)


class Work(enum.Enum):
    """A kind of background work; its value is part of the name of its failure counter in `metrics.METRICS`."""

    REQUESTS = "request_watch"
    """Polling for requests and answering them."""
    COLLECTION = "collection"
    """Deleting garbage in the job root, abandoned savepoints and temporary files of dead writers."""
    HISTORY = "history"
    """Writing and trimming the history."""
    BACKLOG = "backlog"
    """Reporting how much input waits."""
    CLEANUP = "cleanup"
    """Removing old requests, and leftovers of older runs in sinks."""

    @property
    def metric(self) -> str:
        """Name of the counter of its failures."""
        return f"num_{self.value}_failures"


@dataclass(frozen=True)
class Failures:
    """Failures of one kind of work since the start of the run.

    Attributes:
        count: failed attempts.
        in_a_row: failed attempts since the last success.
        last: the last error; None before the first one.
        at: timestamp of `last`, in ISO 8601.
        pause_until: earliest time of the next attempt, in seconds of the monotonic clock.
    """

    count: int = 0
    in_a_row: int = 0
    last: StateflowError | None = None
    at: str = ""
    pause_until: float = 0.0


class BackgroundWork:
    """Attempts the background work of one run; safe to call from all its threads.

    Args:
        root: holds the history that gets the records.
        recorder: counts failures.
        generation: the run's generation.
    """

    def __init__(self, root: JobRoot, recorder: Recorder, generation: int) -> None:
        self._root = root
        self._recorder = recorder
        self._generation = generation
        self._lock = threading.Lock()
        self._failures = dict.fromkeys(Work, Failures())
        self._recorded = dict.fromkeys(Work, Failures())

    def attempt(self, kind: Work, work: Callable[[], object], at_once: bool = False) -> bool:
        """Calls `work`; returns whether it succeeded. An error is only reported.

        Args:
            kind: counts as this kind of work.
            work: raises an error to fail.
            at_once: whether to attempt it during the pause after the last failure; otherwise returns False then.

        Raises:
            Fenced: a newer run has claimed the job, so this run must end whichever work detects it.
        """
        if not at_once and self._root.clock.monotonic() < self.failures(kind).pause_until:
            return False
        try:
            work()
        except Fenced:
            raise
        except Exception as e:
            self._failed(kind, e)
            return False
        with self._lock:
            self._failures[kind] = replace(self._failures[kind], in_a_row=0, pause_until=0.0)
        return True

    def failures(self, kind: Work) -> Failures:
        """Returns the failures of one kind of work so far."""
        with self._lock:
            return self._failures[kind]

    def pause(self, kind: Work, usual: timedelta) -> timedelta:
        """Returns how long to wait before the next attempt: `usual`, and longer after failures."""
        left = self.failures(kind).pause_until - self._root.clock.monotonic()
        return max(usual, timedelta(seconds=left))

    def finish(self) -> None:
        """Records the failures since the last record in the history; called when the run ends."""
        for kind in Work:
            if self.failures(kind).count > self._recorded[kind].count:
                self._record(kind, self.failures(kind))

    def _failed(self, kind: Work, error: Exception) -> None:
        known = error if isinstance(error, StateflowError) else None
        failure = known or InternalError(f"{type(error).__name__}: {error}")
        at = self._root.clock.now().isoformat(timespec="milliseconds")
        with self._lock:
            before = self._failures[kind]
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(before.in_a_row, 20))
            now = Failures(
                before.count + 1, before.in_a_row + 1, failure, at, self._root.clock.monotonic() + pause.total_seconds()
            )
            self._failures[kind] = now
        self._recorder.count(kind.metric)
        # Only a bug is logged with its traceback; a failing storage is not.
        log.warning(
            "%s failed (%d in a row), the run continues: %s",
            kind.value,
            now.in_a_row,
            failure,
            exc_info=None if known or isinstance(error, OSError) else error,
        )
        if now.count & (now.count - 1) == 0:  # 1, 2, 4, 8, …: few records, however long the failure lasts
            self._record(kind, now)

    def _record(self, kind: Work, failed: Failures) -> None:
        assert failed.last is not None
        write_action(
            self._root.storage,
            ActionRecord(
                seq=self._generation,
                kind=BACKGROUND,
                ended_at=failed.at,
                by=self._root.requester,
                reason=failed.last.sentence,
                facts={
                    "work": kind.value,
                    "failures": failed.count,
                    "code": failed.last.code,
                    "generation": self._generation,
                },
            ),
            f"{kind.value[:3]}{failed.count:x}",
        )
        self._recorded[kind] = failed


@dataclass(frozen=True)
class RunContext:
    """One run of a job, once it is restored.

    Attributes:
        job: the job that runs.
        generation: the run's generation: that of its last CLAIM, since a start that rewinds claims the job again.
        publisher: publishes the run's output.
        guard: detects that a newer run has claimed the job.
        background: does work whose failure does not end the run.
        note: requester of the run, or reason; for the history.
    """

    job: Job
    generation: int
    publisher: Publisher
    guard: FenceGuard
    background: BackgroundWork
    note: str = ""

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.job.root.clock.monotonic()

    @property
    def timestamp(self) -> str:
        """The current time in ISO 8601, with milliseconds."""
        return self.job.root.clock.now().isoformat(timespec="milliseconds")


MAX_PENDING_RECORDS = 100
"""Each manifest carries the records that are not stored yet. Beyond this number the oldest ones are dropped."""
_STORE_EVERY, _TRIM_EVERY = 20, 100
"""Checkpoints between two times that records are stored, and that the history is trimmed."""
_STORE_METRICS, _MAX_PENDING_METRICS = 200, 2000
"""Metrics of operators and sinks in pending records, of up to a kilobyte each: so many are stored before there are 20
records, and if they cannot be stored, older records are kept without them."""


def without_old_metrics(records: list[CheckpointRecord], most: int = _MAX_PENDING_METRICS) -> list[CheckpointRecord]:
    """Returns records, the oldest of which have no metrics of operators and sinks if all have more than `most`."""
    excess = _metrics_in(records) - most
    kept = []
    for record in records:
        if excess > 0:
            excess -= _metrics_in([record])
            kept.append(msgspec.structs.replace(record, operators={}, sinks={}))
        else:
            kept.append(record)
    return kept


def _metrics_in(records: Sequence[CheckpointRecord]) -> int:
    return sum(len(record.operators) + len(record.sinks) for record in records)


class Maintenance:
    """Stores and trims the job's history and collects garbage, through `BackgroundWork`.

    A storage that refuses to delete, or a damaged older checkpoint, must not fail a run whose own data is safe;
    ``stateflow gc`` fails for them.

    Args:
        run: the run that this is part of.

    Attributes:
        pending_records: records of checkpoints that only manifests hold so far, oldest first.
        recent: the newest records of the run, oldest first.
        collected: sequence number of the log's head at the last collection of data; 0 before the first one.
    """

    def __init__(self, run: RunContext) -> None:
        self._root = run.job.root
        self._settings = run.job.settings
        self._background = run.background
        self._collector = Collector(run.job.root)
        self._completed = 0
        self._index: HistoryIndexWriter | None = None
        self.pending_records: list[CheckpointRecord] = []
        self.recent: deque[CheckpointRecord] = deque(maxlen=RATE_RECORDS)
        self.collected = 0

    @property
    def history(self) -> FileHandle | None:
        """The newest index of the history, for the next log entry; None before the first."""
        return self._index.handle if self._index else None

    def start(self, head: Head, records: list[CheckpointRecord]) -> None:
        """Stores pending records of older runs, trims the history, and deletes what older runs left in the job root.

        Done at the start too, because a job whose runs all fail also needs a history, and leaves garbage.

        Args:
            head: the log entry that the run was restored from.
            records: history records that only the manifest of `head` holds.
        """
        self._background.attempt(Work.HISTORY, partial(store_pending_records, self._root, head, records))
        self._index = HistoryIndexWriter(self._root, head)
        self._update_index(head)
        self._trim_history(head)
        self._background.attempt(Work.COLLECTION, self._collector.collect_run_leftovers)

    def add_record(self, record: CheckpointRecord) -> None:
        """Adds a record of a checkpoint, for the next manifest."""
        self.pending_records = without_old_metrics([*self.pending_records, record][-MAX_PENDING_RECORDS:])
        self.recent.append(record)

    def after_checkpoint(self, head: Head) -> None:
        """Counts a checkpoint, and does the maintenance that is due.

        Args:
            head: the log entry of the checkpoint.
        """
        self._completed += 1
        if len(self.pending_records) >= _STORE_EVERY or _metrics_in(self.pending_records) >= _STORE_METRICS:
            self._store_records()
            self._update_index(head)
        if self._completed % self._settings.checkpoints.collect_every == 0:
            self._collect_if_due(head)
        if self._completed % _TRIM_EVERY == 0:
            self._trim_history(head)
            self._background.attempt(Work.CLEANUP, partial(trim_requests, self._root.storage))

    def before_last_entry(self, head: Head) -> None:
        """Stores all records and collects data; the last log entry then names that collection."""
        self._store_records(at_once=True)
        self._update_index(head, at_once=True)
        self._collect_if_due(head, at_once=True)

    def after_last_entry(self, head: Head) -> None:
        """Deletes what the run's last log entry made garbage; trims the history and the requests.

        Args:
            head: that entry.
        """
        self._background.attempt(Work.COLLECTION, self._collector.collect_run_leftovers, at_once=True)
        self._trim_history(head)
        self._background.attempt(Work.CLEANUP, partial(trim_requests, self._root.storage), at_once=True)

    def _store_records(self, at_once: bool = False) -> None:
        records = self.pending_records
        write = partial(write_records, self._root.storage, records, self._root.clock.new_id())
        if self._background.attempt(Work.HISTORY, write, at_once):
            self.pending_records = self.pending_records[len(records) :]

    def _update_index(self, head: Head, at_once: bool = False) -> None:
        assert self._index is not None, "start() was not called"
        update = partial(self._index.update, head, self._settings.history.retained)
        self._background.attempt(Work.HISTORY, update, at_once)

    def _trim_history(self, head: Head) -> None:
        self._background.attempt(Work.HISTORY, partial(self._trim, head))

    def _trim(self, head: Head) -> None:
        """Deletes old objects, except those in an index that a log entry may refer to."""
        assert self._index is not None, "start() was not called"
        trim_history(self._root.storage, self._settings.history.retained, self._index.list_needed_objects(head))

    def _collect_if_due(self, head: Head, at_once: bool = False) -> None:
        self._background.attempt(Work.COLLECTION, partial(self._collect, head), at_once)

    def _collect(self, head: Head) -> None:
        """Collects all garbage if enough was written since the last collection, else only leftovers of runs."""
        if self._collector.is_due(head, max(self.collected, head.entry.collected)):
            self.collected = self._collector.collect().head_seq
        else:
            self._collector.collect_run_leftovers()
