"""Reads the text files of a Delta table's log, line by line.

Any writer of the table can put files into its log: a FIFO, on which a reader would wait without end, or a line that
does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from stateflow.connectors.delta.data_files import disk_error
from stateflow.errors import CorruptFile
from stateflow.storage.no_follow import NotRegular, open_path

_LONGEST_LINE = 3 << 20
"""Bytes of a line. That of a file with statistics has a few kilobytes, a schema of 10,000 columns about a megabyte.
Decoded, a line takes up to 30 times as many bytes."""
_MOST_LINES = 500_000
"""Lines of a file: actions of one commit."""


@contextmanager
def opened_log_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file of the log.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptFile: the name refers to something other than a regular file.
        ConfigError, StorageError: the file cannot be read.
    """
    try:
        with open_path(path) as file:
            yield file
    except FileNotFoundError:
        raise
    except NotRegular as e:
        raise CorruptFile(
            "a file of the Delta table's log is not a regular file",
            hint="remove it, or restore the file from a copy",
            file=str(path),
            found=e.strerror,
        ) from e
    except OSError as e:
        raise disk_error(e, path) from e


def log_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the lines of a log file that have content. Raises CorruptFile for too many lines, or one that is too long.

    Args:
        file: the open file.
        path: its path, for the error.
    """
    for number in count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > _LONGEST_LINE or number > _MOST_LINES:
            raise CorruptFile(
                "a file of the Delta table's log has too many lines, or one that is too long",
                hint="restore the file from a copy",
                file=str(path),
                line=number,
                longest=_LONGEST_LINE,
            )
        if not line.isspace():
            yield line
