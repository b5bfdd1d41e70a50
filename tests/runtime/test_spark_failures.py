"""Errors that leave a run on Spark, and what they are told as."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow.errors import BatchFailed, ConfigError, Fenced, Interrupted, SparkGone, StorageError
from stateflow.runtime.restart_strategy import is_restartable
from stateflow.runtime.spark.errors import is_alive, translate_spark_errors

LIVES, SPARK_IS_DEAD = (lambda: True), (lambda: False)


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o1.x"),
        PySparkException("Job aborted"),
        ConnectionResetError(104, "reset"),
        BatchFailed("a batch failed"),
        StorageError("no answer"),
    ],
)
def test_whatever_fails_without_a_spark_is_that_spark_is_gone(error: Exception) -> None:
    with pytest.raises(SparkGone) as told, translate_spark_errors(SPARK_IS_DEAD):
        raise error
    assert told.value.retryable and not is_restartable(told.value)
    assert str(error)[:20] in told.value.facts["reason"]


@pytest.mark.parametrize("error", [Py4JError("calling o1.x"), PySparkException("Job aborted\n\tat org.apache")])
def test_what_spark_fails_at_may_be_tried_again(error: Exception) -> None:
    with pytest.raises(BatchFailed) as told, translate_spark_errors(LIVES):
        raise error
    assert type(told.value) is BatchFailed and is_restartable(told.value)
    assert told.value.facts["reason"] == str(error).partition("\n")[0]


@pytest.mark.parametrize("lives", [LIVES, SPARK_IS_DEAD])
@pytest.mark.parametrize(
    "error", [ConfigError("mine"), Fenced("another"), Interrupted("Ctrl-C"), ValueError("a mistake")]
)
def test_what_no_spark_would_mend_stays_what_it_is(error: Exception, lives: Any) -> None:
    with pytest.raises(type(error)) as told, translate_spark_errors(lives):
        raise error
    assert told.value is error


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), StorageError("no answer"), BatchFailed("x")])
def test_a_connection_of_the_job_s_own_is_not_spark_s(error: Exception) -> None:
    with pytest.raises(type(error)) as told, translate_spark_errors(LIVES):
        raise error
    assert told.value is error


def _session(context: Any) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context)))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_stopped_spark_is_gone(stopped: bool) -> None:
    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    assert is_alive(_session(context)) is not stopped


def test_nobody_where_spark_was_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    spark = ClientServer(JavaParameters(port=port), PythonParameters(port=0))
    try:
        session = _session(SimpleNamespace(sc=lambda: spark.jvm.System.out))
        assert not is_alive(session)
        with pytest.raises(SparkGone), translate_spark_errors(lambda: is_alive(session)):
            spark.jvm.System.currentTimeMillis()
    finally:
        spark.shutdown()
