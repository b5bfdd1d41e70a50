"""The savepoints that there are: found by name, folder or path, read, and checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.documents import Savepoint
from stateflow.checkpoint.envelope import unseal
from stateflow.checkpoint.files import check_stored, files_of, get_or_none
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.requests import read_answer
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StorageError
from stateflow.state.handles import FileHandle
from stateflow.storage import PutResult, Storage, open_storage
from stateflow.storage.paths import SAVEPOINT, SAVEPOINTS, STARTED, savepoint_file, savepoint_folder

log = logging.getLogger(__name__)

VERSION = 1
_NO_USE = (
    "restore the file from a copy, or use another savepoint; stateflow savepoint dispose deletes this one"
)
GIVEN_UP = b"given up\n"
"""What `_savepoint` holds where a savepoint was given up while it was made."""


@dataclass(frozen=True)
class StoredSavepoint:
    """A complete savepoint and where it is.

    Attributes:
        folder: key prefix below `storage`; empty, or ends with a slash.
        sha256: of its document, which names every file with its hash.
    """

    storage: Storage
    folder: str
    document: Savepoint
    sha256: str

    @property
    def place(self) -> str:
        """The name of its folder."""
        return self.folder.rstrip("/").rpartition("/")[2]

    @property
    def label(self) -> str:
        """What the point is called for people, wherever it is named."""
        return f"savepoint {self.document.name} (checkpoint {self.document.checkpoint_id})"

    @property
    def is_original(self) -> bool:
        """Whether its folder has the name that its maker gave it: not one that somebody renamed or copied."""
        return re.fullmatch(rf"{re.escape(self.document.name)}-[0-9a-f]{{8}}", self.place) is not None

    @property
    def uri(self) -> str:
        """Where it is, for people and for other jobs."""
        return f"{self.storage.uri.rstrip('/')}/{self.folder}".rstrip("/")

    @property
    def size(self) -> int:
        """Bytes of its files, each counted once, and of the state in its document."""
        operators = self.document.manifest.operators
        inline = sum(len(s.inline) for o in operators for s in o.subtasks if s.inline is not None)
        return inline + sum({f.key: f.size for f in files_of(self.document.manifest)}.values())

    def verify(self) -> None:
        """Raises MissingFile or CorruptFile unless every file is there with its size and hash."""
        try:
            check_stored(self.storage, self.files())
        except (MissingFile, CorruptFile) as e:
            file = f"{self.storage.uri.rstrip('/')}/{e.facts.get('file', self.folder)}"
            raise type(e)(e.message, hint=_NO_USE, **{**e.facts, "file": file, "savepoint": self.uri}) from e

    def files(self) -> Iterator[FileHandle]:
        """Its files, with the keys that they have in `storage`."""
        unique = {f.key: f for f in files_of(self.document.manifest)}
        return (replace(f, key=f"{self.folder}{f.key}") for f in unique.values())


def is_told(storage: Storage, stored: StoredSavepoint) -> bool:
    """Whether it stays: what a run has made for a request can go until the answer names it."""
    document = stored.document
    if not document.generation:
        return True
    given = read_answer(storage, document.request)
    if given is None and storage.size(f"{stored.folder}{STARTED}") is not None:
        return False
    # The answer may have come, and the whole folder have been taken away for it, between the two.
    given = given or read_answer(storage, document.request)
    return given is None or given.savepoint_id == document.id


def note_savepoint(root: JobRoot, made: StoredSavepoint, took_ms: float) -> None:
    """Tells of a savepoint in the job's history; once, however often it is called."""
    document = made.document
    facts = {"savepoint": document.name, "id": document.id, "origin": document.origin.value, "path": made.uri}
    write_action(root.storage, ActionRecord(
        seq=document.checkpoint_id, kind="savepoint", at=document.made_at, by=document.by, reason=document.reason,
        took_ms=took_ms, bytes=made.size, facts=facts,
    ), document.id)  # fmt: skip


def put_marker(storage: Storage, folder: str, data: bytes) -> bool:
    """Writes `_savepoint`; False when somebody else has."""
    key = f"{folder}{SAVEPOINT}"
    if storage.put_new(key, data) is PutResult.CREATED:
        return True
    found = get_or_none(storage, key)
    if found is None:
        raise StorageError("the storage does not say whether a savepoint is complete", hint="look at it with "
                           "stateflow savepoint list", key=key)  # fmt: skip
    return found == data


def list_savepoints(storage: Storage, within: str = SAVEPOINTS) -> list[StoredSavepoint]:
    """Every complete savepoint below a job root, oldest first, but those whose request may still be refused. A damaged
    one is logged and left out.

    Args:
        within: prefix of the savepoints' folders; empty outside of job roots.
    """
    found = [s for s in _complete(storage, within) if is_told(storage, s)]
    return sorted(found, key=lambda s: s.document.made_at)


def _complete(storage: Storage, within: str) -> Iterator[StoredSavepoint]:
    for blob in storage.list(within):
        place = savepoint_file(blob.key, within)
        if place is None or place[1] != SAVEPOINT:
            continue
        try:
            stored = read_savepoint(storage, savepoint_folder(place[0], within))
        except (CorruptFile, ConfigError) as e:
            log.warning("savepoint %s is left out: %s", place[0], e)
            continue
        if stored is not None:
            yield stored


def find_savepoint(storage: Storage, name: str, within: str = SAVEPOINTS) -> StoredSavepoint | None:
    """The complete savepoint of this name, or in the folder of this name, below a job root. `within` is that of
    `list_savepoints`.

    Raises ConfigError when several have the name, which only happens when they were made at the same moment.
    """
    found = [s for s in savepoints_called(storage, name, within) if is_told(storage, s)]
    if len(found) > 1:
        raise ConfigError("several savepoints have this name", hint="name the folder of one", name=name,
                          folders=[s.place for s in found])  # fmt: skip
    return found[0] if found else None


def savepoints_called(storage: Storage, name: str, within: str = SAVEPOINTS) -> list[StoredSavepoint]:
    """The complete savepoints that this name means: that of the folder, else all that were made under it."""
    found = list(_complete(storage, within))
    if there := [s for s in found if s.place == name]:
        return there
    called = [s for s in found if s.document.name == name]
    # A copy that somebody made beside it does not take the name away from the original; a folder may be renamed.
    return [s for s in called if s.is_original] or called


def savepoint_uri(path: str) -> str:
    """The URI of a savepoint's folder, given that or the URI of its ``_savepoint``."""
    return path.rstrip("/").removesuffix(f"/{SAVEPOINT}") or path


def savepoint_at(path: str) -> StoredSavepoint:
    """The savepoint at a path or URI, of its folder or of its ``_savepoint``. Raises ConfigError when there is none."""
    return open_savepoint(open_storage(savepoint_uri(path)))


def open_savepoint(storage: Storage, folder: str = "") -> StoredSavepoint:
    """The savepoint at this place, wherever it was moved or copied. Raises ConfigError when there is none."""
    stored = read_savepoint(storage, folder)
    if stored is None:
        raise ConfigError("there is no complete savepoint here", hint="a complete one has a file _savepoint",
                          path=f"{storage.uri}/{folder}".rstrip("/"))  # fmt: skip
    return stored


def read_savepoint(storage: Storage, folder: str) -> StoredSavepoint | None:
    """The savepoint at this place; None when there is none that is complete. Raises CorruptFile or ConfigError."""
    data = get_or_none(storage, f"{folder}{SAVEPOINT}")
    if data is None or data == GIVEN_UP:
        return None
    document, digest = _unsealed(storage, folder, data)
    if document.version != VERSION:
        raise ConfigError("the savepoint has a format that this version does not know", hint="use the version of "
                          "stateflow that wrote it", found=document.version, known=VERSION,
                          written_by=document.stateflow)  # fmt: skip
    return StoredSavepoint(storage, folder, document, digest)


def _unsealed(storage: Storage, folder: str, data: bytes) -> tuple[Savepoint, str]:
    try:
        return unseal(data, Savepoint, f"{folder}{SAVEPOINT}")
    except CorruptFile as e:
        path = f"{storage.uri.rstrip('/')}/{folder}{SAVEPOINT}"
        raise CorruptFile("a savepoint's document is damaged", hint=_NO_USE, file=path, size=len(data)) from e
