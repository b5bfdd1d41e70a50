"""Claim modes in Airflow: what a form offers, and that a user's claim of another job's savepoint needs an approval."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from airflow.sdk import Param

from stateflow_airflow.dags.factory import stateflow_dags
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approvals.approval import StateflowClaimApprovalOperator
from stateflow_airflow.operators.recovery import StateflowRestoreOperator
from stateflow_airflow.operators.restore_plan import parse_plan
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.fakes import FakeRun, FakeSpark, fails
from tests.airflow.jobs import job_arguments, new_run, plan_restore
from tests.airflow.test_command_approval import ADA, answered, asked, task
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

CLAIM = "{{ params.claim_mode }}"
"""What a user chooses, before it is rendered."""


@pytest.fixture
def savepoint(idle_job: AccountsJob, tmp_path: Path) -> Path:
    """The folder of a job's savepoint, outside of its job root."""
    made = idle_job.create_savepoint("mine", "--into", str(tmp_path / "kept"))
    return Path(unquote(made["path"].removeprefix("file://")))


def new_job(savepoint: Path, **more: Any) -> dict[str, Any]:
    """The arguments of tasks that begin a job root with the savepoint."""
    folder = savepoint.parents[1]
    return {
        "job_root": str(folder / "new"),
        "from_savepoint": str(savepoint),
        "locations": [str(folder / "kept")],
        **more,
    }


def asks_to_claim(savepoint: Path, mode: str = "claim", **more: Any) -> StateflowClaimApprovalOperator:
    given = {"subject": "?", "params": {"note": None}, **new_job(savepoint), **more}
    return StateflowClaimApprovalOperator(task_id="approve", claim_mode=mode, **given)


def run(job: AccountsJob, savepoint: Path, mode: str, approval: object = None, **more: Any) -> FakeRun:
    """Executes the task that runs a job, with a claim mode that a user has chosen."""
    given = {"job": job.job_file, "run_folder": str(savepoint.parents[1] / "runs"), **new_job(savepoint), **more}
    operator = StateflowRunOperator(task_id="run", **{"claim_mode": CLAIM, **given}, approval=approval)
    operator.claim_mode = mode
    ran = new_run("2026-01-01")
    operator.execute(ran.next_try())
    return ran


def claim_mode_of(spark: FakeSpark) -> str:
    """The claim mode on the command line of the newest run."""
    argv = spark.launches()[-1]["argv"]
    return str(argv[argv.index("--claim-mode") + 1])


# -- new job roots ----------------------------------------------------------------------------------------------------


def test_a_user_s_claim_by_a_new_job_root_needs_an_approval_of_exactly_this_claim(
    spark: FakeSpark, idle_job: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    spark.script(*["finish"] * 3)
    yes = answered(asks_to_claim(savepoint), task())
    elsewhere = new_job(savepoint, job_root=str(tmp_path / "elsewhere"))
    attacks: list[tuple[object, dict[str, Any]]] = [
        (None, {}),
        ({**yes, "plan": ""}, {}),
        ({**yes, "chosen_options": ["Reject"]}, {}),
        ({**yes, "responded_by_user": None}, {}),
        (yes, {"job_root": elsewhere["job_root"]}),
    ]
    for approval, more in attacks:
        with fails(PermanentFailure, "not-approved"):
            run(idle_job, savepoint, "claim", approval, **more)
    assert spark.launches() == []
    run(idle_job, savepoint, "claim", yes)
    assert claim_mode_of(spark) == "claim"
    run(idle_job, savepoint, "no-claim")
    assert claim_mode_of(spark) == "no-claim"
    # The DAG file itself needs none.
    run(idle_job, savepoint, "claim", claim_mode="claim")
    assert claim_mode_of(spark) == "claim"
    with fails(PermanentFailure, "config", claim_mode="perhaps"):
        run(idle_job, savepoint, "perhaps")


def test_a_question_names_the_savepoint_and_only_a_claim_that_happens_is_asked_about(
    monkeypatch: pytest.MonkeyPatch, idle_job: AccountsJob, savepoint: Path
) -> None:
    body = asked(asks_to_claim(savepoint), monkeypatch, task())
    assert savepoint.as_uri() in body and str(new_job(savepoint)["job_root"]) in body
    assert asked(asks_to_claim(savepoint, "no-claim"), monkeypatch, task()) == ""
    with fails(PermanentFailure, "config"):
        asks_to_claim(savepoint, locations=[]).question()
    # A job root that has begun ignores the savepoint.
    new = AccountsJob(idle_job.folder, idle_job.settings, root_folder=Path(new_job(savepoint)["job_root"]))
    tables = ("--set", f"job.tables={savepoint.parents[1] / 'tables'}")
    new.command("run", new.job_file, "--from-savepoint", str(savepoint), *tables, with_job=True).check()
    assert asked(asks_to_claim(savepoint), monkeypatch, task()) == ""


@pytest.mark.parametrize(
    ("given", "is_offered"),
    [
        ({"from_savepoint": "/kept/mine"}, True),
        ({"from_savepoint": "/kept/mine", "claim_mode": "claim"}, False),
        ({}, False),
    ],
    ids=["savepoint", "mode of the file", "no savepoint"],
)
def test_a_run_form_offers_the_claim_mode_of_a_job_that_begins_with_a_savepoint(
    given: dict[str, Any], is_offered: bool
) -> None:
    dag = stateflow_dags(job=StateflowJob(name="orders", root="/data/orders", run=given), application="/a.py")[0]
    ran = dag.get_task("run")
    assert isinstance(ran, StateflowRunOperator)
    assert [t.task_id for t in dag.tasks if t.task_id != "run"] == (["approve_claim"] if is_offered else [])
    assert ("claim_mode" in dag.params) == is_offered
    if is_offered:
        form = dag.params.get_param("claim_mode")
        assert isinstance(form, Param) and (form.value, form.schema["enum"]) == ("no-claim", ["no-claim", "claim"])
        assert ran.upstream_task_ids == {"approve_claim"} and ran.needs_approval
        asks = dag.get_task("approve_claim")
        assert isinstance(asks, StateflowClaimApprovalOperator)
        operators: list[Any] = [ran, asks]
        for operator in operators:
            for params, mode in (({"claim_mode": "claim"}, "claim"), ({}, "no-claim")):
                assert operator.render_template(operator.claim_mode, {"params": params}) == mode


# -- restores ---------------------------------------------------------------------------------------------------------


def test_a_restore_claims_another_job_s_savepoint_only_after_an_approval_of_that(
    idle_job: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", settings=idle_job.settings, variables=idle_job.variables)
    other.run_to(10)
    more: dict[str, Any] = {"locations": [str(savepoint.parent)]}
    options = {"from_other_job": "true", **more}
    unclaimed = plan_restore(other, str(savepoint), **options)
    planned = plan_restore(other, str(savepoint), claim_mode="claim", **options)
    assert [each["plan"]["claim_mode"] for each in (unclaimed, planned)] == ["no-claim", "claim"]
    assert "claims the savepoint" in planned["markdown"] and "claims the savepoint" not in unclaimed["markdown"]

    def restore(approval: object) -> None:
        operator = StateflowRestoreOperator(
            task_id="restore", plan=planned, approval=approval, **job_arguments(other), **more
        )
        operator.execute(new_run("2026-01-01", task_id="restore").next_try())

    approved = {"chosen_options": ["Approve"], "responded_by_user": ADA}
    for approval in (None, {**approved, "plan": parse_plan(unclaimed).digest}):
        with fails(PermanentFailure, "not-approved"):
            restore(approval)
    assert root_files.claims(savepoint) == []
    restore({**approved, "plan": parse_plan(planned).digest})
    assert root_files.claims(savepoint)[-1][:2] == ("claimed", other.job_uuid)
    other.end_all()


def test_a_plan_refuses_an_unknown_claim_mode(idle_job: AccountsJob) -> None:
    with fails(PermanentFailure, "config", claim_mode="both"):
        plan_restore(idle_job, "latest", claim_mode="both")
