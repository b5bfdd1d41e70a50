"""Approval of restores, stops, retentions and claims, against a user who may only trigger DAGs and enter texts."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from airflow.providers.standard.operators import hitl
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped, TaskAwaitingInput
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.operations import dispose, prune_savepoints
from stateflow.operations.job_savepoints import list_all
from stateflow.requesters import airflow_user, by_process
from stateflow_airflow.dags.factory import stateflow_dags
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approvals.approval import (
    ApprovalCheck,
    Decision,
    JobApprovalOperator,
    StateflowApprovalOperator,
    StateflowClaimApprovalOperator,
)
from stateflow_airflow.operators.approvals.command_approval import (
    StateflowRetentionApprovalOperator,
    StateflowStopApprovalOperator,
)
from stateflow_airflow.operators.recovery import StateflowRestoreOperator
from stateflow_airflow.operators.restore_plan import parse_plan
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.operators.retention_limits import Retention, TableMaintenance
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import FakeRun, FakeSpark, fails
from tests.airflow.jobs import job_arguments, new_run, plan_restore, use_submit
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.screens import normalized

PAGES = json.loads((REPOSITORY / "ui" / "src" / "test-requests.json").read_text())["confs"]
ADA = {"id": "ada", "name": "ada"}
AT = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)
STOP: dict[str, Any] = {"name": "last", "origin": "manual", "reason": "upgrade", "drain": "False"}
SEVEN = Retention(checkpoints=4, savepoints=3)


def task(user: str | None = "bob", task_id: str = "approve", date: str = "2026-01-01") -> FakeRun:
    run = new_run(date, task_id=task_id)
    run.user = user
    return run


def asked(operator: JobApprovalOperator, monkeypatch: pytest.MonkeyPatch, run: FakeRun) -> str:
    """The question that a user is asked; empty if the task asks nothing."""
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    try:
        operator.execute(run.next_try())
    except TaskAwaitingInput:
        return str(detail["body"])
    assert not detail
    return ""


def answered(
    operator: JobApprovalOperator, run: FakeRun, option: str = "Approve", user: Any = None, **more: Any
) -> Any:
    """What the task that asks returns; raises TaskAwaitingInput if it asks again."""
    question = operator.question()
    assert question is not None
    run.ti.pushed["asked"] = asdict(question)
    event = {
        "chosen_options": [option],
        "params_input": {"note": "seen"},
        "responded_at": AT,
        "responded_by_user": user or ADA,
        **more,
    }
    return operator.execute_complete(run.next_try(), event)


def everything(job: AccountsJob) -> dict[str, str]:
    return root_files.digests(job.root, job.folder / "tables")


# -- answers to a plan ------------------------------------------------------------------------------------------------


def planned(job: AccountsJob) -> dict[str, Any]:
    return plan_restore(job, str(root_files.kept_entries(job.root)[0].seq))


def asks_to_restore(root: Path, plan: Any, **more: Any) -> StateflowApprovalOperator:
    given: dict[str, Any] = {"subject": "?", "body": "the plan", "params": {"note": None}}
    return StateflowApprovalOperator(task_id="approve", job_root=str(root), plan=plan, **given, **more)


def rejections(job: AccountsJob) -> list[dict[str, Any]]:
    return [record for record in root_files.history(job.root) if record.get("kind") == "rejection"]


def test_a_rejection_is_in_the_history_and_skips_all_downstream_tasks_whatever_their_trigger_rules(
    idle_job: AccountsJob, golden: SnapshotAssertion
) -> None:
    plan, before, run = planned(idle_job), everything(idle_job), task()
    with DAG("a_dag"):
        operator = asks_to_restore(idle_job.root, plan)
        always = EmptyOperator(task_id="always", trigger_rule=TriggerRule.NONE_FAILED)
        operator >> EmptyOperator(task_id="restore") >> always
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        answered(operator, run, "Reject", params_input={"note": "not now"})
    assert set(skipped.value.tasks) == {"restore", "always"}
    (record,) = rejections(idle_job)
    at = AT.isoformat(timespec="milliseconds")
    assert (record["by"], record["note"], record["ended_at"]) == (airflow_user("ada"), "not now", at)
    assert (record["facts"]["requested"], record["requested_by"]) == (plan["plan"]["target_label"], airflow_user("bob"))
    assert run.ti.pushed["return_value"]["chosen_options"] == ["Reject"]
    assert everything(idle_job).items() >= before.items()
    assert normalized(idle_job.command("history").out) == golden


def test_a_retry_records_a_rejection_once_also_after_further_runs_of_the_job(idle_job: AccountsJob) -> None:
    run, plan = task(), planned(idle_job)
    for delivered in (50, 70):
        idle_job.deliver(delivered)
        idle_job.finish()
        answered(asks_to_restore(idle_job.root, plan), run, "Reject")
    assert len(rejections(idle_job)) == 1
    # Another plan, or another DAG run, is another decision.
    answered(asks_to_restore(idle_job.root, planned(idle_job)), run, "Reject")
    answered(asks_to_restore(idle_job.root, plan), task(date="2026-01-02"), "Reject")
    assert len(rejections(idle_job)) == 3


def test_no_answer_in_time_is_a_rejection_and_one_counts_although_it_cannot_be_written(
    idle_job: AccountsJob, tmp_path: Path
) -> None:
    plan = planned(idle_job)
    nobody: dict[str, Any] = {"responded_by_user": None, "timedout": True, "params_input": {}}
    with fails(PermanentFailure, "rejected", by="", note=""):
        answered(asks_to_restore(idle_job.root, plan), task(), "Reject", **nobody)
    (record,) = rejections(idle_job)
    assert record["by"] == by_process("timeout") and record["note"]
    given = answered(asks_to_restore(tmp_path / "gone", plan), task(), "Reject")
    assert (given["chosen_options"], given["responded_by_user"]) == (["Reject"], ADA)


def test_the_question_has_the_deadline_for_an_answer(idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = asks_to_restore(idle_job.root, planned(idle_job), response_timeout=timedelta(days=1))
    before = datetime.now(UTC)
    body = asked(operator, monkeypatch, task())
    limits = [f"{moment + timedelta(days=1):%Y-%m-%d %H:%M} UTC" for moment in (before, datetime.now(UTC))]
    assert "the plan" in body and any(limit in body for limit in limits)


# -- stops ------------------------------------------------------------------------------------------------------------


def asks_to_stop(job: AccountsJob, **more: Any) -> StateflowStopApprovalOperator:
    given = {"subject": "?", "params": {"note": None}, "job_root": str(job.root), **STOP, **more}
    return StateflowStopApprovalOperator(task_id="approve", **given)


def stop(job: AccountsJob, approval: object, run: FakeRun | None = None, **more: Any) -> dict[str, Any]:
    operator = StateflowStopOperator(task_id="stop", approval=approval, **{**job_arguments(job), **STOP, **more})
    return operator.execute((run or task(task_id="stop")).next_try())


def test_a_stop_without_an_approval_of_exactly_this_stop_changes_nothing(idle_job: AccountsJob) -> None:
    before = everything(idle_job)
    yes = answered(asks_to_stop(idle_job), task())
    attacks: list[tuple[object, dict[str, str]]] = [
        (None, {}),
        ("", {}),
        ({"chosen_options": ["Approve"], "responded_by_user": ADA}, {}),
        ({**yes, "chosen_options": ["Reject"]}, {}),
        ({**yes, "responded_by_user": None}, {}),
        (yes, {"drain": "True"}),
        (yes, {"name": "other"}),
        (yes, {"reason": "whim"}),
        (yes, {"origin": "upgrade"}),
    ]
    for approval, more in attacks:
        with fails(PermanentFailure, "not-approved"):
            stop(idle_job, approval, None, **more)
    assert everything(idle_job) == before
    made = stop(idle_job, yes)
    stored = root_files.savepoints(idle_job.root)["last"]
    assert made["origin"] == "stop" and stored["by"] == airflow_user("ada")
    assert (stored["reason"], stored["note"], stored["requested_by"]) == ("upgrade", "seen", airflow_user("bob"))


def test_no_user_is_asked_about_a_drain_that_a_task_with_a_connection_in_cluster_mode_cannot_make(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = SparkSubmit(conn_id="one")
    drain = {"drain": "True", "spark": spark}
    monkeypatch.setenv("AIRFLOW_CONN_ONE", '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "client"}}')
    assert asked(asks_to_stop(idle_job, **drain), monkeypatch, task())
    monkeypatch.setenv(
        "AIRFLOW_CONN_ONE", '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}'
    )
    with fails(PermanentFailure, "config", connection="one", deploy_mode="cluster"):
        asked(asks_to_stop(idle_job, **drain), monkeypatch, task())
    assert asked(asks_to_stop(idle_job, spark=spark), monkeypatch, task())
    # A run in the cluster drains itself.
    idle_job.deliver(60)
    running = idle_job.start("batch.begin:1:stop").wait_stopped()
    assert asked(asks_to_stop(idle_job, **drain), monkeypatch, task())
    running.kill()


def test_an_approval_of_a_stop_is_void_after_another_run_has_started(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_submit(idle_job.folder, monkeypatch)
    yes = answered(asks_to_stop(idle_job), task())
    idle_job.deliver(70)
    idle_job.finish()
    before = everything(idle_job)
    with fails(PermanentFailure, "not-approved", approved=yes["plan_digest"]):
        stop(idle_job, yes)
    assert everything(idle_job) == before
    # A try of this task that was killed has begun the stop, and has changed the newest run by draining the job itself.
    run = task(task_id="stop")
    stop(idle_job, answered(asks_to_stop(idle_job), task()), run)
    again = answered(asks_to_stop(idle_job), task())
    idle_job.deliver(90)
    idle_job.finish()
    assert stop(idle_job, again, run)["name"] == "last"
    run.clear()
    with fails(PermanentFailure, "not-approved"):
        stop(idle_job, again, run)


def test_a_run_that_begins_after_an_approval_is_checked_does_not_end(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes = answered(asks_to_stop(idle_job), task())
    decision = ApprovalCheck.decision

    def slow_decision(*arguments: Any) -> Decision:
        decided = decision(*arguments)
        idle_job.deliver(70)
        idle_job.finish()
        return decided

    monkeypatch.setattr(ApprovalCheck, "decision", slow_decision)
    with fails(PermanentFailure, "plan-outdated"):
        stop(idle_job, yes)
    assert root_files.savepoints(idle_job.root) == {}


def test_a_retried_stop_with_drain_does_not_end_a_run_that_began_meanwhile(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try that was killed had not begun a run of its own."""
    run, yes = task(task_id="stop"), answered(asks_to_stop(idle_job, drain="True"), task())
    with monkeypatch.context() as patch:
        patch.setattr(StateflowStopOperator, "_savepoint_request", _killed)
        with pytest.raises(KeyboardInterrupt):
            stop(idle_job, yes, run, drain="True")
    idle_job.run_to(70)
    with fails(PermanentFailure, "plan-outdated"):
        stop(idle_job, yes, run, drain="True")
    assert root_files.savepoints(idle_job.root) == {}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_approval_of_a_stop_does_not_approve_that_of_another_job(idle_job: AccountsJob, tmp_path: Any) -> None:
    other = AccountsJob(tmp_path / "other", settings=idle_job.settings, variables=idle_job.variables)
    other.run_to(10)
    with fails(PermanentFailure, "not-approved"):
        stop(other, answered(asks_to_stop(idle_job), task()))
    assert root_files.savepoints(other.root) == {}


def test_the_user_who_requests_a_stop_cannot_approve_the_stop_unless_permitted(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    for user in ({"id": "7", "name": "bob"}, {"id": "bob", "name": "Bob B."}):
        with pytest.raises(TaskAwaitingInput):
            answered(asks_to_stop(idle_job), task(), user=user)
        assert detail["body"].startswith("**bob ")
        detail.clear()
    mine = answered(asks_to_stop(idle_job, self_approval=True), task(), user={"id": "7", "name": "bob"})
    with fails(PermanentFailure, "not-approved", by="bob"):
        stop(idle_job, mine)
    assert stop(idle_job, mine, self_approval=True)["name"] == "last"


def test_the_question_shows_what_is_stopped_and_hostile_text_only_as_text(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = asks_to_stop(idle_job, name="x](http://evil) **now**", drain="true", response_timeout=timedelta(days=1))
    run = task()
    body = asked(operator, monkeypatch, run)
    about = run.ti.pushed["asked"]
    assert about["drain"] is True and about["generation"] > 0
    head = root_files.head(idle_job.root)
    assert f"run {head.doc['runs']}" in body and f"checkpoint {head.checkpoint}" in body
    assert r"x\](http" in body
    assert "**now" not in body and "event-time timer" in body and "UTC" in body


def test_the_question_names_the_requester_and_airflow_lets_only_other_approvers_answer(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    approvers = [{"id": name, "name": name} for name in ("ada", "bob")]
    for user, permitted in (("bob", ["ada"]), ("eve", ["ada", "bob"]), (None, ["ada", "bob"])):
        with pytest.raises(TaskAwaitingInput):
            asks_to_stop(idle_job, assigned_users=approvers).execute(task(user).next_try())
        assert [each["id"] for each in detail["assigned_users"]] == permitted
        assert (user or "DAG a_dag") in detail["body"]
    with fails(PermanentFailure, "config", by="ada"):
        asks_to_stop(idle_job, assigned_users=approvers[:1]).execute(task("ada").next_try())
    with pytest.raises(TaskAwaitingInput):
        asks_to_stop(idle_job, assigned_users=approvers, self_approval=True).execute(task("bob").next_try())
    assert detail["assigned_users"] == approvers


# -- retention --------------------------------------------------------------------------------------------------------


def take(job: AccountsJob, name: str) -> None:
    operator = StateflowSavepointOperator(task_id="savepoint", job_root=str(job.root), name=name, origin="periodic")
    operator.execute(new_run(f"savepoint-{name}").next_try())


def asks_to_delete(job: AccountsJob, **more: Any) -> StateflowRetentionApprovalOperator:
    given = {"subject": "?", "params": {"note": None}, "job_root": str(job.root), "configured": SEVEN, **more}
    return StateflowRetentionApprovalOperator(task_id="approve", **given)


def collect(job: AccountsJob, approval: object = None, **more: Any) -> dict[str, Any]:
    given = {"job_root": str(job.root), "configured": SEVEN, "approval": approval, **more}
    return StateflowRetentionOperator(task_id="collect", **given).execute(task(task_id="collect").next_try())


def test_at_least_the_configured_numbers_need_no_approval(saved: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    enough: list[dict[str, Any]] = [{}, {"retain": "4", "savepoints": "3"}, {"retain": "100", "savepoints": "None"}]
    for limits in enough:
        assert asked(asks_to_delete(saved, **limits), monkeypatch, task(None)) == ""
        assert collect(saved, **limits)["deleted_savepoints"] == []
    collect(saved, retain="1", savepoints="1", preview="True")
    assert set(root_files.savepoints(saved.root)) == {"p1", "p2", "p3", "mine"}


@pytest.mark.parametrize(
    ("limits", "lost"),
    [
        ({"retain": "3"}, "checkpoint"),
        ({"savepoints": "2"}, "savepoint p1"),
        ({"savepoints_max_age": timedelta(microseconds=1)}, "savepoint p1, savepoint p2"),
    ],
    ids=["checkpoints", "savepoints", "age"],
)
def test_less_than_the_configured_numbers_is_deleted_with_an_approval_only(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], lost: str
) -> None:
    before = everything(saved)
    run = task()
    assert lost in asked(asks_to_delete(saved, **limits), monkeypatch, run)
    about = run.ti.pushed["asked"]
    assert bool(about["checkpoints"]) == ("retain" in limits) and about["generation"] is None
    listed = [f"checkpoint {id}" for id in about["checkpoints"]] + [f"savepoint {name}" for name in about["savepoints"]]
    assert listed == list(about["loss"])
    yes = answered(asks_to_delete(saved, **limits), task())
    other = {"retain": "1", "savepoints": "1", "savepoints_max_age": "30d"}
    for approval, given in ((None, limits), ({**yes, "plan_digest": ""}, limits), (yes, other)):
        with fails(PermanentFailure, "not-approved"):
            collect(saved, approval, **given)
    with pytest.raises(TaskAwaitingInput):
        answered(asks_to_delete(saved, **limits), task(), user={"id": "bob", "name": "bob"})
    assert everything(saved) == before
    done = collect(saved, yes, **limits)
    assert len(done["retained_checkpoint_ids"]) == int(limits.get("retain", 5)) or "retain" not in limits
    assert "p1" not in root_files.savepoints(saved.root) or "retain" in limits


LESS: dict[str, Any] = {"retain": "1", "savepoints": "1"}


def test_an_approval_does_not_cover_what_was_made_after_the_question(saved: AccountsJob) -> None:
    yes = answered(asks_to_delete(saved, **LESS), task())
    take(saved, "p4")
    before = everything(saved)
    for approval in (yes, {**yes, "loss": [*yes["loss"], "savepoint p3"]}):
        with fails(PermanentFailure, "not-approved", approved=yes["plan_digest"]):
            collect(saved, approval, **LESS)
    assert everything(saved) == before
    again = answered(asks_to_delete(saved, **LESS), task())
    assert collect(saved, again, **LESS)["deleted_savepoints"] == ["p1", "p2", "p3"]


def test_what_is_made_after_an_approval_was_compared_is_kept(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the limits needed no approval before that."""
    monkeypatch.setattr(StateflowRetentionOperator, "_permitted_by", lambda *_: _meanwhile(saved))
    done = collect(saved, **LESS)
    assert done["deleted_savepoints"] == ["p1", "p2"] and set(root_files.savepoints(saved.root)) == {"p3", "p4", "mine"}
    assert len(done["retained_checkpoint_ids"]) == 2
    done = collect(saved, **LESS)
    assert done["deleted_savepoints"] == ["p3"] and len(done["retained_checkpoint_ids"]) == 1


def _meanwhile(job: AccountsJob) -> Decision:
    if "p4" not in root_files.savepoints(job.root):
        job.run_to(60)
        take(job, "p4")
    return Decision("ada")


def test_a_savepoint_is_disposed_of_with_an_approval_only(saved: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any origin, whatever the limits keep, and only the savepoint that the approver has seen."""
    disposal = {"dispose": "mine", "reason": "the upgrade is done"}
    before = everything(saved)
    run = task()
    text = asked(asks_to_delete(saved, **disposal), monkeypatch, run)
    assert "savepoint mine" in text and "the upgrade is done" in text
    assert (run.ti.pushed["asked"]["checkpoints"], run.ti.pushed["asked"]["savepoints"]) == ([], ["mine"])
    yes = answered(asks_to_delete(saved, **disposal), task())
    for approval, given in ((None, disposal), (yes, {"dispose": "p1"}), (yes, {**disposal, "savepoints": "1"})):
        with fails(PermanentFailure, "not-approved"):
            collect(saved, approval, **given)
    assert collect(saved, preview=True, **disposal)["deleted_savepoints"] == ["mine"]
    assert everything(saved) == before
    done = collect(saved, yes, **disposal)
    assert (done["deleted_savepoints"], done["kept_savepoints"]) == (["mine"], ["p1", "p2", "p3"])
    assert done["savepoints_freed_bytes"] > 0
    (noted,) = (each for each in root_files.history(saved.root) if each.get("kind") == "dispose")
    assert (noted["reason"], noted["by"]) == ("the upgrade is done", airflow_user("ada"))
    # A later try has nothing left to do, and another savepoint of this name is another one.
    assert collect(saved, yes, **disposal)["deleted_savepoints"] == []
    # A preview of it has: its user expects to see the savepoint.
    with fails(PermanentFailure, "config", savepoint="mine"):
        collect(saved, preview=True, **disposal)
    take(saved, "mine")
    with fails(PermanentFailure, "not-approved"):
        collect(saved, yes, **disposal)
    with fails(PermanentFailure, "config"):
        answered(asks_to_delete(saved, dispose="none-such"), task())


def retention_of(job: AccountsJob, conf: dict[str, Any]) -> tuple[DAG, dict[str, Any]]:
    """The DAG of a retention with limits and tables, with what a DAG run with this configuration renders."""
    limits = Retention(checkpoints=2, savepoints=1, max_age=timedelta(milliseconds=1))
    described = StateflowJob(name="accounts", root=str(job.root), tables=TableMaintenance())
    made = stateflow_dags(job=described, application="/jobs/job.py", retention=limits)
    dag = next(each for each in made if each.dag_id == "accounts_retention")
    params = {**dag.params, **conf}
    assert params.keys() == dag.params.keys()
    for name in ("approve", "collect"):
        operator: Any = dag.get_task(name)
        for field in ("retain", "savepoints", "savepoints_max_age", "dispose", "reason"):
            setattr(operator, field, operator.render_template(getattr(operator, field), {"params": params}))
    return dag, params


def is_skipped(dag: DAG, name: str, params: dict[str, Any]) -> bool:
    operator: Any = dag.get_task(name)
    try:
        operator._pre_execute_hook({"params": params})
    except AirflowSkipException:
        return True
    return False


@pytest.mark.parametrize("conf", [PAGES["disposal"], {**PAGES["disposal"], "dispose": "p2"}], ids=["mine", "p2"])
def test_a_deletion_that_a_page_requests_deletes_that_savepoint_only(saved: AccountsJob, conf: dict[str, Any]) -> None:
    """Whatever the DAG deletes by default: it would keep two checkpoints and one savepoint, and maintain tables."""
    before, checkpoints = set(root_files.savepoints(saved.root)), collect(saved)["retained_checkpoint_ids"]
    dag, params = retention_of(saved, conf)
    assert all(is_skipped(dag, skipped, params) for skipped in ("savepoint", "tables"))
    asking, collecting = dag.get_task("approve"), dag.get_task("collect")
    assert isinstance(asking, JobApprovalOperator) and isinstance(collecting, StateflowRetentionOperator)
    yes = answered(asking, task())
    assert [each.split()[1] for each in yes["loss"]] == [conf["dispose"]]
    collecting.approval, collecting.preview = yes, False
    done = collecting.execute(task(task_id="collect").next_try())
    assert done["deleted_savepoints"] == [conf["dispose"]] and done["retained_checkpoint_ids"] == checkpoints
    assert set(root_files.savepoints(saved.root)) == before - {conf["dispose"]}


def test_a_retention_that_a_page_requests_has_the_limits_that_it_has_shown(saved: AccountsJob) -> None:
    dag, params = retention_of(saved, PAGES["retention"])
    operator = dag.get_task("collect")
    assert isinstance(operator, StateflowRetentionOperator)
    limits = Retention.of_arguments(operator.retain, operator.savepoints, operator.savepoints_max_age)
    assert limits == Retention(checkpoints=2, savepoints=7, max_age=timedelta(days=30))
    assert is_skipped(dag, "tables", params)


def test_a_shorter_age_than_configured_needs_an_approval(saved: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = {"savepoints_max_age": "1ms", "configured": Retention(savepoints=None, max_age=timedelta(days=100_000))}
    text = asked(asks_to_delete(saved, **shorter), monkeypatch, task())
    assert "savepoint p1" in text and "savepoint p2" in text and "savepoint p3" not in text
    with fails(PermanentFailure, "not-approved"):
        collect(saved, **shorter)


@pytest.mark.parametrize(("name", "expired"), [("p1", ()), ("p2", ("p1",)), ("p3", ("p1",))])
def test_a_disposed_periodic_savepoint_counts_neither_twice_nor_for_the_limits(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch, name: str, expired: tuple[str, ...]
) -> None:
    """With the other two, `savepoints="1"` deletes the older one; with the first one gone, that is `p2`."""
    expired = expired or ("p2",)
    request = {"dispose": name, "savepoints": "1"}
    text = asked(asks_to_delete(saved, **request), monkeypatch, task())
    assert [each for each in ("p1", "p2", "p3") if f"savepoint {each}" in text] == sorted({name, *expired})
    yes = answered(asks_to_delete(saved, **request), task())
    sizes = {report.name: report.size_bytes for report in list_all(str(saved.root))}
    seen, done = collect(saved, preview=True, **request), collect(saved, yes, **request)
    for report in (seen, done):
        assert report["deleted_savepoints"] == [name, *expired]
        assert report["savepoints_freed_bytes"] == sum(sizes[each] for each in (name, *expired))
    assert seen["kept_savepoints"] == done["kept_savepoints"]
    assert set(root_files.savepoints(saved.root)) == {"p1", "p2", "p3", "mine"} - {name, *expired}


def test_another_savepoint_that_gets_the_name_during_the_task_is_kept(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a damaged one in a folder of this name, whose id cannot be read."""
    disposal = {"dispose": "mine", "reason": "the upgrade is done"}
    yes = answered(asks_to_delete(saved, **disposal), task())
    permitted = StateflowRetentionOperator._permitted_by
    before: dict[str, str] = {}

    def replaced(*given: Any) -> Decision:
        decision = permitted(*given)
        dispose(str(saved.root), "mine")
        take(saved, "mine")
        before.update(everything(saved))
        return decision

    with monkeypatch.context() as patch:
        patch.setattr(StateflowRetentionOperator, "_permitted_by", replaced)
        with fails(PermanentFailure, "plan-outdated", name="mine"):
            collect(saved, yes, **disposal)
    assert everything(saved) == before
    damaged = saved.root / "savepoints" / "mine"
    damaged.mkdir()
    (damaged / "_savepoint").write_bytes(b"damaged")
    again = answered(asks_to_delete(saved, **disposal), task())
    assert collect(saved, again, **disposal)["deleted_savepoints"] == ["mine"]
    assert (damaged / "_savepoint").read_bytes() == b"damaged"


def test_a_number_of_the_dag_file_is_configured_and_one_from_a_template_is_not(saved: AccountsJob) -> None:
    assert collect(saved, configured=None, retain=2, savepoints=2)["deleted_savepoints"] == ["p1"]
    operator = StateflowRetentionOperator(
        task_id="collect", job_root=str(saved.root), savepoints="{{ params.savepoints }}", retain="{{ params.retain }}"
    )
    operator.savepoints, operator.retain = "1", "None"
    with fails(PermanentFailure, "not-approved"):
        operator.execute(task(task_id="collect").next_try())
    operator.savepoints, operator.retain = "2", "1"
    with fails(PermanentFailure, "not-approved"):
        operator.execute(task(task_id="collect").next_try())
    assert set(root_files.savepoints(saved.root)) == {"p2", "p3", "mine"}


def test_identity_comes_from_airflow_and_not_from_what_a_user_enters(idle_job: AccountsJob) -> None:
    """`run.user` is what Airflow has authenticated; form and configuration of the DAG run are the attacker's."""
    run = task("mallory", "savepoint")
    context = run.next_try()
    context["params"] = {"by": "ana", "triggering_user_name": "ana"}
    context["dag_run"].conf = {"by": "ana", "triggering_user_name": "ana"}
    operator = StateflowSavepointOperator(task_id="savepoint", job_root=str(idle_job.root), name="mine")
    assert "by" not in operator.template_fields
    operator.execute(context)
    assert root_files.savepoints(idle_job.root)["mine"]["by"] == airflow_user("mallory")


def test_an_approval_of_a_retention_is_void_after_another_run(saved: AccountsJob) -> None:
    limits = {"retain": "1", "savepoints": "2"}
    yes = answered(asks_to_delete(saved, **limits), task())
    # A try that was killed has done a part of it.
    prune_savepoints(str(saved.root), SavepointRule(2))
    assert len(collect(saved, yes, **limits)["retained_checkpoint_ids"]) == 1
    (noted,) = (each for each in root_files.history(saved.root) if each.get("kind") == "retention")
    assert (noted["by"], noted["requested_by"], noted["note"]) == ("airflow-user:ada", "airflow-user:bob", "seen")
    saved.deliver(70)
    saved.finish()
    before = everything(saved)
    # The user who requested it clears the task that deletes: no user is asked again.
    with fails(PermanentFailure, "not-approved", approved=yes["plan_digest"]):
        collect(saved, yes, **limits)
    assert everything(saved) == before


# -- claims of another job's savepoint ---------------------------------------------------------------------------------

CLAIM = "{{ params.claim_mode }}"
"""What a user chooses, before it is rendered."""


@pytest.fixture
def savepoint(idle_job: AccountsJob, tmp_path: Path) -> Path:
    made = idle_job.create_savepoint("mine", "--into", str(tmp_path / "kept"))
    return Path(unquote(made["path"].removeprefix("file://")))


def new_job(savepoint: Path, **more: Any) -> dict[str, Any]:
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


def run_claiming(job: AccountsJob, savepoint: Path, mode: str, approval: object = None, **more: Any) -> FakeRun:
    given = {"job": job.job_file, "run_folder": str(savepoint.parents[1] / "runs"), **new_job(savepoint), **more}
    operator = StateflowRunOperator(task_id="run", **{"claim_mode": CLAIM, **given}, approval=approval)
    operator.claim_mode = mode
    ran = new_run("2026-01-01")
    operator.execute(ran.next_try())
    return ran


def claim_mode_of(spark: FakeSpark) -> str:
    argv = spark.launches()[-1]["argv"]
    return str(argv[argv.index("--claim-mode") + 1])


def test_a_user_s_claim_by_a_new_job_root_needs_an_approval_of_exactly_this_claim(
    spark: FakeSpark, idle_job: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    spark.script(*["finish"] * 3)
    yes = answered(asks_to_claim(savepoint), task())
    elsewhere = new_job(savepoint, job_root=str(tmp_path / "elsewhere"))
    attacks: list[tuple[object, dict[str, Any]]] = [
        (None, {}),
        ({**yes, "plan_digest": ""}, {}),
        ({**yes, "chosen_options": ["Reject"]}, {}),
        ({**yes, "responded_by_user": None}, {}),
        (yes, {"job_root": elsewhere["job_root"]}),
    ]
    for approval, more in attacks:
        with fails(PermanentFailure, "not-approved"):
            run_claiming(idle_job, savepoint, "claim", approval, **more)
    assert spark.launches() == []
    run_claiming(idle_job, savepoint, "claim", yes)
    assert claim_mode_of(spark) == "claim"
    run_claiming(idle_job, savepoint, "no-claim")
    assert claim_mode_of(spark) == "no-claim"
    # The DAG file itself needs none.
    run_claiming(idle_job, savepoint, "claim", claim_mode="claim")
    assert claim_mode_of(spark) == "claim"
    with fails(PermanentFailure, "config", claim_mode="perhaps"):
        run_claiming(idle_job, savepoint, "perhaps")


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
    for approval in (None, {**approved, "plan_digest": parse_plan(unclaimed).digest}):
        with fails(PermanentFailure, "not-approved"):
            restore(approval)
    assert root_files.claims(savepoint) == []
    restore({**approved, "plan_digest": parse_plan(planned).digest})
    assert root_files.claims(savepoint)[-1][:2] == ("claimed", other.job_uuid)
    other.end_all()
