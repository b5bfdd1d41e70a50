"""Finds out without Spark whether a file source has files that it has not read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR

import msgspec

from stateflow.api.input_files import file_uri
from stateflow.types.decoders import json_decoder

_VERSION = b"v1"
_UNCLEAR = "[]{}\\^"
"""Characters that Hadoop's patterns treat in another way than Python's, or in names that are not patterns."""
_SUMMARIES = ("_metadata", "_common_metadata")


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: int


class _ReadFile(msgspec.Struct):
    path: str
    batchId: int


_offset, _read_file = json_decoder(_Offset), json_decoder(_ReadFile)


def has_new_files(local: Path, offset: str, logs: Sequence[bytes]) -> bool | None:
    """Returns whether a folder or pattern has a file that Spark's log of files does not have; None if unknown.

    A file that an option of Spark's reader excludes counts as new, because Spark never logs it.

    Args:
        local: absolute path of the folder, or Hadoop's glob pattern.
        offset: the position, as in Spark's offset log.
        logs: the entries of Spark's log of the source.
    """
    if any(c in str(local) for c in _UNCLEAR) and not local.is_dir():
        return None
    try:
        newest = _offset.decode(offset).logOffset
        known = {path for log in logs for path in _read_files(log, newest)}
        return any(file_uri(file) not in known for file in listed_files(local))
    except (ValueError, RecursionError, OSError):
        return None


def _read_files(log: bytes, newest: int) -> Iterator[str]:
    """Yields the files of an entry of the log. Raises ValueError for an entry that Spark does not write."""
    version, *lines = log.split(b"\n")
    if version != _VERSION:
        raise ValueError("the entry has another version")
    for line in filter(None, lines):
        entry = _read_file.decode(line)
        if not 0 <= entry.batchId <= newest:
            raise ValueError("the entry is newer than the position")
        yield entry.path


def listed_files(local: Path) -> Iterator[Path]:
    """Yields every file of a folder or pattern that Spark may list.

    Raises OSError if a folder does not exist or cannot be listed.
    """
    is_pattern = any(c in str(local) for c in "*?[") and not local.is_dir()
    # Unlike Python's, Hadoop's patterns match names that begin with a dot.
    roots = [Path(path) for path in glob.glob(str(local), include_hidden=True)] if is_pattern else [local]
    if not roots:
        raise FileNotFoundError(local)
    for root in roots:
        if S_ISDIR(root.stat().st_mode):
            yield from _files_below(root)
        elif _may_be_listed(root.name):
            yield root


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if _may_be_listed(name)]
        yield from (Path(folder, name) for name in files if _may_be_listed(name))


def _may_be_listed(name: str) -> bool:
    """Returns False for a name that Spark ignores, as its `HadoopFSUtils` decides."""
    is_hidden = name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
    return not is_hidden or name.startswith(_SUMMARIES)


def _raise(error: OSError) -> None:
    raise error
