"""The document of a savepoint that is written without a run; it is stored last."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import NoReturn

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.bootstrap.layout import Layout, Target
from stateflow.checkpoint.log.documents import Manifest, Origin, Savepoint, SavepointFormat
from stateflow.checkpoint.log.manifest_files import check_sizes, files_of
from stateflow.checkpoint.log.sealed_json import seal
from stateflow.checkpoint.restore.source_positions import SourceStart, with_sources
from stateflow.checkpoint.savepoints.catalog import VERSION, StoredSavepoint, put_marker, read_savepoint
from stateflow.clock import Clock, is_timestamp
from stateflow.errors import ConfigError, DataError, MissingFile
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import SAVEPOINT_FILES

CHECKPOINT_ID = 1
"""The checkpoint of a savepoint that is written from frames: as if the first batch of a job had made it."""


@dataclass(frozen=True)
class Facts:
    """What a savepoint's document states about its origin.

    Attributes:
        name: name of the savepoint.
        job: name of the job.
        at: the time of the writer.
        by: who writes it.
        reason: why, for display.
        positions: by uid of the source, where it continues as the caller has stated it.
        base: the document of the savepoint that it is a changed copy of; None for a new one.
    """

    name: str
    job: str
    at: datetime
    by: str
    reason: str
    positions: Mapping[str, str]
    base: Savepoint | None = None


def complete(manifest: Manifest, layout: Layout, facts: Facts, target: Target, clock: Clock) -> None:
    """Stores the document of a savepoint whose files are stored, and removes files that are not part of it.

    If the folder has a savepoint with the same content, it stays.

    Raises:
        ConfigError: another savepoint is in the folder.
        DataError: a file is missing.
    """
    made_at = facts.at.isoformat(timespec="milliseconds")
    document = Savepoint(
        version=VERSION,
        id=clock.new_id(),
        name=facts.name,
        origin=Origin.MANUAL,
        made_at=made_at,
        committed_at=made_at,
        by=facts.by,
        reason=facts.reason,
        format=SavepointFormat.CANONICAL,
        job=facts.job,
        job_uuid=manifest.job_uuid,
        max_parallelism=layout.max_parallelism,
        drained=facts.base is not None and facts.base.drained,
        checkpoint_id=facts.base.checkpoint_id if facts.base else CHECKPOINT_ID,
        manifest=manifest,
        # As in the base: the tables have the output up to its checkpoint.
        sinks=facts.base.sinks if facts.base else {},
        stateflow=_version(),
        positions=dict(facts.positions),
    )
    files = _files_of(manifest, target)
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


def time_of_savepoint(target: Target) -> datetime | None:
    """Returns the time of the savepoint in a folder, for a repeated call without one; None without a savepoint.

    Raises:
        DataError: the folder has a savepoint that is damaged.
    """
    found = read_savepoint(target.storage, target.folder)
    if found is None or not is_timestamp(found.document.made_at):
        return None
    return datetime.fromisoformat(found.document.made_at)


def _has_stored(document: Savepoint, files: list[FileHandle], target: Target) -> bool:
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


def _files_of(manifest: Manifest, target: Target) -> list[FileHandle]:
    return [replace(file, key=f"{target.folder}{file.key}") for file in files_of(manifest)]


def _refuse(found: StoredSavepoint, files: list[FileHandle], target: Target) -> NoReturn:
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


def _remove_others(target: Target, files: list[FileHandle]) -> None:
    """Deletes the files of attempts that were killed. One that still runs finds the complete savepoint."""
    used = {file.key for file in files}
    prefix = f"{target.folder}{SAVEPOINT_FILES}"
    target.storage.delete([blob.key for blob in target.storage.list(prefix) if blob.key not in used])


def _version() -> str:
    try:
        return metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        return ""
