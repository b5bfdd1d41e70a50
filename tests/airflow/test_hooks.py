"""The command line for each kind of connection, clear errors where there can be none, and settings in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.sources import read_toml
from stateflow.runtime.spark.session import requirements
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.hooks import StateflowSubmitHook
from stateflow_airflow.launch import Command
from stateflow_airflow.spark import SparkSubmit, hide_conf, settings_file
from tests.airflow.fakes import FakeSpark, fails

LOCAL = {"conn_type": "spark", "host": "local[2,4]"}
YARN = {"conn_type": "spark", "host": "yarn"}
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def command(monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], **spark: Any) -> Command:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    hook = StateflowSubmitHook(SparkSubmit(conn_id="cluster", **spark))
    return hook.command("stateflow flights", ["run", "job.py"], Path("/launch"))


@pytest.mark.parametrize(
    ("connection", "master", "chosen"),
    [
        (LOCAL, "local[2,4]", PYTHONS),
        # The cluster chooses the Python of its executors.
        ({"conn_type": "spark", "host": "spark://master", "port": 7077}, "spark://master:7077", PYTHONS[1:]),
    ],
    ids=["local", "cluster"],
)
def test_the_driver_runs_in_the_worker_s_python(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], master: str, chosen: tuple[str, ...]
) -> None:
    for name in PYTHONS:
        monkeypatch.delenv(name, raising=False)
    made = command(monkeypatch, connection)
    assert made.env == dict.fromkeys(chosen, sys.executable)
    assert made.argv[:3] == [str(spark.bin / "spark-submit"), "--master", master]


def test_the_author_and_the_worker_may_choose_another_python(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/workers/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    env_vars = {"PYSPARK_DRIVER_PYTHON": "/authors/python"}
    assert command(monkeypatch, LOCAL, env_vars=env_vars).env == env_vars


@pytest.mark.parametrize("master", ["yarn", "k8s://https://kubernetes.default.svc"])
def test_variables_and_options_are_passed_on(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    options = {"driver_memory": "2g", "jars": "/a.jar,/b.jar"}
    made = command(monkeypatch, {**YARN, "host": master}, env_vars={"COLOUR": "blue"}, options=options)
    # The driver on this host gets them, and Spark's settings, which many see, do not have them.
    assert made.env["COLOUR"] == "blue" and "blue" not in f"{made.argv}{made.files}"
    assert {("--jars", "/a.jar,/b.jar"), ("--driver-memory", "2g")} <= set(pairwise(made.argv))


@pytest.mark.parametrize(
    ("connection", "facts"),
    [
        ({"conn_type": "spark"}, {"missing": "host"}),
        ({**YARN, "extra": {"deploy-mode": "cluster"}}, {"deploy_mode": "cluster"}),
        ({**YARN, "host": "local[2]", "extra": {"deploy-mode": "cluster"}}, {"deploy_mode": "cluster"}),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], facts: dict[str, str]
) -> None:
    with fails(PermanentFailure, "config", connection="cluster", **facts):
        command(monkeypatch, connection)


def test_missing_java_is_a_configuration_error(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(spark.bin))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The hook must not import the library, so it has what the library supports once more.
    with fails(PermanentFailure, "config", missing="java", supported=requirements.JAVA):
        command(monkeypatch, LOCAL)
    env_vars = {"JAVA_HOME": "/opt/java"}
    assert command(monkeypatch, LOCAL, env_vars=env_vars).env["JAVA_HOME"]


def test_spark_submit_is_found_in_the_folder_of_this_python_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert command(monkeypatch, LOCAL).argv[0] == str(Path(sys.executable).parent / "spark-submit")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with fails(PermanentFailure, "config", missing="spark-submit"):
        command(monkeypatch, LOCAL)


# -- settings of Spark and of a job in files, as spark-submit and the library read them --------------------------------

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXTS, _TEXTS, max_size=5))
def test_any_setting_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    path.write_text(settings_file(settings))
    assert read_toml(path) == settings


def test_the_other_options_keep_their_place(tmp_path: Path) -> None:
    kept, files = hide_conf("--master local[2] --conf a=b=c --verbose --conf d= --name x".split(), tmp_path)
    file = str(tmp_path / "spark.conf")
    assert kept == f"--master local[2] --verbose --name x --properties-file {file} --load-spark-defaults".split()
    assert files == {"spark.conf": "a=b=c\nd=\n"}
    assert hide_conf(["--name", "x"], tmp_path) == (["--name", "x"], {})


def test_a_file_of_the_author_comes_first(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("spark.a 1")
    options = ["--properties-file", str(tmp_path / "own.conf"), "--conf", "spark.b=2"]
    kept, files = hide_conf(options, tmp_path)
    assert kept == ["--properties-file", str(tmp_path / "spark.conf")]
    assert files == {"spark.conf": "spark.a 1\nspark.b=2\n"}
    with fails(PermanentFailure, "config", properties_file="/nothing"):
        hide_conf(["--properties-file", "/nothing", "--conf", "spark.b=2"], tmp_path)


@pytest.mark.slow(reason="starts Spark with spark-submit")
@pytest.mark.spark
def test_spark_reads_what_was_given(tmp_path: Path) -> None:
    """Special characters of Java's properties, and settings of spark-defaults.conf."""
    given = {
        "spark.x.plain": "a b=c:d",
        "spark.x.slash": "C:\\new\\u0041",
        "spark.x.lines": "1\n2\t3",
        "spark.x y": "#!ä",
    }
    (tmp_path / "spark-defaults.conf").write_text("spark.x.default 7\n")
    options, files = hide_conf([word for k, v in given.items() for word in ("--conf", f"{k}={v}")], tmp_path)
    (tmp_path / "spark.conf").write_text(files["spark.conf"])
    names = [*given, "spark.x.default"]
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "conf = SparkSession.builder.master('local[1]').getOrCreate().sparkContext.getConf()\n"
        f"print('found', [conf.get(n) for n in {names!r}])\n"
    )
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [str(submit), *options, str(program)],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"found {[*given.values(), '7']!r}" in done.stdout, done.stdout + done.stderr
