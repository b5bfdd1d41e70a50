"""Spark sessions: the settings that a run requires and sets, and the translation of Spark's errors."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.errors import BatchFailed, ConfigError, Fenced, Interrupted, SparkGone, StorageError
from stateflow.runtime.restart_strategy import is_restartable
from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
from stateflow.runtime.spark.session.requirements import REQUIRED
from stateflow.runtime.spark.session.session import JobTraits, check_session, defaults, job_traits
from tests.support.errors import raises


class FakeConf:
    """Settings of a session."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)


def _session(changes: dict[str, str | None], master: str = "local[2,4]") -> Any:
    values = {k: v for k, v in {**REQUIRED, **changes}.items() if v is not None}
    return SimpleNamespace(conf=FakeConf(values), sparkContext=SimpleNamespace(master=master))


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", ["false", "FALSE", "", None])
def test_a_session_without_a_required_setting_is_refused(key: str, value: str | None) -> None:
    """Without them, rows of several attempts of a task could mix."""
    with raises(ConfigError, setting=key, found=value) as refused:
        check_session(_session({key: value}))
    assert REQUIRED[key] in refused.value.hint


def test_a_session_with_the_required_settings_that_retries_tasks_is_accepted() -> None:
    check_session(_session({}))
    check_session(_session(dict.fromkeys(REQUIRED, "TRUE")))
    with raises(ConfigError, master="local[2]"):
        check_session(_session({}, master="local[2]"))


def test_hadoop_buffers_uploads_in_memory_where_its_local_file_system_is_another_one() -> None:
    """LocalDirAllocator, which finds folders for buffers, casts the local file system to LocalFileSystem."""
    found = defaults(JobTraits(has_expressions=False, has_fixed_rows=False))
    assert found["spark.hadoop.fs.file.impl"] == "org.apache.hadoop.fs.RawLocalFileSystem"
    buffers = ("spark.hadoop.fs.s3a.fast.upload.buffer", "spark.hadoop.fs.azure.data.blocks.buffer")
    assert {found[name] for name in buffers} == {"bytebuffer"}


def test_the_defaults_are_the_required_settings_and_those_that_suit_the_job() -> None:
    adaptive, weight = "spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxBytesPerBatch"
    plain, expressions, wide = (
        defaults(JobTraits(has_expressions, has_fixed_rows))
        for has_expressions, has_fixed_rows in ((False, True), (True, True), (False, False))
    )
    assert all(REQUIRED.items() <= given.items() for given in (plain, expressions, wide))
    # Adaptive execution may speed up expressions; rows of a fixed width need no limit in bytes.
    assert plain[adaptive] == "false" and adaptive not in expressions
    assert int(plain[weight]) == (1 << 31) - 1 and weight not in wide
    retained = (
        "spark.sql.ui.retainedExecutions",
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
        "spark.sql.streaming.numRecentProgressUpdates",
    )
    assert all(0 < int(plain[name]) <= 100 for name in retained)


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


def test_a_session_whose_jvm_does_not_listen_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    spark = ClientServer(JavaParameters(port=port), PythonParameters(port=0))
    try:
        session = _session_of(SimpleNamespace(sc=lambda: spark.jvm.System.out))
        assert not is_alive(session)
        with raises(SparkGone), translate_spark_errors(lambda: is_alive(session)):
            spark.jvm.System.currentTimeMillis()
    finally:
        spark.shutdown()
