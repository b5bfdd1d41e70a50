"""Positions of the sources of a job in a checkpoint of another version of it, with Spark's files for them. Pure.

Spark numbers the sources of a query in the order of their uids, and identifies their offsets and logs by the number. So
a source that is added, removed or renamed changes the numbers of others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import (
    NOT_BEGUN,
    Manifest,
    SourceFile,
    SourcePosition,
    SparkPosition,
    WaitingRows,
)
from stateflow.errors import ConfigError, CorruptFile

INLINE_LIMIT = 8 << 10
"""Source logs up to this size, in bytes, are stored in the manifest itself."""
SPARK_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
"""Content of an entry of Spark's commit log."""
_HEADER_LINES = 2


@dataclass(frozen=True)
class SourceStart:
    """Where a source of the job continues.

    Attributes:
        old: uid of the source in the target whose position it keeps; empty for a position of its own.
        offset: its position if `old` is empty.
        logs: contents of Spark's log of the source for that position, by name.
    """

    old: str = ""
    offset: str = NOT_BEGUN
    logs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceStarts:
    """Where every source of the job continues, and which sources of the target it does not have.

    Attributes:
        starts: by uid of the source, for all sources of the job.
        before: uids in the target of the sources that it has, by their uids in the job.
        removed: uids of sources of the target whose positions are dropped.
    """

    starts: Mapping[str, SourceStart]
    before: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def match_sources(
    stored: Sequence[SourcePosition],
    wanted: Sequence[tuple[str, str]],
    renamed: Mapping[str, str],
    chosen: Mapping[str, SourceStart | None],
    *,
    can_keep: Callable[[str, str], bool] = lambda uid, before: True,
) -> SourceStarts:
    """Returns where each source of the job continues.

    Args:
        stored: the positions in the target.
        wanted: (uid, description) of each source of the job.
        renamed: new uids of sources of the target, by their old ones.
        chosen: positions that the user has chosen, by uid; None keeps the position although the description differs.
        can_keep: returns whether a source could keep the position of a source with another description, for the hint.

    Raises:
        ConfigError: a source reads other data than before and the user has not chosen a position, or a source has no
            position to keep.
    """
    positions = {position.uid: position for position in stored}
    _check_renamed(positions.keys(), renamed)
    old_of = {uid: uid for uid in positions if uid not in renamed} | {new: old for old, new in renamed.items()}
    starts = {}
    for uid, description in wanted:
        old = positions.get(old_of.get(uid, ""))
        start = chosen.get(uid)
        if start is not None:
            starts[uid] = start
        elif old is not None:
            if uid not in chosen:
                _check_same_data(old, uid, description, can_keep)
            starts[uid] = SourceStart(old.uid)
        elif uid in chosen:
            raise ConfigError(
                "a source has no position in the target that it could keep",
                hint=f"omit --source {uid}=keep: a new source begins at its start; or pass --map OLD={uid}",
                uid=uid,
                known=sorted(positions),
            )
        else:
            starts[uid] = SourceStart()
    before = {uid: old_of[uid] for uid, _ in wanted if old_of.get(uid) in positions}
    return SourceStarts(starts, before, tuple(sorted(positions.keys() - set(before.values()))))


def check_unambiguous(stored: Sequence[SourcePosition], wanted: Sequence[tuple[str, str]]) -> None:
    """Checks that a start without a restore can continue: sources are the same, or were added.

    Raises:
        ConfigError: a source was removed or renamed, or reads other data.
    """
    found = match_sources(stored, wanted, {}, {})
    if found.removed:
        raise ConfigError(
            "the job's sources do not match the sources of the checkpoint",
            hint="positions are matched by uid. If a source was renamed or removed, plan a restore: stateflow restore "
            "JOB.py --plan latest, with --map OLD=NEW for a renamed one, then --execute",
            found=[position.uid for position in stored],
            wanted=[uid for uid, _ in wanted],
        )


def with_sources(manifest: Manifest, wanted: Sequence[tuple[str, str]], starts: Mapping[str, SourceStart]) -> Manifest:
    """Returns a manifest with the positions of the job's sources.

    Args:
        manifest: the manifest of the target.
        wanted: (uid, description) of each source of the job, ordered by uid.
        starts: where each continues.

    Raises:
        CorruptFile: Spark's offsets in the manifest are not those of its sources.
    """
    old = {position.uid: position for position in manifest.sources}
    positions = [
        SourcePosition(uid=uid, description=description, offset=_offset(starts[uid], old))
        for uid, description in wanted
    ]
    if positions == manifest.sources and all(start.old == uid for uid, start in starts.items()):
        return manifest
    kept = {start.old: uid for uid, start in starts.items() if start.old}
    return replace(
        manifest,
        sources=positions,
        spark=manifest.spark and _with_sources(manifest.spark, [p.uid for p in manifest.sources], positions, starts),
        watermarks=sorted(
            (replace(w, uid=kept[w.uid]) for w in manifest.watermarks if w.uid in kept), key=lambda each: each.uid
        ),
        waiting=rename_waiting(manifest.waiting, kept),
        columns={kept[uid]: columns for uid, columns in manifest.columns.items() if uid in kept},
    )


def rename_waiting(waiting: Iterable[WaitingRows], new: Mapping[str, str]) -> list[WaitingRows]:
    """Returns waiting rows whose inputs, and the sources that they wait for, have new uids; `new` is by old ones."""
    return [
        replace(
            rows,
            inputs=sorted({new.get(uid, uid) for uid in rows.inputs}),
            waits_for=[replace(each, uid=new.get(each.uid, each.uid)) for each in rows.waits_for],
        )
        for rows in waiting
    ]


def with_added_sources(manifest: Manifest, wanted: Sequence[tuple[str, str]]) -> Manifest:
    """Returns the manifest for a start of the job; a source that it does not have begins at its start."""
    return with_sources(manifest, wanted, match_sources(manifest.sources, wanted, {}, {}).starts)


def position_before_first_batch(offsets: Sequence[str]) -> SparkPosition:
    """Returns the position of a query that has not run a batch: as after a batch without rows.

    Args:
        offsets: where each source of the query begins, in its order.
    """
    header = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})]
    return SparkPosition(
        batch_id=0,
        offsets="\n".join([*header, *offsets]).encode(),
        previous_offsets=None,
        commit=SPARK_COMMIT,
        source_files=[],
    )


def readable_without_positions(manifest: Manifest, reads_by_spark: bool) -> Manifest:
    """Returns a manifest that a job can continue from, if it has no positions: such a savepoint fits every reader.

    Args:
        manifest: the manifest.
        reads_by_spark: whether Spark reads the sources of the job.
    """
    if not reads_by_spark or manifest.sources or manifest.spark is not None:
        return manifest
    return replace(manifest, spark=position_before_first_batch([]))


def offset_lines(offsets: bytes) -> list[str]:
    """Returns the lines of an entry of Spark's offset log. Raises ValueError if they are not text, or ambiguous."""
    if b"\r" in offsets:
        raise ValueError("a carriage return, which Spark would read as the end of a line")
    return offsets.decode().rstrip("\n").split("\n")


def spark_time(offsets: bytes) -> int | None:
    """Returns the time of a batch in an entry of Spark's offset log, in milliseconds since 1970; None without one."""
    try:
        found = json.loads(offset_lines(offsets)[1])
    except (ValueError, IndexError, RecursionError):
        return None
    time = found.get("batchTimestampMs") if isinstance(found, dict) else None
    return time if isinstance(time, int) and abs(time) < 1 << 62 else None


def _check_renamed(stored: Set[str], renamed: Mapping[str, str]) -> None:
    """Raises ConfigError for a source that would get the position of another one and has one of its own."""
    taken = sorted(new for old, new in renamed.items() if new != old and new in stored and new not in renamed)
    if taken:
        raise ConfigError(
            "a source that another one is mapped to has a position of its own",
            hint="map it as well, as in --map A=B --map B=A; or give the new source another uid",
            uids=taken,
            map=sorted(f"{old}={new}" for old, new in renamed.items() if new in taken),
        )


def _check_same_data(
    position: SourcePosition, uid: str, description: str, can_keep: Callable[[str, str], bool]
) -> None:
    if position.description != description:
        kept = f", or {uid}=keep" if can_keep(uid, position.description) else ""
        raise ConfigError(
            "a source reads other data than before",
            hint="if its folder was moved with all files that were read, use stateflow source relocate. Otherwise its "
            f"position may not be valid for them: restore with --source {uid}=earliest, another position{kept}",
            uid=uid,
            before=position.description,
            now=description,
        )


def _offset(start: SourceStart, old: Mapping[str, SourcePosition]) -> str:
    return old[start.old].offset if start.old else start.offset


def _with_sources(
    spark: SparkPosition, old: Sequence[str], positions: Sequence[SourcePosition], starts: Mapping[str, SourceStart]
) -> SparkPosition:
    new = [position.uid for position in positions]
    kept = {starts[uid].old: at for at, uid in enumerate(new) if starts[uid].old}
    # As texts: in a forged manifest, the number in a path may have any length.
    numbers = {str(at): kept[uid] for at, uid in enumerate(old) if uid in kept}
    files = []
    for file in spark.source_files:
        number, _, name = file.path.partition("/")
        if number in numbers:
            files.append(replace(file, path=f"{numbers[number]}/{name}"))
    for at, uid in enumerate(new):
        files += [SourceFile(path=f"{at}/{name}", content=data) for name, data in sorted(starts[uid].logs.items())]
    return replace(
        spark,
        offsets=_replaced(spark.offsets, old, new, starts),
        previous_offsets=spark.previous_offsets and _replaced(spark.previous_offsets, old, new, starts),
        source_files=sorted(files, key=lambda file: file.path),
    )


def _replaced(offsets: bytes, old: Sequence[str], new: Iterable[str], starts: Mapping[str, SourceStart]) -> bytes:
    """Returns an entry of the offset log with a line for each new source.

    The entry before the newest one gets the same chosen position: Spark prepares the input between both when it starts.
    """
    try:
        lines = offset_lines(offsets)
        before = dict(zip(old, lines[_HEADER_LINES:], strict=True))
    except ValueError as e:
        raise CorruptFile(
            "Spark's offset log in a checkpoint does not have an offset for each source",
            hint="restore an older checkpoint",
            sources=list(old),
            reason=str(e),
        ) from e
    found = [before[starts[uid].old] if starts[uid].old else starts[uid].offset for uid in new]
    return "\n".join([*lines[:_HEADER_LINES], *found]).encode()
