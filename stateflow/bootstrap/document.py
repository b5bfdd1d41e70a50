"""The document of a savepoint that is written without a run; it is stored last."""

from __future__ import annotations

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
from stateflow.checkpoint.savepoints.catalog import VERSION, StoredSavepoint, put_marker, read_savepoint
from stateflow.clock import Clock
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
        base: the document of the savepoint that it is a changed copy of; None for a new one.
    """

    name: str
    job: str
    at: datetime
    by: str
    reason: str
    base: Savepoint | None = None


def complete(manifest: Manifest, layout: Layout, facts: Facts, target: Target, clock: Clock) -> None:
    """Stores the document of a savepoint whose files are stored, and removes files that are not part of it.

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
    )
    files = [replace(file, key=f"{target.folder}{file.key}") for file in files_of(manifest)]
    try:
        check_sizes(target.storage, files)
    except MissingFile:
        # Another writer has completed a savepoint here meanwhile, and removed the files of this one.
        if found := read_savepoint(target.storage, target.folder):
            _refuse(found, files, target)
        raise
    failpoints.hit("write.stored")
    if put_marker(target.storage, target.folder, seal(document)[0]):
        failpoints.hit("write.complete")
    else:
        _check_repeated(document, files, target)
    _remove_others(target, files)


def _check_repeated(document: Savepoint, files: list[FileHandle], target: Target) -> None:
    """Raises ConfigError unless the savepoint in the folder has the same content as a document with some files."""
    found = read_savepoint(target.storage, target.folder)
    if found is None:
        raise DataError(
            "the savepoint was abandoned while it was written", hint="write it into another folder", path=target.uri
        )
    if _content(found.document) != _content(document):
        _refuse(found, files, target)


def _refuse(found: StoredSavepoint, files: list[FileHandle], target: Target) -> NoReturn:
    """Deletes the files of this attempt, if another savepoint does not have them, and raises ConfigError."""
    used = {f"{target.folder}{file.key}" for file in files_of(found.document.manifest)}
    target.storage.delete([file.key for file in files if file.key not in used])
    raise ConfigError(
        "another savepoint is in the folder",
        hint="write to another folder, or delete it: stateflow savepoint dispose",
        path=target.uri,
        made_at=found.document.made_at,
    )


def _content(document: Savepoint) -> tuple[object, ...]:
    return document.job, document.max_parallelism, document.name, replace(document.manifest, job_uuid="")


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
