"""The files of a source: the log of those that it has listed, what its address means, and which ones a batch has.

The log has the format of Spark's file source, which lists files on disks. In buckets, `BatchPlanner` lists the files
with the credentials of a job root, and keeps the log that Spark would keep.

An entry has the files of one batch of the source. Entries are numbered from 0 without gaps, and the position of the
source is the number of the newest one. Each tenth entry is compacted: it has all files up to then.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stateflow import failpoints
from stateflow.errors import BatchFailed, CorruptFile
from stateflow.private_files import make_folders, write_private
from stateflow.storage import BlobInfo, Storage, open_storage, split_object
from stateflow.types.decoders import json_decoder

LOG_VERSION = b"v1"
"""The first line of an entry."""
_COMPACTED_EACH = 10
_INNERMOST_BRACES = re.compile(r"(?<!\\)\{([^{}]*)\}")
_NOT_IN_URIS = frozenset("?#\\")
_SPECIAL = re.compile(r"(?<!\\)[*?\[]")
_SINK_LOG = "_spark_metadata"
"""Where Spark's file sink, and stateflow's, keep the log that says which files of their folder are visible."""
_SUMMARIES = ("_metadata", "_common_metadata")


class ListedFile(msgspec.Struct, omit_defaults=True, frozen=True):
    """A file in the log, which is a line of JSON there.

    Attributes:
        path: percent-encoded URI.
        timestamp: time of the last change in milliseconds since 1970.
        batchId: number of the entry that has listed it.
        size: bytes of an object; -1 for a file that Spark has listed.
        version: `BlobInfo.version` of an object, which another object of the same name does not have.
    """

    path: str
    timestamp: int
    batchId: int
    size: int = -1
    version: str = ""


def arrival_order(file: ListedFile) -> tuple[int, str]:
    """Sort key: the time of the last change, then the path."""
    return file.timestamp, unquote(file.path)


_listed_file = json_decoder(ListedFile)


def decode_listed_file(line: bytes) -> ListedFile:
    """Returns a line of an entry. Raises ValueError or RecursionError."""
    return _listed_file.decode(line)


def encode_entry(files: Sequence[ListedFile]) -> bytes:
    """Returns an entry."""
    return b"\n".join([LOG_VERSION, *map(msgspec.json.encode, files)])


def _files_of_entry(entry: bytes) -> Iterator[ListedFile]:
    """Yields the files of an entry. Raises ValueError or RecursionError for an entry that Spark does not write."""
    version, *lines = entry.split(b"\n")
    if version != LOG_VERSION:
        raise ValueError("the entry has another version")
    yield from map(decode_listed_file, filter(None, lines))


class _Position(msgspec.Struct, forbid_unknown_fields=True):
    """The position of a file source in Spark's offset log."""

    logOffset: int


_position = json_decoder(_Position)


def files_since(offset: str, entries: Sequence[bytes]) -> list[ListedFile]:
    """Returns the files that a source's log lists after a position.

    Args:
        offset: the position, as in Spark's offset log.
        entries: of the log.

    Raises:
        CorruptFile: the position or an entry cannot be decoded.
    """
    try:
        last = _position.decode(offset).logOffset
        return [file for entry in entries for file in _files_of_entry(entry) if file.batchId > last]
    except (ValueError, RecursionError) as e:
        message = "the position of a file source, or its log of files, cannot be decoded"
        raise CorruptFile(message, hint="restore an older checkpoint", reason=str(e)) from e


def logged_paths(offset: str, entries: Sequence[bytes]) -> set[str] | None:
    """Returns the URIs of all files that a log has up to a position; None if the log does not belong to it."""
    try:
        newest, known = _position.decode(offset).logOffset, set[str]()
        for file in (file for entry in entries for file in _files_of_entry(entry)):
            if not 0 <= file.batchId <= newest:
                return None
            known.add(file.path)
    except (ValueError, RecursionError):
        return None
    return known


class FileLog:
    """The log of a source that lists its files itself, in a folder of a run's Spark checkpoint location.

    Only one process writes it, and no other run continues it: another run gets a copy from a checkpoint.

    Args:
        folder: its folder, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: set[str] = set()
        self._lines: list[bytes] = []
        self.newest = -1
        """Number of the newest entry; -1 without one."""
        names = os.listdir(folder) if folder.is_dir() else []
        for name in needed_entries([name for name in names if _number(name) >= 0]):
            self._add((folder / name).read_bytes().splitlines()[1:])
            self.newest = _number(name)

    def __contains__(self, uri: str) -> bool:
        return uri in self._paths

    def append(self, files: Sequence[ListedFile]) -> int:
        """Adds an entry, and returns its number. When this returns, a reader sees all of it; before, none of it."""
        number = self.newest + 1
        lines = [msgspec.json.encode(msgspec.structs.replace(file, batchId=number)) for file in files]
        is_compacted = (number + 1) % _COMPACTED_EACH == 0
        name = f"{number}.compact" if is_compacted else str(number)
        make_folders(self._folder)
        # Renamed when it is complete: this process may be killed at any time.
        part = self._folder / f".{name}.tmp"
        part.unlink(missing_ok=True)
        write_private(part, b"\n".join([LOG_VERSION, *(self._lines if is_compacted else ()), *lines]))
        part.rename(self._folder / name)
        # Not before the entry is stored: a file that counts as read although no entry has it would be lost.
        self._add(lines)
        self.newest = number
        if is_compacted:
            for older in os.listdir(self._folder):
                if 0 <= _number(older) < number:
                    (self._folder / older).unlink()
        return number

    def _add(self, lines: Sequence[bytes]) -> None:
        self._lines += lines
        self._paths.update(decode_listed_file(line).path for line in lines)


def _number(name: str) -> int:
    """Returns the number of an entry by the name of its file; -1 for another file."""
    number = name.removesuffix(".compact")
    return int(number) if number.isdecimal() else -1


def needed_entries(names: Sequence[str]) -> list[str]:
    """Returns the entries of a source's log that Spark needs: ``12.compact`` contains everything up to 12."""
    compacted = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
    newest = max(compacted, default=-1)
    plain = sorted((n for n in names if n.isdigit()), key=int)
    kept = [n for n in plain if int(n) > newest]
    return (
        ([f"{newest}.compact"] if compacted else []) + kept + sorted(n for n in names if not n.split(".")[0].isdigit())
    )


class FilePattern:
    """The files that a file source may read: those that its address names or matches, and all files below these.

    Args:
        address: the folder, or Hadoop's glob pattern; an absolute path or a URI, which Hadoop does not decode.
        default_filesystem: URI of the file system of paths without scheme, ``fs.defaultFS`` of Hadoop.
    """

    def __init__(self, address: str, default_filesystem: str = "file:///") -> None:
        default = urlsplit(default_filesystem)
        scheme, separator, rest = address.partition("://")
        authority, _, path = (rest if separator else address).partition("/")
        self.address = address
        self._scheme = scheme.lower() if separator else default.scheme
        self._authority = authority or (default.netloc if self._scheme == default.scheme else "")
        self._texts = [_parts(pattern) for pattern in _without_braces(posixpath.normpath(f"/{path}"))]
        self._patterns = [
            [re.compile(fnmatch.translate(_python_pattern(part))).match for part in parts] for parts in self._texts
        ]

    def matches(self, uri: str) -> bool:
        """Returns whether a percent-encoded URI, as in the log of a file source, is one of the files."""
        return any(True for _ in self._below(uri))

    def lists(self, uri: str) -> bool:
        """Returns whether an object is one of the files, and neither its name nor a folder below those is hidden."""
        return any(below[-1] not in _SUMMARIES and all(map(may_be_listed, below)) for below in self._below(uri))

    @property
    def folders(self) -> list[str]:
        """The paths, without a slash at their ends, at or below which all files are; empty for the root."""
        found = {"/".join(map(_unescaped, takewhile(lambda part: not _SPECIAL.search(part), p))) for p in self._texts}
        return sorted(path for path in found if not any(_is_below(path, other) for other in found))

    def _below(self, uri: str) -> Iterator[list[str]]:
        """Yields the parts of a file's path that no part of a pattern matches; its name if there are none."""
        scheme, _, rest = uri.partition(":")
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.removeprefix("/"))
        if (scheme.lower(), authority) != (self._scheme, self._authority) or not _NOT_IN_URIS.isdisjoint(uri):
            return
        parts = unquote(path).split("/")
        # Hadoop's listings never have such parts. After a link, `..` is not the folder before it in the path.
        if any(part in ("", ".", "..") for part in parts):
            return
        for pattern in self._patterns:
            if len(parts) >= len(pattern) and all(match(part) for match, part in zip(pattern, parts, strict=False)):
                yield parts[len(pattern) :] or parts[-1:]


def matches_name(pattern: str, name: str) -> bool:
    """Returns whether a name matches Hadoop's glob pattern."""
    return any(fnmatch.fnmatchcase(name, _python_pattern(each)) for each in _without_braces(pattern))


def may_be_listed(name: str) -> bool:
    """Returns False for a name that Spark ignores, as its `HadoopFSUtils` decides."""
    is_hidden = name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
    return not is_hidden or name.startswith(_SUMMARIES)


def _is_below(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}/"))


def _unescaped(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part)


def _without_braces(pattern: str) -> list[str]:
    """Returns one pattern for each alternative in ``{a,b}``; an alternative may contain a slash."""
    braces = _INNERMOST_BRACES.search(pattern)
    if braces is None:
        return [pattern]
    head, tail = pattern[: braces.start()], pattern[braces.end() :]
    return [each for choice in braces[1].split(",") for each in _without_braces(f"{head}{choice}{tail}")]


def _python_pattern(part: str) -> str:
    """Returns a part of a path pattern as `fnmatch` writes it, whose expressions take linear time."""
    literal = re.sub(r"\\(.)", lambda m: f"[{m[1]}]" if m[1] in "*?[" else m[1], part)
    return literal.replace("[^", "[!")


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part]


@dataclass(frozen=True)
class StoredFiles:
    """The files that an address in object storage means.

    Attributes:
        address: the folder, or Hadoop's glob pattern.
        names: Hadoop's glob pattern for names of files; empty for all.
    """

    address: str
    names: str = ""

    def list(self) -> list[ListedFile]:
        """Returns all files, in the order in which their rows arrive.

        Objects without content, such as markers of folders, are not files: nothing is lost if content arrives later.
        Of a folder that a sink has written, only the files in its log are: others are not committed, or undone.
        """
        pattern, found = FilePattern(self.address), dict[str, ListedFile]()
        scheme, _, rest = self.address.partition("://")
        for folder in pattern.folders:
            root, key = split_object(f"{scheme}://{rest.partition('/')[0]}/{folder}")
            storage = open_storage(root)
            for blob in _only_written(storage, _blobs(storage, key)):
                uri = f"{root}/{quote(blob.key, safe='/=')}"
                name = blob.key.rpartition("/")[2]
                if blob.size and pattern.lists(uri) and (not self.names or matches_name(self.names, name)):
                    found[uri] = ListedFile(uri, blob.modified_ms, 0, blob.size, blob.version)
        return sorted(found.values(), key=arrival_order)


def _blobs(storage: Storage, key: str) -> list[BlobInfo]:
    """Returns the objects below a folder, or the object of this name."""
    below = storage.list(f"{key}/" if key else "")
    # An address may also name one file.
    own = storage.info(key) if key and not below else None
    return below if own is None else [own]


class _WrittenFile(msgspec.Struct, rename="camel"):
    """A line of the log of Spark's file sink."""

    path: str
    size: int
    modification_time: int
    action: str = "add"


_written_file = json_decoder(_WrittenFile)


def _only_written(storage: Storage, blobs: Sequence[BlobInfo]) -> list[BlobInfo]:
    """Returns objects without those that are not in the log of the sink that has written their folder.

    A file that was written after its name was passed by the listing is there if the log has it.
    """
    known, left = {blob.key: blob for blob in blobs}, list(blobs)
    logs = dict[str, list[str]]()
    for key in known:
        folder, found, name = f"/{key}".rpartition(f"/{_SINK_LOG}/")
        if found and _number(name) >= 0:
            logs.setdefault(folder[1:], []).append(name)
    for folder, names in logs.items():
        below = f"{folder}/" if folder else ""
        written = _written_files(storage, below, names)
        left = [blob for blob in left if not blob.key.startswith(below)]
        left += [known.get(key, blob) for key, blob in written.items()]
    return left


def _written_files(storage: Storage, folder: str, names: Sequence[str]) -> dict[str, BlobInfo]:
    """Returns the files that the log of a sink has, by key. Raises CorruptFile.

    Args:
        folder: key of the folder, with a slash at its end; empty for the storage.
        names: the names of the entries.
    """
    written = dict[str, BlobInfo]()
    root = unquote(urlsplit(storage.uri).path).strip("/")
    above = f"{root}/" if root else ""
    for name in needed_entries(names):
        key = f"{folder}{_SINK_LOG}/{name}"
        version, *lines = storage.get(key).splitlines()
        if version != LOG_VERSION:
            raise CorruptFile("the log of a folder has another version", hint="read another folder", file=key)
        for line in lines:
            try:
                file = _written_file.decode(line)
            except (ValueError, RecursionError) as e:
                raise CorruptFile("the log of a folder is damaged", file=key, reason=str(e)) from e
            # Another program may name the storage in another way, such as s3a://.
            path = unquote(urlsplit(file.path).path).lstrip("/").removeprefix(above)
            if file.action == "delete":
                written.pop(path, None)
            elif path.startswith(folder):
                written[path] = BlobInfo(path, file.size, file.modification_time)
    return written


@dataclass(frozen=True)
class BatchLimits:
    """How much a batch has at most; at least one file.

    Attributes:
        files: number of files; None for all.
        size: bytes of the files together; None for all.
    """

    files: int | None = None
    size: int | None = None

    def first(self, files: Sequence[ListedFile]) -> Sequence[ListedFile]:
        """Returns the first files, as many as a batch may have."""
        limited = files[: self.files]
        if self.size is None:
            return limited
        most = self.size
        fitting = sum(1 for _ in takewhile(lambda total: total <= most, accumulate(file.size for file in limited)))
        return limited[: max(1, fitting)]


class BatchPlanner:
    """Decides which files each batch has, and adds them to the log of the source.

    A file that becomes visible late, with a time before the times of files that were read, is read by the next batch:
    the log has the names of all files, not a time.

    Args:
        files: the files.
        log: folder of the log.
    """

    def __init__(self, files: StoredFiles, limits: BatchLimits, log: Path) -> None:
        self._files = files
        self._limits = limits
        self._folder = log
        self._log: FileLog | None = None
        self._target: list[ListedFile] | None = None

    def end_with_present_files(self) -> None:
        """Takes the files that exist now for all that there are."""
        self._target = self._files.list()

    def next_entry(self, start: int) -> int:
        """Returns the number of the entry of the log with the files of the next batch; `start` if there are none.

        Args:
            start: number of the entry of the batch before it; -1 without one.

        Raises:
            BatchFailed: the log lacks that entry.
            ConfigError, StorageError: the files cannot be listed.
        """
        log = self._log = self._log or FileLog(self._folder)
        if log.newest > start:
            # Planned, and not used: by this query, or by the one that is replayed.
            return start + 1
        if log.newest < start:
            raise BatchFailed(
                "the log of files that were read is incomplete",
                hint="check whether another process removes files below the folder; a new run creates the log again",
                folder=str(self._folder),
            )
        listed = self._files.list() if self._target is None else self._target
        new = [file for file in listed if file.path not in log]
        # The entry is complete before Spark knows its number, and captures it with the number.
        number = log.append(self._limits.first(new)) if new else start
        failpoints.hit("files.planned")
        return number
