"""The Spark checkpoint location: captured at a barrier, and made anew for a run.

A new run gets a fresh location with exactly what Spark needs to go on behind batch N: ``metadata``, ``offsets/N-1``,
``offsets/N``, ``commits/N`` and the sources' own logs as of N. Anything less makes some source start again from the
beginning, or fail. A batch that was planned and not committed leaves nothing: it is planned again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from stateflow.checkpoint.documents import SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.files import write_bytes
from stateflow.errors import CorruptFile, InternalError
from stateflow.state.transfer import check_content, private_folder, remove_tree
from stateflow.storage import Storage
from stateflow.storage.paths import check_key

_INLINE_LIMIT = 8 << 10
_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


class SparkLocation:
    """One run's Spark checkpoint location, as a local or shared folder.

    Args:
        folder: where it is.
        storage: the job root, for source logs that are too large for a manifest.
    """

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder = folder
        self._storage = storage
        self._stored: dict[str, SourceFile] = {}

    def seed(self, position: SparkPosition | None, query_id: str) -> None:
        """Makes the location: empty for a job without a checkpoint, else to go on behind `position`."""
        self.folder.mkdir(parents=True, mode=0o700)
        if position is None:
            return
        n = position.batch_id
        self._write("metadata", json.dumps({"id": query_id}).encode())
        if position.previous_offsets is not None:
            self._write(f"offsets/{n - 1}", position.previous_offsets)
        self._write(f"offsets/{n}", position.offsets)
        self._write(f"commits/{n}", position.commit)
        for file in position.source_files:
            self._write(f"sources/{_checked(file.path)}", self._content(file))
            self._stored[file.path] = file

    def capture(self, batch_id: int, folder: str) -> SparkPosition:
        """Everything that Spark wrote to describe the batch that is about to run.

        Args:
            batch_id: Spark's number of the batch; its offsets are written, its commit is not.
            folder: data folder for large source logs of this barrier.
        """
        offsets = self._read(f"offsets/{batch_id}")
        if offsets is None:
            raise InternalError("Spark has not written the offsets of a batch that it runs", batch=batch_id)
        return SparkPosition(
            batch_id=batch_id, offsets=offsets,
            previous_offsets=self._read(f"offsets/{batch_id - 1}") if batch_id else None, commit=_COMMIT,
            source_files=[self._source_file(path, folder) for path in self._source_paths()],
        )  # fmt: skip

    def _source_paths(self) -> list[str]:
        """Of each source's log: the newest compacted entry and all behind it; of other files: all."""
        root = self.folder / "sources"
        result = []
        for source in sorted(os.listdir(root)) if root.is_dir() else []:
            names = [n for n in os.listdir(root / source) if not n.startswith(".") and not n.endswith(".tmp")]
            result += [f"{source}/{name}" for name in needed_entries(names)]
        return result

    def _source_file(self, path: str, folder: str) -> SourceFile:
        known = self._stored.get(path)
        if known is None:
            known = self._stored[path] = self._store(path, folder)
        return known

    def _store(self, path: str, folder: str) -> SourceFile:
        content = (self.folder / "sources" / path).read_bytes()
        if len(content) <= _INLINE_LIMIT:
            return SourceFile(path=path, content=content)
        key = f"{folder}sources-{path.replace('/', '-')}"
        return SourceFile(path=path, handle=write_bytes(self._storage, key, content))

    def _content(self, file: SourceFile) -> bytes:
        if file.handle is None:
            return file.content or b""
        data = self._storage.get(check_key(file.handle.key), file.handle.size)
        check_content(file.handle, len(data), hashlib.sha256(data).hexdigest())
        return data

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)


def driver_location(local: Path, job_uuid: str, generation: int) -> Path:
    """Where the location of a run is whose job root is no file system: on the driver's disk, since only the driver
    uses it, and a run never goes on from another one's. Those of older runs are removed."""
    private_folder(local)
    older = local / "spark" / job_uuid
    remove_tree(older)
    return older / str(generation)


def needed_entries(names: list[str]) -> list[str]:
    """Which entries of a source's log Spark needs: ``12.compact`` holds everything up to 12."""
    compacted = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
    newest = max(compacted, default=-1)
    plain = sorted((n for n in names if n.isdigit()), key=int)
    kept = [n for n in plain if int(n) > newest]
    return (
        ([f"{newest}.compact"] if compacted else [])
        + kept
        + sorted(n for n in names if not n.split(".")[0].isdigit())
    )


def source_positions(position: SparkPosition, sources: list[tuple[str, str]]) -> list[SourcePosition]:
    """Each source's own offset, from Spark's offset log.

    Args:
        sources: (uid, description) in the order in which the query has them.
    """
    lines = position.offsets.decode().splitlines()[2:]
    return [
        SourcePosition(uid=uid, description=d, offset=o) for (uid, d), o in zip(sources, lines, strict=True)
    ]


def _checked(path: str) -> str:
    parts = path.split("/")
    if not 2 <= len(parts) <= 4 or any(p in ("", ".", "..") for p in parts) or "\0" in path:
        raise CorruptFile("a manifest names a source log outside its folder", path=path)
    return path
