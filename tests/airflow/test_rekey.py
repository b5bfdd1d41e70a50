"""The task that copies a savepoint with another max parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from stateflow.requesters import airflow_user
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.savepoint import StateflowRekeyOperator
from tests.airflow.fakes import fails
from tests.airflow.jobs import new_run
from tests.support import root_files
from tests.support.job_fixture import AccountsJob


@pytest.fixture
def copies(idle_job: AccountsJob, tmp_path: Path) -> Path:
    """The folder for copies; the job has the savepoint ``mine``."""
    idle_job.create_savepoint("mine")
    return tmp_path / "copies"


def rekey(job: AccountsJob, copies: Path, /, **more: Any) -> StateflowRekeyOperator:
    given = {"savepoint": "mine", "max_parallelism": "7", "into": str(copies), "locations": [str(copies)], **more}
    return StateflowRekeyOperator(task_id="rekey", job_root=str(job.root), **given)


def test_a_task_copies_a_savepoint_and_another_try_returns_the_same_copy(idle_job: AccountsJob, copies: Path) -> None:
    run = new_run("2026-01-01")
    run.user = "ada"
    made: dict[str, Any] = rekey(idle_job, copies, name="seven", reason="fewer groups").execute(run.next_try())
    folder = Path(unquote(made["path"].removeprefix("file://")))
    assert folder.parent == copies
    root_files.check_savepoint(folder)
    document = root_files.unsealed((folder / "_savepoint").read_bytes())[0]
    assert (document["max_parallelism"], document["name"], document["reason"]) == (7, "seven", "fewer groups")
    assert (document["by"], made["job"]) == (airflow_user("ada"), document["job"])
    assert rekey(idle_job, copies, name="seven").execute(run.next_try()) == made


def test_a_path_of_a_savepoint_may_be_given(idle_job: AccountsJob, copies: Path) -> None:
    (folder,) = (idle_job.root / "savepoints").iterdir()
    made: dict[str, Any] = rekey(idle_job, copies, savepoint=str(folder)).execute(new_run("2026-01-01").next_try())
    assert made["name"] == "mine"


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"max_parallelism": "many"}, {"max_parallelism": "many"}),
        ({"max_parallelism": "0"}, {"max_parallelism": "0"}),
        ({"max_parallelism": ""}, {}),
        ({"savepoint": ""}, {}),
        ({"savepoint": "other"}, {"name": "other"}),
        ({"into": "copies"}, {"into": "copies"}),
    ],
)
def test_arguments_without_a_meaning_are_permanent_failures(
    idle_job: AccountsJob, copies: Path, given: dict[str, Any], fact: dict[str, Any]
) -> None:
    with fails(PermanentFailure, "config", **fact):
        rekey(idle_job, copies, **given).execute(new_run("2026-01-01").next_try())
    assert not copies.exists()


@pytest.mark.parametrize("inside", [True, False])
def test_the_copy_is_in_an_allowed_location_outside_of_the_job_root(
    idle_job: AccountsJob, copies: Path, inside: bool
) -> None:
    into = idle_job.root / "copies" if inside else copies
    with fails(PermanentFailure, "config"):
        rekey(idle_job, copies, into=str(into), locations=[]).execute(new_run("2026-01-01").next_try())
    assert not into.exists()
