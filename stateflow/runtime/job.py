"""A job that is ready to run: its root and sinks, the checks before its first batch, and the results of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypedDict

from stateflow.api.graph import JobFile
from stateflow.api.input_files import UnreadableFile
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    CheckpointRecord,
    Manifest,
    PublishedOutput,
    QuarantinedFile,
    Savepoint,
    SourcePosition,
    SparkPosition,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.state_assignment import CurrentJob, StateAssignment, assign_state
from stateflow.config.settings import Settings
from stateflow.errors import ConfigError, CorruptFile, MissingFile, SinkDiverged
from stateflow.observability import NullRecorder, Recorder
from stateflow.outputs import Timestamp
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.planning.state_discovery import discover_states_if_possible
from stateflow.runtime.publisher import BoundSink
from stateflow.state.schema_compatibility import Declarations


@dataclass(frozen=True)
class Positions:
    """Positions of the sources at the end of a batch.

    Attributes:
        sources: the position of each source.
        spark: progress of Spark's query; None when the sources are read without Spark.
        quarantined: input files that the batch skips.
        split_times: for each source with a watermark per split, by uid: the latest event time in the batch of each of
            its splits, in milliseconds since 1970; None for a split without rows, `NO_TIME` if its rows have none.
    """

    sources: list[SourcePosition]
    spark: SparkPosition | None = None
    quarantined: tuple[QuarantinedFile, ...] = ()
    split_times: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)


PositionCapture = Callable[[str], Positions]
"""Captures the positions at the end of the batch that begins.

Takes a data folder, for what is too large for the manifest.
"""


@dataclass(frozen=True)
class BatchResult:
    """Result of one batch.

    Attributes:
        checkpoint_id: the newest checkpoint; 0 before the first one.
        ordinal: number of the batch in the run.
        rows_in: rows that the sources had, before filters and other functions.
        rows_out: rows for each sink, by uid.
        increment_bytes: size of the state files that were stored for this batch, without those of a compaction.
        compaction_bytes: size of the state files that a compaction wrote; they hold older data.
        full_bytes: size of all state.
        seconds: duration.
        committed: whether the newest checkpoint contains this batch; otherwise its output is not published yet.
    """

    checkpoint_id: int
    ordinal: int
    rows_in: int
    rows_out: dict[str, int]
    increment_bytes: int
    compaction_bytes: int
    full_bytes: int
    seconds: float
    committed: bool = True


@dataclass(frozen=True)
class CheckpointReport:
    """A committed checkpoint whose output is published.

    Attributes:
        head: its log entry.
        record: its statistics.
        manifest: its manifest.
        published: the newest known position of each sink's table, by uid.
    """

    head: Head
    record: CheckpointRecord
    manifest: Manifest
    published: Mapping[str, PublishedOutput]


class RunObserver(Protocol):
    """Is told what a run does. The methods are called in different threads; they return at once, and raise nothing."""

    def on_checkpoint(self, at: CheckpointReport) -> None:
        """Called after each checkpoint."""

    def on_savepoint(self, savepoint: Savepoint) -> None:
        """Called after each savepoint that the run has made for a request."""


class NullObserver:
    """Observer that does nothing."""

    def on_checkpoint(self, at: CheckpointReport) -> None:
        """Does nothing."""

    def on_savepoint(self, savepoint: Savepoint) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class LaunchFacts:
    """Facts about the launch of a run, for the history.

    Attributes:
        began_at: when it began, in seconds of the monotonic clock.
        file: the job file; None for a job without one.
        graph: the graph, as JSON.
    """

    began_at: float
    file: JobFile | None
    graph: bytes


@dataclass(frozen=True)
class Job:
    """A job with its opened root.

    Attributes:
        root: the job root.
        plan: the physical plan.
        settings: the settings of the run.
        sinks: the sinks, by uid.
        sources: (uid, description) of each source, ordered by uid.
        code: hash of the job file and the modules next to it.
        recorder: gets metrics with Flink's names, in snake case.
        observer: is told about checkpoints and savepoints.
        launch: facts about the launch for the history; None if they are not recorded.
    """

    root: JobRoot
    plan: JobPlan
    settings: Settings
    sinks: dict[str, BoundSink]
    sources: tuple[tuple[str, str], ...]
    code: str = ""
    recorder: Recorder = field(default_factory=NullRecorder)
    observer: RunObserver = field(default_factory=NullObserver)
    launch: LaunchFacts | None = None

    @property
    def wanted(self) -> CurrentJob:
        """The declarations of the job, for the comparison with stored state and positions."""
        return CurrentJob(
            self.plan.parallelism, self.root.job.max_parallelism, self.plan.key_types, self.sources, self._declared
        )

    @cached_property
    def _declared(self) -> dict[str, Declarations]:
        return discover_states_if_possible(self.plan, self.root.job.max_parallelism)


@dataclass(frozen=True)
class Quarantined:
    """A corrupt input file that a run skipped completely.

    Attributes:
        source: uid of the source.
        file: path of a local file, otherwise its URI.
        error: why it cannot be read.
        quarantined_at: when it was skipped.
        generation: generation of the run that skipped it.
    """

    source: str
    file: str
    error: str
    quarantined_at: Timestamp
    generation: int

    @classmethod
    def of(cls, stored: QuarantinedFile) -> Quarantined:
        """Returns the description of a file that a manifest lists."""
        return cls(stored.source, stored.file, stored.error, stored.at, stored.generation)


@dataclass(frozen=True)
class HotKey:
    """A key of which a join has compared so many pairs of rows in a batch that they take most of its time.

    Attributes:
        operator: uid of the join.
        key: the key, as text.
        pairs: their number.
    """

    operator: str
    key: str
    pairs: int

    def __str__(self) -> str:
        return f"{self.operator} has compared {self.pairs:,} pairs of the key {self.key} in a batch"


@dataclass
class RunTotals:
    """Counts of a run and its restarts.

    Attributes:
        batches: completed batches.
        rows_in, rows_out: as in `BatchResult`.
        quarantined_count: number of skipped input files.
        quarantined: records of the newest of them.
        late_rows_dropped: rows that operators dropped because they were too late.
        hot_keys: of each join with such keys, the one with the most pairs in a batch, by uid.
    """

    batches: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    quarantined_count: int = 0
    quarantined: Sequence[QuarantinedFile] = ()
    late_rows_dropped: int = 0
    hot_keys: dict[str, HotKey] = field(default_factory=dict)

    def heat(self, keys: Iterable[HotKey]) -> None:
        """Adds keys of which joins have compared many pairs of rows."""
        for key in keys:
            known = self.hot_keys.get(key.operator)
            if known is None or known.pairs < key.pairs:
                self.hot_keys[key.operator] = key

    def skip(self, files: Sequence[QuarantinedFile], late_rows: int = 0) -> None:
        """Adds skipped input files, and rows that were dropped because they were too late."""
        self.late_rows_dropped += late_rows
        self.quarantined_count += len(files)
        self.quarantined = (*self.quarantined, *files)[-MAX_QUARANTINE_RECORDS:]

    def count(self, rows_in: int, rows_out: dict[str, int]) -> None:
        """Adds a batch."""
        self.batches += 1
        self.rows_in += rows_in
        for sink, rows in rows_out.items():
            self.rows_out[sink] = self.rows_out.get(sink, 0) + rows


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
        check_same_reader(manifest, self.reads_by_spark)
        return restored

    def _check_sinks(self, head: Head) -> None:
        orphans = sorted({p.sink for p in pending_of(head)} - self.job.sinks.keys())
        if orphans:
            raise ConfigError(
                "a removed sink still has pending output",
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


def check_same_reader(manifest: Manifest | None, reads_by_spark: bool) -> None:
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


MAX_QUARANTINE_RECORDS = 200
"""Records that a manifest keeps. Older ones are dropped; the number of skipped files counts them all."""


@dataclass(frozen=True)
class SkippedFile:
    """A file of one source that a batch skips.

    Attributes:
        source: uid of the source.
        file: the file that could not be read, and the reason.
    """

    source: str
    file: UnreadableFile


class QuarantineFields(TypedDict):
    """The fields of a manifest about skipped files."""

    quarantined: list[QuarantinedFile]
    quarantined_count: int


def quarantine_records(skipped: Sequence[SkippedFile], at: str, generation: int) -> tuple[QuarantinedFile, ...]:
    """Returns the records of skipped files for a manifest.

    Args:
        at: timestamp in ISO 8601.
        generation: the generation of the run that skips the files.
    """
    return tuple(
        QuarantinedFile(source=s.source, file=s.file.path, error=s.file.reason, at=at, generation=generation)
        for s in skipped
    )


def quarantine_fields(before: Manifest | None, more: Sequence[QuarantinedFile]) -> QuarantineFields:
    """Returns the fields of a manifest about skipped files, after a batch that skipped `more`.

    Args:
        before: manifest of the barrier before; None for the first one.
    """
    known, count = (before.quarantined, before.quarantined_count) if before else ([], 0)
    return {"quarantined": [*known, *more][-MAX_QUARANTINE_RECORDS:], "quarantined_count": count + len(more)}
