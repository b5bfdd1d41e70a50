"""The tables of Nexmark for Flink SQL: input files in the order that Flink needs, and the statements for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from benchmarks.nexmark.generate import PARQUET_OPTIONS
from benchmarks.nexmark.generator import SCHEMA

SQL = Path(__file__).parent / "flink_sql"
_WATERMARK_DELAY = "INTERVAL '4' SECOND"
"""As in Nexmark's own table."""
_SIDE_INPUT_ROWS = 10_000
_FUNCTIONS = {"count_character": "nexmark.CountCharacter", "side_input": "nexmark.SideInput"}
_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING", pa.timestamp("ms"): "TIMESTAMP(3)"}


def write_inputs(events: Path, folder: Path, files: int) -> list[Path]:
    """Writes the events again, in so many files, and returns the folders that have one each.

    Flink assigns the files of a table to its readers in no certain order, and a reader's watermark then makes events of
    earlier files late. With one file in each table, a reader reads all of it in order; several tables are read
    concurrently. The files of the generator are row groups here, taken in turn.
    """
    folders = [folder / f"input{files}-{number}" for number in range(files)]
    slices = sorted(events.glob("*.parquet"))
    for number, each in enumerate(folders):
        each.mkdir(parents=True)
        with parquet.ParquetWriter(each / "events.parquet", SCHEMA, **PARQUET_OPTIONS) as writer:
            for path in slices[number::files]:
                writer.write_table(parquet.read_table(path).cast(SCHEMA))
    return folders


def write_side_input(folder: Path) -> Path:
    """Writes the table that does not change, as CSV: each number, and the same as text."""
    path = folder / "side_input.csv"
    path.write_text("".join(f"{number},{number}\n" for number in range(_SIDE_INPUT_ROWS)))
    return path


def definitions(inputs: Sequence[Path]) -> list[str]:
    """Returns the statements that define the table of events, Nexmark's views, and its functions."""
    tables = [_events_table(f"events_{number}", path) for number, path in enumerate(inputs)]
    union = " UNION ALL ".join(f"SELECT * FROM events_{number}" for number in range(len(inputs)))
    functions = [f"CREATE TEMPORARY FUNCTION {name} AS '{each}'" for name, each in _FUNCTIONS.items()]
    return [*tables, f"CREATE VIEW datagen AS {union}", *functions, *statements("sources")]


def statements(name: str, folder: Path = SQL) -> list[str]:
    """Returns the statements of a file. The last one of a query is the query, and those before it define views."""
    parts = (folder / f"{name}.sql").read_text().split(";")
    return [part.strip() for part in parts if part.strip()]


def _events_table(name: str, path: Path) -> str:
    columns = ", ".join(
        f"`{field.name}` {_TYPES[field.type]}{'' if field.nullable else ' NOT NULL'}" for field in SCHEMA
    )
    return (
        f"CREATE TABLE {name} ({columns}, WATERMARK FOR `dateTime` AS `dateTime` - {_WATERMARK_DELAY}) WITH "
        f"('connector' = 'filesystem', 'path' = '{path.as_uri()}', 'format' = 'parquet', "
        "'parquet.utc-timezone' = 'true')"
    )
