"""Translates errors of rocksdict into StateflowError.

rocksdict raises plain `Exception` for every error, with RocksDB's message. Only this module parses these messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from stateflow.errors import CorruptFile, StateflowError, StorageError
from stateflow.state.handles import StateFile

_CORRUPTION = re.compile(r"\bCorruption\b")
_UNREADABLE = re.compile(r"IO error: While p?read.*Input/output error")
_IO_ERROR = re.compile(r"\bIO error\b|\(os error \d+\)")
_OVERLAP = "Global seqno is required"
_DATA_FILE = re.compile(r"[0-9]{6,}\.sst")
_LONGEST = 300


def to_stateflow_error(error: Exception, folder: Path) -> StateflowError | None:
    """Returns the StateflowError for an error of rocksdict; None when it is not an error of RocksDB.

    Args:
        error: the error.
        folder: folder of the store.
    """
    text = str(error)
    if is_corruption(error):
        return CorruptFile(
            "a file of a RocksDB store is damaged",
            hint="check disk and memory of the host; if the stored file is damaged, restore an older checkpoint",
            file=damaged_file(text),
            store=str(folder),
            reason=text[:_LONGEST],
        )
    if type(error) is Exception and _IO_ERROR.search(text):
        return StorageError(
            "a task could not write or read its files",
            hint="check the free space and the disk of local_dir",
            local_dir=str(folder),
            reason=text[:_LONGEST],
        )
    return None


def is_corruption(error: Exception) -> bool:
    """Returns whether RocksDB found a damaged or unreadable file."""
    text = str(error)
    if type(error) is not Exception:
        return False
    return _UNREADABLE.search(text) is not None or (
        _CORRUPTION.search(text) is not None and _IO_ERROR.search(text) is None
    )


def is_overlap(error: Exception) -> bool:
    """Returns whether RocksDB refused data files because of keys between those of other files."""
    return type(error) is Exception and _OVERLAP in str(error)


def damaged_file(text: str) -> str:
    """Returns the name of the data file in a message of RocksDB; empty when there is none."""
    found = _DATA_FILE.findall(text)
    return found[0] if found else ""


def with_object_key(found: StateflowError, text: str, files: Mapping[str, StateFile]) -> CorruptFile:
    """Returns an error about a damaged data file with the key of the stored object, where it is known.

    Args:
        found: the error.
        text: the message of RocksDB.
        files: the stored files of the store by local name.
    """
    file = files.get(damaged_file(text))
    return CorruptFile(found.message, hint=found.hint, **found.facts | ({"file": file.handle.key} if file else {}))
