"""Writes the keyed state of a checkpoint in the canonical format, which is independent of state backends."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.clock import Clock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.private_files import open_private
from stateflow.state.backends import canonical_file
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.factory import StoreLocation, read_entries
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import CANONICAL, Base, FileHandle, StateFile, SubtaskState
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT_FILES


class CanonicalWriter:
    """Writes the keyed state of a checkpoint into a savepoint's folder.

    The checkpoint must be pinned: its files are read after this is created.

    Args:
        source: the storage with the checkpoint's files.
        target: the storage of the savepoint.
        folder: prefix of the savepoint's keys in `target`.
        clock: the clock for temporary names.
    """

    def __init__(self, source: Storage, target: Storage, folder: str, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._folder = folder
        self._clock = clock

    def write(self, manifest: Manifest, max_parallelism: int) -> list[list[SubtaskState]]:
        """Returns the states of each operator's subtasks, in files whose keys are relative to the folder.

        Raises:
            MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
        """
        return [
            [self._subtask(operator, state, max_parallelism) for state in operator.subtasks]
            for operator in manifest.operators
        ]

    def _subtask(self, operator: OperatorState, state: SubtaskState, max_parallelism: int) -> SubtaskState:
        header = CanonicalHeader(
            uid=operator.uid,
            key_types=operator.key_types,
            max_parallelism=max_parallelism,
            first_group=state.first_group,
            last_group=state.last_group,
            states=operator.states,
        )
        # Removed after each subtask: the files of all subtasks would need as much local disk as the whole state.
        with tempfile.TemporaryDirectory(prefix="stateflow-savepoint-") as scratch:
            folder = Path(scratch)
            cache = HostCache.direct(folder / "cache", self._source, self._clock)
            location = StoreLocation(folder / "work", cache, RocksDBSettings())
            chunks = canonical_file.encode(header, read_entries(location, Base.of(state)))
            handle = self._store(chunks, folder / "entries")
        return replace(
            state,
            snapshot=f"{CANONICAL}-{handle.sha256}",
            backend=CANONICAL,
            files=[StateFile(handle=handle, local_name=f"{CANONICAL}-0")],
            inline=None,
            store_manifest=b"",
        )

    def _store(self, chunks: Iterable[bytes], path: Path) -> FileHandle:
        digest, size = hashlib.sha256(), 0
        with open_private(path, must_create=True) as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        key = f"{SAVEPOINT_FILES}{digest.hexdigest()}"
        self._target.put_file(f"{self._folder}{key}", path)
        return FileHandle(key=key, size=size, sha256=digest.hexdigest())
