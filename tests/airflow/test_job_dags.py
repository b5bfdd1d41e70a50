"""The DAGs that a job gets: who holds its pool, what follows on what, what is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, Param
from airflow.sdk.exceptions import AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization
from syrupy.assertion import SnapshotAssertion

from stateflow_airflow.dags import Retention, StateflowJob, TableMaintenance, stateflow_dags
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.base import require_paused
from stateflow_airflow.operators.retention import StateflowTablesOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.fakes import FakeDag, fails
from tests.support.screens import normalized

JOB = StateflowJob(
    name="orders",
    root="/data/jobs/orders",
    settings={"job.table": "/data/orders"},
    run={"retries": 5, "outlets": [Asset("mine")]},
    params={"day": Param("today", type="string")},
    run_params={"failpoint": Param(None, type=["null", "string"])},
    approvers=["ada"],
)


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    made = stateflow_dags(
        job=JOB,
        application="/opt/jobs/orders.py",
        schedule="@hourly",
        savepoints="0 3 * * *",
        retention=Retention(checkpoints=5, savepoints=3, max_age=timedelta(days=9)),
    )
    return {dag.dag_id: dag for dag in made}


def task(dags: dict[str, DAG], path: str) -> Any:
    dag_id, task_id = path.split(".")
    return dags[dag_id].get_task(task_id)


def test_a_job_gets_four_dags_that_never_overlap_with_themselves(dags: dict[str, DAG]) -> None:
    # Without a schedule, a DAG is created unpaused; None: as Airflow is configured.
    found: dict[str, tuple[object, bool | None]] = {
        name: (dag.schedule, dag.is_paused_upon_creation) for name, dag in dags.items()
    }
    assert found == {
        "orders": ("@hourly", None),
        "orders_savepoint": (None, False),
        "orders_retention": ("0 3 * * *", None),
        "orders_recovery": (None, False),
    }
    assert all((dag.max_active_runs, dag.catchup) == (1, False) and dag.doc_md for dag in dags.values())
    for dag in dags.values():
        DagSerialization.to_dict(dag)


@pytest.mark.parametrize("of_the_job", [{}, {"run.drain": False}, {"run.drain": True}], ids=["unset", "no", "yes"])
def test_a_run_drains_when_the_form_or_the_job_requests_a_drain(of_the_job: dict[str, bool]) -> None:
    job = StateflowJob(name="orders", root="/data/orders", settings={"job.table": "/t", **of_the_job})
    run = stateflow_dags(job=job, application="/a.py")[0].get_task("run")
    assert isinstance(run, StateflowRunOperator)
    for params in ({"drain": True}, {"drain": False}, {}):
        drains = params.get("drain") or of_the_job.get("run.drain")
        rendered = run.render_template(run.settings, {"params": params})
        assert rendered == {"job.table": "/t", "run.drain": "true" if drains else "false"}


def test_a_stop_gets_drain_from_the_form_and_a_savepoint_refuses_a_drain(dags: dict[str, DAG]) -> None:
    stop = task(dags, "orders_savepoint.stop")
    assert stop.render_template(stop.drain, {"params": {"drain": True}}) == "True"
    assert stop.spark is JOB.spark and stop.job == "/opt/jobs/orders.py"
    with fails(PermanentFailure, "config", drain=True, stop=False):
        task(dags, "orders_savepoint.savepoint")._pre_execute_hook({"params": {"stop": False, "drain": True}})


@pytest.mark.parametrize(
    ("given", "users"),
    [({}, set()), ({"pool": "heavy"}, {"orders.run", "orders_recovery.restore", "orders_recovery.run"})],
)
def test_only_tasks_that_run_or_restore_the_job_use_its_pool_and_none_has_to_be_made(
    given: dict[str, Any], users: set[str]
) -> None:
    made = stateflow_dags(job=StateflowJob(name="orders", root="/data/orders", **given), application="/a.py")
    pools = {f"{dag.dag_id}.{t.task_id}": t.pool for dag in made for t in dag.tasks}
    assert {path for path, pool in pools.items() if pool != "default_pool"} == users
    assert set(pools.values()) <= {"default_pool", *given.values()}


def test_events_name_the_checkpoint_and_the_savepoint(dags: dict[str, DAG]) -> None:
    outlets = {f"{dag.dag_id}.{t.task_id}": [o.uri for o in t.outlets] for dag in dags.values() for t in dag.tasks}
    assert {path: uris for path, uris in outlets.items() if uris} == {
        "orders.run": ["stateflow://orders/checkpoint", "mine"],
        "orders_recovery.run": ["stateflow://orders/checkpoint", "mine"],
        "orders_savepoint.savepoint": ["stateflow://orders/savepoint"],
        "orders_savepoint.stop": ["stateflow://orders/savepoint"],
        "orders_retention.savepoint": ["stateflow://orders/savepoint"],
    }


def test_a_recovery_waits_for_an_approval_between_plan_and_restore(dags: dict[str, DAG]) -> None:
    dag = dags["orders_recovery"]
    order = ["plan", "approve", "restore", "verify", "run"]
    assert all(after in dag.get_task(before).downstream_task_ids for before, after in pairwise(order))
    # Every one is skipped with the one before it.
    assert {t.trigger_rule for t in dag.tasks} == {"all_success"}
    approve = dag.get_task("approve")
    assert isinstance(approve, ApprovalOperator)
    assert approve.defaults == ["Reject"] and approve.retries
    assert approve.assigned_users == [{"id": "ada", "name": "ada"}]
    assert "markdown" in str(approve.body) and approve.response_timeout


@pytest.mark.parametrize("run", [True, False], ids=["run", "no-run"])
def test_the_question_has_plan_reason_and_whether_a_run_follows(
    dags: dict[str, DAG], run: bool, golden: SnapshotAssertion
) -> None:
    approve = task(dags, "orders_recovery.approve")
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"markdown": "the plan"})
    body = approve.render_template(approve.body, {"ti": ti, "params": {"reason": "wrong", "run": run}})
    assert normalized(body) == golden


def required(dag: DAG) -> set[str]:
    """What Airflow's form cannot be sent without: a param that has no value, or an empty text, and may not be null."""
    params = {name: dag.params.get_param(name) for name in dag.params}
    return {n for n, p in params.items() if "null" not in p.schema["type"] and (not p.has_value or p.value == "")}


def test_a_recovery_form_has_the_fields_of_its_templates_and_alone_requires_an_entry(dags: dict[str, DAG]) -> None:
    assert {name: required(dag) for name, dag in dags.items() if required(dag)} == {
        "orders_recovery": {"target", "reason"}
    }
    params = dags["orders_recovery"].params
    # No failpoint.
    changes = {"drop", "keep_tables", "from_other_job", "new_names", "source_positions", "claim_mode"}
    assert set(params) == {"target", "sinks", "reason", "run", "day", "expected_plan", *changes}
    assert list(params)[-1] == "expected_plan"
    assert params.get_param("sinks").schema["enum"] == ["restore", "keep"]
    assert set(dags["orders"].params) == {"drain", "day", "failpoint"}


@pytest.mark.parametrize(
    ("path", "param", "skips_if"),
    [
        ("orders_savepoint.savepoint", "stop", True),
        ("orders_savepoint.approve", "stop", False),
        ("orders_retention.approve", "preview", True),
        ("orders_retention.savepoint", "preview", True),
        ("orders_retention.savepoint", "dispose", True),
        ("orders_recovery.run", "run", False),
    ],
)
def test_a_task_that_the_form_does_not_request_is_skipped(
    dags: dict[str, DAG], path: str, param: str, skips_if: bool
) -> None:
    hook = task(dags, path)._pre_execute_hook
    hook({"params": {param: not skips_if}})
    with pytest.raises(AirflowSkipException):
        hook({"params": {param: skips_if}})


def test_a_blank_name_of_a_savepoint_to_delete_does_not_skip_the_periodic_savepoint(dags: dict[str, DAG]) -> None:
    hook = task(dags, "orders_retention.savepoint")._pre_execute_hook
    for blank in (None, "", "  ", "\n"):
        hook({"params": {"preview": False, "dispose": blank}})
    with pytest.raises(AirflowSkipException):
        hook({"params": {"preview": False, "dispose": " before-v2 "}})


def test_retention_works_also_when_no_savepoint_could_be_taken(dags: dict[str, DAG]) -> None:
    collect, done = task(dags, "orders_retention.collect"), task(dags, "orders_retention.done")
    rules = [task(dags, f"orders_retention.{name}").trigger_rule for name in ("approve", "collect", "done")]
    assert rules == ["all_done", "none_failed", "none_failed"]
    assert collect.upstream_task_ids == {"approve"} and task(dags, "orders_savepoint.stop").upstream_task_ids == {
        "approve"
    }
    assert done.upstream_task_ids == {"savepoint", "collect"}
    given = {"params": dict(dags["orders_retention"].params)}
    assert collect.render_template(collect.savepoints_max_age, given) == "9d"
    savepoint = task(dags, "orders_retention.savepoint")
    # Otherwise a user who triggers the DAG often enough would have every older periodic savepoint deleted.
    for user, origin in ((None, "periodic"), ("mallory", "manual")):
        dag_run = SimpleNamespace(triggering_user_name=user)
        assert savepoint.render_template(savepoint.origin, {"dag_run": dag_run}) == origin
    params = dags["orders_retention"].params
    assert (params["retain"], params["savepoints"], params["preview"]) == (5, 3, False)


def test_tables_are_maintained_after_the_retention_if_the_job_says_how(dags: dict[str, DAG]) -> None:
    assert "tables" not in dags["orders_retention"].task_ids and "tables" not in dags["orders_retention"].params
    upkeep = TableMaintenance(older_than=timedelta(days=2), optimize=False, sinks=("totals",))
    made = stateflow_dags(job=replace(JOB, tables=upkeep), application="/opt/jobs/orders.py")
    dag = next(dag for dag in made if dag.dag_id == "orders_retention")
    DagSerialization.to_dict(dag)
    tables = dag.get_task("tables")
    assert isinstance(tables, StateflowTablesOperator)
    # Files that the retention has released are deleted by the same run of the DAG; a failure ends it as failed.
    assert tables.upstream_task_ids == {"collect"} and tables.downstream_task_ids == {"done"}
    assert (tables.job, tables.job_root, tables.settings) == ("/opt/jobs/orders.py", JOB.root, JOB.settings)
    assert (tables.older_than, tables.tables, tables.optimize) == (timedelta(days=2), ("totals",), False)
    for preview in (True, False):
        assert tables.render_template(tables.preview, {"params": {"preview": preview}}) == str(preview)
    assert dag.params["tables"] is True
    hook: Any = tables._pre_execute_hook
    hook({"params": {"tables": True}})
    with pytest.raises(AirflowSkipException):
        hook({"params": {"tables": False}})


def test_tasks_have_the_job_and_its_settings(dags: dict[str, DAG]) -> None:
    for path in ("orders.run", "orders_recovery.run", "orders_recovery.plan", "orders_recovery.restore"):
        made = task(dags, path)
        assert (made.job, made.job_root) == ("/opt/jobs/orders.py", "/data/jobs/orders"), path
        assert made.settings["job.table"] == "/data/orders"
    assert "run.drain" not in task(dags, "orders_recovery.run").settings
    assert task(dags, "orders.run").retries == 5


# -- Continuous jobs --------------------------------------------------------------------------------------------------


@pytest.fixture
def continuous() -> dict[str, DAG]:
    job = StateflowJob(name="orders", root="/data/orders", mode="continuous", settings={"job.table": "/t"})
    return {dag.dag_id: dag for dag in stateflow_dags(job=job, application="/a.py")}


def test_a_continuous_job_is_run_again_whenever_a_run_has_ended(continuous: dict[str, DAG]) -> None:
    dag = continuous["orders"]
    found: tuple[object, int] = dag.schedule, dag.max_active_runs
    assert found == ("@continuous", 1)
    assert dag.max_consecutive_failed_dag_runs and not dag.params
    for each in continuous.values():
        DagSerialization.to_dict(each)


def test_a_run_of_a_continuous_job_stays_up_but_not_the_one_after_a_restore(continuous: dict[str, DAG]) -> None:
    assert task(continuous, "orders.run").settings == {
        "job.table": "/t",
        "run.until": "stopped",
        "run.take_over": "1 min",
    }
    assert task(continuous, "orders_recovery.run").settings == {"job.table": "/t", "run.until": "input-ends"}
    renewed = StateflowJob(name="orders", root="/data/orders", mode="continuous", settings={"run.until": "6h"})
    assert renewed.run_settings == {"run.until": "6h", "run.take_over": "1 min"}


@pytest.mark.parametrize("run", [{}, {"from_savepoint": "/data/saved"}], ids=["plain", "from-a-savepoint"])
def test_runs_of_a_continuous_job_are_renewed_but_not_the_one_after_a_restore(run: dict[str, Any]) -> None:
    job = replace(JOB, mode="continuous", renew_after=timedelta(days=1), run=run)
    made = {dag.dag_id: dag for dag in stateflow_dags(job=job, application="/a.py")}
    found = {path: task(made, path).renew_after for path in ("orders.run", "orders_recovery.run")}
    assert found == {"orders.run": timedelta(days=1), "orders_recovery.run": None}
    for each in made.values():
        DagSerialization.to_dict(each)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"renew_after": timedelta(days=1)}, {"renew_after": "1 day, 0:00:00"}),
        ({"mode": "continuous"}, {"schedule": "@hourly"}),
    ],
)
def test_only_runs_that_stay_up_are_renewed_and_they_have_no_schedule(
    options: dict[str, Any], facts: dict[str, str]
) -> None:
    with fails(PermanentFailure, "config", **facts):
        stateflow_dags(job=replace(JOB, **options), application="/a.py", schedule="@hourly")


@pytest.mark.parametrize("path", ["orders_savepoint.approve", "orders_savepoint.stop"])
def test_a_stop_that_airflow_would_undo_at_once_is_refused(continuous: dict[str, DAG], path: str) -> None:
    with fails(PermanentFailure, "dag-not-paused", dag="orders"):
        task(continuous, path).execute({"ti": FakeDag(False, 1)})


def test_only_a_continuous_job_must_be_paused_for_a_stop(dags: dict[str, DAG], continuous: dict[str, DAG]) -> None:
    assert [task(made, "orders_savepoint.stop").run_dag for made in (dags, continuous)] == ["", "orders"]
    require_paused({"ti": FakeDag(True, 1)}, "orders")  # type: ignore[typeddict-item]
    require_paused({}, "")
