"""What the README says about Airflow: the DAG is one, and the connection can be made."""

from __future__ import annotations

import re
import shlex

from airflow.cli import cli_parser
from airflow.sdk import DAG

from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    # All of them at once: the end of one block looks like the beginning of another.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
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
