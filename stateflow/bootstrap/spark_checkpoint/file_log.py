"""The log of the files that a file source of Spark has read, reduced to those before a position. Mostly pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from stateflow.api.source import InitialPosition
from stateflow.errors import ConfigError, CorruptFile
from stateflow.runtime.spark.location.restored_position import FilePattern
from stateflow.types.decoders import json_decoder

_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?", re.ASCII)
_VERSION = "v1"
_POSITION = '{"logOffset":0}'


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class _ReadFile(msgspec.Struct):
    path: str
    timestamp: int
    batchId: Annotated[int, msgspec.Meta(ge=0)]


_offset, _read_file = json_decoder(_Offset), json_decoder(_ReadFile)


def file_offset(line: str) -> int | None:
    """Returns the newest entry of the log in the offset of a file source; None for the offset of another source."""
    try:
        return _offset.decode(line).logOffset
    except (msgspec.MsgspecError, RecursionError):
        return None


def file_position(
    newest: int, names: Iterable[str], read: Callable[[str], bytes], address: str | None
) -> InitialPosition:
    """Returns the position after all files up to an entry of the log, as one entry of a new log.

    Args:
        newest: number of the newest entry that belongs to the position; the log may have later ones.
        names: names of all files of the log.
        read: returns the content of one of them.
        address: the folder or pattern of the source that continues; None if unknown.

    Raises:
        CorruptFile: an entry is missing, or cannot be decoded.
        ConfigError: another version of Spark wrote the log, or the source does not read these files.
    """
    files: dict[str, int] = {}
    entries = set()
    for name in _needed(newest, names):
        for file in _files(name, read(name)):
            if file.batchId <= newest:
                entries.add(file.batchId)
                files[file.path] = max(file.timestamp, files.get(file.path, file.timestamp))
    # Spark makes an entry only for files: one without a file was damaged.
    if len(entries) != newest + 1:
        raise _damaged(str(newest), f"of {newest + 1} entries, {len(entries)} name a file")
    _check_read_by(address, files)
    lines = [{"path": path, "timestamp": time, "batchId": 0} for path, time in sorted(files.items())]
    log = b"\n".join([_VERSION.encode(), *map(msgspec.json.encode, lines)])
    return InitialPosition(_POSITION, {"0": log}, f"{len(files)} files that Spark has read")


def _needed(newest: int, names: Iterable[str]) -> Sequence[str]:
    """Returns the entries that have all files up to an entry: a compact one also has those of all entries before it."""
    found = [match for match in map(_NAME.fullmatch, names) if match]
    plain = {int(match[1]) for match in found if not match[2]}
    compact = sorted(int(match[1]) for match in found if match[2])
    for first in [*(number for number in reversed(compact) if number <= newest), -1]:
        # The offset of a hostile entry may be any number.
        if newest - first <= len(plain) and plain.issuperset(range(first + 1, newest + 1)):
            after = [str(number) for number in range(first + 1, newest + 1)]
            return [f"{first}.compact", *after] if first >= 0 else after
    later = [number for number in compact if number > newest]
    if not later:
        raise _damaged(str(newest), "an entry up to this one does not exist")
    return [f"{later[0]}.compact"]


def _files(name: str, content: bytes) -> Iterator[_ReadFile]:
    version, *lines = content.split(b"\n")
    if version != _VERSION.encode():
        if not re.fullmatch(rb"v[0-9]{1,9}", version):
            raise _damaged(name, "it does not begin with a version")
        raise ConfigError(
            "the log of a file source has a version that is not supported",
            hint="a newer Spark writes it; give a time as the position: files that were modified before are skipped",
            entry=name,
            version=version.decode(),
            supported=[_VERSION],
        )
    number, is_compact = int(name.partition(".")[0]), "." in name
    try:
        for line in filter(None, lines):
            file = _read_file.decode(line)
            if file.batchId > number or not (is_compact or file.batchId == number):
                raise ValueError(f"it has a file of entry {file.batchId}")
            yield file
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise _damaged(name, str(e)) from e


def _check_read_by(address: str | None, files: Mapping[str, int]) -> None:
    """Raises ConfigError if a source does not read the files: Spark would recognize none of them, and read them again.

    Hadoop's file system of paths without a scheme is not known here; it is taken from the first file.
    """
    if address is None:
        return
    scheme, separator, rest = next(iter(files)).partition("://")
    server = rest.partition("/")[0] if separator else ""
    pattern = FilePattern(address, f"{scheme}://{server}/" if separator else "file:///")
    others = [path for path in sorted(files) if not pattern.matches(path)]
    if others:
        raise ConfigError(
            "the query has read files that the source does not read",
            hint="declare the source with the path that the query has; if its folder was moved, give a time as the "
            "position; if the query has several sources, pass the number of this one",
            source=address,
            files=others[:3],
            count=len(others),
        )


def _damaged(name: str, reason: str) -> CorruptFile:
    return CorruptFile(
        "the log of the files that a source has read is damaged or incomplete",
        hint="restore the checkpoint from a copy; or give a time as the position: files that were modified before are "
        "skipped",
        entry=name,
        reason=reason[:300],
    )
