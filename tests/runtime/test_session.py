"""Spark sessions: the settings that a run requires and sets, and the translation of Spark's errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.config.spark_versions import running_version
from stateflow.errors import BatchFailed, ConfigError, Fenced, Interrupted, SparkGone, StorageError
from stateflow.runtime.restart_strategy import is_restartable
from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
from stateflow.runtime.spark.session.requirements import READING, check_reading
from stateflow.runtime.spark.session.session import JobTraits, check_session, job_traits
from tests.support.errors import raises
from tests.support.processes import ROOT


class FakeConf:
    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.values.get(key, default)


REQUIRED = running_version().required


def _session(changes: dict[str, str | None], master: str = "local[2,4]") -> Any:
    conf = FakeConf({k: v for k, v in {**REQUIRED, **changes}.items() if v is not None})
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))


@pytest.mark.matrix
@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", ["false", "FALSE", "", None])
def test_a_session_without_a_required_setting_is_refused(key: str, value: str | None) -> None:
    """Without them, rows of several attempts of a task could mix."""
    with raises(ConfigError, setting=key, found=value) as refused:
        check_session(_session({key: value}))
    assert REQUIRED[key] in refused.value.hint


def test_a_session_with_the_required_settings_that_retries_tasks_is_accepted() -> None:
    check_session(_session({}))
    check_session(_session({key: value.upper() for key, value in REQUIRED.items()}))
    with raises(ConfigError, master="local[2]"):
        check_session(_session({}, master="local[2]"))


class Reading(msgspec.Struct):
    sensor: int
    celsius: float
    at: datetime
    is_valid: bool


class Note(msgspec.Struct):
    sensor: int
    text: str


class _Noting(KeyedProcessFunction[Reading, Note]):
    def process_element(self, row: Reading, ctx: Context) -> list[Note]:
        return [Note(row.sensor, "seen")]


def _fixed(rows: Any) -> Any:
    return rows


def _with_text_between(rows: Any) -> Any:
    notes = rows.key_by("sensor").process(_Noting(), output=Note, uid="noting")
    return notes.map(lambda note: Reading(note.sensor, 0.0, datetime(2026, 1, 1, tzinfo=UTC), True), output=Reading)


def _with_expression(rows: Any) -> Any:
    return rows.transform(lambda frame: frame.where("celsius > 0"), schema=Reading)


@pytest.mark.parametrize(
    ("operators", "has_expressions", "has_fixed_rows"),
    [(_fixed, False, True), (_with_text_between, False, False), (_with_expression, True, True)],
)
def test_a_job_has_fixed_rows_without_any_text_and_expressions_if_any_stream_has_one(
    operators: Callable[[Any], Any], has_expressions: bool, has_fixed_rows: bool
) -> None:
    env = StreamExecutionEnvironment()
    operators(env.from_collection([], Reading, uid="readings")).print(uid="shown")
    assert job_traits(env.graph) == JobTraits(has_expressions, has_fixed_rows)


# -- errors -----------------------------------------------------------------------------------------------------------

GONE = Py4JNetworkError("Answer from Java side is empty")
CALL = Py4JError("An error occurred while calling o1.x")
ABORTED = PySparkException("Job aborted\n\tat org.apache")
OWN = [ConnectionRefusedError(111, "refused"), StorageError("no answer"), BatchFailed("a batch failed")]


def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [GONE, CALL, ABORTED, *OWN], ids=repr)
def test_any_failure_without_a_living_spark_is_spark_gone(error: Exception) -> None:
    with raises(SparkGone) as caught, translate_spark_errors(lambda: False):
        _fail(error)
    assert caught.value.retryable and not is_restartable(caught.value)
    assert str(error)[:11] in str(caught.value.facts["reason"])


@pytest.mark.parametrize("error", [CALL, ABORTED], ids=repr)
def test_a_failure_of_a_living_spark_is_restartable(error: Exception) -> None:
    with raises(BatchFailed, reason=str(error).partition("\n")[0]) as caught, translate_spark_errors(lambda: True):
        _fail(error)
    assert is_restartable(caught.value)


@pytest.mark.parametrize(
    ("error", "lives"),
    [
        *((error, True) for error in OWN),
        *(
            (error, lives)
            for error in (ConfigError("mine"), Fenced("another"), Interrupted("Ctrl-C"), ValueError("a mistake"))
            for lives in (True, False)
        ),
    ],
    ids=repr,
)
def test_an_error_that_is_not_of_spark_is_not_translated(error: Exception, lives: bool) -> None:
    with pytest.raises(type(error)) as caught, translate_spark_errors(lambda: lives):
        raise error
    assert caught.value is error


def _session_of(context: Any) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context)))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_session_is_alive_until_its_context_is_stopped(stopped: bool) -> None:
    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    assert is_alive(_session_of(context)) is not stopped


# -- settings that would change what the rows of a source are: replaced, or refused by name ---------------------------

_PROGRAM = """
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated
import msgspec
from stateflow import FileSource
from stateflow.api.input_files import unreadable_in
from stateflow.config.sources import resolve
from stateflow.runtime.spark.session.session import JobTraits, open_session
from stateflow.runtime.spark.session.requirements import READING
from stateflow.types.declared_types import literal

class Row(msgspec.Struct):
    note: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    local: datetime

class Text(msgspec.Struct):
    text: str

folder = Path(sys.argv[1])
settings = resolve({"local_dir": str(folder / "local"), "spark.master": "local[1,4]"})
session = open_session(settings, JobTraits(has_expressions=False, has_fixed_rows=False))
for format in ("json", "parquet"):
    source = FileSource(folder / format, schema=Row, format=format)
    source.check(session)
    rows = source.read_files(session, [file.as_uri() for file in sorted((folder / format).iterdir())])
    print("read", format, rows.dtypes, [tuple(map(str, row)) for row in rows.collect()])
damaged = FileSource(folder / "damaged", schema=Text, format="parquet")
try:
    print("read damaged", damaged.read_files(session, [(folder / "damaged/a").as_uri()]).collect())
except Exception as e:
    found = unreadable_in(str(e))
    print("read damaged", found and (found.is_corrupt, Path(found.path).name))
print("read sql", session.sql(f"SELECT {literal(chr(39) + chr(92))} AS a, TRY_CAST('1' AS INT) + 1 AS b").collect())
print("kept", {key for key, value in READING.items() if session.conf.get(key).lower() != value.lower()})
session.stop()
"""


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark in a process of its own")
def test_settings_of_a_company_do_not_change_what_rows_are(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    opposite = {"true": "false", "false": "true"}
    given = {
        **{key: opposite.get(value, "LEGACY") for key, value in READING.items()},
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.columnNameOfCorruptRecord": "note",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    }
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in given.items()))
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a").write_text('{"note": "n", "time": "2026-01-31T10:00:00Z", "local": "2026-01-31T10:00:00"}\n')
    at = datetime.datetime(2026, 1, 31, 10)  # noqa: DTZ001 - a column without time zone
    (tmp_path / "parquet").mkdir()
    times = {"time": pa.array([at], pa.timestamp("us", "UTC")), "local": pa.array([at], pa.timestamp("us"))}
    pq.write_table(pa.table({"note": ["n"], **times}), tmp_path / "parquet/ä")
    (tmp_path / "damaged").mkdir()
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": ["right"]}), tmp_path / "damaged/a", **options)
    data = (tmp_path / "damaged/a").read_bytes()
    assert b"right" in data
    (tmp_path / "damaged/a").write_bytes(data.replace(b"right", b"wrong"))
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    kinds = [("note", "string"), ("time", "timestamp"), ("local", "timestamp_ntz")]
    row = ("n", "2026-01-31 10:00:00", "2026-01-31 10:00:00")
    read = [line for line in done.stdout.splitlines() if line.startswith(("read", "kept"))]
    rows = [f"read {format} {kinds} [{row}]" for format in ("json", "parquet")]
    rows.append("read damaged (True, 'a')")
    assert read == [*rows, 'read sql [Row(a="\'\\\\", b=2)]', "kept set()"], done.stderr[-3000:]


@pytest.mark.parametrize("key", READING)
def test_a_setting_of_the_job_that_changes_what_rows_are_is_refused_by_name(key: str) -> None:
    with raises(ConfigError, setting=key, found="other"):
        check_reading({key: "other"})
    check_reading({key: READING[key].lower()})
