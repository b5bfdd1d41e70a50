"""Translates what rocksdict raises into StateflowError.

rocksdict raises `Exception` itself for everything, with RocksDB's words. This is the one place that reads them.
"""

from __future__ import annotations

import re
from pathlib import Path

from stateflow.errors import CorruptFile, StateflowError, StorageError

_CORRUPTION = re.compile(r"\bCorruption\b")
_UNREADABLE = re.compile(r"IO error: While p?read.*Input/output error")
_IO_ERROR = re.compile(r"\bIO error\b|\(os error \d+\)")
_DATA_FILE = re.compile(r"[0-9]{6,}\.sst")
_LONGEST = 300


def to_stateflow_error(error: Exception, folder: Path) -> StateflowError | None:
    """Returns what an error of rocksdict means; None when it is no failure of RocksDB.

    Args:
        folder: of the store.
    """
    text = str(error)
    if is_corruption(error):
        return CorruptFile("a file of a RocksDB store is damaged", hint="check disk and memory of the host; "
                           "without a sound copy, go back to an older checkpoint", file=damaged_file(text),
                           store=str(folder), reason=text[:_LONGEST])  # fmt: skip
    if type(error) is Exception and _IO_ERROR.search(text):
        return StorageError("a task could not write or read its files", hint="is a disk full? look at local_dir",
                            local_dir=str(folder), reason=text[:_LONGEST])  # fmt: skip
    return None


def is_corruption(error: Exception) -> bool:
    """Whether RocksDB found a file that is damaged, or that the disk does not return."""
    text = str(error)
    if type(error) is not Exception:
        return False
    return _UNREADABLE.search(text) is not None or (
        _CORRUPTION.search(text) is not None and _IO_ERROR.search(text) is None
    )


def damaged_file(text: str) -> str:
    """Returns the name of the data file in a message of RocksDB; empty when it names none."""
    found = _DATA_FILE.findall(text)
    return found[0] if found else ""
