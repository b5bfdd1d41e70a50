"""The operator that fails a DAG when the state of two snapshots differs, over a real job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.runtime.task import store_cache
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.validation.diff import StateflowDiffOperator
from tests.airflow.fakes import FakeRun, fails
from tests.support.cli_fixture import CliFixture


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CliFixture]:
    """A job with a savepoint of three keys, of which a later batch has changed one."""
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.run()
    create_savepoint(job.root, SavepointRequest(name="before", from_head=True))
    job.job.write_text(job.job.read_text().replace("\n\ndef source", '\nROWS += [Row("a", 5)]\n\n\ndef source'))
    job.run()
    yield job
    store_cache.close_all()


def _execute(job: CliFixture, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"job_root": job.root, "snapshot": "before", **more}
    operator = StateflowDiffOperator(task_id="compare", **arguments)
    return dict(operator.execute(FakeRun().next_try()))


def test_a_difference_beyond_the_limits_fails_the_task_with_the_states_and_keys(job: CliFixture) -> None:
    with fails(PermanentFailure, "state-differs") as caught:
        _execute(job)
    facts: dict[str, Any] = dict(caught.value.facts)
    assert [(state["operator"], state["state"], state["changed"]) for state in facts["states"]] == [("sum", "total", 1)]
    assert [(row["key"], row["change"]) for row in facts["changes"]] == [('["a"]', "changed")]


@pytest.mark.parametrize(
    "allowed",
    [
        {"max_keys": "1"},
        {"max_keys": None, "max_fraction": "0.34"},
        {"ignored": "sum.total"},
        {"ignored": ["sum"]},
        {"snapshot": "latest"},
        {"max_keys": "None"},
    ],
)
def test_what_is_allowed_succeeds(job: CliFixture, allowed: dict[str, Any]) -> None:
    [state] = _execute(job, **allowed)["states"]
    assert state["changed"] == (0 if allowed.get("snapshot") == "latest" else 1)


def test_another_root_is_compared_if_its_location_is_allowed(job: CliFixture) -> None:
    [folder] = (job.folder / "root" / "savepoints").iterdir()
    assert _execute(job, other_root=str(folder), locations=[str(folder.parent)])["keys"] == 0
    with fails(PermanentFailure, "config"):
        _execute(job, other_root=str(job.folder / "elsewhere"), locations=[str(folder.parent)])


@pytest.mark.parametrize(
    "wrong", [{"max_keys": "many"}, {"max_keys": "-1"}, {"max_fraction": "2"}, {"operators": ["none"]}]
)
def test_a_wrong_argument_is_not_retried(job: CliFixture, wrong: dict[str, Any]) -> None:
    with fails(PermanentFailure, "config"):
        _execute(job, **wrong)
