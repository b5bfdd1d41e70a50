"""What a task returns and how it fails: values for programs, and the error's own words first."""

from __future__ import annotations

import logging

import pytest

from stateflow.errors import CorruptInput, InternalError
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
