"""Writes the rows of a state to the terminal or to a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from stateflow.cli.formatting import print_text
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.errors import ConfigError


def print_rows(batches: Iterable[pa.RecordBatch]) -> None:
    """Prints a line of JSON for each row."""
    for batch in batches:
        for row in json_objects(batch):
            print_text(encode(row).decode())


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file next to `path`, which gets its name at the end of the block; removes it if the block fails.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as e:
        raise _unwritable(path, e) from e
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as e:
        raise _unwritable(path, e) from e
    finally:
        Path(name).unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "the output cannot be written",
        hint="check the folder, its permissions, and the space that is left",
        output=str(path),
        reason=error.strerror or str(error),
    )
