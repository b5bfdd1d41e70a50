"""Drivers on a real YARN: a ResourceManager and a NodeManager run what spark-submit submits, and the tests kill it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import pytest

from tests.docs.pages import blocks, read
from tests.servers.hdfs import hdfs_server
from tests.servers.running import ROOT, files_with, s3_server
from tests.servers.yarn import Yarn, yarn_server
from tests.support import delta_tables, local_flights
from tests.support.job_fixture import multiset
from tests.support.processes import wait_for
from tests.support.submissions import DEADLINE, SPARK, YarnSubmission

pytestmark = [pytest.mark.slow(reason="starts YARN, and Spark in its containers"), pytest.mark.spark]

_SECRET = "what-nobody-may-see"
_HADOOP_CONF, _NAME_NODE = "/etc/hadoop/conf", "webhdfs://namenode:9870"
"""Places of a user's cluster, as the guide names them."""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_server(tmp_path_factory.mktemp("yarn") / "server") as server:
        yield server


@pytest.fixture
def submission(yarn: Yarn, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[YarnSubmission]:
    launch = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-40:].strip("-")
    given = YarnSubmission(yarn, tmp_path / "home", launch)
    yield given
    given.end_processes()


def test_a_job_runs_to_its_end(submission: YarnSubmission) -> None:
    submission.add_rows("a", "b", "a")
    assert submission.finish(submission.start()) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2), ("b", 1)]
    result = submission.result()
    assert (result["status"], result["result"]["rows_in"], result["result"]["rows_out"]) == ("finished", 3, {"out": 3})
    assert submission.application()["finalStatus"] == "SUCCEEDED"
    assert f"its log: {submission.application()['amContainerLogs']}" in submission.log()
    submission.assert_nothing_is_left()
    # The submitting process was killed before it had reported the end: it does not run the job again.
    (submission.folder / "result.json").unlink()
    assert submission.finish(submission.start()) == 0, submission.log()
    assert submission.result() == result
    assert sum(a["applicationTags"] == f"stateflow-{submission.launch}" for a in submission.yarn.applications()) == 1


def test_secrets_are_in_no_argument_setting_page_or_file_that_stays(submission: YarnSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    (submission.folder / "job.toml").write_text(f'[job]\nsecret = "{_SECRET}"\n')
    submission.options = ["--config", str(submission.folder / "job.toml"), "--driver-env", "MY_*"]
    # Spark copies the variables of S3 if it has both.
    variables = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": _SECRET, "MY_KEY": _SECRET}
    process = submission.start("--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0", **variables)
    submission.wait_until_claimed(process)
    # The driver has them.
    (driver,) = submission.containers("driver")
    (python,) = [child for child in driver.children() if "stateflow_driver.py" in " ".join(child.cmdline())]
    assert "AWS_SECRET_ACCESS_KEY" not in python.environ()
    shown = [*_shown(submission), *(" ".join(each.environ().values()) for each in (driver, python))]
    assert not [text for text in shown if _SECRET in text]
    # No file has them any more.
    assert not submission.yarn.files_with(_SECRET)
    subprocess.run(
        [sys.executable, "-m", "stateflow", "stop", "--job-root", str(submission.root)], check=True, cwd=ROOT
    )
    assert submission.finish(process) == 0, submission.log()
    assert submission.result()["result"]["stopped_because"] == "stopped"
    assert _SECRET not in submission.log()
    submission.assert_nothing_is_left()
    assert not submission.yarn.files_with(_SECRET)


class Paused:
    """A Python that begins its work once it is told to."""

    def __init__(self, folder: Path) -> None:
        self._go = folder / "go"
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nwhile [ ! -e "{self._go}" ]; do sleep 0.1; done\nexec "{sys.executable}" "$@"\n'
        )
        self.python.chmod(0o755)

    def resume(self) -> None:
        self._go.touch()


def _with_a_secret(submission: YarnSubmission, paused: Paused) -> list[str]:
    """Returns the options for a job with a secret, whose driver is paused before it begins."""
    (submission.folder / "job.toml").write_text(f'[job]\nsecret = "{_SECRET}"\n')
    submission.options = ["--config", str(submission.folder / "job.toml"), "--end-timeout", "2s"]
    submission.add_rows("a")
    return ["--conf", f"spark.pyspark.python={paused.python}"]


def _launch_file(submission: YarnSubmission) -> Path:
    """The launch file of the active application, once it is in Spark's staging folder."""
    application = str(submission.application()["id"])
    found: list[Path] = []

    def staged() -> bool:
        found[:] = submission.yarn.staging.glob(f"**/{application}/stateflow-launch.json")
        return bool(found)

    wait_for(staged, submission.log, DEADLINE)
    return found[0]


@pytest.mark.parametrize("end", ["success", "failure", "kill"])
def test_secrets_are_staged_for_their_user_alone_and_only_until_the_driver_starts(
    submission: YarnSubmission, tmp_path: Path, end: str
) -> None:
    paused = Paused(tmp_path)
    options = _with_a_secret(submission, paused)
    if end == "failure":
        submission.settings["job.delay"] = "soon"
    process = submission.start(*options)
    # It is running once its driver has started Spark.
    submission.wait_for_log(process, "is waiting")
    file = _launch_file(submission)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert {path.name for path in file.parent.iterdir()} >= {"stateflow_driver.py", "stateflow-job.zip"}
    assert submission.yarn.files_with(_SECRET) == files_with(_SECRET, submission.yarn.staging) == [str(file)]
    if end == "kill":
        process.send_signal(signal.SIGTERM)
    else:
        paused.resume()
    assert submission.finish(process) == {"success": 0, "failure": 2, "kill": 130}[end], submission.log()
    submission.assert_nothing_is_left()
    assert not submission.yarn.files_with(_SECRET)


def test_a_process_that_is_killed_before_it_has_delivered_the_secrets_has_a_successor(
    submission: YarnSubmission, tmp_path: Path
) -> None:
    paused = Paused(tmp_path)
    options = _with_a_secret(submission, paused)
    first = submission.start(*options)
    tag = f"stateflow-{submission.launch}"
    wait_for(
        lambda: any(found["applicationTags"] == tag for found in submission.yarn.applications()),
        submission.log,
        DEADLINE,
    )
    first.kill()
    first.wait()
    assert not submission.yarn.files_with(_SECRET)
    application = submission.application()["id"]
    second = submission.start(*options)
    _launch_file(submission)
    paused.resume()
    assert submission.finish(second) == 0, submission.log()
    assert submission.application()["id"] == application
    assert submission.counts() == [("a", 1)]
    submission.assert_nothing_is_left()
    assert not submission.yarn.files_with(_SECRET)


def test_secrets_are_staged_in_hdfs_for_their_user_alone(submission: YarnSubmission, tmp_path: Path) -> None:
    """The driver's container has another user than its files, as on a cluster without a login."""
    with patch.dict(os.environ, {"HADOOP_USER_NAME": "hdfs"}), hdfs_server(tmp_path / "hdfs") as hdfs:
        address = hdfs.address.replace("webhdfs://", "http://") + "/webhdfs/v1"

        def hadoop(method: str, operation: str, path: str, **query: str) -> dict[str, Any]:
            found = httpx.request(method, f"{address}{path}", params={"op": operation, "user.name": "hdfs", **query})
            document: dict[str, Any] = found.raise_for_status().json()
            return document

        def files(path: str) -> dict[str, dict[str, Any]]:
            listed = hadoop("GET", "LISTSTATUS", path)["FileStatuses"]["FileStatus"]
            return {status["pathSuffix"]: status for status in listed}

        assert hadoop("PUT", "MKDIRS", "/staging", permission="777")["boolean"]
        paused = Paused(tmp_path)
        options = _with_a_secret(submission, paused)
        process = submission.start(*options, "--conf", f"spark.yarn.stagingDir={hdfs.hadoop_address}/staging")
        submission.wait_for_log(process, "is waiting")
        folder = f"/staging/tests/.sparkStaging/{submission.application()['id']}"
        wait_for(lambda: "stateflow-launch.json" in files(folder), submission.log, DEADLINE)
        staged = files(folder)
        assert {name: status["permission"] for name, status in staged.items()} == {
            **dict.fromkeys(staged, "644"),
            "stateflow-launch.json": "600",
        }
        assert staged["stateflow-launch.json"]["owner"] == "tests"
        assert hadoop("GET", "GETFILESTATUS", folder)["FileStatus"]["permission"] == "700"
        paused.resume()
        assert submission.finish(process) == 0, submission.log()
        assert files("/staging/tests/.sparkStaging") == {}


@pytest.mark.parametrize("command", ["submit", "run"])
def test_in_client_mode_secrets_are_only_in_the_driver(submission: YarnSubmission, command: str) -> None:
    submission.settings |= {"run.until": "stopped"}
    (submission.folder / "job.toml").write_text(f'[job]\nsecret = "{_SECRET}"\n')
    submission.options = ["--config", str(submission.folder / "job.toml")]
    submission.add_rows("a")
    variables = {"AWS_ACCESS_KEY_ID": _SECRET, "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_SESSION_TOKEN": _SECRET}
    conf = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    process = submission.start_in_client_mode(command, conf, **variables)
    submission.wait_for_rows(process, 1)
    assert not [text for text in _shown(submission) if _SECRET in text]
    assert submission.yarn.files_with("fs.s3a.secret.key")
    assert not submission.yarn.files_with(_SECRET)
    subprocess.run(
        [sys.executable, "-m", "stateflow", "stop", "--job-root", str(submission.root)], check=True, cwd=ROOT
    )
    assert submission.finish(process) == 0, submission.log()
    assert submission.result()["result"]["stopped_because"] == "stopped"
    assert _SECRET not in submission.log()
    # The last container removes it.
    application = str(submission.application()["id"])
    wait_for(lambda: not list(submission.yarn.staging.glob(f"**/{application}")), submission.log, DEADLINE)
    submission.assert_nothing_is_left()


def test_hadoop_s_client_in_the_driver_has_the_credentials_of_the_environment(submission: YarnSubmission) -> None:
    """As on other masters, where Spark copies them; those that the user gives to Spark have precedence."""
    program = (
        "import json, sys; from stateflow.config.sources import resolve\n"
        "from stateflow.runtime.spark.session.session import JobTraits, open_session\n"
        "spark = open_session(resolve(json.loads(sys.argv[1])), JobTraits(False, False))\n"
        "names = ('access.key', 'secret.key', 'session.token')\n"
        "for found in (spark._jsc.hadoopConfiguration(), spark._jsparkSession.sessionState().newHadoopConf()):\n"
        "    print(json.dumps([found.get('fs.s3a.' + name) for name in names]))\n"
    )
    conf = {**submission.yarn.conf(), "spark.hadoop.fs.s3a.session.token": "given"}
    layer = {"spark.master": "yarn", **{f"spark.conf.{name}": value for name, value in conf.items()}}
    variables = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_SESSION_TOKEN": "other"}
    command = [sys.executable, "-c", program, json.dumps({**layer, "name": "keys"})]
    environment = {**os.environ, **submission.variables, **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [["id", _SECRET, "given"]] * 2


def _shown(submission: YarnSubmission) -> list[str]:
    """What others than the user see of an active application: command lines, pages; and the executors' environment."""
    application = submission.application()
    shown = [" ".join(_words(each)) for each in psutil.process_iter()]
    shown += [" ".join(each.environ().values()) for each in submission.containers("executor")]
    address, tracking = submission.yarn.address, str(application["trackingUrl"]).rstrip("/")
    for page in (
        f"{address}/ws/v1/cluster/apps/{application['id']}",
        f"{address}/cluster/app/{application['id']}",
        f"{address}/ws/v1/cluster/apps/{application['id']}/appattempts",
        f"{tracking}/api/v1/applications/{application['id']}/environment",
    ):
        shown.append(httpx.get(page, timeout=60, follow_redirects=True).raise_for_status().text)
    assert "spark.yarn.tags" in shown[-1]
    return shown


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def test_the_submitting_process_is_killed_and_its_successor_ends_the_run_with_a_checkpoint(
    submission: YarnSubmission,
) -> None:
    submission.settings |= {"run.until": "stopped"}
    first = submission.start()
    submission.wait_until_claimed(first)
    first.kill()
    first.wait()
    second = submission.start()
    application = submission.application()
    submission.add_rows("a", "b")
    submission.wait_for_rows(second, 2)
    second.send_signal(signal.SIGTERM)
    assert submission.finish(second) == 0, submission.log()
    result = submission.result()
    assert (result["status"], result["result"]["stopped_because"], result["result"]["rows_in"]) == (
        "finished",
        "stopped",
        2,
    )
    assert submission.application()["id"] == application["id"]
    submission.assert_nothing_is_left()


def test_a_driver_that_does_not_stop_in_time_is_killed_by_the_cluster(submission: YarnSubmission) -> None:
    submission.options = ["--end-timeout", "2s"]
    # It has not claimed the job, so no request reaches it.
    process = submission.start("--conf", "spark.yarn.queue=default")
    submission.wait_for_log(process, "is running")
    (driver,) = submission.containers("driver")
    for child in (driver, *driver.children(recursive=True)):
        child.suspend()
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 130, submission.log()
    assert submission.application()["finalStatus"] == "KILLED"
    assert submission.result()["error"]["code"] == "interrupted"
    submission.assert_nothing_is_left()


def test_the_driver_s_container_is_killed_and_the_next_launch_continues(submission: YarnSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    (driver,) = submission.containers("driver")
    for child in (*driver.children(recursive=True), driver):
        child.kill()
    assert submission.finish(process) == 5, submission.log()
    error = submission.result()["error"]
    assert (error["code"], error["facts"]["phase"], error["retryable"]) == ("cluster-failed", "failed", True)
    submission.assert_nothing_is_left()
    submission.settings.pop("run.until")
    submission.add_rows("a", "b")
    assert submission.finish(submission.start()) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2), ("b", 1)]


def test_an_executor_is_killed_and_the_run_continues(submission: YarnSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    (executor,) = submission.containers("executor")
    executor.kill()
    submission.add_rows("a", "b")
    submission.wait_for_rows(process, 3)
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2), ("b", 1)]
    submission.assert_nothing_is_left()


def test_the_resource_manager_restarts_and_the_run_and_its_follower_continue(submission: YarnSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    application = submission.application()
    submission.yarn.stop_manager()
    submission.wait_for_log(process, "does not answer")
    submission.add_rows("a")
    submission.wait_for_rows(process, 2)
    submission.yarn.start_manager()
    submission.yarn.wait_for_nodes(1)
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 0, submission.log()
    assert (submission.application()["id"], submission.application()["finalStatus"]) == (application["id"], "SUCCEEDED")
    assert submission.result()["result"]["stopped_because"] == "stopped"
    assert submission.counts() == [("a", 1), ("a", 2)]
    submission.assert_nothing_is_left()


def _pack_environment(folder: Path) -> Path:
    """Writes the archive of an environment whose Python notes who has started it; returns the file of the notes."""
    python, started = folder / "bin" / "python", folder / "started"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$PWD" >>"{started}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    return started


def _check_containers(started: Path) -> None:
    """The containers of driver and executor have started the Python of the archive."""
    folders = {Path(line).name for line in started.read_text().splitlines()}
    assert len(folders) == 2 and all(name.startswith("container_") for name in folders)


def test_a_job_root_in_a_bucket_and_an_environment_that_is_shipped(submission: YarnSubmission, tmp_path: Path) -> None:
    """As in the guide: `--archives environment.tar.gz#environment`."""
    started = _pack_environment(tmp_path)
    environment = "./environment/bin/python"
    with s3_server(tmp_path / "s3", "bucket") as variables:
        submission.job_root = "s3://bucket/jobs/one"
        submission.add_rows("a", "b")
        archives = ["--archives", f"{tmp_path}/environment.tar.gz#environment"]
        process = submission.start(*archives, "--conf", f"spark.pyspark.python={environment}", **variables)
        assert submission.finish(process) == 0, submission.log()
        assert submission.counts() == [("a", 1), ("b", 1)]
        _check_containers(started)
        # The bucket has what a job root has, and the host of the driver got nothing in its place.
        assert any((tmp_path / "s3" / "data" / "bucket" / "jobs" / "one" / "log").iterdir())
        assert not submission.root.exists()
    submission.assert_nothing_is_left()


def test_the_command_of_the_guide_runs_a_job_and_prints_what_the_guide_shows(yarn: Yarn, tmp_path: Path) -> None:
    command, shown = blocks(read("run-on-yarn"))[:2]
    started = _pack_environment(tmp_path)
    shutil.copy(local_flights.FLIGHTS, tmp_path)
    first, *later = local_flights.stage(tmp_path / "flights")
    for file in later:
        file.unlink()
    data = f'[job]\nflights = "{tmp_path}/flights"\ntables = "{tmp_path}/tables"\n'
    (tmp_path / "flights.toml").write_text(f"[storage]\nshared = true\n{data}")
    # What the administrators of a cluster have set.
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in yarn.conf().items()))
    with patch.dict(os.environ, {"HADOOP_USER_NAME": "hdfs"}), hdfs_server(tmp_path / "hdfs") as hdfs:
        for named, meant in ((_HADOOP_CONF, yarn.variables["HADOOP_CONF_DIR"]), (_NAME_NODE, hdfs.address)):
            assert named in command
            command = command.replace(named, meant)
        path = f"{sys.prefix}/bin:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(SPARK), "SPARK_CONF_DIR": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=DEADLINE,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _without_chance(done.stderr + done.stdout) == _without_chance(shown)
    for table, wanted in local_flights.expected([first]).items():
        assert multiset(delta_tables.rows(tmp_path / "tables" / table)) == multiset(wanted), table
    _check_containers(started)


def _without_chance(printed: str) -> list[str]:
    """The lines that a command prints, without times, ids and addresses."""
    for chance in (r"^\S+Z ", r"\b[0-9a-f]{32}\b", r"(?<=application_)\d+_\d+", r"http://\S+", r"[\d.]+(?= s$)"):
        printed = re.sub(chance, "", printed, flags=re.MULTILINE)
    return printed.splitlines()


@pytest.mark.parametrize(
    ("options", "fact"),
    [(["--queue", "nowhere"], "unknown queue"), (["--conf", "spark.pyspark.python=/no/python"], "/no/python")],
    ids=["queue", "python"],
)
def test_what_the_cluster_refuses_is_in_the_error(submission: YarnSubmission, options: list[str], fact: str) -> None:
    submission.add_rows("a")
    assert submission.finish(submission.start(*options)) == 5, submission.log()
    error = submission.result()["error"]
    assert error["code"] == "cluster-failed" and fact in error["facts"]["reason"]
    submission.assert_nothing_is_left()


def test_an_error_of_the_job_is_that_of_client_mode(submission: YarnSubmission) -> None:
    submission.add_rows("a")
    submission.settings["job.delay"] = "soon"
    assert submission.finish(submission.start()) == 2, submission.log()
    assert submission.result()["error"]["code"] == "job-definition"


def test_the_node_is_lost_and_the_next_launch_continues(submission: YarnSubmission) -> None:
    """Last: the NodeManager is another one afterwards."""
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    containers = submission.yarn.processes(str(submission.application()["id"]))
    submission.yarn.stop_node()
    for each in containers:
        with contextlib.suppress(psutil.Error):
            each.kill()
    assert submission.finish(process) == 5, submission.log()
    # The driver's Python may have seen first that its JVM is gone.
    assert submission.result()["error"]["code"] in ("cluster-failed", "spark-gone")
    submission.assert_nothing_is_left()
    submission.yarn.start_node()
    submission.settings.pop("run.until")
    submission.add_rows("a")
    assert submission.finish(submission.start()) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2)]
