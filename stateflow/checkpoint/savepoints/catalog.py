"""Finds savepoints by name, folder or path, and reads and verifies them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.job_requests import read_answer
from stateflow.checkpoint.log.documents import SAVEPOINT_RECORD, ActionRecord, Savepoint
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, get_or_none, unseal
from stateflow.checkpoint.savepoints.names import invalid_field
from stateflow.errors import ConfigError, CorruptFile, DataError, MissingFile, StateflowError, StorageError
from stateflow.state.handles import FileHandle
from stateflow.storage import PutResult, Storage, open_if_allowed, open_location
from stateflow.storage.paths import SAVEPOINT, SAVEPOINTS, STARTED, savepoint_file, savepoint_folder

log = logging.getLogger(__name__)

VERSION = 1
_ORIGINAL = re.compile(r"(.+)-[0-9a-f]{8}")
"""The name of a folder as it is created."""
_DATED = re.compile(r".+-(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
"""The name of a folder that a user has probably renamed, although it could have been created with it."""
_NO_USE = "restore the file from a copy, or use another savepoint; stateflow savepoint dispose deletes this one"
TOMBSTONE = b"given up\n"
"""Content of `_savepoint` in the folder of a savepoint that was abandoned during its creation: a tombstone."""


@dataclass(frozen=True)
class StoredSavepoint:
    """A complete savepoint in a storage.

    Attributes:
        storage: the storage.
        folder: key prefix in the storage; empty, or ends with a slash.
        document: the savepoint's document.
        sha256: hash of the document, which contains the hash of every file.
    """

    storage: Storage
    folder: str
    document: Savepoint
    sha256: str

    @property
    def folder_name(self) -> str:
        """The last part of its path."""
        return self.folder.rstrip("/").rpartition("/")[2]

    @property
    def label(self) -> str:
        """Its name and checkpoint, for display."""
        return f"savepoint {self.document.name} (checkpoint {self.document.checkpoint_id})"

    @property
    def is_original(self) -> bool:
        """Whether its folder has the name that it was created with: the folder was not renamed or copied."""
        return re.fullmatch(rf"{re.escape(self.document.name)}-[0-9a-f]{{8}}", self.folder_name) is not None

    @property
    def uri(self) -> str:
        """URI of its folder."""
        return f"{self.storage.uri.rstrip('/')}/{self.folder}".rstrip("/")

    @property
    def size(self) -> int:
        """Size in bytes of its files, each counted once, and of the state in its document."""
        operators = self.document.manifest.operators
        inline = sum(len(s.inline) for o in operators for s in o.subtasks if s.inline is not None)
        return inline + sum({f.key: f.size for f in files_of(self.document.manifest)}.values())

    def verify(self) -> None:
        """Raises MissingFile or CorruptFile unless every file is stored with its size and hash."""
        try:
            check_hashes(self.storage, self.files())
        except (MissingFile, CorruptFile) as e:
            file = f"{self.storage.uri.rstrip('/')}/{e.facts.get('file') or e.facts.get('key', self.folder)}"
            raise type(e)(e.message, hint=_NO_USE, **{**e.facts, "file": file, "savepoint": self.uri}) from e

    def files(self) -> Iterator[FileHandle]:
        """Returns its files, each once, with their keys in `storage`."""
        unique = {f.key: f for f in files_of(self.document.manifest)}
        return (replace(f, key=f"{self.folder}{f.key}") for f in unique.values())


def is_confirmed(storage: Storage, stored: StoredSavepoint) -> bool:
    """Returns whether a savepoint stays: one that a run creates for a request is deleted unless the answer names it."""
    document = stored.document
    if not document.generation:
        return True
    given = read_answer(storage, document.request)
    if given is None and storage.size(f"{stored.folder}{STARTED}") is not None:
        return False
    # The answer may have been written, and the folder deleted because of it, between the two reads.
    given = given or read_answer(storage, document.request)
    return given is None or given.savepoint_id == document.id


def record_savepoint(root: JobRoot, made: StoredSavepoint, duration_ms: float | None) -> None:
    """Adds a savepoint to the job's history; repeated calls add it once.

    Args:
        root: the job root.
        made: the savepoint.
        duration_ms: duration of its creation; None if it is not known.
    """
    document = made.document
    facts: dict[str, object] = {
        "savepoint": document.name,
        "savepoint_id": document.id,
        "origin": document.origin.value,
        "path": made.uri,
    }
    write_action(
        root.storage,
        ActionRecord(
            seq=document.checkpoint_id,
            kind=SAVEPOINT_RECORD,
            ended_at=document.made_at,
            by=document.by,
            requested_by=document.requested_by,
            reason=document.reason,
            note=document.note,
            duration_ms=duration_ms,
            size_bytes=made.size,
            facts=facts,
        ),
        document.id,
    )


def put_marker(storage: Storage, folder: str, data: bytes) -> bool:
    """Writes `_savepoint` if it does not exist; returns whether its content is `data`.

    Raises StorageError when the storage does not confirm it.
    """
    key = f"{folder}{SAVEPOINT}"
    if storage.put_new(key, data) is PutResult.CREATED:
        return True
    found = get_or_none(storage, key)
    if found is None:
        raise StorageError(
            "the storage does not confirm whether a savepoint is complete",
            hint="check it with stateflow savepoint list",
            key=key,
        )
    return found == data


def list_savepoints(
    storage: Storage, within: str = SAVEPOINTS, names: Sequence[str] | None = None
) -> list[StoredSavepoint]:
    """Returns the complete savepoints in a job root, oldest first, without those whose request may still be refused.

    Damaged savepoints are logged and skipped.

    Args:
        storage: the job root, or another folder with savepoints.
        within: prefix of the savepoints' folders; empty outside of job roots.
        names: names of the folders that are read; None for all, of which each file is listed.
    """
    return sorted(_confirmed(storage, within, names), key=lambda s: s.document.made_at)


def _complete(storage: Storage, within: str, names: Sequence[str] | None) -> Iterator[StoredSavepoint]:
    known = (savepoint_folder(name, within) for name in names or () if savepoint_file(f"{name}/{SAVEPOINT}", ""))
    for folder in _folders(storage, within) if names is None else known:
        if (stored := _readable(storage, folder)) is not None:
            yield stored


def _confirmed(storage: Storage, within: str, names: Sequence[str] | None) -> Iterator[StoredSavepoint]:
    for stored in _complete(storage, within, names):
        try:
            if is_confirmed(storage, stored):
                yield stored
        except DataError as e:
            _log_skipped(stored.folder, e)


def _folders(storage: Storage, within: str) -> Iterator[str]:
    for blob in storage.list(within):
        place = savepoint_file(blob.key, within)
        if place is not None and place[1] == SAVEPOINT:
            yield savepoint_folder(place[0], within)


def _readable(storage: Storage, folder: str) -> StoredSavepoint | None:
    try:
        return read_savepoint(storage, folder)
    except (DataError, ConfigError) as e:
        _log_skipped(folder, e)
        return None


def _log_skipped(folder: str, e: StateflowError) -> None:
    log.warning("skipped savepoint %s: %s", folder.rstrip("/"), e)


def find_savepoint(storage: Storage, name: str, within: str = SAVEPOINTS) -> StoredSavepoint | None:
    """Returns the complete savepoint with this name or folder name; None if it does not exist.

    Args:
        storage: the storage to search, as for `list_savepoints`.
        name: name of the savepoint, or of its folder.
        within: the folder to search, as for `list_savepoints`.

    Raises ConfigError when it means several: they were created concurrently, or the name of one is the folder of
    another, which a user may have planted.
    """
    found = [s for s in find_savepoints(storage, name, within) if is_confirmed(storage, s)]
    if len(found) > 1:
        raise ConfigError(
            "several savepoints have this name",
            hint="use the path of one of them",
            name=name,
            paths=[s.uri for s in found],
        )
    return found[0] if found else None


def find_savepoints(storage: Storage, name: str, within: str = SAVEPOINTS) -> list[StoredSavepoint]:
    """Returns the complete savepoints that a name means: in a folder of this name, or with this name.

    Only folders whose savepoint may have the name are read, so that the cost does not grow with the number of
    savepoints. One that was given the name of another savepoint's folder is found by that name only.
    """
    folders = [folder for folder in storage.folders(within) if _may_have(folder, name)]
    found = [s for folder in folders if (s := _readable(storage, savepoint_folder(folder, within))) is not None]
    in_folder = [s for s in found if s.folder_name == name]
    named = [s for s in found if s.document.name == name]
    # A copied folder must not hide the original; but a folder may be renamed, so that no original exists.
    named = [s for s in named if s.is_original] or named
    # A copy in the folder of this name is the same savepoint; a different one must not hide the savepoint of this name.
    return in_folder + [s for s in named if s.sha256 not in {other.sha256 for other in in_folder}]


def _may_have(folder: str, name: str) -> bool:
    """Returns whether a folder may have a savepoint of a name: by its own name, or because it was renamed."""
    if savepoint_file(f"{folder}/{SAVEPOINT}", "") is None:
        return False
    original = _ORIGINAL.fullmatch(folder)
    return folder == name or original is None or original[1] == name or _DATED.fullmatch(folder) is not None


def savepoint_uri(path: str) -> str:
    """Returns the URI of a savepoint's folder, given that URI or the URI of its ``_savepoint``."""
    return path.rstrip("/").removesuffix(f"/{SAVEPOINT}") or path


def savepoint_at(path: str, job_root: str = "", within: Sequence[str] | None = None) -> StoredSavepoint:
    """Returns the savepoint at the path or URI of its folder or of its ``_savepoint``.

    Args:
        path: the path or URI.
        job_root: URI of the job root for which it is opened, where every location is allowed; empty for none.
        within: as for `open_location`.

    Raises ConfigError when no complete savepoint exists there, or the location is not allowed.
    """
    return open_savepoint(open_location(savepoint_uri(path), job_root, within))


def folder_at(uri: str, job_root: str = "") -> tuple[Storage, str]:
    """Returns the storage and key prefix of the savepoint's folder at a URI.

    It is opened through the parent folder if that is allowed, so that a deletion removes the empty folder as well; the
    root of a bucket has no parent.

    Args:
        uri: URI of the folder.
        job_root: as for `savepoint_at`.

    Raises ConfigError when the location is not allowed.
    """
    storage = open_location(uri, job_root)
    parent, _, name = storage.uri.rstrip("/").rpartition("/")
    name = unquote(name) if parent.startswith("file:") else name
    through = open_if_allowed(parent) if urlsplit(parent).path.strip("/") else None
    return (through, f"{name}/") if through else (storage, "")


def open_savepoint(storage: Storage, folder: str = "") -> StoredSavepoint:
    """Returns the savepoint in a folder of any storage. Raises ConfigError when no complete savepoint exists there."""
    stored = read_savepoint(storage, folder)
    if stored is None:
        raise ConfigError(
            "no complete savepoint exists here",
            hint="the folder of a complete savepoint contains the file _savepoint",
            path=f"{storage.uri}/{folder}".rstrip("/"),
        )
    return stored


def read_savepoint(storage: Storage, folder: str) -> StoredSavepoint | None:
    """Returns the savepoint in a folder; None when it does not exist or is incomplete.

    Raises CorruptFile, or ConfigError for an unknown version.
    """
    data = get_or_none(storage, f"{folder}{SAVEPOINT}")
    if data is None or data == TOMBSTONE:
        return None
    document, digest = _unsealed(storage, folder, data)
    if document.version != VERSION:
        raise ConfigError(
            "the savepoint has a format that this version does not know",
            hint="use the version of stateflow that wrote it",
            found=document.version,
            known=VERSION,
            written_by=document.stateflow,
        )
    if field := invalid_field(document):
        path = f"{storage.uri.rstrip('/')}/{folder}{SAVEPOINT}"
        raise CorruptFile("a savepoint's document has an invalid value", hint=_NO_USE, file=path, field=field)
    return StoredSavepoint(storage, folder, document, digest)


def _unsealed(storage: Storage, folder: str, data: bytes) -> tuple[Savepoint, str]:
    try:
        return unseal(data, Savepoint, f"{folder}{SAVEPOINT}")
    except CorruptFile as e:
        path = f"{storage.uri.rstrip('/')}/{folder}{SAVEPOINT}"
        raise CorruptFile("a savepoint's document is damaged", hint=_NO_USE, file=path, size_bytes=len(data)) from e
