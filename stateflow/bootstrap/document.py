"""The document of a savepoint that is written without a run, with the positions of its sources; it is stored last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.source import InitialPosition, LocalSource, Source, StartKind
from stateflow.bootstrap.layout import SavepointFolder, store_content
from stateflow.checkpoint.log.documents import Manifest, Savepoint, SourceFile, SourceWatermark, SparkPosition
from stateflow.checkpoint.log.manifest_files import check_sizes, files_of, seal
from stateflow.checkpoint.restore.source_positions import (
    INLINE_LIMIT,
    SourceStart,
    position_before_first_batch,
    with_sources,
)
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, put_marker, read_savepoint
from stateflow.clock import epoch_milliseconds, is_timestamp
from stateflow.errors import ConfigError, DataError, MissingFile
from stateflow.runtime.restore.graph_changes import choose_starts
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import SAVEPOINT_FILES

CHECKPOINT_ID = 1
"""The checkpoint of a savepoint that is written from frames: as if the first batch of a job had made it."""


def complete_savepoint(document: Savepoint, target: SavepointFolder) -> None:
    """Stores the document of a savepoint whose files are stored, and removes files that are not part of it.

    If the folder has a savepoint with the same content, it stays.

    Raises:
        ConfigError: another savepoint is in the folder.
        DataError: a file is missing.
    """
    files = _files_of(document.manifest, target)
    if _has_stored(document, files, target):
        _remove_others(target, files)
        return
    found = read_savepoint(target.storage, target.folder)
    if found is None:
        raise DataError(
            "the savepoint was abandoned while it was written", hint="write it into another folder", path=target.uri
        )
    if not _is_repeated(document, found.document):
        _refuse(found, files, target)
    # Not those of this call: files that only it has may be of a position that has moved.
    _remove_others(target, _files_of(found.document.manifest, target))


def time_of_savepoint(target: SavepointFolder) -> datetime | None:
    """Returns the time of the savepoint in a folder, for a repeated call without one; None without a savepoint.

    Raises:
        DataError: the folder has a savepoint that is damaged.
    """
    found = read_savepoint(target.storage, target.folder)
    if found is None or not is_timestamp(found.document.made_at):
        return None
    return datetime.fromisoformat(found.document.made_at)


def _has_stored(document: Savepoint, files: list[FileHandle], target: SavepointFolder) -> bool:
    """Stores a document; returns False if another one is in the folder.

    Raises:
        MissingFile: a file is missing, and there is no savepoint.
    """
    try:
        check_sizes(target.storage, files)
    except MissingFile:
        # Another writer has completed a savepoint here meanwhile, and removed the files of this one.
        if read_savepoint(target.storage, target.folder):
            return False
        raise
    failpoints.hit("write.stored")
    if not put_marker(target.storage, target.folder, seal(document)[0]):
        return False
    failpoints.hit("write.complete")
    return True


def _files_of(manifest: Manifest, target: SavepointFolder) -> list[FileHandle]:
    return [replace(file, key=f"{target.folder}{file.key}") for file in files_of(manifest)]


def _refuse(found: StoredSavepoint, files: list[FileHandle], target: SavepointFolder) -> NoReturn:
    """Deletes the files of this attempt, if another savepoint does not have them, and raises ConfigError."""
    used = {file.key for file in _files_of(found.document.manifest, target)}
    target.storage.delete([file.key for file in files if file.key not in used])
    raise ConfigError(
        "another savepoint is in the folder",
        hint="write to another folder, or delete it: stateflow savepoint dispose",
        path=target.uri,
        made_at=found.document.made_at,
    )


def _is_repeated(made: Savepoint, found: Savepoint) -> bool:
    """Returns whether two savepoints have the same content.

    A position that both state in the same words, of sources that read the same data, is the same: ``latest`` depends on
    the time of the call.
    """
    described = {position.uid: position.description for position in found.manifest.sources}
    same = {
        position.uid
        for position in made.manifest.sources
        if position.uid in made.positions
        and made.positions[position.uid] == found.positions.get(position.uid)
        and position.description == described.get(position.uid)
    }
    return _content(made, same) == _content(found, same)


def _content(document: Savepoint, without: Set[str]) -> tuple[object, ...]:
    """Returns what is compared of a savepoint: not the positions of some sources, nor the times of the call."""
    manifest = document.manifest
    kept = {position.uid: SourceStart(position.uid) for position in manifest.sources}
    starts = {**kept, **dict.fromkeys(kept.keys() & without, SourceStart())}
    wanted = [(position.uid, position.description) for position in manifest.sources]
    # From when on a source counts as idle.
    watermarks = [replace(each, active_at=0) for each in manifest.watermarks]
    compared = replace(
        with_sources(manifest, wanted, starts), watermarks=watermarks, columns=manifest.columns, job_uuid=""
    )
    base = document.drained, document.checkpoint_id, document.sinks
    return document.job, document.max_parallelism, document.name, *base, compared


def _remove_others(target: SavepointFolder, files: list[FileHandle]) -> None:
    """Deletes the files of attempts that were killed. One that still runs finds the complete savepoint."""
    used = {file.key for file in files}
    prefix = f"{target.folder}{SAVEPOINT_FILES}"
    target.storage.delete([blob.key for blob in target.storage.list(prefix) if blob.key not in used])


AnySource = Source | LocalSource
Position = str | int | datetime | Mapping[str, object] | InitialPosition
"""``earliest``, ``latest``, a version, a time, offsets, the source's own text, or a position that is known already."""


@dataclass(frozen=True)
class GivenSource:
    """A source of the job, and where it continues.

    Attributes:
        source: the source, as the job declares it.
        position: its position.
        watermark: its watermark, in milliseconds since 1970; None before the first one.
    """

    source: AnySource
    position: Position
    watermark: int | None = None

    def format_position(self, uid: str) -> str:
        """Returns the position as the caller has stated it; empty for one that was read from elsewhere."""
        return "" if isinstance(self.position, InitialPosition) else _text(uid, self.position)


def with_positions(
    manifest: Manifest, given: Mapping[str, GivenSource], on_spark: bool | None, at: datetime
) -> Manifest:
    """Returns a manifest with given positions of sources; it keeps those of its other sources.

    Args:
        manifest: the manifest.
        given: the sources, by uid.
        on_spark: whether Spark reads the sources of the job; None if the sources decide it.
        at: the time that ``latest`` refers to.

    Raises:
        ConfigError: a position is not one of its source, or sources with and without Spark are given.
    """
    is_new = not manifest.sources and manifest.spark is None
    chosen = on_spark if is_new else manifest.spark is not None
    is_read_by_spark = reads_by_spark([each.source for each in given.values()], chosen)
    base = replace(manifest, spark=position_before_first_batch([])) if is_new and is_read_by_spark else manifest
    kept = {position.uid: position.description for position in base.sources}
    starts = {uid: SourceStart(old=uid) for uid in kept}
    starts |= {uid: _start(uid, each, base, at) for uid, each in given.items()}
    descriptions = kept | {uid: each.source.description for uid, each in given.items()}
    wanted = sorted(descriptions.items())
    now = epoch_milliseconds(at)
    watermarks = [
        SourceWatermark(uid=uid, watermark=given[uid].watermark, active_at=now)
        for uid in sorted(given)
        if given[uid].watermark is not None
    ]
    found = with_sources(base, wanted, starts)
    others = [each for each in found.watermarks if each.uid not in given]
    return replace(found, watermarks=sorted((*others, *watermarks), key=lambda each: each.uid))


def reads_by_spark(sources: Sequence[AnySource], chosen: bool | None) -> bool:
    """Returns whether Spark reads sources.

    Args:
        sources: the sources.
        chosen: what the user has chosen; None if the sources decide it.

    Raises:
        ConfigError: sources with and without Spark are given, or the chosen one does not fit.
    """
    needed = [isinstance(source, Source) or source.needs_spark for source in sources]
    if chosen is None:
        chosen = any(needed)
    excluded = any(isinstance(source, LocalSource) and not _may_use_spark(source) for source in sources)
    if excluded if chosen else any(needed):
        raise ConfigError(
            "sources with and without Spark cannot be read by one job",
            hint="check on_spark, and the sources",
            sources=[source.description for source in sources],
        )
    return chosen


def _may_use_spark(source: LocalSource) -> bool:
    return source.needs_spark or source.may_use_spark


def _start(uid: str, given: GivenSource, base: Manifest, at: datetime) -> SourceStart:
    position = given.position
    if isinstance(position, InitialPosition):
        return SourceStart(offset=position.offset, logs=position.logs)
    option = f"{uid}={given.format_position(uid)}"
    start = choose_starts([option], {uid: given.source}, base, at).starts[uid]
    if start is None:
        raise ConfigError("a new savepoint has no position that a source could keep", uid=uid, position=str(position))
    return start


def _text(uid: str, position: Position) -> str:
    """Returns a position as text, as an option of the command line has it."""
    if isinstance(position, datetime):
        zoned = position if position.tzinfo else position.replace(tzinfo=UTC)
        return f"timestamp:{zoned.isoformat()}"
    if isinstance(position, Mapping):
        return f"position:{msgspec.json.encode(position).decode()}"
    if isinstance(position, int) and not isinstance(position, bool):
        return f"position:{position}"
    if isinstance(position, str):
        is_option = position in (*StartKind, "keep") or position.startswith(("timestamp:", "position:"))
        return position if is_option else f"position:{position}"
    raise ConfigError(
        "a source's position has another type",
        hint="pass earliest, latest, a datetime, a version, offsets as a dict, or the source's own text",
        uid=uid,
        position=repr(position)[:200],
    )


def with_stored_logs(spark: SparkPosition, target: SavepointFolder) -> SparkPosition:
    """Returns the position of Spark with each log that is too large for the manifest in a file of the savepoint."""
    return replace(spark, source_files=[_stored(file, target) for file in spark.source_files])


def _stored(file: SourceFile, target: SavepointFolder) -> SourceFile:
    if file.content is None or len(file.content) <= INLINE_LIMIT:
        return file
    return SourceFile(path=file.path, handle=store_content(target, file.content))
