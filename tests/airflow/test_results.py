"""What a task returns and how it fails: values for programs, and the error's own words first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from stateflow.errors import CorruptInput, InternalError, StateflowError
from stateflow_airflow.failures import PermanentFailure, TransientFailure
from stateflow_airflow.results import RunResult, with_offsets
from stateflow_airflow.task_requests import told_as_failures


def test_positions_are_values() -> None:
    given = {
        "rows_in": 3,
        "offsets": {"files": '{"logOffset":4}', "kafka": '{"topic":{"0":7}}', "new": "-", "own": "row 5"},
    }
    assert with_offsets(given) == {
        "rows_in": 3,
        "offsets": {"files": {"logOffset": 4}, "kafka": {"topic": {"0": 7}}, "new": None, "own": "row 5"},
    }


def test_a_run_returns_what_it_skipped() -> None:
    skipped = [{"source": "rows", "file": "/in/a", "error": "garbled"}]
    returned = RunResult({"status": "finished", "quarantined": skipped, "quarantined_count": 1}).returned()
    assert (returned["quarantined"], returned["quarantined_count"], returned["offsets"]) == (skipped, 1, {})


def test_the_log_begins_with_the_error_s_sentence_and_no_stack_of_the_library(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="airflow.task")
    with pytest.raises(PermanentFailure) as failed, told_as_failures():
        raise CorruptInput("an input file cannot be read", hint="replace it", file="/in/a")
    assert failed.value.__cause__ is None and failed.value.__suppress_context__
    (record,) = (r for r in caplog.records if r.name == "airflow.task")
    assert record.getMessage() == str(failed.value) and record.exc_info is None
    assert record.getMessage().startswith("[corrupt-input] an input file cannot be read")


def test_a_mistake_of_the_library_keeps_its_stack() -> None:
    with pytest.raises(TransientFailure) as failed, told_as_failures():
        raise InternalError("should not happen")
    assert isinstance(failed.value.__cause__, InternalError)


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    """What structlog's loggers are given, as Airflow's in a task."""
    events: list[dict[str, Any]] = []

    def keep(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        events.append(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep])
    yield events
    structlog.configure(**before)


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(CorruptInput("garbled"), False), (InternalError("should not happen"), True)]
)
def test_airflow_logs_a_traceback_of_a_mistake_of_the_library_only(
    error: StateflowError, has_traceback: bool, logged: list[dict[str, Any]]
) -> None:
    log = structlog.get_logger("task").bind()
    try:
        with told_as_failures():
            raise error
    except (PermanentFailure, TransientFailure):
        log.exception("Task failed with exception")
    (event,) = logged
    assert (event["event"], "exc_info" in event) == ("Task failed with exception", has_traceback)
