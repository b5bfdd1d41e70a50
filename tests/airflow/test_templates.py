"""Templates in the arguments of the operators."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from stateflow.operations import ForkRequest, RekeyRequest, SavepointRequest, VacuumRequest
from stateflow.operations.changed_savepoints import ChangeRequest
from stateflow.operations.state_export import ExportRequest
from stateflow.operations.written_savepoints import WriteRequest
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow_airflow.dags import StateflowJob
from stateflow_airflow.dags.factory import approval
from stateflow_airflow.failures import PermanentFailure, RetryByErrorCode
from stateflow_airflow.operators.approvals.approval import StateflowApprovalOperator, StateflowClaimApprovalOperator
from stateflow_airflow.operators.approvals.command_approval import (
    StateflowRetentionApprovalOperator,
    StateflowStopApprovalOperator,
)
from stateflow_airflow.operators.bootstrap.write import (
    StateflowChangeSavepointOperator,
    StateflowWriteSavepointOperator,
)
from stateflow_airflow.operators.export import StateflowExportOperator
from stateflow_airflow.operators.recovery import (
    StateflowForkOperator,
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)
from stateflow_airflow.operators.retention import StateflowRetentionOperator, StateflowTablesOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import (
    StateflowRekeyOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
)
from stateflow_airflow.operators.template_values import to_duration, to_lines, to_names, to_settings, to_words
from stateflow_airflow.operators.validation.diff import StateflowDiffOperator
from stateflow_airflow.sensors import StateflowBacklogSensor, StateflowCheckpointSensor, StateflowWatermarkSensor
from stateflow_airflow.services.serve import StateflowServeOperator
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.versions import HAS_RETRY_POLICIES
from tests.airflow.fakes import fails

TEXT = "{{ value }}"
_SET_BY_THE_TASK = {"by", "requested_by", "note", "request_id", "layers", "on_step"}
REQUESTS: dict[Any, tuple[Any, dict[str, str], set[str]]] = {
    StateflowSavepointOperator: (
        SavepointRequest,
        {"code": "job", "format": "stored_as"},
        {"earlier_request_ids", "from_head", "drain", "generation", "acknowledge_timeout"},
    ),
    StateflowRekeyOperator: (RekeyRequest, {}, set()),
    StateflowForkOperator: (ForkRequest, {}, set()),
    StateflowRestorePlanOperator: (RestoreOptions, {"changes": "maps"}, set()),
    StateflowTablesOperator: (VacuumRequest, {"dry_run": "preview"}, {"ignores_other_jobs"}),
    StateflowWriteSavepointOperator: (WriteRequest, {"job_file": "job", "output": "into"}, set()),
    StateflowChangeSavepointOperator: (ChangeRequest, {"job_file": "job", "output": "into"}, set()),
    StateflowExportOperator: (
        ExportRequest,
        {
            "location": "job_root",
            "operator": "operator_uid",
            "state": "state_name",
            "output": "into",
            "format": "stored_as",
        },
        set(),
    ),
}
"""The request of each operator, the arguments with other names than its fields, and fields that no argument sets."""
REQUIRED: dict[str, Any] = {
    "job": "/j.py",
    "job_root": "/r",
    "target": "latest",
    "plan": "p",
    "into": "/i",
    "savepoint": "s",
    "operator_uid": "o",
    "state_name": "s",
    "from_savepoint": "/s",
    "max_parallelism": 64,
    "max_age": "1h",
    "max_lag": "1h",
    "subject": "?",
}
OPERATORS: dict[Any, set[str]] = {
    StateflowRunOperator: {"job", "job_root"},
    StateflowSavepointOperator: {"job_root"},
    StateflowStopOperator: {"job_root"},
    StateflowRekeyOperator: {"job_root", "savepoint", "max_parallelism", "into"},
    StateflowRestorePlanOperator: {"job", "job_root", "target"},
    StateflowRestoreOperator: {"job", "job_root", "plan"},
    StateflowForkOperator: {"job_root", "target", "into"},
    StateflowVerifyOperator: {"job_root"},
    StateflowRetentionOperator: {"job_root"},
    StateflowTablesOperator: {"job", "job_root"},
    StateflowExportOperator: {"job_root", "operator_uid", "state_name", "into"},
    StateflowDiffOperator: {"job_root"},
    StateflowWriteSavepointOperator: {"job", "into"},
    StateflowChangeSavepointOperator: {"savepoint", "into"},
    StateflowServeOperator: {"job_root"},
    StateflowApprovalOperator: {"job_root", "plan", "subject"},
    StateflowClaimApprovalOperator: {"job_root", "from_savepoint", "subject"},
    StateflowRetentionApprovalOperator: {"job_root", "subject"},
    StateflowStopApprovalOperator: {"job_root", "subject"},
    StateflowBacklogSensor: {"job", "job_root"},
    StateflowCheckpointSensor: {"job_root", "max_age"},
    StateflowWatermarkSensor: {"job_root", "max_lag"},
}
"""All operators and sensors with the arguments that each requires."""


@pytest.mark.parametrize("operator", REQUESTS)
def test_an_operator_has_an_argument_with_the_same_default_for_each_field_of_its_request(operator: Any) -> None:
    request_class, names, without = REQUESTS[operator]
    arguments = {
        name: argument.default
        for kind in reversed(operator.__mro__)
        if "__init__" in vars(kind)
        for name, argument in inspect.signature(vars(kind)["__init__"]).parameters.items()
    }
    for field in dataclasses.fields(request_class):
        if field.name in _SET_BY_THE_TASK | without:
            continue
        found = arguments[names.get(field.name, field.name)]
        if field.default is dataclasses.MISSING:
            assert found is inspect.Parameter.empty or field.default_factory is not dataclasses.MISSING, field.name
        elif isinstance(field.default, timedelta):
            assert to_duration(field.name, found) == field.default
        else:
            assert found == field.default or not (found or field.default), field.name


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda kind: kind.__name__)
def test_arguments_may_be_templates(operator: Any) -> None:
    made = _made(operator)
    assert set(made.template_fields) >= OPERATORS[operator] - _NO_TEXTS
    for name in made.template_fields:
        setattr(made, name, TEXT)
    made.render_template_fields({"value": 5})
    assert {name: getattr(made, name) for name in made.template_fields} == dict.fromkeys(made.template_fields, "5")


def test_settings_and_variables_may_have_templates_as_values() -> None:
    spark = SparkSubmit(conf={"spark.x": TEXT}, env_vars={"DAY": TEXT})
    with DAG("a_dag"):
        given: dict[str, Any] = {"job": "/j.py", "job_root": "/r", "settings": {"job.day": TEXT}, "spark": spark}
        run: Any = StateflowRunOperator(task_id="task", **given)
    run.render_template_fields({"value": 5})
    assert (run.settings, run.conf, run.env_vars) == ({"job.day": "5"}, {"spark.x": "5"}, {"DAY": "5"})


def prepared() -> Any:
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
    given = {name: REQUIRED[name] for name in OPERATORS[operator] | {"job"}}
    with DAG("a_dag"):
        after = operator(task_id="after", settings=prepared(), **given)
        templated = operator(task_id="templated", settings="{{ value | tojson }}", **given)
        if operator in (StateflowRunOperator, StateflowStopOperator):
            spark = SparkSubmit(conf=prepared(), env_vars=prepared())
            assert operator(task_id="spark", spark=spark, **given).upstream_task_ids == {"prepare__1", "prepare__2"}
    assert after.upstream_task_ids == {"prepare"}
    templated.render_template_fields({"value": {"job.day": "5"}})
    assert to_settings("settings", templated.settings) == {"job.day": "5"}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda kind: kind.__name__)
def test_a_text_that_another_task_or_a_template_gives_is_checked(operator: Any) -> None:
    """It may be None, blank, a number, or a list."""
    given = {name: getattr(_made(operator), name) for name in operator.template_fields if name not in _NO_TEXTS}
    for name in (name for name, value in given.items() if isinstance(value, str)):
        for wrong in (5, ["a"], {"a": "b"}):
            with fails(PermanentFailure, "config"):
                _checked(operator, name, wrong)
        for blank in (None, "", " ", "None"):
            if name in OPERATORS[operator]:
                with fails(PermanentFailure, "config"):
                    _checked(operator, name, blank)
            else:
                assert _checked(operator, name, blank) == ""
        assert _checked(operator, name, " /a b\n") == _checked(operator, name, Path("/a b")) == "/a b"


_NO_TEXTS = {"plan", "subject", "body", "max_age", "max_lag", "snapshot", "other"}
"""Templated arguments that may have other types, too, or that Airflow declares."""


def _made(operator: Any) -> Any:
    with DAG("a_dag"):
        return operator(task_id="task", **{name: REQUIRED[name] for name in OPERATORS[operator]})


def _checked(operator: Any, name: str, value: object) -> object:
    made = _made(operator)
    setattr(made, name, value)
    made.pre_execute({})
    return getattr(made, name)


@pytest.mark.parametrize("listed", [to_names, to_words, to_lines])
def test_a_list_of_texts_is_a_list_or_a_text(listed: Callable[[Any], Any]) -> None:
    assert list(listed(None)) == list(listed("")) == list(listed([])) == []
    assert set(listed(["a", " b ", ""])) == {"a", "b"}
    for value in (5, [1], {"a": "b"}, b"a", [None]):
        with fails(PermanentFailure, "config"):
            listed(value)


@pytest.mark.parametrize("value", [5, -1, timedelta(-1), "-5m", "5", "1 year", [1], "nan h"])
def test_a_duration_is_not_negative_and_has_a_unit(value: Any) -> None:
    with fails(PermanentFailure, "config"):
        to_duration("max_age", value)
    assert to_duration("max_age", None) is to_duration("max_age", "") is to_duration("max_age", "None") is None


def test_one_text_in_place_of_a_list_is_not_a_list_of_its_letters() -> None:
    """The first letter of a path is the root of all folders."""
    job = StateflowJob(name="a", root="/r", locations="/data/a", approvers="ada")
    assert StateflowRunOperator(task_id="run", job="/j.py", job_root="/r", locations="/data/a").locations == (
        "/data/a",
    )
    assert StateflowStopApprovalOperator(task_id="ask", subject="?", **approval(job)).locations == ("/data/a",)
    assert approval(job)["assigned_users"] == [{"id": "ada", "name": "ada"}]
    assert StateflowTablesOperator(task_id="t", job="/j.py", job_root="/r", tables="legs").tables == ("legs",)
    more = {"savepoint": "s", "into": "/i", "transforms": "o.s=m:f"}
    assert StateflowChangeSavepointOperator(task_id="c", **more).transforms == ("o.s=m:f",)


@pytest.mark.parametrize("value", ["{'job.day': '5'}", "5", "[1]", 5, [1], {1: "x"}, {"": "x"}, {"job.day": None}])
def test_settings_that_are_not_names_and_values_are_refused(value: object) -> None:
    with fails(PermanentFailure, "config"):
        to_settings("settings", value)
    assert to_settings("settings", None) == to_settings("settings", "") == {}


@pytest.mark.matrix
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
        assert not HAS_RETRY_POLICIES or isinstance(operator.retry_policy, RetryByErrorCode)
