"""Accumulates state and output of the barriers since the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import BatchRecord, Manifest, PendingOutput
from stateflow.runtime.driver.barrier import BarrierMetrics, CompletedBarrier
from stateflow.state.handles import Committable

_MAX_BATCHES = 1000
"""Batches that a manifest records."""
_MAX_OFFSETS = 1 << 20
"""Characters of all positions that a manifest records of its batches."""


@dataclass
class BatchRecords:
    """Records of the batches since the last checkpoint; none, once a manifest could not have them all.

    Attributes:
        records: the records, oldest first.
        characters: of their positions together.
        is_complete: whether no record was dropped.
    """

    records: list[BatchRecord] = field(default_factory=list)
    characters: int = 0
    is_complete: bool = True

    def add(self, more: Sequence[BatchRecord]) -> None:
        """Adds the records of the next batches."""
        if not self.is_complete or not more:
            return
        self.records += more
        self.characters += sum(map(_characters, more))
        # A manifest has the positions of its last batch anyway.
        size = self.characters - _characters(more[-1])
        if len(self.records) > _MAX_BATCHES or size > _MAX_OFFSETS:
            # There may be any number of batches until the next checkpoint.
            self.drop()

    def drop(self) -> None:
        """Drops all records, and those that are added later."""
        self.records, self.characters, self.is_complete = [], 0, False

    @property
    def stored(self) -> list[BatchRecord]:
        """The records as the manifest has them."""
        if not self.records:
            return []
        *earlier, last = self.records
        return [*earlier, replace(last, offsets=[], spark_time=None)]


def _characters(batch: BatchRecord) -> int:
    return sum(map(len, batch.offsets))


@dataclass
class PendingCheckpoint:
    """Barriers that are not committed yet: the state of the newest one, the output of all.

    Attributes:
        manifest: the manifest of the newest barrier; None without a barrier.
        folder: data folder of the driver's files of the newest barrier.
        tries: number of aborted checkpoints of the newest barrier.
        increment_bytes, compaction_bytes: stored since the last checkpoint.
        seconds: duration of the batches.
        committables: files to publish, by uid of the sink.
        metrics: the metrics of the newest barrier.
        triggered_at: when its checkpoint was triggered, in seconds of the monotonic clock.
        batches: the records of the batches.
    """

    manifest: Manifest | None = None
    folder: str = ""
    tries: int = 0
    increment_bytes: int = 0
    compaction_bytes: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: BarrierMetrics = field(default_factory=BarrierMetrics)
    triggered_at: float = 0.0
    committables: dict[str, list[Committable]] = field(default_factory=dict)
    batches: BatchRecords = field(default_factory=BatchRecords)

    def add(self, barrier: CompletedBarrier, output: dict[str, list[Committable]], seconds: float) -> None:
        """Adds the next barrier.

        Args:
            output: files to publish with the checkpoint, by uid of the sink.
            seconds: duration of the barrier's batch.
        """
        manifest = barrier.manifest
        self.manifest, self.folder, self.metrics = manifest, barrier.folder, barrier.metrics
        self.increment_bytes += manifest.increment_bytes
        self.compaction_bytes += manifest.compaction_bytes
        self.rows_in += barrier.rows_in
        self.seconds += seconds
        self.batches.add(manifest.batches)
        _add_rows(self.rows_out, barrier.rows_out)
        _add_files(self.committables, output)

    def merged_after(self, older: PendingCheckpoint) -> PendingCheckpoint:
        """Returns both together. `older` was aborted, and what it would have published passes to this one."""
        if older.manifest is None:
            return self
        newest, tries = (self, 0) if self.manifest is not None else (older, older.tries + 1)
        merged = PendingCheckpoint(
            newest.manifest,
            newest.folder,
            tries,
            older.increment_bytes + self.increment_bytes,
            older.compaction_bytes + self.compaction_bytes,
            older.rows_in + self.rows_in,
            seconds=older.seconds + self.seconds,
            metrics=newest.metrics,
            triggered_at=self.triggered_at,
        )
        for each in (older, self):
            merged.batches.add(each.batches.records)
            if not each.batches.is_complete:
                merged.batches.drop()
            _add_rows(merged.rows_out, each.rows_out)
            _add_files(merged.committables, each.committables)
        return merged

    @property
    def ordinal(self) -> int:
        """Number of the newest barrier; 0 without any."""
        return self.manifest.ordinal if self.manifest else 0

    @property
    def document(self) -> Manifest:
        """The manifest of the checkpoint; its byte counts and batches cover all its barriers."""
        assert self.manifest is not None
        return replace(
            self.manifest,
            increment_bytes=self.increment_bytes,
            compaction_bytes=self.compaction_bytes,
            batches=self.batches.stored,
        )

    @property
    def output(self) -> list[PendingOutput]:
        """Files to publish."""
        return [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.committables.items()]


def _add_rows(counts: dict[str, int], more: dict[str, int]) -> None:
    for sink, rows in more.items():
        counts[sink] = counts.get(sink, 0) + rows


def _add_files(files: dict[str, list[Committable]], more: dict[str, list[Committable]]) -> None:
    for sink, committables in more.items():
        files.setdefault(sink, []).extend(committables)
