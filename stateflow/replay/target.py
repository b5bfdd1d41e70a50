"""What a replay runs again: the batches between a checkpoint and the one before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import NOT_BEGUN, BatchRecord, EntryRef, Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.errors import ConfigError, CorruptFile

_SHOWN = 20
"""Checkpoints that an error names."""


@dataclass(frozen=True)
class TargetCheckpoints:
    """The checkpoint whose batches run again, and the one that they started from.

    Attributes:
        target: the checkpoint.
        base: the checkpoint before it; None if the batches started without state.
    """

    target: EntryRef
    base: EntryRef | None


@dataclass(frozen=True)
class PlannedBatch:
    """One batch to run again.

    Attributes:
        processing_time: the processing time of the batch.
        checkpoint_id: the newest checkpoint of which functions were notified.
        start: the position of each source before the batch, by uid.
        end: the position of each source after it, by uid.
        spark_time: Spark's time of the batch, in milliseconds since 1970; None for that of the checkpoint.
        watermarks: the watermark of each operator; empty if they follow from the batch before.
    """

    processing_time: datetime
    checkpoint_id: int
    start: Mapping[str, str]
    end: Mapping[str, str]
    spark_time: int | None = None
    watermarks: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def has_input(self) -> bool:
        """Whether a source moved on in the batch."""
        return self.start != self.end

    def moves(self, uid: str) -> bool:
        """Returns whether a source moved on in the batch."""
        return self.start_of(uid) != self.end_of(uid)

    def start_of(self, uid: str) -> str:
        """Returns the position of a source before the batch; `NOT_BEGUN` before all input."""
        return self.start.get(uid, NOT_BEGUN)

    def end_of(self, uid: str) -> str:
        """Returns the position of a source after the batch."""
        return self.end.get(uid, NOT_BEGUN)


@dataclass(frozen=True)
class PlannedReplay:
    """The batches of a checkpoint.

    Attributes:
        batches: the batches, oldest first.
        deviation: what differs from the original batches, in words; empty if they run as they were recorded.
    """

    batches: tuple[PlannedBatch, ...]
    deviation: str = ""


def find_target(root: JobRoot, head: Head, batch: int) -> TargetCheckpoints:
    """Returns the checkpoint with the number `batch`, and the one before it.

    Raises:
        ConfigError: there is no such checkpoint, no batch led to it, or the one before it is not retained.
    """
    kept = {ref.id: ref for ref in root.checkpoints.kept(head)}
    if batch not in kept:
        raise ConfigError(
            "the checkpoint of the batch is not retained",
            hint="replay one of the batches kept; checkpoints.retained sets how many there are",
            batch=batch,
            kept=replayable_batches(root, kept),
        )
    manifest = root.checkpoints.manifest_of(kept[batch])
    parent = _parent(root, manifest, batch, kept)
    if parent is None:
        raise ConfigError(
            "the checkpoint was made by a restore, not by a batch",
            hint="replay one of the batches kept",
            batch=batch,
            kept=replayable_batches(root, kept),
        )
    if parent and parent not in kept:
        raise ConfigError(
            "the checkpoint before the batch is no longer retained",
            hint="replay one of the batches kept; checkpoints.retained sets how many there are",
            batch=batch,
            before=parent,
            kept=replayable_batches(root, kept),
        )
    return TargetCheckpoints(kept[batch], kept[parent] if parent else None)


def replayable_batches(root: JobRoot, kept: Mapping[int, EntryRef]) -> list[int]:
    """Returns the newest batches whose checkpoints can be replayed, oldest first.

    Args:
        kept: the checkpoints that the job keeps, by id.
    """
    newest = sorted(kept, reverse=True)[:_SHOWN]
    found = []
    for number in newest:
        parent = _parent(root, root.checkpoints.manifest_of(kept[number]), number, kept)
        if parent is not None and (parent == 0 or parent in kept):
            found.append(number)
    return sorted(found)


def _parent(root: JobRoot, manifest: Manifest, number: int, kept: Mapping[int, EntryRef]) -> int | None:
    """Returns the id of the checkpoint before a batch, 0 for none; None for a checkpoint that no batch led to."""
    if manifest.parent is not None or manifest.record is None:
        return manifest.parent
    # An older version did not record it. Epochs grow along the job's state, so an older one shows an earlier state.
    older = max((known for known in kept if known < number), default=0)
    if not older:
        return 0 if manifest.epoch == 1 else -1
    return older if root.checkpoints.manifest_of(kept[older]).epoch < manifest.epoch else -1


def plan_replay(manifest: Manifest, base: Manifest | None) -> PlannedReplay:
    """Returns the batches of a checkpoint. Pure.

    Args:
        manifest: the manifest of the checkpoint.
        base: the manifest of the checkpoint before it; None without one.

    Raises:
        CorruptFile: the recorded batches are not valid.
    """
    uids = [position.uid for position in manifest.sources]
    start = dict.fromkeys(uids, NOT_BEGUN)
    if base is not None:
        start |= {position.uid: position.offset for position in base.sources if position.uid in start}
    end = {position.uid: position.offset for position in manifest.sources}
    if manifest.batches:
        return PlannedReplay(tuple(_recorded(manifest.batches, start, end)))
    number = manifest.epoch - (base.epoch if base else 0)
    record = manifest.record
    planned = PlannedBatch(
        processing_time=_time(record.triggered_at if record and record.triggered_at else "1970-01-01T00:00:00+00:00"),
        checkpoint_id=manifest.parent or 0,
        start=start,
        end=end,
    )
    joined = f"{number} batches run as one; " if number > 1 else ""
    return PlannedReplay((planned,), f"{joined}the processing time is the start of the last batch")


def _recorded(records: Sequence[BatchRecord], start: Mapping[str, str], end: Mapping[str, str]) -> list[PlannedBatch]:
    result = []
    at = dict(start)
    for number, record in enumerate(records):
        is_last = number == len(records) - 1
        if not is_last and len(record.offsets) != len(end):
            raise CorruptFile(
                "a recorded batch of a checkpoint does not have a position for each source",
                hint="replay another batch",
                ordinal=record.ordinal,
                sources=list(end),
            )
        after = dict(end) if is_last else dict(zip(end, record.offsets, strict=True))
        result.append(
            PlannedBatch(
                processing_time=_time(record.processing_time),
                checkpoint_id=record.checkpoint_id,
                start=at,
                end=after,
                spark_time=record.spark_time,
                watermarks=record.watermarks,
            )
        )
        at = after
    return result


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as e:
        raise CorruptFile(
            "the recorded time of a batch is not a time", hint="replay another batch", found=text[:100]
        ) from e
    return found if found.tzinfo else found.replace(tzinfo=UTC)
