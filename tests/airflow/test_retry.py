"""Retries by error code, for every error that stateflow raises and every way a run can end without a word."""

from __future__ import annotations

import pickle

import pytest
from airflow.sdk import RetryAction

from stateflow import errors
from stateflow_airflow.failures import (
    StateflowTaskFailed,
    TransientFailure,
    ended_without_result,
    failure,
    misconfigured,
)
from stateflow_airflow.retry import RetryByErrorCode


def action(exception: BaseException) -> RetryAction:
    return RetryByErrorCode().evaluate(exception, try_number=1, max_tries=3).action


def tree(kind: type[errors.StateflowError]) -> list[type[errors.StateflowError]]:
    return [kind, *(leaf for below in kind.__subclasses__() for leaf in tree(below))]


@pytest.mark.parametrize("kind", tree(errors.StateflowError))
def test_every_error_is_retried_if_its_class_is_retryable(kind: type[errors.StateflowError]) -> None:
    raised = failure(kind.code, "a message", "a hint", retryable=kind.retryable)
    assert action(raised) is (RetryAction.RETRY if kind.retryable else RetryAction.FAIL)


def test_configuration_fencing_and_data_are_never_retried() -> None:
    for kind in (errors.ConfigError, errors.Fenced, errors.DataError):
        assert not kind.retryable
    assert action(misconfigured("a message", "a hint")) is RetryAction.FAIL


@pytest.mark.parametrize("kind", tree(errors.StateflowError))
def test_exit_code_means_the_same_as_the_result_file(kind: type[errors.StateflowError]) -> None:
    if kind is not errors.StateflowError:
        expected = RetryAction.RETRY if kind.retryable else RetryAction.FAIL
        assert action(ended_without_result(kind.exit_code)) is expected


@pytest.mark.parametrize("exit_code", [None, -9, -15, 0, 1, 101, 125])
def test_crashes_are_retried(exit_code: int | None) -> None:
    assert action(ended_without_result(exit_code)) is RetryAction.RETRY


@pytest.mark.parametrize("retryable", [True, False])
def test_reason_carries_code_message_and_hint(retryable: bool) -> None:
    failed = failure("fenced", "lost", "look", retryable=retryable)
    reason = RetryByErrorCode().evaluate(failed, 1, 3).reason
    assert reason == str(failed) and all(part in reason for part in ("fenced", "lost", "look"))


def test_errors_of_others_are_left_to_airflow() -> None:
    assert action(RuntimeError("no")) is RetryAction.DEFAULT


def test_policy_survives_serialization() -> None:
    assert isinstance(RetryByErrorCode.deserialize(RetryByErrorCode().serialize()), RetryByErrorCode)


def test_a_failure_without_a_hint_is_one_line() -> None:
    (line,) = str(StateflowTaskFailed("storage", "no answer")).splitlines()
    assert "storage" in line and "no answer" in line


def test_a_failure_survives_pickling() -> None:
    failed = pickle.loads(pickle.dumps(failure("storage", "no answer", "wait", {"host": "h"}, retryable=True)))
    assert (type(failed), failed.code, failed.message, failed.hint, failed.facts) == (
        TransientFailure,
        "storage",
        "no answer",
        "wait",
        {"host": "h"},
    )
