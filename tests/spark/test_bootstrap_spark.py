"""`SavepointWriter` with DataFrames of Spark: the same state as with Arrow tables, and errors of rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stateflow import KeyedStateFrame, SavepointWriter, read_state
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.clock import ManualClock
from stateflow.state.key_columns import KEY_PART, parts_column
from tests.bootstrap.given_state import ITEMS, add_operators
from tests.support import root_files, stored_state
from tests.support.moved_state import Expected, Row

pytestmark = pytest.mark.spark

ACTIONS = ["update", "add", "put", "tag", "rate", "timer", "event timer"]
NAMES = ["", "x", "x\0", "é"]


def _expected(count: int) -> Expected:
    dice, found = random.Random(1), Expected()
    for number in range(count):
        place = (dice.choice(NAMES), dice.randint(-3, 30))
        row = Row(number, *place, dice.choice(ACTIONS), dice.choice(NAMES), dice.randint(-3, 300))
        found.apply([row], timedelta(minutes=number))
    return found


def _entries(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The stored entries of each operator; elements of lists without their numbers, which are of no meaning."""
    document, _ = root_files.unsealed((path / "_savepoint").read_bytes())
    found: dict[str, list[tuple[Any, ...]]] = {}
    for operator in document["manifest"]["operators"]:
        kinds = {stored_state.state_id(s["name"]): s["kind"] for s in operator["states"]}
        kinds |= {stored_state.state_id(f"{s['name']}\0expiry"): s["kind"] for s in operator["states"]}
        entries = [e for subtask in operator["subtasks"] for e in stored_state.stored_entries(path, subtask)]
        assert entries == sorted(entries)
        found[operator["uid"]] = [(k[:-12] if kinds.get(k[2:6]) == "list" else k, v) for k, v in entries]
        found[operator["uid"]].append((operator["states"], operator["operator_states"], operator["parts"]))
        timers = [subtask[f"{domain}_timer"] for subtask in operator["subtasks"] for domain in ("event", "processing")]
        found[operator["uid"]].append((min((t for t in timers if t is not None), default=None),))
    return found


def _write(expected: Expected, shape: Callable[[pa.Table], Any], path: Path) -> dict[str, Any]:
    writer = SavepointWriter.new("job", max_parallelism=64, parallelism=3, clock=ManualClock())
    add_operators(writer, expected, datetime(2026, 1, 1, tzinfo=UTC), shape)
    writer.write(path)
    savepoint_at(str(path)).verify()
    return _entries(path)


def test_dataframes_give_the_same_state_as_tables(spark_session: SparkSession, tmp_path: Path) -> None:
    expected = _expected(400)
    tables = _write(expected, lambda table: table, tmp_path / "tables")
    frames = _write(expected, spark_session.createDataFrame, tmp_path / "frames")
    assert frames == tables


def test_namespaces_of_dataframes_keep_their_types(spark_session: SparkSession, tmp_path: Path) -> None:
    spaces = parts_column([7, "7", None, 7], KEY_PART)
    items = pa.table({"key": ["a"] * 4, "namespace": spaces, "position": [1, 0, 0, 0], "value": [4, 2, 1, 3]})
    timers = pa.table({"key": ["a"] * 4, "namespace": spaces, "time": [1, 2, 3, 4]})

    def write(shape: Callable[[pa.Table], Any], path: Path) -> dict[str, list[tuple[Any, ...]]]:
        writer = SavepointWriter.new("job", max_parallelism=4, parallelism=1, clock=ManualClock())
        states = [KeyedStateFrame(ITEMS, shape(items))]
        writer.with_operator("op", key="key", states=states, timers=shape(timers)).write(path)
        return _entries(path)

    found = write(spark_session.createDataFrame, tmp_path / "frames")
    assert found == write(lambda table: table, tmp_path / "tables")
    read = read_state(str(tmp_path / "frames"), "op", "items").read_all().to_pylist()
    assert [(row["namespace"], row["value"]) for row in read] == [
        (None, 1), ({"type": "str", "value": "7"}, 2), ({"type": "int", "value": "7"}, 3),
        ({"type": "int", "value": "7"}, 4),
    ]  # fmt: skip
