"""The command line for each kind of connection, and the clear errors where there can be none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stateflow.runtime.spark import versions
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.hooks import StateflowSubmitHook
from stateflow_airflow.launches.launcher import Command
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.failing import fails
from tests.airflow.fakes import FakeSpark


def command(monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], **spark: object) -> Command:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    hook = StateflowSubmitHook(SparkSubmit(conn_id="cluster", **spark))  # type: ignore[arg-type]
    return hook.command("stateflow flights", ["run", "job.py"])


def test_driver_runs_in_the_workers_python(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    local = command(monkeypatch, {"conn_type": "spark", "host": "local[2,4]"})
    assert local.env == {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable}
    assert local.argv[0] == str(spark.bin / "spark-submit")


def test_cluster_chooses_the_python_of_its_executors(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    cluster = command(monkeypatch, {"conn_type": "spark", "host": "spark://master", "port": 7077})
    assert cluster.env == {"PYSPARK_DRIVER_PYTHON": sys.executable}
    assert cluster.argv[1:3] == ["--master", "spark://master:7077"]


def test_the_author_and_the_worker_may_choose_another_python(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/workers/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    env_vars = {"PYSPARK_DRIVER_PYTHON": "/authors/python"}
    assert command(monkeypatch, {"conn_type": "spark", "host": "local"}, env_vars=env_vars).env == env_vars


def test_yarn_in_client_mode_passes_the_environment_to_both_sides(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    yarn = command(monkeypatch, {"conn_type": "spark", "host": "yarn"}, env_vars={"COLOUR": "blue"})
    assert yarn.env["COLOUR"] == "blue"
    assert "spark.yarn.appMasterEnv.COLOUR=blue" in yarn.argv


def test_options_of_the_provider_are_passed_on(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"driver_memory": "2g", "jars": "/a.jar,/b.jar"}
    argv = command(monkeypatch, {"conn_type": "spark", "host": "local"}, options=options).argv
    assert ["--jars", "/a.jar,/b.jar"] == argv[argv.index("--jars") :][:2]
    assert ["--driver-memory", "2g"] == argv[argv.index("--driver-memory") :][:2]


@pytest.mark.parametrize(
    ("connection", "facts"),
    [
        ({"conn_type": "spark"}, {"missing": "host"}),
        ({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}, {"deploy_mode": "cluster"}),
    ],
)
def test_connections_that_cannot_be_used(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], facts: dict[str, str]
) -> None:
    with fails(PermanentFailure, "config", connection="cluster", **facts):
        command(monkeypatch, connection)


def test_missing_java(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(spark.bin))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The hook must not import the library, so it has what the library supports once more.
    with fails(PermanentFailure, "config", missing="java", supported=versions.JAVA):
        command(monkeypatch, {"conn_type": "spark", "host": "local"})
    env_vars = {"JAVA_HOME": "/opt/java"}
    assert command(monkeypatch, {"conn_type": "spark", "host": "local"}, env_vars=env_vars).env["JAVA_HOME"]


def test_spark_submit_is_found_beside_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    argv = command(monkeypatch, {"conn_type": "spark", "host": "local"}).argv
    assert argv[0] == str(Path(sys.executable).parent / "spark-submit")


def test_missing_spark_submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with fails(PermanentFailure, "config", missing="spark-submit"):
        command(monkeypatch, {"conn_type": "spark", "host": "local"})
