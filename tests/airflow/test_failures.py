"""How a task fails and what it returns: retries by error code, the error itself first in the log, values."""

from __future__ import annotations

import logging
import pickle

import pytest
import structlog
from airflow.sdk import RetryAction
from structlog.testing import capture_logs

from stateflow import errors
from stateflow_airflow import failures
from stateflow_airflow.failures import (
    PermanentFailure,
    RetryByErrorCode,
    StateflowTaskFailed,
    TransientFailure,
    hide_tracebacks,
    translate_errors,
)
from stateflow_airflow.run_result import RunResultFile
from tests.airflow.fakes import fails


def action(exception: BaseException) -> RetryAction:
    policy = RetryByErrorCode.deserialize(RetryByErrorCode().serialize())
    return policy.evaluate(exception, try_number=1, max_tries=3).action


def fail(error: errors.StateflowError) -> None:
    with translate_errors():
        raise error


def tree(kind: type[errors.StateflowError]) -> list[type[errors.StateflowError]]:
    return [kind, *(leaf for below in kind.__subclasses__() for leaf in tree(below))]


@pytest.mark.parametrize("kind", tree(errors.StateflowError))
def test_every_error_is_retried_if_its_class_is_retryable(kind: type[errors.StateflowError]) -> None:
    expected = RetryAction.RETRY if kind.retryable else RetryAction.FAIL
    assert action(failures.failure(kind.code, "a message", "a hint", retryable=kind.retryable)) is expected
    # The exit code means the same as the result file; the base class has none of its own.
    if kind is not errors.StateflowError:
        assert action(failures.failure_without_result(kind.exit_code)) is expected


def test_configuration_fencing_and_data_are_never_retried_and_errors_of_others_are_left_to_airflow() -> None:
    assert not any(kind.retryable for kind in (errors.ConfigError, errors.Fenced, errors.DataError))
    assert action(failures.config_failure("a message", "a hint")) is RetryAction.FAIL
    assert action(RuntimeError("no")) is RetryAction.DEFAULT


@pytest.mark.parametrize("exit_code", [None, -9, -15, 0, 1, 101, 125])
def test_crashes_are_retried(exit_code: int | None) -> None:
    assert action(failures.failure_without_result(exit_code)) is RetryAction.RETRY


@pytest.mark.parametrize("retryable", [True, False])
def test_the_reason_of_a_retry_has_code_message_and_hint(retryable: bool) -> None:
    failed = failures.failure("fenced", "lost", "look", retryable=retryable)
    reason = RetryByErrorCode().evaluate(failed, 1, 3).reason
    assert reason == str(failed) and all(part in reason for part in ("fenced", "lost", "look"))


def test_a_failure_survives_pickling() -> None:
    failed = failures.failure("storage", "no answer", "wait", {"host": "h"}, retryable=True)
    again = pickle.loads(pickle.dumps(failed))
    assert (type(again), vars(again)) == (TransientFailure, vars(failed))
    assert (again.code, again.message, again.hint, again.facts) == ("storage", "no answer", "wait", {"host": "h"})


# -- errors of the library in the log ---------------------------------------------------------------------------------


def test_the_log_begins_with_the_error_and_no_stack_of_the_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="airflow.task")
    with fails(PermanentFailure, "corrupt-input", file="/in/a") as failed:
        fail(errors.CorruptInput("an input file cannot be read", hint="replace it", file="/in/a"))
    assert failed.value.__cause__ is None and failed.value.__suppress_context__
    (record,) = (r for r in caplog.records if r.name == "airflow.task")
    assert record.getMessage() == str(failed.value) and record.exc_info is None
    first, last = record.getMessage().splitlines()
    assert all(part in first for part in ("corrupt-input", "an input file cannot be read", "/in/a"))
    assert "replace it" in last


def test_a_mistake_of_the_library_keeps_its_stack() -> None:
    with fails(TransientFailure, "internal") as failed:
        fail(errors.InternalError("should not happen"))
    assert isinstance(failed.value.__cause__, errors.InternalError)


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(errors.CorruptInput("garbled"), False), (errors.InternalError("should not happen"), True)],
)
def test_airflow_logs_a_traceback_of_a_mistake_of_the_library_only(
    error: errors.StateflowError, has_traceback: bool
) -> None:
    with capture_logs() as logged:
        hide_tracebacks()
        log = structlog.get_logger("task").bind()
        try:
            with translate_errors():
                raise error
        except StateflowTaskFailed:
            log.exception("Task failed with exception")
    (event,) = logged
    assert (event["event"], "exc_info" in event) == ("Task failed with exception", has_traceback)


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_run_returns_its_quarantined_files() -> None:
    skipped = [{"source": "rows", "file": "/in/a", "error": "garbled"}]
    returned = RunResultFile(
        {"status": "finished", "error": None, "result": {"quarantined": skipped, "quarantined_count": 1}}
    ).to_xcom()
    assert returned == {"quarantined": skipped, "quarantined_count": 1, "lineage": None}
