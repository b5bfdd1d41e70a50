"""Compares a table with the expected rows, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_FIGURES = [
    ("flights", pa.int64()),
    ("measured", pa.int64()),
    ("mean_delay", pa.float64()),
    ("max_delay", pa.float64()),
]
SCHEMAS = {
    "delays": pa.schema(
        [
            ("time", pa.timestamp("us")),
            ("carrier", pa.string()),
            ("flight", pa.int64()),
            ("origin", pa.string()),
            ("dest", pa.string()),
            ("tailnum", pa.string()),
            ("arr_delay", pa.float64()),
            *_FIGURES,
        ]
    ),
    "aircraft": pa.schema(
        [
            ("tailnum", pa.string()),
            ("time", pa.timestamp("us")),
            ("flight", pa.int64()),
            ("carrier", pa.string()),
            ("origin", pa.string()),
            ("dest", pa.string()),
            ("flights", pa.int64()),
        ]
    ),
    "routes": pa.schema([("carrier", pa.string()), ("origin", pa.string()), ("batch", pa.int64()), *_FIGURES]),
}
# Columns that identify a row.
KEYS = {"delays": ("time", "carrier", "flight"), "routes": ("carrier", "origin", "batch"), "aircraft": ("tailnum",)}


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a table with the expected rows."""

    name: str
    rows: int
    expected_rows: int
    difference: str
    """The first row that differs; empty when all are equal."""

    @property
    def equal(self) -> bool:
        """Whether both have the same rows."""
        return not self.difference


def read_exported(folder: Path, name: str) -> pa.Table:
    """Returns a table as Spark has read it, in the order of its keys."""
    return in_order(pq.read_table(folder / name), name)


def in_order(table: pa.Table, name: str) -> pa.Table:
    """Returns the rows of a table with the expected types, in the order of its keys."""
    columns = [_as_expected(table[field.name], field.type) for field in SCHEMAS[name]]
    return _sorted(pa.table(columns, schema=SCHEMAS[name]), name)


def expected_table(rows: Sequence[dict[str, Any]], name: str) -> pa.Table:
    """Returns the expected rows as a table, in the order of their keys."""
    return _sorted(pa.Table.from_pylist(list(rows), schema=SCHEMAS[name]), name)


def compare(name: str, actual: pa.Table, expected: pa.Table) -> Comparison:
    """Compares two tables in the same order. Null is not equal to NaN."""
    return Comparison(name, actual.num_rows, expected.num_rows, _difference(actual, expected))


def _difference(actual: pa.Table, expected: pa.Table) -> str:
    if actual.num_rows != expected.num_rows:
        return f"{actual.num_rows} rows instead of {expected.num_rows}"
    for name in expected.column_names:
        found, wanted = actual[name].combine_chunks(), expected[name].combine_chunks()
        if not found.equals(wanted):
            row = next(i for i in range(len(found)) if not found[i].equals(wanted[i]))
            return f"column {name}: {actual.slice(row, 1).to_pylist()[0]} instead of {expected[name][row].as_py()}"
    return ""


def _sorted(table: pa.Table, name: str) -> pa.Table:
    return table.sort_by([(key, "ascending") for key in KEYS[name]])


def _as_expected(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    # Timestamps with the zone UTC and without a zone are equal here, because the flights have no zone.
    if pa.types.is_timestamp(column.type):
        return pc.cast(column, wanted, safe=False)
    return pc.cast(column, wanted)
