"""What a run works with, and what each of its batches gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from stateflow.checkpoint.documents import QuarantinedFile, SourcePosition, SparkPosition
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.restore import Wanted
from stateflow.metrics import NullRecorder, Recorder
from stateflow.runtime.declared import declared_if_known
from stateflow.runtime.plan import JobPlan
from stateflow.runtime.publishing import BoundSink
from stateflow.settings import Settings
from stateflow.state.evolution import Declarations


@dataclass(frozen=True)
class Positions:
    """Where the sources are after a batch.

    Attributes:
        spark: when Spark reads them.
        quarantined: input files that the batch skips.
    """

    sources: list[SourcePosition]
    spark: SparkPosition | None = None
    quarantined: tuple[QuarantinedFile, ...] = ()


Capture = Callable[[str], Positions]
"""Captures the positions of the batch that begins; its argument is a data folder for what is too large to inline."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch did.

    Attributes:
        checkpoint_id: the newest checkpoint; 0 before there is one.
        committed: whether that has this batch in it; else its output is not published yet.
        rows_in: rows that came from each source to the first operator or sink on it, after the transforms before that.
        increment_bytes: of state files that were stored for it, those of a compaction apart.
        compaction_bytes: of state files that a compaction wrote, which hold old data.
        full_bytes: of all state that it consists of.
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
    """Everything that a run works with.

    Attributes:
        sources: (uid, description) of each source.
        recorder: gets figures with Flink's names, in snake case.
    """

    root: JobRoot
    plan: JobPlan
    settings: Settings
    sinks: dict[str, BoundSink]
    sources: tuple[tuple[str, str], ...]
    recorder: Recorder = field(default_factory=NullRecorder)

    @property
    def wanted(self) -> Wanted:
        """What stored state and positions are compared with."""
        return Wanted(
            self.plan.parallelism,
            self.root.job.max_parallelism,
            self.plan.key_types,
            self.sources,
            self._declared,
        )

    @cached_property
    def _declared(self) -> dict[str, Declarations]:
        return declared_if_known(self.plan, self.root.job.max_parallelism)


@dataclass
class Totals:
    """What a run did so far."""

    batches: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    quarantined: list[QuarantinedFile] = field(default_factory=list)

    def count(self, rows_in: int, rows_out: dict[str, int]) -> None:
        """One more batch."""
        self.batches += 1
        self.rows_in += rows_in
        for sink, rows in rows_out.items():
            self.rows_out[sink] = self.rows_out.get(sink, 0) + rows
