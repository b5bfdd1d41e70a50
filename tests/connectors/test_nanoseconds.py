"""Parquet files with timestamps in nanoseconds, which Spark does not read: the error has the file and the way out."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stateflow import FileSource
from stateflow.api.input_files import unreadable_in
from stateflow.errors import ConfigError
from tests.support.errors import raises


class Row(msgspec.Struct):
    time: datetime


ILLEGAL = "Illegal Parquet type: INT64 (TIMESTAMP(NANOS,false))."


class Refusing:
    """A Spark that fails at what it is asked to read."""

    @property
    def read(self) -> Refusing:
        return self

    def format(self, _: str) -> Refusing:
        return self

    def options(self, **_: object) -> Refusing:
        return self

    def load(self, _: object) -> Any:
        raise RuntimeError(f"[PARQUET_TYPE_ILLEGAL] {ILLEGAL} SQLSTATE: 42846")


def _write(path: Path, unit: str) -> None:
    pq.write_table(pa.table({"time": pa.array([0], pa.timestamp(unit))}), path)


def test_the_hint_has_microseconds_and_the_first_such_file_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", "us")
    _write(tmp_path / "b.parquet", "ns")
    refusing: Any = Refusing()
    with raises(ConfigError, file=str(tmp_path / "b.parquet")) as caught:
        FileSource(tmp_path, schema=Row).check(refusing)
    assert "datetime64[us]" in caught.value.hint


def test_a_file_that_arrives_later_gets_the_same_hint() -> None:
    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/b.parquet. SQLSTATE: KD001\n"
        f"\tat x\nCaused by: org.apache.spark.sql.AnalysisException: {ILLEGAL}\n"
    )
    found = unreadable_in(text)
    assert found is not None and "datetime64[us]" in found.error().hint
    other = unreadable_in(text.replace(ILLEGAL, "not a Parquet file"))
    assert other is not None and "datetime64[us]" not in other.error().hint
