"""A job that is ready to run, and the results of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stateflow.checkpoint.log.documents import QuarantinedFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.state_matching import CurrentJob
from stateflow.config.settings import Settings
from stateflow.observability.metrics import NullRecorder, Recorder
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.planning.state_discovery import declared_states_if_known
from stateflow.runtime.publisher import BoundSink
from stateflow.runtime.quarantine import MAX_QUARANTINE_RECORDS
from stateflow.state.schema.compatibility import Declarations


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
    """

    root: JobRoot
    plan: JobPlan
    settings: Settings
    sinks: dict[str, BoundSink]
    sources: tuple[tuple[str, str], ...]
    code: str = ""
    recorder: Recorder = field(default_factory=NullRecorder)

    @property
    def wanted(self) -> CurrentJob:
        """What the job declares, for the comparison with stored state and positions."""
        return CurrentJob(
            self.plan.parallelism, self.root.job.max_parallelism, self.plan.key_types, self.sources, self._declared
        )

    @cached_property
    def _declared(self) -> dict[str, Declarations]:
        return declared_states_if_known(self.plan, self.root.job.max_parallelism)


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
