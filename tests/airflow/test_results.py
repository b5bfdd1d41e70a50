"""What a task returns and how it fails: values for programs, and the error itself first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from stateflow.errors import CorruptInput, InternalError, StateflowError
from stateflow_airflow.failures import PermanentFailure, TransientFailure, translate_errors
from stateflow_airflow.launches.run_result import RunResult, with_offsets
from tests.airflow.failing import fails


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


def test_the_log_begins_with_the_error_and_no_stack_of_the_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="airflow.task")
    with fails(PermanentFailure, "corrupt-input", file="/in/a") as failed, translate_errors():
        raise CorruptInput("an input file cannot be read", hint="replace it", file="/in/a")
    assert failed.value.__cause__ is None and failed.value.__suppress_context__
    (record,) = (r for r in caplog.records if r.name == "airflow.task")
    assert record.getMessage() == str(failed.value) and record.exc_info is None
    first, last = record.getMessage().splitlines()
    assert all(part in first for part in ("corrupt-input", "an input file cannot be read", "/in/a"))
    assert "replace it" in last


def test_a_mistake_of_the_library_keeps_its_stack() -> None:
    with fails(TransientFailure, "internal") as failed, translate_errors():
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
        with translate_errors():
            raise error
    except (PermanentFailure, TransientFailure):
        log.exception("Task failed with exception")
    (event,) = logged
    assert (event["event"], "exc_info" in event) == ("Task failed with exception", has_traceback)
