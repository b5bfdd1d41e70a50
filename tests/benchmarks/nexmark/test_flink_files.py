"""What Flink reads and writes for Nexmark: its input files, the statements for them, and the changes of a result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.nexmark.changelog import final_rows
from benchmarks.nexmark.flink import QUERIES
from benchmarks.nexmark.flink_tables import SQL, definitions, statements, write_inputs, write_side_input
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import SCHEMA, generate
from benchmarks.nexmark.rules import Stream

COLUMNS = [
    ("id", "BIGINT"),
    ("price", "DECIMAL(23, 3)"),
    ("dateTime", "TIMESTAMP(3) NOT NULL *ROWTIME*"),
    ("x", "STRING"),
]


def write_changes(path: Path, changes: Iterable[tuple[str, str]]) -> None:
    """Lines as Flink writes them: a kind of change, and the fields of its row."""
    path.parent.mkdir(exist_ok=True)
    lines = [
        f'{{"before":{row if op == "d" else "null"},"after":{row if op == "c" else "null"},"op":"{op}"}}\n'
        for op, row in changes
    ]
    path.write_text("".join(lines))


def row(number: int, text: str | None = "a") -> str:
    return json.dumps({"id": number, "price": 0.5, "dateTime": "2015-07-15 00:00:00.1", "x": text}).replace(
        "0.5", "0.500"
    )


def expected(number: int, text: str | None = "a") -> tuple[int, Decimal, datetime, str | None]:
    return (number, Decimal("0.5"), datetime(2015, 7, 15, 0, 0, 0, 100_000), text)  # noqa: DTZ001 - as Flink's


def test_final_rows_are_those_that_changes_in_all_files_leave(tmp_path: Path) -> None:
    write_changes(tmp_path / "a" / "part-1-0", [("c", row(1)), ("d", row(2)), ("c", row(3)), ("c", row(3))])
    write_changes(tmp_path / "a" / "part-0-0", [("c", row(2)), ("c", row(4, None))])
    assert final_rows(tmp_path, COLUMNS) == Counter({expected(1): 1, expected(3): 2, expected(4, None): 1})


def test_a_row_that_was_never_added_cannot_be_removed(tmp_path: Path) -> None:
    write_changes(tmp_path / "a" / "part-0-0", [("c", row(1)), ("d", row(1)), ("d", row(1))])
    with pytest.raises(ValueError, match="never added"):
        final_rows(tmp_path, COLUMNS)


@pytest.mark.parametrize("files", [1, 2])
def test_each_input_file_has_slices_of_the_events_in_order(tmp_path: Path, files: int) -> None:
    slices = Slices(Stream(), 450, 100)
    (tmp_path / "events").mkdir()
    for number in range(slices.files):
        write_slice(slices, tmp_path / "events", number)
    folders = write_inputs(tmp_path / "events", tmp_path / "inputs", files)
    assert len(folders) == files
    for number, folder in enumerate(folders):
        (path,) = folder.iterdir()
        whole = pa.concat_tables(
            generate(Stream(), 100 * slice_, min(100, 450 - 100 * slice_)) for slice_ in range(number, 5, files)
        )
        assert parquet.read_table(path).cast(SCHEMA).equals(whole)


def test_each_query_ends_with_a_select_and_defines_only_views_before(tmp_path: Path) -> None:
    assert {path.stem for path in SQL.iterdir()} == {"sources", *QUERIES}
    for query in QUERIES:
        *views, select = (without_comments(text) for text in statements(query))
        assert select.startswith("SELECT "), query
        assert all(view.startswith("CREATE VIEW ") for view in views), query


def test_the_table_of_events_has_the_columns_of_the_files(tmp_path: Path) -> None:
    first, second, datagen, *others = definitions([tmp_path / "a", tmp_path / "b"])
    for field in SCHEMA:
        assert f"`{field.name}` " in first
    assert (tmp_path / "b").as_uri() in second
    assert datagen == "CREATE VIEW datagen AS SELECT * FROM events_0 UNION ALL SELECT * FROM events_1"
    views = [other for other in map(without_comments, others) if other.startswith("CREATE VIEW")]
    assert [view.split()[2] for view in views] == ["person", "auction", "bid"]


def test_the_side_input_has_each_number_and_its_text(tmp_path: Path) -> None:
    lines = write_side_input(tmp_path).read_text().splitlines()
    assert [line.split(",") for line in lines] == [[str(number)] * 2 for number in range(10_000)]


def without_comments(statement: str) -> str:
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
