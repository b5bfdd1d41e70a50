"""The batches that a replay runs again, and their rows for a job that runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePath

from stateflow.api.input_files import unreadable_in
from stateflow.api.source import LocalSource, Slice, limits_of, texts_of
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import NOT_BEGUN, BatchRecord, EntryRef, Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import parse_timestamp
from stateflow.config.settings import SourceSettings
from stateflow.errors import BatchFailed, ConfigError, CorruptFile, InputLost, StateflowError
from stateflow.runtime.job import Job
from stateflow.runtime.local_run import split_times
from stateflow.runtime.user_code import find_user_line

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
        ConfigError: the checkpoint does not exist, no batch led to it, or the one before it is not retained.
    """
    kept = {ref.id: ref for ref in root.checkpoints.list_kept(head)}
    if batch not in kept:
        raise ConfigError(
            "the checkpoint of the batch is not retained",
            hint="replay one of the batches kept; checkpoints.retained sets how many there are",
            batch=batch,
            kept=replayable_batches(root, kept),
        )
    parent = root.checkpoints.manifest_of(kept[batch]).parent
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
        parent = root.checkpoints.manifest_of(kept[number]).parent
        if parent is not None and (parent == 0 or parent in kept):
            found.append(number)
    return sorted(found)


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
    planned = PlannedBatch(
        processing_time=_time(manifest.record.triggered_at if manifest.record else ""),
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
        return parse_timestamp(text)
    except ValueError as e:
        raise CorruptFile(
            "the recorded time of a batch is not a time", hint="replay another batch", found=text[:100]
        ) from e


_POSITION = 500
"""Characters of a position in an error."""


def lost_input(uid: str, lost: Sequence[str], batch: PlannedBatch) -> InputLost:
    """Returns the error for a source that no longer has the rows of a batch.

    Args:
        uid: uid of the source.
        lost: texts on what it no longer has.
        batch: the batch, with the positions of the source.
    """
    return InputLost(
        "the source no longer has the rows of the batch",
        hint="a replay needs the input as it was: restore it, or replay one of the batches left",
        source=uid,
        lost=list(lost),
        start=batch.start_of(uid)[:_POSITION],
        end=batch.end_of(uid)[:_POSITION],
    )


def deleted_file(text: str, batch: PlannedBatch, descriptions: Mapping[str, str]) -> InputLost | None:
    """Returns the error for a file of a batch that Spark did not find; None if its error is another one.

    Args:
        text: Spark's error.
        descriptions: the descriptions of the sources by uid, which have the paths that they read.
    """
    found = unreadable_in(text)
    if found is None or not found.was_deleted:
        return None
    folders = [str(folder) for folder in PurePath(found.path).parents][:-1]
    moved = [uid for uid in descriptions if batch.moves(uid)]
    readers = [uid for uid in moved if any(folder in descriptions[uid] for folder in folders)]
    return lost_input((readers or moved)[0], [f"{found.path}: it does not exist"], batch)


SplitTimes = Mapping[str, Mapping[str, int | None]]
"""As `Positions.split_times`."""
RunRows = Callable[[object, SplitTimes], None]
"""Runs a batch; takes its rows, as the executor does, and the latest event times of splits."""


_MOST_READS = 1000
"""Reads of a source for the rows of one batch."""


class LocalInput:
    """Reads the rows of batches from the sources once more.

    Args:
        job: the job.
        sources: the sources by uid.
    """

    def __init__(self, job: Job, sources: Mapping[str, LocalSource]) -> None:
        self._job = job
        self._sources = sources

    def check(self, batch: PlannedBatch, manifest: Manifest) -> None:
        """See `BatchReader.check`."""
        for uid, source in self._sources.items():
            if batch.moves(uid) and (lost := source.lost_between(*_positions(uid, batch))):
                raise lost_input(uid, lost, batch)

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """See `BatchReader.run`."""
        slices = {uid: self._read(uid, source, batch) for uid, source in self._sources.items() if batch.moves(uid)}
        run_rows({uid: found.rows for uid, found in slices.items()}, split_times(self._job.plan, slices))

    def _read(self, uid: str, source: LocalSource, batch: PlannedBatch) -> Slice:
        start, end = _positions(uid, batch)
        try:
            limits = limits_of(uid, source, self._job.settings.source)
            found = source.slice_between(start, end) or _read_up_to(source, start, end, limits)
        except InputLost as e:
            raise lost_input(uid, texts_of(e), batch) from e
        except StateflowError:
            raise
        except Exception as e:
            raise BatchFailed(
                "a source could not be read",
                hint="check whether it still has the rows of the batch",
                source=uid,
                reason=f"{type(e).__name__}: {e}"[:500],
                where=find_user_line(e),
            ) from e
        if found is None:
            raise lost_input(uid, ["reading again did not return the position after the batch"], batch)
        return found


def _positions(uid: str, batch: PlannedBatch) -> tuple[str | None, str]:
    """Returns the positions of a source before and after a batch; None before all input."""
    start = batch.start_of(uid)
    return None if start == NOT_BEGUN else start, batch.end_of(uid)


def _read_up_to(source: LocalSource, start: str | None, end: str, limits: SourceSettings) -> Slice | None:
    """Reads slices until the position `end`, which the source must return again; None if it does not."""
    found = Slice([], "")
    at = start
    for _ in range(_MOST_READS):
        part = source.read(at, limits)
        if part is None or part.position == at:
            return None
        splits = dict(found.splits)
        for split, rows in part.splits.items():
            splits[split] = [*splits.get(split, ()), *rows]
        found = replace(part, rows=[*found.rows, *part.rows], splits=splits)
        at = part.position
        if at == end:
            return found
    return None
