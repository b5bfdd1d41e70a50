"""What the guides have of Airflow: DAGs that can be loaded, commands of its CLI and calls of its REST API."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

import pytest
from airflow.cli import cli_parser
from airflow.sdk import DAG
from flights_demo.client import AirflowClient

from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.sensors import StateflowCheckpointSensor, StateflowWatermarkSensor
from tests.airflow.conftest import REPOSITORY

RUN = "manual__2026-01-31T03:00:00+00:00"


def guide(name: str) -> str:
    return (REPOSITORY / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    # All of them at once: the end of one block looks like the beginning of another.
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide(name), re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == language]


def load(word: str, name: str = "run-from-airflow") -> list[DAG]:
    """The DAGs that the guide's only Python block with this word makes."""
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
    assert [type(task) for task in dag.tasks] == [StateflowCheckpointSensor, StateflowWatermarkSensor]
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


@pytest.mark.parametrize("name", ["recover-at-3-am", "upgrade-with-a-savepoint"])
def test_commands_of_airflow_in_the_guides_are_some_for_the_demo_s_dags(name: str) -> None:
    lines = re.findall(r"(?:^|`)(airflow [^`\n]+)", guide(name), re.MULTILINE)
    assert lines
    dags = {dag.dag_id: dag for dag in stateflow_dags(StateflowJob(name="flights", root="/r"), "/a.py")}
    for line in lines:
        arguments = cli_parser.get_parser().parse_args(shlex.split(line)[1:])
        params, conf = dags[arguments.dag_id].params, getattr(arguments, "conf", None)
        if conf:
            for param, value in json.loads(conf).items():
                params[param] = value
            params.validate()


class Recorder(HTTPServer):
    """An Airflow that takes every request, and remembers those that have a token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") == "Bearer secret":
            path = self.path.replace("%3A", ":").replace("%2B", "+")
            self.server.requests.append((self.command, path, json.loads(body or b"null")))
        data = json.dumps({"access_token": "secret", "body": "the plan"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the requests are remembered."""


@pytest.fixture
def airflow() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_guide_s_commands_send_what_the_client_sends(airflow: Recorder) -> None:
    client = AirflowClient(airflow.url, "admin", "admin")
    client.answer("flights_recovery", RUN, "approve", "Approve", {"note": "seen"})
    (wanted,) = airflow.requests
    airflow.requests.clear()
    (block,) = blocks("recover-at-3-am", "bash")
    environment = {**os.environ, "AIRFLOW": airflow.url, "TOKEN": "secret", "RUN": RUN, "no_proxy": "*"}
    command = ["bash", "-eu", "-c", block]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the plan" in done.stdout, done.stderr
    assert airflow.requests == [("GET", wanted[1], None), wanted]
