"""The Spark checkpoint location: captured at a barrier, and created again and checked for each run."""

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

import msgspec

from stateflow.api.file_log import (
    LOG_VERSION,
    FilePattern,
    ListedFile,
    arrival_order,
    decode_listed_file,
    encode_entry,
    needed_entries,
)
from stateflow.checkpoint.log.documents import NOT_BEGUN, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.checkpoint.restore.source_positions import INLINE_LIMIT, SPARK_COMMIT, offset_lines
from stateflow.errors import BatchFailed, CorruptFile, InternalError
from stateflow.private_files import make_folders, make_new_folder, make_own_folder, write_private
from stateflow.state.host_cache import check_content, remove_tree
from stateflow.storage import Storage
from stateflow.storage.paths import check_key
from stateflow.storage.posix import NotRegular, read_file
from stateflow.types.decoders import json_decoder

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

    def log_folder(self, source: int) -> Path:
        """Returns the folder of the log of a file source, by the number of the source in the query."""
        return self.folder / "sources" / str(source)

    def batch_files(self, batch_id: int, source: int) -> list[ListedFile]:
        """Returns the files of a batch that a file source has listed, in order.

        They are in the order of their modification times when they were listed, then of their paths. Returns none for
        other sources.

        Args:
            source: number of the source in the query.
        """
        last, before = self._log_offset(batch_id, source), self._log_offset(batch_id - 1, source)
        if last is None:
            return []
        folder = self.log_folder(source)
        wanted = range(0 if before is None else before + 1, last + 1)
        if not wanted:
            # A source without any file yet has no folder of its log.
            return []
        # A compacted entry has all files that were ever read; most of them need no parsing.
        files = [
            decode_logged_file(line, source=source, entry=name)
            for name in _entries_of(wanted, os.listdir(folder))
            for line in _content(folder / name).splitlines()
            if line.startswith(b"{") and _may_be_of(wanted, line)
        ]
        files = [file for file in files if file.batchId in wanted]
        return sorted(files, key=arrival_order)

    def batch_offsets(self, batch_id: int, source: int) -> tuple[str, str]:
        """Returns the positions of a source before and after a batch; arguments as for `batch_files`."""
        start, end = (self._offset(number, source) for number in (batch_id - 1, batch_id))
        return start, end

    def batch_offset(self, batch_id: int, source: int) -> str:
        """Returns the position of a source after a batch, as in Spark's offset log; empty without one."""
        offset = self._offset(batch_id, source)
        return "" if offset == NOT_BEGUN else offset

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


_HINT = "restore a checkpoint or savepoint that this job wrote, and find out who changed this one: its hashes match"
_VERSION = LOG_VERSION.decode()
_ENTRY_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(?:\.compact)?", re.ASCII)


class _Metadata(msgspec.Struct):
    """The second line of Spark's offset log, without the SQL settings."""

    batchTimestampMs: int = 0


class _FileOffset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: int


_metadata, _file_offset = json_decoder(_Metadata), json_decoder(_FileOffset)


@dataclass(frozen=True)
class QuerySource:
    """A source of a streaming query.

    Attributes:
        uid: its uid.
        files: the files that it may read; None for a source that is not known to read files.
    """

    uid: str
    files: FilePattern | None


def checked_offsets(offsets: bytes, sources: Sequence[QuerySource]) -> bytes:
    """Returns the entry of Spark's offset log, without SQL settings.

    Spark would apply the settings to the session. Those that it stores fix the format of Spark's own state, which no
    query of stateflow has.

    Raises:
        CorruptFile: the entry is not one for these sources.
    """
    try:
        version, about, *lines = offset_lines(offsets)
        metadata = {"batchWatermarkMs": 0, **msgspec.to_builtins(_metadata.decode(about)), "conf": {}}
    except (ValueError, RecursionError) as e:
        raise _corrupt("Spark's offset log in a checkpoint cannot be decoded", reason=str(e)) from e
    if version != _VERSION or len(lines) != len(sources):
        raise _corrupt(
            "Spark's offset log in a checkpoint does not have an offset for each source",
            version=version[:20],
            offsets=len(lines),
            sources=len(sources),
        )
    checked = [
        line if source.files is None else _file_line(line, source) for line, source in zip(lines, sources, strict=True)
    ]
    return "\n".join([version, msgspec.json.encode(metadata).decode(), *checked]).encode()


def checked_log(name: str, content: bytes, newest: int, source: QuerySource) -> bytes:
    """Returns an entry of the log of a source, as Spark may read it.

    Args:
        name: the name of its file in the folder of the log.
        content: the entry.
        newest: number of the newest entry that the offset of the source includes; -1 for none, or an offset of
            another kind.
        source: the source.

    Raises:
        CorruptFile: the entry cannot be decoded, is newer than the offset, so that Spark would read its files, or
            names files that the source does not read.
    """
    number = _ENTRY_NAME.fullmatch(name)
    if source.files is None and (newest < 0 or number is None):
        return content
    if number is None or int(number[1]) > newest:
        message = "Spark's log of files that were read has an entry after the source's position"
        raise _corrupt(message, source=source.uid, entry=name[:100], newest=newest)
    return content if source.files is None else _checked_entry(int(number[1]), content, source.uid, source.files)


def _checked_entry(number: int, content: bytes, uid: str, pattern: FilePattern) -> bytes:
    facts = {"source": uid, "entry": number}
    version, *lines = content.split(b"\n")
    files = [decode_logged_file(line, **facts) for line in lines if line]
    if version != LOG_VERSION or any(not 0 <= file.batchId <= number for file in files):
        raise _corrupt("an entry of Spark's source log has another version, or files of later batches", **facts)
    for file in files:
        if not pattern.matches(file.path):
            raise _corrupt(
                "a checkpoint contains an input file that its source does not read",
                file=file.path[:1000],
                path=pattern.address,
                **facts,
            )
    return encode_entry(files)


def decode_logged_file(line: bytes, **facts: object) -> ListedFile:
    """Returns a line of the log of a file source; raises CorruptFile with these facts if it is not one."""
    try:
        return decode_listed_file(line)
    except (ValueError, RecursionError) as e:
        raise _corrupt("an entry of Spark's source log cannot be parsed", reason=str(e), **facts) from e


def _file_line(line: str, source: QuerySource) -> str:
    """Returns the offset of a file source."""
    if line == NOT_BEGUN:
        return line
    try:
        return msgspec.json.encode(_file_offset.decode(line)).decode()
    except (ValueError, RecursionError) as e:
        raise _corrupt("the position of a file source cannot be decoded", source=source.uid, reason=str(e)) from e


def _corrupt(message: str, **facts: object) -> CorruptFile:
    return CorruptFile(message, hint=_HINT, **facts)
