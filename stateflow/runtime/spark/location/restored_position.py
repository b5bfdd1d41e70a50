"""Checks what a checkpoint contains of Spark's own files before Spark reads it.

Anyone who can write a savepoint can write these files. Spark reads each file that the log of a file source names, from
wherever it is, and applies the settings in its offset log. So both are decoded, checked and encoded again: Spark reads
nothing but what was checked, however its JSON parser treats duplicate fields or unusual line ends.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import msgspec

from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.checkpoint.restore.source_positions import offset_lines
from stateflow.errors import CorruptFile
from stateflow.types.decoders import json_decoder

_HINT = "restore a checkpoint or savepoint that this job wrote, and find out who changed this one: its hashes match"
_VERSION = "v1"
_ENTRY_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(?:\.compact)?", re.ASCII)
_INNERMOST_BRACES = re.compile(r"(?<!\\)\{([^{}]*)\}")
_NOT_IN_URIS = frozenset("?#\\")


class _Metadata(msgspec.Struct):
    """The second line of Spark's offset log, without the SQL settings."""

    batchTimestampMs: int = 0


class _FileOffset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: int


class _ReadFile(msgspec.Struct):
    """A line of the log of a file source."""

    path: str
    timestamp: int
    batchId: int


_metadata, _file_offset, _read_file = json_decoder(_Metadata), json_decoder(_FileOffset), json_decoder(_ReadFile)


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
        self._patterns = [
            [re.compile(fnmatch.translate(_python_pattern(part))).match for part in _parts(pattern)]
            for pattern in _without_braces(posixpath.normpath(f"/{path}"))
        ]

    def matches(self, uri: str) -> bool:
        """Returns whether a percent-encoded URI, as in the log of a file source, is one of the files."""
        scheme, _, rest = uri.partition(":")
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.removeprefix("/"))
        if (scheme.lower(), authority) != (self._scheme, self._authority) or not _NOT_IN_URIS.isdisjoint(uri):
            return False
        parts = unquote(path).split("/")
        # Hadoop's listings never have such parts. After a link, `..` is not the folder before it in the path.
        if any(part in ("", ".", "..") for part in parts):
            return False
        return any(
            len(parts) >= len(pattern) and all(match(part) for match, part in zip(pattern, parts, strict=False))
            for pattern in self._patterns
        )


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
    try:
        files = [_read_file.decode(line) for line in lines if line]
    except (ValueError, RecursionError) as e:
        raise _corrupt("an entry of Spark's source log cannot be parsed", reason=str(e), **facts) from e
    if version != _VERSION.encode() or any(not 0 <= file.batchId <= number for file in files):
        raise _corrupt("an entry of Spark's source log has another version, or files of later batches", **facts)
    for file in files:
        if not pattern.matches(file.path):
            raise _corrupt(
                "a checkpoint contains an input file that its source does not read",
                file=file.path[:1000],
                path=pattern.address,
                **facts,
            )
    return b"\n".join([version, *map(msgspec.json.encode, files)])


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


# -- Hadoop's glob patterns -------------------------------------------------------------------------------------------


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
