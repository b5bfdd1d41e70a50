"""Drivers on a real YARN: a ResourceManager and a NodeManager run what spark-submit submits, and the tests kill it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.servers.running import ROOT, files_with, s3_server
from tests.servers.yarn import Yarn, yarn_server
from tests.support.processes import wait_for
from tests.support.submissions import DEADLINE, YarnSubmission

pytestmark = [pytest.mark.slow(reason="starts YARN, and Spark in its containers"), pytest.mark.spark]

_SECRET = "what-nobody-may-see"


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
    # Spark's staging folder has them, until the end.
    assert not files_with(_SECRET, submission.yarn.folder / "local") + files_with(
        _SECRET, submission.yarn.folder / "logs"
    )
    (staged,) = files_with(_SECRET, submission.yarn.staging)
    assert stat.S_IMODE(Path(staged).parent.stat().st_mode) == 0o700
    subprocess.run(
        [sys.executable, "-m", "stateflow", "stop", "--job-root", str(submission.root)], check=True, cwd=ROOT
    )
    assert submission.finish(process) == 0, submission.log()
    assert submission.result()["result"]["stopped_because"] == "stopped"
    assert _SECRET not in submission.log()
    submission.assert_nothing_is_left()
    assert not files_with(_SECRET, submission.yarn.folder)


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


def test_a_job_root_in_a_bucket_and_an_environment_that_is_shipped(submission: YarnSubmission, tmp_path: Path) -> None:
    """As in the guide: `--archives environment.tar.gz#environment`. Python in it notes who has started it."""
    python, started = tmp_path / "bin" / "python", tmp_path / "started"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$PWD" >>"{started}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    environment = "./environment/bin/python"
    with s3_server(tmp_path / "s3", "bucket") as variables:
        submission.job_root = "s3://bucket/jobs/one"
        submission.add_rows("a", "b")
        archives = ["--archives", f"{tmp_path}/environment.tar.gz#environment"]
        process = submission.start(*archives, "--conf", f"spark.pyspark.python={environment}", **variables)
        assert submission.finish(process) == 0, submission.log()
        assert submission.counts() == [("a", 1), ("b", 1)]
        folders = {Path(line).name for line in started.read_text().splitlines()}
        # The containers of driver and executor.
        assert len(folders) == 2 and all(name.startswith("container_") for name in folders)
        # The bucket has what a job root has, and the host of the driver got nothing in its place.
        assert any((tmp_path / "s3" / "data" / "bucket" / "jobs" / "one" / "log").iterdir())
        assert not submission.root.exists()
    submission.assert_nothing_is_left()


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
