"""What the guides have of Airflow: DAGs that can be loaded, commands of its CLI and calls of its REST API."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from typing import Any, Self
from urllib.parse import unquote

from airflow.cli import cli_parser
from airflow.sdk import DAG
from flights_demo.client import AirflowClient

from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.sensors import StateflowBacklogSensor, StateflowCheckpointSensor, StateflowWatermarkSensor
from tests.airflow.conftest import REPOSITORY
from tests.servers.hostile import answer, hostile_server

RUN = "manual__2026-01-31T03:00:00+00:00"


def guide(name: str) -> str:
    return (REPOSITORY / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    # All of them at once: the end of one block looks like the beginning of another.
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide(name), re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == language]


def load(word: str, name: str = "run-from-airflow") -> list[DAG]:
    (text,) = [block for block in blocks(name, "python") if word in block]
    made: list[DAG] = []

    class Noted(DAG):
        def __enter__(self) -> Self:
            made.append(self)
            return super().__enter__()

    def noted(**arguments: Any) -> None:
        made.extend(stateflow_dags(**arguments))

    text = text.replace("stateflow_dags\n", "stateflow_dags as _\n")
    # The import of `DAG` would replace `Noted`.
    text = re.sub(r"^from airflow.sdk import DAG(, )?", r"from airflow.sdk import DAG as _\1", text, flags=re.MULTILINE)
    exec(text, {"DAG": Noted, "stateflow_dags": noted})
    return made


def test_the_dag_of_the_guide_can_be_loaded_unchanged() -> None:
    (dag,) = load("StateflowRunOperator")
    (task,) = dag.tasks
    assert isinstance(task, StateflowRunOperator)
    job = (REPOSITORY / "dags" / "jobs" / "flights.py").read_text()
    assert {f"job.{name}" for name in re.findall(r'parameter\("(\w+)"\)', job)} == set(task.settings)


def test_the_dags_of_the_guide_can_be_made_unchanged() -> None:
    text, made = guide("run-from-airflow"), load("stateflow_dags")
    assert re.findall(r"^\| `(my_\w+)` \|", text, re.MULTILINE) == [dag.dag_id for dag in made]
    uris = {asset.uri for dag in made for task in dag.tasks for asset in task.outlets}
    assert uris and [uri for uri in uris if f"`{uri}`" not in text] == []


def test_the_continuous_dags_of_the_guide_can_be_made_unchanged() -> None:
    made = {dag.dag_id: dag for dag in load("stateflow_dags", "run-continuously")}
    text = guide("run-continuously")
    schedule: object = made["payments"].schedule
    assert schedule == "@continuous"
    assert set(re.findall(r"`(payments_\w+)`", text)) <= set(made)


def test_the_dag_that_waits_for_a_savepoint_can_be_loaded_and_waits_for_the_family_s() -> None:
    (dag,) = load("after_savepoint")
    schedule: Any = dag.schedule
    assert [asset.uri for asset in schedule] == [StateflowJob(name="my_flights", root="/r").savepoint.uri]
    assert [task.task_id for task in dag.tasks] == ["look"]


def test_the_sensors_of_the_guide_check_the_guide_s_job_once() -> None:
    (dag,) = load("StateflowCheckpointSensor")
    (job,) = load("StateflowRunOperator")[0].tasks
    assert isinstance(job, StateflowRunOperator)
    assert [type(task) for task in dag.tasks] == [
        StateflowCheckpointSensor,
        StateflowWatermarkSensor,
        StateflowBacklogSensor,
    ]
    sensors: Any = dag.tasks
    assert {(sensor.job_root, sensor.timeout) for sensor in sensors} == {(job.job_root, 0)}


def test_the_deadline_of_the_guide_can_be_made_and_is_of_its_job() -> None:
    (text,) = [block for block in blocks("run-from-airflow", "python") if "no_checkpoint_for" in block]
    names: dict[str, Any] = {}
    exec(text, names)
    (alert,) = names["job"].deadlines
    assert alert.reference.asset_uri == names["job"].checkpoint.uri


def test_the_connection_is_the_one_that_the_operator_asks_for() -> None:
    (line,) = re.findall(r"^airflow .*$", "\n".join(blocks("run-from-airflow", "")), re.MULTILINE)
    arguments = cli_parser.get_parser().parse_args(shlex.split(line)[1:])
    operator = StateflowRunOperator(task_id="run", job="/job.py", job_root="/root")
    assert arguments.conn_id == operator.spark.conn_id
    assert (arguments.conn_type, arguments.conn_host) == ("spark", "local[2,4]")


def test_the_guide_s_commands_send_what_the_client_sends() -> None:
    document = json.dumps({"access_token": "secret", "body": "the plan"}).encode()
    with hostile_server(lambda _: answer(200, document)) as server:

        def sent() -> list[tuple[str, str, bytes]]:
            lines = [(asked.line.split()[:2], asked) for asked in server.asked if "Bearer secret" in asked.head]
            return [(method, unquote(path), asked.body) for (method, path), asked in lines]

        url = f"http://{server.host}"
        AirflowClient(url, "admin", "admin").answer("flights_recovery", RUN, "approve", "Approve", {"note": "seen"})
        (wanted,) = sent()
        server.asked.clear()
        (block,) = blocks("recover-at-3-am", "bash")
        environment = {**os.environ, "AIRFLOW": url, "TOKEN": "secret", "RUN": RUN, "no_proxy": "*"}
        command = ["bash", "-eu", "-c", block]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "the plan" in done.stdout, done.stderr
        got, posted = sent()
    assert got[:2] == ("GET", wanted[1]) and posted[:2] == wanted[:2]
    assert json.loads(posted[2]) == json.loads(wanted[2])
