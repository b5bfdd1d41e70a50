"""Footers of local Parquet files: corrupt files, row sizes, and timestamps that Spark cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pyarrow import lib, parquet

from stateflow.api.input_files import reason_in


def truncation_of(file: Path) -> str | None:
    """Returns why a file's footer cannot be read; None when it can, or when the failure is not due to its content.

    An empty file counts as readable, because Spark skips it.
    """
    try:
        if file.stat().st_size:
            parquet.read_metadata(file)
    except lib.ArrowException as e:
        return reason_in(e)
    except OSError as e:
        # Arrow raises an OSError without errno for some footers; an error of the system has one.
        return reason_in(e) if e.errno is None else None
    return None


def bytes_per_row(files: Sequence[Path]) -> float | None:
    """Returns the average size of a row on disk, in bytes; None when the files have no rows.

    Raises:
        OSError, pyarrow.ArrowException: a file cannot be read.
    """
    rows = sum(parquet.read_metadata(file).num_rows for file in files)
    return sum(file.stat().st_size for file in files) / rows if rows else None


def first_with_nanoseconds(files: Iterable[Path]) -> Path | None:
    """Returns the first file with a timestamp in nanoseconds; Spark rejects such a file without naming it."""
    for file in files:
        try:
            types = parquet.read_schema(file).types
        except (OSError, lib.ArrowException):
            continue
        if any(str(kind).startswith("timestamp[ns") for kind in types):
            return file
    return None
