"""The translation of Spark's errors."""

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
from tests.support.errors import raises

GONE = Py4JNetworkError("Answer from Java side is empty")
CALL = Py4JError("An error occurred while calling o1.x")
ABORTED = PySparkException("Job aborted\n\tat org.apache")
OWN = [ConnectionRefusedError(111, "refused"), StorageError("no answer"), BatchFailed("a batch failed")]


@pytest.mark.parametrize("error", [GONE, CALL, ABORTED, *OWN], ids=repr)
def test_any_failure_without_a_living_spark_is_spark_gone(error: Exception) -> None:
    with raises(SparkGone) as caught, translate_spark_errors(lambda: False):
        raise error
    assert caught.value.retryable and not is_restartable(caught.value)
    assert str(error)[:11] in str(caught.value.facts["reason"])


@pytest.mark.parametrize("error", [CALL, ABORTED], ids=repr)
def test_a_failure_of_a_living_spark_is_restartable(error: Exception) -> None:
    with raises(BatchFailed, reason=str(error).partition("\n")[0]) as caught, translate_spark_errors(lambda: True):
        raise error
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


def _session(context: Any) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context)))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_session_is_alive_until_its_context_is_stopped(stopped: bool) -> None:
    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    assert is_alive(_session(context)) is not stopped


def test_a_session_whose_jvm_does_not_listen_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    spark = ClientServer(JavaParameters(port=port), PythonParameters(port=0))
    try:
        session = _session(SimpleNamespace(sc=lambda: spark.jvm.System.out))
        assert not is_alive(session)
        with raises(SparkGone), translate_spark_errors(lambda: is_alive(session)):
            spark.jvm.System.currentTimeMillis()
    finally:
        spark.shutdown()
