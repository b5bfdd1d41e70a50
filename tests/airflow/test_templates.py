"""Templates in the arguments of the operators."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from airflow.sdk import DAG, task

from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.bootstrap.write import (
    StateflowChangeSavepointOperator,
    StateflowWriteSavepointOperator,
)
from stateflow_airflow.operators.export import StateflowExportOperator
from stateflow_airflow.operators.recovery import StateflowRestoreOperator, StateflowRestorePlanOperator
from stateflow_airflow.operators.retention import StateflowRetentionOperator, StateflowTablesOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import (
    StateflowRekeyOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
)
from stateflow_airflow.operators.template_values import to_settings
from stateflow_airflow.retry import RetryByErrorCode
from stateflow_airflow.sensors import StateflowCheckpointSensor, StateflowWatermarkSensor
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.fakes import fails

TEXT = "{{ value }}"


@pytest.mark.parametrize(
    ("operator", "given", "rendered"),
    [
        (
            StateflowRunOperator,
            {"job", "job_root", "from_savepoint", "claim_mode", "approval"},
            {"settings": {"job.day": "5"}, "conf": {"spark.x": "5"}, "env_vars": {"DAY": "5"}},
        ),
        (StateflowSavepointOperator, {"job_root", "name", "reason", "origin"}, {}),
        (
            StateflowRestorePlanOperator,
            {"job", "job_root", "target", "drop", "from_other_job", "maps", "sources", "claim_mode"},
            {},
        ),
        (StateflowRekeyOperator, {"job_root", "savepoint", "max_parallelism", "into", "name", "reason"}, {}),
        (
            StateflowWriteSavepointOperator,
            {"job", "into", "states", "sources", "max_parallelism", "parallelism", "at", "name", "reason"},
            {"settings": {"job.day": "5"}},
        ),
        (
            StateflowChangeSavepointOperator,
            {"savepoint", "into", "job_root", "remove", "job", "name", "reason"},
            {"settings": {"job.day": "5"}},
        ),
        (StateflowExportOperator, {"job_root", "operator_uid", "state_name", "into", "stored_as", "snapshot"}, {}),
        (StateflowRetentionOperator, {"job_root", "retain", "preview"}, {}),
        (StateflowTablesOperator, {"job", "job_root", "preview"}, {}),
        (StateflowTablesOperator, {"job", "job_root"}, {"settings": {"job.day": "5"}}),
        (StateflowCheckpointSensor, {"job_root", "max_age"}, {}),
        (StateflowWatermarkSensor, {"job_root", "max_lag", "sources"}, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_arguments_may_be_templates(operator: Any, given: set[str], rendered: dict[str, Any]) -> None:
    more: dict[str, Any] = {}
    if rendered:
        spark = SparkSubmit(conf={"spark.x": TEXT}, env_vars={"DAY": TEXT})
        more = {"settings": {"job.day": TEXT}} | ({"spark": spark} if "conf" in rendered else {})
    with DAG("a_dag"):
        rendering = operator(task_id="task", **dict.fromkeys(given, TEXT), **more)
    rendering.render_template_fields({"value": 5})
    wanted = dict.fromkeys(given, "5") | rendered
    assert {name: getattr(rendering, name) for name in wanted} == wanted


def prepared() -> Any:
    """The output of a task that returns settings."""

    @task
    def prepare() -> dict[str, str]:
        return {"job.day": "5"}

    return prepare()


@pytest.mark.parametrize(
    "operator",
    [
        StateflowRunOperator,
        StateflowSavepointOperator,
        StateflowStopOperator,
        StateflowRestorePlanOperator,
        StateflowRestoreOperator,
        StateflowTablesOperator,
        StateflowWriteSavepointOperator,
        StateflowChangeSavepointOperator,
    ],
)
def test_settings_may_be_the_output_of_a_task_or_a_template(operator: Any) -> None:
    required = {"job": "/j.py", "job_root": "/r", "target": "latest", "plan": "p", "into": "/i", "savepoint": "s"}
    names = inspect.signature(operator).parameters
    given = {name: value for name, value in required.items() if name in names or name in ("job_root", "job")}
    given.pop("job_root" if operator is StateflowWriteSavepointOperator else "", None)
    with DAG("a_dag"):
        after = operator(task_id="after", settings=prepared(), **given)
        templated = operator(task_id="templated", settings="{{ value | tojson }}", **given)
        if operator in (StateflowRunOperator, StateflowStopOperator):
            spark = SparkSubmit(conf=prepared(), env_vars=prepared())
            assert operator(task_id="spark", spark=spark, **given).upstream_task_ids == {"prepare__1", "prepare__2"}
    assert after.upstream_task_ids == {"prepare"}
    templated.render_template_fields({"value": {"job.day": "5"}})
    assert to_settings("settings", templated.settings) == {"job.day": "5"}


@pytest.mark.parametrize("value", ["{'job.day': '5'}", "5", "[1]", 5, [1], {1: "x"}, {"": "x"}, {"job.day": None}])
def test_settings_that_are_not_names_and_values_are_refused(value: object) -> None:
    with fails(PermanentFailure, "config"):
        to_settings("settings", value)
    assert to_settings("settings", None) == to_settings("settings", "") == {}


def test_a_mapped_operator_has_the_defaults_of_one_that_is_not_mapped() -> None:
    with DAG("a_dag"):
        run = StateflowRunOperator.partial(task_id="run", job="/j.py").expand(job_root=["/a", "/b"])
        more = StateflowRunOperator.partial(task_id="more", job="/j.py", max_active_tis_per_dag=2).expand(
            job_root=["/a"]
        )
        savepoint = StateflowSavepointOperator.partial(task_id="savepoint").expand(job_root=["/a", "/b"])
        sensor = StateflowCheckpointSensor.partial(task_id="sensor", max_age="1h").expand(job_root=["/a", "/b"])
    assert (run.max_active_tis_per_dag, more.max_active_tis_per_dag) == (1, 2)
    for operator in (run, savepoint, sensor):
        assert isinstance(operator.retry_policy, RetryByErrorCode)
