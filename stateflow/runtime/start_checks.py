"""What is checked before a run works: that its checkpoint is whole and that job, sinks and checkpoint fit."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.documents import Manifest
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.files import check_stored, files_of
from stateflow.checkpoint.history import CheckpointRecord
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.restore import RestorePlan, plan_restore
from stateflow.errors import ConfigError, CorruptFile, MissingFile, SinkDiverged
from stateflow.runtime.job import Job


@dataclass(frozen=True)
class Found:
    """What was there before the claim.

    Attributes:
        files: keys of the files that were checked.
        checkpoint_id: the newest checkpoint; 0 when there was none, or when it was on its way out.
        untold: what only its manifest has of the history; nothing where a run that ended well stored it.
    """

    files: frozenset[str] = frozenset()
    checkpoint_id: int = 0
    untold: tuple[CheckpointRecord, ...] = ()


@dataclass(frozen=True)
class StartChecks:
    """Changes nothing.

    Attributes:
        reads_by_spark: whether Spark reads the sources of the run.
    """

    job: Job
    reads_by_spark: bool

    def before_claim(self) -> Found:
        """Checks what a claim would find now, so that a damaged or unfit checkpoint is told before anything changes.

        Until the claim another run may go on and collect the files, and a driver that slept may write a collected
        entry's slot anew: what is found then does not count, and the check after the claim decides.
        """
        return self._found(with_files=True)

    def without_files(self) -> None:
        """The same, but for the checkpoint's files: for a first look that must not read all state."""
        self._found(with_files=False)

    def _found(self, with_files: bool) -> Found:
        head = self.job.root.log.read_head()
        if head is None:
            if self.job.root.job.forked_from:
                # Its first entry is what brings the state.
                raise ConfigError("the fork is not complete", hint="make it again, with the same stateflow fork "
                                  "or run --from-savepoint",
                                  of=self.job.root.job.forked_from)  # fmt: skip
            return Found()
        self._check_sinks(head)
        try:
            manifest = self.job.root.manifest(head)
            self.restorable(head, manifest, frozenset() if with_files else None)
        except (MissingFile, CorruptFile):
            if self.job.root.log.read_head() == head:
                raise
            return Found()
        if manifest is None:
            return Found()
        untold = () if head.entry.ended else manifest.told(head.checkpoint_id)
        return Found(frozenset(f.key for f in files_of(manifest)), head.checkpoint_id, tuple(untold))

    def restorable(
        self, head: Head, manifest: Manifest | None, checked: frozenset[str] | None
    ) -> RestorePlan:
        """What the head's checkpoint gives to each operator; compares its files, but for those that are `checked`.

        Args:
            checked: keys of files; None for all.

        Raises MissingFile or CorruptFile naming a file; ConfigError when job and state do not fit.
        """
        restored = plan_restore(head.checkpoint_id, manifest, self.job.wanted)
        if manifest is not None and checked is not None:
            files = [f for f in files_of(manifest) if f.key not in checked]
            check_stored(self.job.root.storage, files)
        check_reader(manifest, self.reads_by_spark)
        return restored

    def _check_sinks(self, head: Head) -> None:
        orphans = sorted({p.sink for p in pending_of(head)} - self.job.sinks.keys())
        if orphans:
            raise ConfigError("a sink was removed while output for it is not published", hint="run the job once with "
                              "the sink, then remove it", sinks=orphans)  # fmt: skip
        for uid, known in head.entry.published.items():
            bound = self.job.sinks.get(uid)
            found = bound.sink.check(bound.context) if bound else known.table_id
            if found != known.table_id:
                raise SinkDiverged("the sink's table is not the one that this job published to", hint="put the old "
                                   "table back, or give the sink a new uid to begin a new table", sink=uid,
                                   table=bound.sink.location if bound else "", known=known.table_id,
                                   found=found or "no table")  # fmt: skip
        self._check_uids(head)

    def _check_uids(self, head: Head) -> None:
        """Raises ConfigError for a sink with a new uid on the table of a sink that is gone: the two would not know
        each other's checkpoints there, so that the table could not go back as a whole."""
        published = head.entry.published
        gone = {known.table_id: uid for uid, known in published.items() if uid not in self.job.sinks}
        for uid, bound in self.job.sinks.items() if gone else ():
            before = gone.get(bound.sink.check(bound.context) or "") if uid not in published else None
            if before is not None:
                raise ConfigError(f"sink {before} is gone, {uid} is new, on the same table {bound.sink.location}",
                                  hint=f"give it its old uid: {before}")  # fmt: skip


def check_reader(manifest: Manifest | None, reads_by_spark: bool) -> None:
    """Raises ConfigError for positions that the runner of this job cannot read: Spark and the runner without it write
    them differently."""
    if manifest is None or not manifest.sources or (manifest.spark is not None) == reads_by_spark:
        return
    before = "on Spark" if manifest.spark is not None else "without Spark"
    raise ConfigError(f"the job's positions were written by a run {before}", hint="run it like that again, or "
                      "start in a new job root", sources=[p.uid for p in manifest.sources])  # fmt: skip
