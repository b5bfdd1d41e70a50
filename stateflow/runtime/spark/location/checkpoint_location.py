"""The Spark checkpoint location: captured at a barrier, and created again for each run.

A new run gets a new location with exactly what Spark needs to continue after batch N: ``metadata``, ``offsets/N-1``,
``offsets/N``, ``commits/N`` and the sources' own logs as of N. With less, some source would start from the beginning,
or fail. A batch that was planned but not committed is not part of it, so Spark plans it again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from stateflow.api.source import Source
from stateflow.checkpoint.log.documents import NOT_BEGUN, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.checkpoint.restore.source_positions import INLINE_LIMIT, SPARK_COMMIT, offset_lines
from stateflow.errors import BatchFailed, CorruptFile, InternalError
from stateflow.private_files import make_folders, make_new_folder, make_own_folder, write_private
from stateflow.runtime.spark.location.restored_position import QuerySource, checked_log, checked_offsets
from stateflow.state.files.host_cache import check_content, remove_tree
from stateflow.storage import Storage
from stateflow.storage.no_follow import NotRegular, read_file
from stateflow.storage.paths import check_key

_BATCH_ID = re.compile(rb'"batchId":(\d+)')
_SHOWN = 10
_LARGEST_FILE = 1 << 30
"""Bytes of a file of the location: a compacted log of a source lists each file that the source has read."""


@dataclass(frozen=True)
class PlannedOffsets:
    """A batch in Spark's offset log.

    Attributes:
        before: the entry of the batch before it; None for the first batch of a job.
        after: its own entry.
        shuffle_partitions: value of ``spark.sql.shuffle.partitions``. Spark compares it with that of the batch before
            to find out whether an uncommitted batch repartitions Spark's own state, and fails without it.
    """

    before: bytes | None
    after: bytes
    shuffle_partitions: str


class SparkLocation:
    """The Spark checkpoint location of one run, a local or shared folder.

    Args:
        folder: its path.
        storage: the job root, for source logs that are too large for a manifest.
    """

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder = folder
        self._storage = storage
        self._newest: dict[str, SourceFile] = {}

    def create(self, position: SparkPosition | None, query_id: str, sources: Sequence[QuerySource]) -> None:
        """Creates the location.

        Args:
            position: the position that Spark continues after; None for a job without a checkpoint.
            query_id: id of the streaming query.
            sources: the sources of the query, in its order.

        Raises:
            CorruptFile: the position is incomplete, a stored source log is damaged, or contains files that the source
                does not read.
        """
        make_new_folder(self.folder)
        if position is None:
            return
        n = position.batch_id
        self._write("metadata", json.dumps({"id": query_id}).encode())
        if position.previous_offsets is not None:
            self._write(f"offsets/{n - 1}", checked_offsets(position.previous_offsets, sources))
        self._write(f"offsets/{n}", checked_offsets(position.offsets, sources))
        self._write(f"commits/{n}", SPARK_COMMIT)
        self._write_logs(position, sources)

    def create_planned(
        self, planned: PlannedOffsets, position: SparkPosition, query_id: str, sources: Sequence[QuerySource]
    ) -> None:
        """Creates the location of a query that has planned a batch and not committed it, so that Spark runs it again.

        Args:
            planned: the batch.
            position: a position at the end of the batch or after it, with the logs of the sources.
            query_id: id of the streaming query.
            sources: the sources of the query, in its order.

        Raises:
            CorruptFile: as `create` does.
        """
        make_new_folder(self.folder)
        self._write("metadata", json.dumps({"id": query_id}).encode())
        number = 0
        if planned.before is not None:
            self._write("offsets/0", _with_partitions(checked_offsets(planned.before, sources), planned))
            self._write("commits/0", SPARK_COMMIT)
            number = 1
        self._write(f"offsets/{number}", _with_partitions(checked_offsets(planned.after, sources), planned))
        self._write_logs(position, sources)

    def _write_logs(self, position: SparkPosition, sources: Sequence[QuerySource]) -> None:
        for file in position.source_files:
            self._write(f"sources/{_checked(file.path)}", self._checked_log(file, position, sources))
        self._remember(position.source_files)
        if missing := _missing_in_checkpoint(position):
            raise CorruptFile(
                "a checkpoint lacks parts of Spark's log of files that were read",
                hint="restore an older checkpoint with stateflow restore",
                batch=position.batch_id,
                missing=missing[:3],
            )

    def capture(self, batch_id: int, folder: str) -> SparkPosition:
        """Returns what Spark has written about the batch that is about to run.

        Args:
            batch_id: Spark's number of the batch, whose offsets are written and whose commit is not.
            folder: data folder for large source logs of this barrier.

        Raises:
            BatchFailed: Spark's log of files is incomplete.
        """
        offsets = self._read(f"offsets/{batch_id}")
        if offsets is None:
            raise InternalError("Spark has not written the offsets of the running batch", batch=batch_id)
        files = [self._source_file(path, folder) for path in self._source_paths()]
        self._remember(files)
        position = SparkPosition(
            batch_id=batch_id,
            offsets=offsets,
            previous_offsets=self._read(f"offsets/{batch_id - 1}") if batch_id else None,
            commit=SPARK_COMMIT,
            source_files=files,
        )
        if missing := missing_entries(position):
            raise BatchFailed(
                "Spark's log of files that were read is incomplete",
                hint="check whether another process removes files below the folder; a new run creates the log again",
                batch=batch_id,
                missing=missing[:3],
                folder=str(self.folder),
            )
        return position

    def source_logs(self, source: int) -> dict[str, bytes]:
        """Returns the files of Spark's log of a source, by name.

        Args:
            source: number of the source in the query.
        """
        paths = [path for path in self._source_paths() if path.startswith(f"{source}/")]
        return {path.partition("/")[2]: _content(self.folder / "sources" / path) for path in paths}

    def _checked_log(self, file: SourceFile, position: SparkPosition, sources: Sequence[QuerySource]) -> bytes:
        number, _, name = file.path.partition("/")
        newest = dict(zip(map(str, range(len(sources))), newest_entries(position), strict=True))
        if number not in newest:
            raise CorruptFile("a manifest has a source log of a source that the job does not have", path=file.path)
        return checked_log(name, source_log(self._storage, file), newest[number], sources[int(number)])

    def _remember(self, files: list[SourceFile]) -> None:
        """Keeps the files of the newest position, because the next one may have them, too.

        Older entries of a source's log are part of a compacted one, and are never needed again.
        """
        self._newest = {file.path: file for file in files}

    def batch_files(self, batch_id: int, source: int) -> list[str]:
        """Returns the files of a batch that Spark's file source has listed, as percent-encoded URIs, in order.

        They are in the order of their modification times when they were listed, then of their paths. Returns none for
        other sources.

        Args:
            source: number of the source in the query.
        """
        last, before = self._log_offset(batch_id, source), self._log_offset(batch_id - 1, source)
        if last is None:
            return []
        folder = self.folder / "sources" / str(source)
        wanted = range(0 if before is None else before + 1, last + 1)
        # A compacted entry has all files that were ever read; most of them need no parsing.
        lines = [
            line
            for name in _entries_of(wanted, os.listdir(folder))
            for line in _content(folder / name).splitlines()
            if line.startswith(b"{") and _may_be_of(wanted, line)
        ]
        entries = [entry for entry in map(json.loads, lines) if int(entry["batchId"]) in wanted]
        entries.sort(key=lambda entry: (int(entry["timestamp"]), unquote(entry["path"])))
        return [entry["path"] for entry in entries]

    def batch_offsets(self, batch_id: int, source: int) -> tuple[str, str]:
        """Returns the positions of a source before and after a batch; arguments as for `batch_files`."""
        start, end = (self._offset(number, source) for number in (batch_id - 1, batch_id))
        return start, end

    def batch_offset(self, batch_id: int, source: int) -> str:
        """Returns the position of a source after a batch, as in Spark's offset log; empty without one."""
        offset = self._offset(batch_id, source)
        return "" if offset == NOT_BEGUN else offset

    def check_batch(self, batch_id: int, sources: Sequence[Source]) -> None:
        """Calls `Source.check_batch` of all sources, in their order in the query. Raises CorruptFile."""
        for at, source in enumerate(sources):
            before, after = self.batch_offset(batch_id - 1, at), self.batch_offset(batch_id, at)
            if after and after != before:
                source.check_batch(before, after)

    def _log_offset(self, batch_id: int, source: int) -> int | None:
        """Returns the last entry of a file source's log that the batch reads; None without one, or for others."""
        offset = self.batch_offset(batch_id, source)
        found = json.loads(offset) if offset else None
        return int(found["logOffset"]) if isinstance(found, dict) and "logOffset" in found else None

    def _offset(self, batch_id: int, source: int) -> str:
        content = self._read(f"offsets/{batch_id}")
        lines = offset_lines(content)[2:] if content else []
        return lines[source] if source < len(lines) else NOT_BEGUN

    def _source_paths(self) -> list[str]:
        """Returns the files to keep: the newest compacted entry of each log, all later entries, and other files."""
        root = self.folder / "sources"
        result = []
        for source in sorted(os.listdir(root)) if root.is_dir() else []:
            names = [n for n in os.listdir(root / source) if not n.startswith(".") and not n.endswith(".tmp")]
            result += [f"{source}/{name}" for name in needed_entries(names)]
        return result

    def _source_file(self, path: str, folder: str) -> SourceFile:
        return self._newest.get(path) or self._store(path, folder)

    def _store(self, path: str, folder: str) -> SourceFile:
        content = _content(self.folder / "sources" / path)
        if len(content) <= INLINE_LIMIT:
            return SourceFile(path=path, content=content)
        key = f"{folder}sources-{path.replace('/', '-')}"
        return SourceFile(path=path, handle=write_bytes(self._storage, key, content))

    def _read(self, name: str) -> bytes | None:
        try:
            return _content(self.folder / name)
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        make_folders(path.parent)
        write_private(path, data)


def _content(path: Path) -> bytes:
    """Returns the content of a file of the location.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptFile: it is not a regular file, or too large; another user may have put a FIFO in its place.
    """
    try:
        return read_file(path, _LARGEST_FILE)
    except OSError as e:
        if not isinstance(e, NotRegular) and e.errno != errno.EFBIG:
            raise
        raise CorruptFile(
            "a file of Spark's checkpoint location is not a regular file, or too large",
            hint="remove the folder; a new run creates it again",
            path=str(path),
            found=e.strerror,
        ) from e


def _with_partitions(entry: bytes, planned: PlannedOffsets) -> bytes:
    version, about, *lines = offset_lines(entry)
    metadata = {**json.loads(about), "conf": {"spark.sql.shuffle.partitions": planned.shuffle_partitions}}
    return "\n".join([version, json.dumps(metadata), *lines]).encode()


def _missing_in_checkpoint(position: SparkPosition) -> list[str]:
    """Returns the missing entries of a stored position. Raises CorruptFile when it is not one of Spark's."""
    try:
        return missing_entries(position)
    except ValueError as e:
        raise CorruptFile("the position of Spark in a checkpoint cannot be decoded", reason=str(e)) from e


def source_log(storage: Storage, file: SourceFile) -> bytes:
    """Returns the content of a file of a source's log. Raises MissingFile or CorruptFile."""
    if file.handle is None:
        return file.content or b""
    data = storage.get(check_key(file.handle.key), file.handle.size)
    check_content(file.handle, len(data), hashlib.sha256(data).hexdigest())
    return data


def driver_location(local: Path, job_uuid: str, generation: int) -> Path:
    """Returns the folder of the location for a job root that is not a file system, on the driver's disk.

    Only the driver uses the location, and a run never continues from that of another run. Removes the locations of
    older runs, but never that of a newer run: nothing fences a driver that was paused after its CLAIM, and a newer run
    on this host may already use its own.

    Args:
        local: scratch folder of this host.
    """
    make_own_folder(local)
    locations = local / "spark" / job_uuid
    for folder in locations.glob("*"):
        if folder.name.isdigit() and int(folder.name) < generation:
            remove_tree(folder)
    return locations / str(generation)


def needed_entries(names: list[str]) -> list[str]:
    """Returns the entries of a source's log that Spark needs: ``12.compact`` contains everything up to 12."""
    compacted = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
    newest = max(compacted, default=-1)
    plain = sorted((n for n in names if n.isdigit()), key=int)
    kept = [n for n in plain if int(n) > newest]
    return (
        ([f"{newest}.compact"] if compacted else []) + kept + sorted(n for n in names if not n.split(".")[0].isdigit())
    )


def _entries_of(wanted: range, names: list[str]) -> list[str]:
    """Returns the entries of a source's log that have the files of some batches of the source."""
    known = {int(name.removesuffix(".compact")): name for name in names if name.removesuffix(".compact").isdigit()}
    if not all(number in known for number in wanted):
        return needed_entries(names)
    return [known[number] for number in wanted]


def _may_be_of(wanted: range, line: bytes) -> bool:
    number = _BATCH_ID.search(line)
    return number is None or int(number[1]) in wanted


def missing_entries(position: SparkPosition) -> list[str]:
    """Returns the first entries that the logs of file sources need for their offsets, but lack.

    Spark numbers entries from 0 without gaps, and the offset is the number of the newest one. Without one of them Spark
    would read its files again, without an error. Raises ValueError for a position that Spark does not write.
    """
    logs: dict[str, set[str]] = {}
    for file in position.source_files:
        source, _, name = file.path.partition("/")
        logs.setdefault(source, set()).add(name)
    missing = []
    for number, newest in enumerate(newest_entries(position)):
        names = logs.get(str(number), set())
        compacted = max((int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")), default=-1)
        needed = range(compacted + 1, newest + 1)
        # The offset may be any number, so that all of them could take any time and memory.
        missing += [f"{number}/{n}" for n in islice((n for n in needed if str(n) not in names), _SHOWN)]
    return missing


def newest_entries(position: SparkPosition) -> list[int]:
    """Returns the newest entry of each source's log that its offset includes; -1 for none, or for other sources."""
    return [_file_log_offset(line) for line in offset_lines(position.offsets)[2:]]


def _file_log_offset(line: str) -> int:
    """Returns the newest entry of a file source's log; -1 without an entry, or for a source of another kind."""
    try:
        offset = json.loads(line)
    except (ValueError, RecursionError):
        return -1
    number = offset.get("logOffset") if isinstance(offset, dict) and len(offset) == 1 else None
    return number if isinstance(number, int) else -1


def source_positions(position: SparkPosition, sources: list[tuple[str, str]]) -> list[SourcePosition]:
    """Returns the position of each source, from Spark's offset log.

    Args:
        sources: pairs of uid and description, in the order of the query.
    """
    lines = offset_lines(position.offsets)[2:]
    return [SourcePosition(uid=uid, description=d, offset=o) for (uid, d), o in zip(sources, lines, strict=True)]


def _checked(path: str) -> str:
    parts = path.split("/")
    if not 2 <= len(parts) <= 4 or any(p in ("", ".", "..") for p in parts) or "\0" in path:
        raise CorruptFile("a manifest refers to a source log outside of its folder", path=path)
    return path
