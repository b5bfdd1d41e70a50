"""History and garbage collection of a run: none of it is needed for safety, so a failure never ends the run."""

from __future__ import annotations

from functools import partial

from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.history import store_pending_records, trim_history, write_records
from stateflow.checkpoint.history_index import HistoryIndexWriter
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.records import CheckpointRecord
from stateflow.checkpoint.requests.mailbox import trim_requests
from stateflow.runtime.driver.background import Work
from stateflow.runtime.driver.run_context import RunContext
from stateflow.state.handles import FileHandle

MAX_PENDING_RECORDS = 100
"""Each manifest carries the records that are not stored yet. Beyond this number the oldest ones are dropped."""
_STORE_EVERY, _TRIM_EVERY = 20, 100
"""Checkpoints between two times that records are stored, and that the history is trimmed."""


class Maintenance:
    """Stores and trims the job's history and collects garbage, through `BackgroundWork`.

    A storage that refuses to delete, or a damaged older checkpoint, is no reason to fail a run whose own data is safe;
    ``stateflow gc`` fails for them.

    Args:
        run: the run that this is part of.

    Attributes:
        pending_records: records of checkpoints that only manifests hold so far, oldest first.
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
        self.pending_records = [*self.pending_records, record][-MAX_PENDING_RECORDS:]

    def after_checkpoint(self, head: Head) -> None:
        """Counts a checkpoint, and does the maintenance that is due.

        Args:
            head: the log entry of the checkpoint.
        """
        self._completed += 1
        if len(self.pending_records) >= _STORE_EVERY:
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
        trim_history(self._root.storage, self._settings.history.retained, self._index.listed(head))

    def _collect_if_due(self, head: Head, at_once: bool = False) -> None:
        self._background.attempt(Work.COLLECTION, partial(self._collect, head), at_once)

    def _collect(self, head: Head) -> None:
        """Collects all garbage if enough was written since the last collection, else only leftovers of runs."""
        if self._collector.is_due(head, max(self.collected, head.entry.collected)):
            self.collected = self._collector.collect().head_seq
        else:
            self._collector.collect_run_leftovers()
