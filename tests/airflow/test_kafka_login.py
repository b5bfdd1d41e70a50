"""A task whose job logs in to Kafka: nothing that Airflow stores or shows contains the login."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.context import ConnectionAccessor
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit

PASSWORD = "password-of-the-broker"
FROM_CONNECTION = "{{ conn.orders_kafka.password }}"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = {"conn_type": "kafka", "login": "me", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_KAFKA", json.dumps(kafka))


def _rendered(task: StateflowRunOperator, context: Mapping[str, object]) -> dict[str, Any]:
    """Renders the templates of a task; returns what Airflow stores and shows of them."""
    task.render_template_fields({**context, "conn": ConnectionAccessor()})  # type: ignore[typeddict-item]
    shown: dict[str, Any] = _serialize_rendered_fields(task)
    return shown


def test_a_password_is_masked_in_rendered_templates(connection: None) -> None:
    """That of a connection anywhere, and each setting whose name Airflow knows as one of a secret."""
    key = "-----BEGIN PRIVATE KEY-----"
    settings = {"job.login": FROM_CONNECTION, "job.kafka_password": "given", "job.kafka_private_key": key}
    spark = SparkSubmit(
        conf={"spark.x": f"user:{FROM_CONNECTION}"}, env_vars={"LOGIN": FROM_CONNECTION, "KAFKA_PASSWORD": "given"}
    )
    with DAG("a_dag"):
        task = StateflowRunOperator(task_id="run", job="/job.py", job_root="/root", settings=settings, spark=spark)
    shown = _rendered(task, {})
    assert task.settings == {**settings, "job.login": PASSWORD}
    assert task.env_vars["LOGIN"] == PASSWORD
    assert shown["settings"] == dict.fromkeys(settings, "***")
    assert shown["conf"] == {"spark.x": "user:***"}
    assert shown["env_vars"] == {"LOGIN": "***", "KAFKA_PASSWORD": "***"}
