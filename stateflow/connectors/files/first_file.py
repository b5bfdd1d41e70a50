"""Compares the declared columns with those of the first file, for formats without a schema of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.api.input_files import reason_in
from stateflow.api.schema import RowSchema
from stateflow.similar_names import closest_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGEST = 64 * 2**20
"""The largest file that is compared, in bytes: Spark reads all of a JSON file to infer its columns."""


def first_small_file(files: Sequence[Path]) -> Path | None:
    """Returns the first file that is neither empty nor larger than `LARGEST`; None without one."""
    return next((file for file in files if 0 < file.stat().st_size <= LARGEST), None)


def column_warnings(
    spark: SparkSession, file: Path, schema: RowSchema, reader: tuple[str, Mapping[str, str]]
) -> list[str]:
    """Compares the columns of one file with the declared ones.

    Args:
        reader: format and options of Spark's reader.

    Returns:
        One sentence per likely problem of a run.
    """
    try:
        found = columns_of(spark, file, reader)
    except Exception as e:
        return [f"the columns of {file} cannot be read: {reason_in(e)}"]
    return (_by_count if reader[0] == "csv" else _missing)(found, schema, str(file))


def columns_of(spark: SparkSession, file: Path, reader: tuple[str, Mapping[str, str]]) -> list[str]:
    """Returns the columns of one file, as Spark finds them; arguments as for `column_warnings`."""
    format, options = reader
    # With another mode, records that cannot be parsed would raise, or add a column.
    own = {name: value for name, value in options.items() if name.lower() != "mode"}
    found: list[str] = (
        spark.read.format(format).options(**own, mode="DROPMALFORMED", __globPaths__="false").load(str(file)).columns
    )
    return found


def _missing(found: Sequence[str], schema: RowSchema, file: str) -> list[str]:
    """Compares by name, for formats that Spark reads by name."""
    names = {column.name for column in schema.columns if not column.nullable} - set(found)
    return [
        f"no record of {file} has {column!r}, which {schema.row_class.__name__} declares without None: rows with a "
        f"null in it fail; the file has {', '.join(closest_first(column, found))}"
        for column in schema.names
        if column in names
    ]


def _by_count(found: Sequence[str], schema: RowSchema, file: str) -> list[str]:
    """Compares the number of columns, for CSV without a header."""
    if len(found) == len(schema.names):
        return []
    return [
        f"{file} has {len(found)} columns, and {schema.row_class.__name__} declares {len(schema.names)}: Spark takes "
        'them by position; check whether the option header="true" is missing'
    ]
