"""Templates in the arguments of the operators."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from stateflow_airflow.operators.bootstrap.write import (
    StateflowChangeSavepointOperator,
    StateflowWriteSavepointOperator,
)
from stateflow_airflow.operators.export import StateflowExportOperator
from stateflow_airflow.operators.recovery import StateflowRestorePlanOperator
from stateflow_airflow.operators.retention import StateflowRetentionOperator, StateflowTablesOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import StateflowRekeyOperator, StateflowSavepointOperator
from stateflow_airflow.sensors import StateflowCheckpointSensor, StateflowWatermarkSensor
from stateflow_airflow.spark import SparkSubmit

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
        task = operator(task_id="task", **dict.fromkeys(given, TEXT), **more)
    task.render_template_fields({"value": 5})
    wanted = dict.fromkeys(given, "5") | rendered
    assert {name: getattr(task, name) for name in wanted} == wanted
