"""Optimizes and vacuums the Delta tables of a job, concurrently with its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from stateflow.checkpoint.history import read_history
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import SAVEPOINT_RECORD, ActionRecord, disposed_savepoints, is_outside
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import list_savepoints
from stateflow.clock import epoch_milliseconds
from stateflow.errors import ConfigError
from stateflow.launch import open_existing
from stateflow.operations.job_root import JobCode

if TYPE_CHECKING:
    from stateflow.connectors.delta.maintenance import CompactionReport, Holder, VacuumReport
    from stateflow.connectors.delta.sink import OwnTable
    from stateflow.runtime.job import Job

KEPT_FOR = timedelta(days=7)
"""How long removed files are kept, so that readers of older versions can finish."""


@dataclass(frozen=True)
class VacuumRequest:
    """Parameters of a vacuum.

    Attributes:
        older_than: time since a file was removed from its table.
        tables: uids of the sinks; empty for all sinks with a Delta table.
        dry_run: whether to delete nothing.
        ignores_other_jobs: whether tables are permitted that other jobs write to.
    """

    older_than: timedelta = KEPT_FOR
    tables: tuple[str, ...] = ()
    dry_run: bool = False
    ignores_other_jobs: bool = False


def vacuum_tables(job_root: str, code: JobCode, request: VacuumRequest) -> list[VacuumReport]:
    """Deletes files of a job's tables that were removed some time ago, and that no checkpoint or savepoint needs.

    Raises:
        ConfigError: the job root does not exist, or a sink has no Delta table.
        SinkRefused: another job writes to a table, or it has a feature that is not supported.
        SinkDiverged: a table does not exist, or cannot be listed.
    """
    from stateflow.connectors.delta.maintenance import vacuum

    job = open_existing(code.file, job_root, code.layers)
    tables = _tables(job, request.tables)
    now = epoch_milliseconds(job.root.clock.now())
    older_than = int(request.older_than.total_seconds() * 1000)
    # Before the logs of the tables are read: a later checkpoint needs only what an earlier one or a table has.
    head = job.root.head()
    holders = list(_holders(job.root, head))
    return [
        vacuum(
            table,
            [*holders, *_intents(head, table.uid)],
            now=now,
            older_than=older_than,
            ignores_other_jobs=request.ignores_other_jobs,
            dry_run=request.dry_run,
        )
        for table in tables
    ]


def optimize_tables(
    job_root: str, code: JobCode, tables: Sequence[str] = (), *, dry_run: bool = False
) -> list[CompactionReport]:
    """Combines small files of a job's tables; changes no rows.

    Args:
        job_root: URI of the job root.
        code: the job file.
        tables: uids of the sinks; empty for all sinks with a Delta table.
        dry_run: whether to change nothing.

    Raises:
        ConfigError: the job root does not exist, or a sink has no Delta table.
        SinkRefused, SchemaMismatch: a table has a property or columns that the sink refuses.
        CorruptFile: a data file is damaged.
        SinkDiverged: a table or one of its data files does not exist, or a table cannot be listed.
    """
    from stateflow.connectors.delta.maintenance import Compaction

    job = open_existing(code.file, job_root, code.layers)
    found = _tables(job, tables)
    for table in found:
        job.sinks[table.uid].open_table()
    return [Compaction(table).run(dry_run=dry_run) for table in found]


def _tables(job: Job, uids: Sequence[str]) -> list[OwnTable]:
    from stateflow.connectors.delta.sink import DeltaSink

    found = {
        uid: bound.sink.own_table(bound.context)
        for uid, bound in sorted(job.sinks.items())
        if isinstance(bound.sink, DeltaSink)
    }
    if unknown := sorted(set(uids) - found.keys()):
        raise ConfigError("the job has no such sink with a Delta table", given=unknown, known=sorted(found))
    return [table for uid, table in found.items() if not uids or uid in uids]


def _holders(root: JobRoot, head: Head) -> Iterator[Holder]:
    """Yields the checkpoints and savepoints that the job can be restored to, also savepoints outside of the job root.

    Whether a savepoint elsewhere still exists is not checked: it counts until it is disposed of.
    """
    from stateflow.connectors.delta.maintenance import Holder

    for checkpoint_id in sorted({ref.id for ref in root.checkpoints.list_kept(head)}):
        yield Holder(f"checkpoint {checkpoint_id}", checkpoint_id)
    known = set[str]()
    for stored in list_savepoints(root.storage):
        known.add(stored.document.id)
        if stored.document.job_uuid == root.job.job_uuid:
            yield Holder(stored.label, stored.document.checkpoint_id)
    actions = [record for record in read_history(root.storage) if isinstance(record, ActionRecord)]
    known |= disposed_savepoints(actions)
    for record in actions:
        is_known = record.text("savepoint_id") in known
        if record.kind == SAVEPOINT_RECORD and not is_known and is_outside(record, root.storage.uri):
            yield Holder(f"savepoint {record.text('path')} (checkpoint {record.seq})", record.seq)


def _intents(head: Head, uid: str) -> Iterator[Holder]:
    """Yields the version that a restore which is not completed rewinds a table to."""
    from stateflow.connectors.delta.maintenance import Holder

    rewind = head.entry.rewind
    intent = rewind.sinks.get(uid) if rewind else None
    if rewind is not None and intent is not None and intent.to_version is not None:
        yield Holder(f"the restore of log entry {rewind.seq}", rewind.seq, intent.to_version)
