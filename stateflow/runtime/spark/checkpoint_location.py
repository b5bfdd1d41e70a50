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

from stateflow.checkpoint.documents import NOT_BEGUN, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.files import write_bytes
from stateflow.errors import BatchFailed, CorruptFile, InternalError
from stateflow.state.transfer import check_content, private_folder, remove_tree
from stateflow.storage import Storage
from stateflow.storage.paths import check_key

INLINE_LIMIT = 8 << 10
"""Source logs up to this size are in the manifest itself."""
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
        self._newest: dict[str, SourceFile] = {}

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
            self._write(f"sources/{_checked(file.path)}", source_log(self._storage, file))
        self._remember(position.source_files)
        if missing := missing_entries(position):
            raise CorruptFile("a checkpoint has not all of what Spark needs to know which files were read",
                              hint="go back to an older checkpoint: stateflow restore", batch=position.batch_id,
                              missing=missing[:3])  # fmt: skip

    def capture(self, batch_id: int, folder: str) -> SparkPosition:
        """Everything that Spark wrote to describe the batch that is about to run.

        Args:
            batch_id: Spark's number of the batch; its offsets are written, its commit is not.
            folder: data folder for large source logs of this barrier.
        """
        offsets = self._read(f"offsets/{batch_id}")
        if offsets is None:
            raise InternalError("Spark has not written the offsets of a batch that it runs", batch=batch_id)
        files = [self._source_file(path, folder) for path in self._source_paths()]
        self._remember(files)
        position = SparkPosition(
            batch_id=batch_id, offsets=offsets,
            previous_offsets=self._read(f"offsets/{batch_id - 1}") if batch_id else None, commit=_COMMIT,
            source_files=files,
        )  # fmt: skip
        if missing := missing_entries(position):
            raise BatchFailed("Spark's list of the files that it has read is not complete", hint="did another process "
                              "remove files below the folder? a new run makes the list anew", batch=batch_id,
                              missing=missing[:3], folder=str(self.folder))  # fmt: skip
        return position

    def _remember(self, files: list[SourceFile]) -> None:
        """Keeps what the newest position has, which the next one may have as well. Older entries of a source's log are
        in a compacted one, and are never needed again."""
        self._newest = {file.path: file for file in files}

    def batch_files(self, batch_id: int, source: int) -> list[str]:
        """The files of a batch that Spark's file source has listed, as percent-encoded URIs; none for other sources.

        Args:
            source: its number, in the order in which the query has the sources.
        """
        last, before = self._log_offset(batch_id, source), self._log_offset(batch_id - 1, source)
        if last is None:
            return []
        folder = self.folder / "sources" / str(source)
        lines = [
            line
            for name in needed_entries(os.listdir(folder))
            for line in (folder / name).read_text().splitlines()
        ]
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        after = -1 if before is None else before
        return [entry["path"] for entry in entries if after < int(entry["batchId"]) <= last]

    def _log_offset(self, batch_id: int, source: int) -> int | None:
        """Up to which entry of its own log Spark's file source was read; None before it began, and for others."""
        content = self._read(f"offsets/{batch_id}")
        lines = content.decode().splitlines()[2:] if content else []
        offset = lines[source] if source < len(lines) else NOT_BEGUN
        found = json.loads(offset) if offset != NOT_BEGUN else None
        return int(found["logOffset"]) if isinstance(found, dict) and "logOffset" in found else None

    def _source_paths(self) -> list[str]:
        """Of each source's log: the newest compacted entry and all behind it; of other files: all."""
        root = self.folder / "sources"
        result = []
        for source in sorted(os.listdir(root)) if root.is_dir() else []:
            names = [n for n in os.listdir(root / source) if not n.startswith(".") and not n.endswith(".tmp")]
            result += [f"{source}/{name}" for name in needed_entries(names)]
        return result

    def _source_file(self, path: str, folder: str) -> SourceFile:
        return self._newest.get(path) or self._store(path, folder)

    def _store(self, path: str, folder: str) -> SourceFile:
        content = (self.folder / "sources" / path).read_bytes()
        if len(content) <= INLINE_LIMIT:
            return SourceFile(path=path, content=content)
        key = f"{folder}sources-{path.replace('/', '-')}"
        return SourceFile(path=path, handle=write_bytes(self._storage, key, content))

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)


def source_log(storage: Storage, file: SourceFile) -> bytes:
    """The content of a file of a source's log. Raises MissingFile or CorruptFile."""
    if file.handle is None:
        return file.content or b""
    data = storage.get(check_key(file.handle.key), file.handle.size)
    check_content(file.handle, len(data), hashlib.sha256(data).hexdigest())
    return data


def driver_location(local: Path, job_uuid: str, generation: int) -> Path:
    """Where the location of a run is whose job root is no file system: on the driver's disk, since only the driver
    uses it, and a run never goes on from another one's.

    Locations of older runs are removed. Never a newer run's: nothing fences a driver that was paused after its CLAIM,
    and a newer run on this host may use its own by then.
    """
    private_folder(local)
    locations = local / "spark" / job_uuid
    for folder in locations.glob("*"):
        if folder.name.isdigit() and int(folder.name) < generation:
            remove_tree(folder)
    return locations / str(generation)


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


def missing_entries(position: SparkPosition) -> list[str]:
    """Entries that a file source's log must have for its offset and does not have.

    Spark numbers them from 0 without a gap, and the offset names the newest one. Without one of them Spark would read
    the files in it a second time, without an error.
    """
    logs: dict[str, set[str]] = {}
    for file in position.source_files:
        source, _, name = file.path.partition("/")
        logs.setdefault(source, set()).add(name)
    missing = []
    for number, line in enumerate(position.offsets.decode().splitlines()[2:]):
        newest = _file_log_offset(line)
        names = logs.get(str(number), set())
        compacted = max(
            (int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")), default=-1
        )
        missing += [f"{number}/{n}" for n in range(compacted + 1, newest + 1) if str(n) not in names]
    return missing


def _file_log_offset(line: str) -> int:
    """The newest entry of a file source's log; -1 for a source of another kind, or one that had nothing yet."""
    try:
        offset = json.loads(line)
    except ValueError:
        return -1
    number = offset.get("logOffset") if isinstance(offset, dict) and len(offset) == 1 else None
    return number if isinstance(number, int) else -1


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
