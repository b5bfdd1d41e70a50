"""A task whose job logs in to Kafka: nothing that Airflow stores or shows contains the login."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.context import ConnectionAccessor
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from structlog.testing import capture_logs

from stateflow_airflow.failures import TransientFailure
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import SPARK_CONNECTION, FakeRun, fails
from tests.servers.kafka import Kafka, kafka_broker
from tests.servers.listening import Certificate, certificate
from tests.servers.running import files_with
from tests.spark.kafka_job import JARS, KafkaJob

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


@pytest.fixture
def tls(tmp_path: Path) -> Certificate:
    (tmp_path / "broker").mkdir()
    return certificate(tmp_path / "broker")


@pytest.fixture
def broker(tmp_path: Path, tls: Certificate) -> Iterator[Kafka]:
    with kafka_broker(tmp_path / "broker", tls, PASSWORD) as kafka:
        yield kafka


@pytest.fixture
def job(tmp_path: Path, broker: Kafka, tls: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaJob]:
    """The job; its login is a setting or a variable of the task's environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    (tmp_path / "job").mkdir()
    files = {"job__ca_file": tls.ca_file, "job__key_file": tls.key_file}
    job = KafkaJob(tmp_path / "job", broker, job__brokers=broker.secure_address, **files)
    job.create()
    yield job
    job.close()


@pytest.mark.slow(reason="starts a broker, and Spark twice")
@pytest.mark.spark
@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize("given", ["setting", "variable"])
def test_a_login_is_in_no_template_result_or_log_of_a_task(
    job: KafkaJob, tls: Certificate, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    runs = job.folder / "runs"
    key = tls.key_file.read_text().splitlines()[1]

    def task(password: str) -> StateflowRunOperator:
        settings = {name.replace("__", "."): str(value) for name, value in job.settings.items()}
        settings |= {"local_dir": str(job.local)} | ({"job.kafka_password": password} if given == "setting" else {})
        variables = {"KAFKA_PASSWORD": password} if given == "variable" else {}
        # In spark-submit, a setting of the job is too late for it.
        spark = SparkSubmit(conf={"spark.jars": JARS}, env_vars=variables)
        paths: dict[str, Any] = {"job": job.job_file, "job_root": job.job_root, "run_folder": str(runs)}
        return StateflowRunOperator(task_id="run", settings=settings, spark=spark, **paths)

    def check_hidden(*shown: object) -> None:
        assert [each for each in shown if PASSWORD in str(each) or key in str(each)] == []
        holders = {Path(path) for path in files_with(PASSWORD, job.folder)}
        assert {path.name for path in holders} == ({"settings.toml"} if given == "setting" else set())
        assert {oct(path.stat().st_mode & 0o777) for path in holders} <= {"0o600"}
        assert files_with(key, job.folder) == []

    job.send(20)
    run = FakeRun()
    with capture_logs() as logged:
        context, right = run.next_try(), task(FROM_CONNECTION)
        rendered = _rendered(right, context)
        returned = right.execute(context)
    assert returned["rows_in"] == 20
    assert any("checkpoint" in str(line) for line in (*logged, caplog.text))
    check_hidden(rendered, returned, run.store, run.events, logged, caplog.text)
    with capture_logs() as logged, fails(TransientFailure, "storage") as caught:
        wrong = task(f"{FROM_CONNECTION}-of-last-year")
        context = run.next_try()
        rendered = _rendered(wrong, context)
        wrong.execute(context)
    check_hidden(rendered, caught.value, caught.value.__cause__, run.store, logged, caplog.text)
