"""Upserts into tables from which Spark deletes rows by deletion vectors; Spark and a dictionary agree on the rows."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import versions
from stateflow.connectors.delta.log import checkpoint
from stateflow.errors import SinkDiverged
from tests.support.delta_tables import context, put
from tests.support.errors import raises

pytestmark = pytest.mark.spark


class Item(msgspec.Struct):
    """A row with a key that may be a partition column, whose folders' names are encoded."""

    id: int
    place: str
    text: str | None = None


_ABOUT = context(Item)
_PLACES = ("x", "A B%/ü&+")


def _rows(spark: SparkSession, table: Path) -> dict[tuple[int, str], str | None]:
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    found = spark.sql(f"SELECT id, place, text FROM delta.`{table}`").collect()
    rows = {(row.id, row.place): row.text for row in found}
    assert len(rows) == len(found)
    return rows


def _with_vectors(spark: SparkSession, sink: DeltaSink, rows: list[Item]) -> str:
    """Creates a table with deletion vectors; returns its name in SQL."""
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, rows)
    name = f"delta.`{sink.table}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    return name


@pytest.mark.parametrize("partition_by", [(), ("place",)], ids=["plain", "partitioned"])
def test_rows_that_spark_deletes_do_not_come_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    draw = random.Random(7)
    # Reached through a symbolic link, which deltalake resolves.
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real folder")
    sink = DeltaSink(tmp_path / "link" / "ta ble", mode="upsert", keys=("id", "place"), partition_by=partition_by)
    expected = {(number, place): "0" for number in range(20) for place in _PLACES}
    table = _with_vectors(spark, sink, [Item(*key, text) for key, text in expected.items()])
    for token in range(2, 5):
        deleted = draw.sample(sorted(expected), 5)
        for at, (number, place) in enumerate(deleted):
            del expected[number, place]
            deleted[at] = (number, place.replace("'", "''"))
        condition = " OR ".join(f"(id = {number} AND place = '{place}')" for number, place in deleted)
        spark.sql(f"DELETE FROM {table} WHERE {condition}").collect()
        # Each file is written again by itself, or all of them together; from entries of the log, or a checkpoint.
        monkeypatch.setattr(versions, "_COMBINED_BYTES", 0 if token % 2 else 1 << 30)
        if token == 3:
            checkpoint(Path(sink.table))
        changed = [(draw.randrange(22), draw.choice(_PLACES)) for _ in range(4)]
        put(sink, _ABOUT, token, [Item(*key, str(token)) for key in changed])
        expected |= dict.fromkeys(changed, str(token))
        assert _rows(spark, Path(sink.table)) == expected
    assert list((tmp_path / "real folder").rglob("deletion_vector_*.bin"))


def test_a_file_of_which_only_deleted_rows_have_a_key_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table", mode="upsert", keys="id")
    table = _with_vectors(spark, sink, [Item(number, "x") for number in range(4)])
    spark.sql(f"DELETE FROM {table} WHERE id = 2").collect()
    before = {action["add"]["path"] for action in _actions(tmp_path / "table") if "add" in action}
    put(sink, _ABOUT, 2, [Item(2, "x", "new")])
    assert not before & {action["remove"]["path"] for action in _newest(tmp_path / "table") if "remove" in action}
    assert _rows(spark, tmp_path / "table") == {(n, "x"): "new" if n == 2 else None for n in range(4)}
    # A rewind restores the file with its vector.
    put(sink, _ABOUT, 3, [Item(0, "x", "newer")])
    handle = sink.open_table(_ABOUT)
    assert handle.rewind(handle.plan_rewind(1).to_version, 4) is not None
    assert sorted(_rows(spark, tmp_path / "table")) == [(0, "x"), (1, "x"), (3, "x")]


def test_a_lost_vector_is_an_error_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table", mode="upsert", keys="id")
    table = _with_vectors(spark, sink, [Item(number, "x") for number in range(4)])
    spark.sql(f"DELETE FROM {table} WHERE id = 2").collect()
    version = sink.open_table(_ABOUT).version
    for vector in (tmp_path / "table").glob("deletion_vector_*.bin"):
        shutil.move(vector, tmp_path / "kept.bin")
    with raises(SinkDiverged, version=version):
        put(sink, _ABOUT, 2, [Item(1, "x", "new")])
    assert sink.open_table(_ABOUT).version == version


def _actions(table: Path) -> list[dict[str, Any]]:
    entries = sorted((table / "_delta_log").glob("*.json"))
    return [msgspec.json.decode(line) for entry in entries for line in entry.read_bytes().splitlines()]


def _newest(table: Path) -> list[dict[str, Any]]:
    entry = max((table / "_delta_log").glob("*.json"))
    return [msgspec.json.decode(line) for line in entry.read_bytes().splitlines()]
