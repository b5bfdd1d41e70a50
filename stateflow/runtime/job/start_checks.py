"""Checks at the start of a run: its checkpoint is complete, and job, sinks and checkpoint fit each other."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.checkpoint.log.records import CheckpointRecord
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.state_matching import StateAssignment, assign_state
from stateflow.errors import ConfigError, CorruptFile, MissingFile, SinkDiverged
from stateflow.runtime.job.job import Job


@dataclass(frozen=True)
class CheckedHead:
    """Result of the checks before the CLAIM.

    Attributes:
        files: keys of the files that were checked.
        checkpoint_id: the newest checkpoint; 0 without one, and when it was released during the check.
        pending_records: history records present only in the manifest; empty after a run that finished.
    """

    files: frozenset[str] = frozenset()
    checkpoint_id: int = 0
    pending_records: tuple[CheckpointRecord, ...] = ()


@dataclass(frozen=True)
class StartChecks:
    """Compares a job with its root and its tables, without changing anything.

    Attributes:
        job: the job to start.
        reads_by_spark: whether Spark reads the sources of the run.
    """

    job: Job
    reads_by_spark: bool

    def before_claim(self) -> CheckedHead:
        """Checks the newest log entry and its checkpoint, so that an error is raised before anything changes.

        Until the CLAIM another run may continue and collect the files, and a paused driver may write a collected
        entry's slot again. An error that such a change explains is ignored; the check after the CLAIM decides.

        Raises:
            MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
            ConfigError: job and state, or job and sinks, do not fit.
            SinkDiverged: a sink's table is not the one that the job published to.
        """
        return self._check(with_files=True)

    def without_files(self) -> None:
        """Checks as `before_claim` does, apart from the checkpoint's files, so that no state is read."""
        self._check(with_files=False)

    def _check(self, with_files: bool) -> CheckedHead:
        head = self.job.root.log.read_head()
        if head is None:
            if self.job.root.job.forked_from:
                # The state comes with the first entry, which a killed fork has not appended.
                raise ConfigError(
                    "the fork is incomplete",
                    hint="repeat the same stateflow fork or run --from-savepoint",
                    of=self.job.root.job.forked_from,
                )
            return CheckedHead()
        self._check_sinks(head)
        try:
            manifest = self.job.root.checkpoints.manifest_at(head)
            self.match_state(head, manifest, frozenset() if with_files else None)
        except (MissingFile, CorruptFile):
            if self.job.root.log.read_head() == head:
                raise
            return CheckedHead()
        if manifest is None:
            return CheckedHead()
        pending_records = () if head.entry.ended else manifest.pending_records(head.checkpoint_id)
        return CheckedHead(frozenset(f.key for f in files_of(manifest)), head.checkpoint_id, tuple(pending_records))

    def match_state(self, head: Head, manifest: Manifest | None, checked: frozenset[str] | None) -> StateAssignment:
        """Assigns the state of a checkpoint to the operators, and compares its files with their hashes.

        Args:
            head: the log entry of the checkpoint.
            manifest: the manifest of the checkpoint; None without one.
            checked: keys of files to skip; None to skip all.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged; the error names it.
            ConfigError: job and state do not fit.
        """
        restored = assign_state(head.checkpoint_id, manifest, self.job.wanted)
        if manifest is not None and checked is not None:
            files = [f for f in files_of(manifest) if f.key not in checked]
            check_hashes(self.job.root.storage, files)
        check_reader(manifest, self.reads_by_spark)
        return restored

    def _check_sinks(self, head: Head) -> None:
        orphans = sorted({p.sink for p in pending_of(head)} - self.job.sinks.keys())
        if orphans:
            raise ConfigError(
                "a removed sink still has unpublished output",
                hint="run the job once with the sink, then remove it",
                sinks=orphans,
            )
        for uid, known in head.entry.published.items():
            bound = self.job.sinks.get(uid)
            found = bound.sink.check(bound.context) if bound else known.table_id
            if found != known.table_id:
                raise SinkDiverged(
                    "the sink's table is not the one that this job published to",
                    hint="restore the old table, or give the sink a new uid to begin a new table",
                    sink=uid,
                    table=bound.sink.location if bound else "",
                    known=known.table_id,
                    found=found,
                )
        self._check_uids(head)

    def _check_uids(self, head: Head) -> None:
        """Raises ConfigError for a sink with a new uid on the table of a removed sink.

        Neither uid would know the other's checkpoints in the table, so a restore could not rewind all of it.
        """
        published = head.entry.published
        removed = {known.table_id: uid for uid, known in published.items() if uid not in self.job.sinks}
        for uid, bound in self.job.sinks.items() if removed else ():
            before = removed.get(bound.sink.check(bound.context) or "") if uid not in published else None
            if before is not None:
                raise ConfigError(
                    "the uid of a sink has changed while its table is the same",
                    hint=f"give the sink its old uid: {before}",
                    sink=uid,
                    before=before,
                    table=bound.sink.location,
                )


def check_reader(manifest: Manifest | None, reads_by_spark: bool) -> None:
    """Raises ConfigError for positions that the runner of this job cannot read.

    Runs on Spark and without it store positions differently.

    Args:
        manifest: the manifest of the checkpoint to start from.
        reads_by_spark: whether Spark reads the sources of the run.
    """
    if manifest is None or not manifest.sources or (manifest.spark is not None) == reads_by_spark:
        return
    before = "on Spark" if manifest.spark is not None else "without Spark"
    raise ConfigError(
        f"the stored source positions come from a run {before}",
        hint=f"run the job {before} again, or start it in a new job root",
        sources=[p.uid for p in manifest.sources],
        on_spark=manifest.spark is not None,
    )
