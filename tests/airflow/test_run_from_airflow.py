"""The guide to runs from Airflow: its DAGs can be loaded, and its connection can be created."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.sdk import DAG

from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.conftest import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "guides" / "run-from-airflow.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    # All of them at once: the end of one block looks like the beginning of another.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return [block for found, block in blocks if found == language]


def test_the_dag_can_be_loaded_as_it_stands() -> None:
    (text,) = [block for block in _blocks("python") if "StateflowRunOperator" in block]
    made: list[DAG] = []
    enter = DAG.__enter__

    class Noted(DAG):
        def __enter__(self) -> DAG:
            made.append(self)
            return enter(self)

    exec(text.replace("from airflow.sdk import DAG", ""), {"DAG": Noted})
    (dag,) = made
    (task,) = dag.tasks
    assert isinstance(task, StateflowRunOperator)
    job = (REPOSITORY / "dags" / "jobs" / "flights.py").read_text()
    assert {f"job.{name}" for name in re.findall(r'parameter\("(\w+)"\)', job)} == set(task.settings)


def test_the_connection_is_the_one_that_the_operator_asks_for() -> None:
    (line,) = [line for block in _blocks("") for line in block.splitlines() if line.startswith("airflow ")]
    arguments = cli_parser.get_parser().parse_args(shlex.split(line)[1:])
    operator = StateflowRunOperator(task_id="run", job="/job.py", job_root="/root")
    assert arguments.conn_id == operator.spark.conn_id
    assert (arguments.conn_type, arguments.conn_host) == ("spark", "local[2,4]")


def test_the_family_can_be_made_as_it_stands() -> None:
    (text,) = [block for block in _blocks("python") if "stateflow_dags" in block]
    made: list[DAG] = []

    def noted(**arguments: Any) -> None:
        made.extend(stateflow_dags(**arguments))

    exec(text.replace("stateflow_dags\n", "stateflow_dags as _\n"), {"stateflow_dags": noted})
    listed = re.findall(r"^\| `(my_\w+)` \|", GUIDE, re.MULTILINE)
    assert listed == [dag.dag_id for dag in made]
    uris = {asset.uri for dag in made for task in dag.tasks for asset in task.outlets}
    assert uris and [uri for uri in uris if f"`{uri}`" not in GUIDE] == []


@pytest.mark.parametrize("guide", ["recover-at-3-am", "upgrade-with-a-savepoint"])
def test_commands_of_airflow_in_the_guides_are_some_for_the_demo_s_dags(guide: str) -> None:
    text = (REPOSITORY / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    lines = [*re.findall(r"^airflow .*$", text, re.MULTILINE), *re.findall(r"`(airflow [^`]+)`", text)]
    assert lines
    dags = {dag.dag_id: dag for dag in stateflow_dags(StateflowJob(name="flights", root="/r"), "/a.py")}
    for line in lines:
        arguments = cli_parser.get_parser().parse_args(shlex.split(line)[1:])
        params = dags[arguments.dag_id].params
        for name, value in json.loads(getattr(arguments, "conf", None) or "{}").items():
            params[name] = value
        if getattr(arguments, "conf", None):
            params.validate()


def test_the_dag_that_waits_for_a_savepoint_can_be_loaded_and_waits_for_the_family_s() -> None:
    (text,) = [block for block in _blocks("python") if "after_savepoint" in block]
    made: list[Any] = []
    exec(text.replace("with DAG(", "with noted("), {"noted": lambda *a, **k: made.append(DAG(*a, **k)) or made[0]})
    (dag,) = made
    assert [asset.uri for asset in dag.schedule] == [StateflowJob(name="my_flights", root="/r").savepoint.uri]
    assert [task.task_id for task in dag.tasks] == ["look"]
