"""Tasks whose driver is in a cluster: their command, and which driver a try follows; on a real YARN as well."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from stateflow.checkpoint.launches import store_result
from stateflow.config.submit_options import read_conf
from stateflow.storage import open_storage
from stateflow.storage.paths import LAUNCHES
from stateflow.testing.sinks import FolderSink
from stateflow_airflow.failures import PermanentFailure, TransientFailure
from stateflow_airflow.hooks import ClusterLaunch, StateflowSubmitHook
from stateflow_airflow.launch import Launch, read_record
from stateflow_airflow.launch_trigger import LaunchTrigger, to_launch
from stateflow_airflow.operators.run import StateflowRunOperator, run_folder
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import DEADLINE, FakeRun, FakeSpark, fails
from tests.airflow.jobs import new_run, run_task, wait_for_rows
from tests.airflow.test_continuous_tasks import connected_yarn, deferred, lose_host, next_event
from tests.airflow.test_run_operator import RETURNED
from tests.servers.kubernetes import kubernetes_cluster
from tests.servers.listening import QuietHandler, listening
from tests.servers.local_yarn import LocalYarn
from tests.servers.running import CANARY, files_with
from tests.servers.yarn import yarn_server
from tests.support.job_fixture import AccountsJob
from tests.support.kubernetes_runs import IMAGE, Namespace, granted, spark_image
from tests.support.processes import wait_for

_YARN = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
_REPORT = json.loads((Path(__file__).parent / "data" / "report.json").read_text())
Make = Callable[..., StateflowRunOperator]


@pytest.fixture
def operator(tmp_path: Path, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(_YARN))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (tmp_path / "job.py").write_text("def build(env): ...\n")
    (tmp_path / "root").mkdir()

    def make(**changes: Any) -> StateflowRunOperator:
        paths = {name: str(tmp_path / name) for name in ("job.py", "root", "runs")}
        given: dict[str, Any] = {"job": paths["job.py"], "job_root": paths["root"], "run_folder": paths["runs"]}
        given["settings"] = {"storage.shared": "yes"}
        return StateflowRunOperator(**{"task_id": "run", **given, **changes})

    return make


def test_the_command_follows_a_driver_and_shows_no_variable(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(_YARN))
    hook = StateflowSubmitHook(
        SparkSubmit(conf={"spark.a": "b"}, env_vars={"COLOUR": "blue"}, options={"driver_memory": "2g"})
    )
    launch = ClusterLaunch("one", timedelta(minutes=2))
    made = hook.cluster_command("stateflow job", ["run", "job.py", "--run-id", "r"], Path("/launch"), launch)
    assert made is not None
    at = made.argv.index("--")
    program = str(REPOSITORY / "stateflow" / "__main__.py")
    assert made.argv[:4] == [sys.executable, program, "submit", "job.py"]
    assert {("--run-id", "r"), ("--launch-id", "one"), ("--end-timeout", "120s")} <= set(pairwise(made.argv[:at]))
    assert "--driver-env=COLOUR" in made.argv[:at]
    assert made.argv[at + 1] == str(spark.bin / "spark-submit")
    assert {("--master", "yarn"), ("--deploy-mode", "cluster"), ("--driver-memory", "2g")} <= set(
        pairwise(made.argv[at:])
    )
    assert made.env == {"COLOUR": "blue"} and "blue" not in str(made.files) and "spark.a=b" in made.files["spark.conf"]
    assert made.launch_id == "one" and "--follow-only" not in made.argv
    followed = hook.cluster_command("stateflow job", ["run"], Path("/launch"), replace(launch, follow_only=True))
    assert followed is not None and "--follow-only" in followed.argv[: followed.argv.index("--")]


def test_a_connection_to_kubernetes_is_that_of_the_guide(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"deploy-mode": "cluster", "namespace": "stateflow"}
    connection = {"conn_type": "spark", "host": "k8s://https://kubernetes.default.svc", "port": 443, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    hook = StateflowSubmitHook(
        SparkSubmit(env_vars={"COLOUR": "blue"}, options={"properties_file": str(_kubernetes_conf(spark))})
    )
    launch = ClusterLaunch("one", timedelta(minutes=2))
    made = hook.cluster_command("stateflow job", ["run", "job.py"], Path("/launch"), launch)
    assert made is not None
    at = made.argv.index("--")
    given = set(pairwise(made.argv[at:]))
    assert {("--master", "k8s://https://kubernetes.default.svc:443"), ("--deploy-mode", "cluster")} <= given
    settings = made.files["spark.conf"]
    assert "spark.kubernetes.namespace=stateflow" in settings and "spark.executor.instances 2" in settings
    assert "blue" not in f"{made.argv}{settings}"


@pytest.mark.parametrize(
    ("extra", "conf", "counts"),
    [
        ({}, {}, "of-the-file"),
        ({"namespace": "of-the-connection"}, {}, "of-the-connection"),
        ({"namespace": "of-the-connection"}, {"spark.kubernetes.namespace": "of-the-task"}, "of-the-task"),
    ],
)
def test_the_namespace_that_counts_is_that_of_the_guide(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], conf: dict[str, str], counts: str
) -> None:
    connection = {"conn_type": "spark", "host": "k8s://https://one:443", "extra": {"deploy-mode": "cluster", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    hook = StateflowSubmitHook(SparkSubmit(conf=conf, options={"properties_file": str(_kubernetes_conf(spark))}))
    launch = ClusterLaunch("one", timedelta(minutes=2))
    made = hook.cluster_command("stateflow job", ["run", "job.py"], spark.bin, launch)
    assert made is not None
    for name, content in made.files.items():
        (spark.bin / name).write_text(content)
    assert read_conf(made.argv[made.argv.index("--") + 2 :], None)["spark.kubernetes.namespace"] == counts


def _kubernetes_conf(spark: FakeSpark) -> Path:
    path = spark.bin / "kubernetes.conf"
    path.write_text("spark.executor.instances 2\nspark.kubernetes.namespace of-the-file\n")
    return path


@pytest.mark.parametrize("host", ["spark://master:7077", "local[2]"])
def test_a_master_that_runs_no_python_drivers_is_refused(
    spark: FakeSpark, operator: Make, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**_YARN, "host": host}))
    with fails(PermanentFailure, "config", deploy_mode="cluster"):
        operator().execute(FakeRun().next_try())
    assert not spark.launches()


# -- which driver a try follows ----------------------------------------------------------------------------------------


class _Manager(QuietHandler):
    """A ResourceManager whose applications of the launches in `known` have succeeded."""

    known: dict[str, str]
    asked: list[str]

    def do_GET(self) -> None:
        launch = self.path.partition("applicationTags=stateflow-")[2]
        self.asked.append(launch)
        state = self.known.get(launch)
        found = {"id": "application_1_0001", "state": "FINISHED", "finalStatus": state}
        body = json.dumps({"apps": {"app": [found]} if state else {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, str], list[str]]]:
    known: dict[str, str] = {}
    asked: list[str] = []
    with listening(_Manager, known=known, asked=asked) as address:
        name, host = "yarn.resourcemanager.webapp.address", address.removeprefix("http://")
        text = f"<a><property><name>{name}</name><value>{host}</value></property></a>"
        (tmp_path / "yarn-site.xml").write_text(text)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        yield known, asked


def _lost(run: FakeRun, launch_id: str | None) -> dict[str, Any]:
    """What Airflow has stored for a try whose worker and host are gone."""
    stored = {"folder": "/gone", "pid": 1, "started": 1, "host": "gone", "boot": "b", "turn": run.ti.max_tries}
    return stored | {"launch_id": launch_id}


@pytest.mark.long(reason="starts the program")
@pytest.mark.parametrize("before", ["nothing", "a try", "a try before a clear"])
def test_a_try_on_another_host_follows_the_driver_of_the_try_before(
    operator: Make, manager: tuple[dict[str, str], list[str]], tmp_path: Path, spark: FakeSpark, before: str
) -> None:
    """Whatever was tried on its own host before."""
    known, asked = manager
    run = FakeRun()
    if before != "nothing":
        spark.script("exit 1")
        with pytest.raises(Exception, match="cluster-failed"):
            operator().execute(run.next_try())
        asked.clear()
        for note in spark.folder.glob("*.json"):
            note.unlink()
    if before == "a try before a clear":
        run.clear()
    known["lost"] = "SUCCEEDED"
    store_result(open_storage(str(tmp_path / "root")), "lost", 1, _REPORT)
    run.store[StateflowRunOperator.external_id_key] = _lost(run, "lost")
    assert operator().execute(run.next_try()) == RETURNED
    assert set(asked) == {"lost"} and not spark.launches()


@pytest.mark.long(reason="starts the program four times")
def test_a_run_whose_driver_has_ended_or_that_was_cleared_gets_another_launch(
    operator: Make, manager: tuple[dict[str, str], list[str]], spark: FakeSpark
) -> None:
    """The fake spark-submit fails, and so does each try; after the second one, the error is changed to a driver's."""
    spark.script(*["exit 1"] * 4)
    _, asked = manager
    run, launches = FakeRun(), list[Launch]()
    for number in range(1, 5):
        if number == 4:
            run.clear()
        with pytest.raises(Exception, match="cluster-failed"):
            operator().execute(run.next_try())
        record = read_record(run_folder(Path(operator().run_folder or ""), run.next_try()) / f"launch-{number}")
        assert record is not None
        launches.append(record)
        if number == 2:
            error = {"code": "batch-failed", "message": "m", "retryable": True}
            record.result_file.write_text(json.dumps({"status": "failed", "error": error, "result": None}))
    first, second, third, fourth = (str(launch.launch_id) for launch in launches)
    assert first == second and len({first, third, fourth}) == 3
    assert list(dict.fromkeys(asked)) == [first, third, fourth]
    # A try on another host finds the driver by it.
    assert run.store[StateflowRunOperator.external_id_key]["launch_id"] == fourth


class OneDriver:
    """A task whose drivers are on a stand-in for YARN, and the process that follows them."""

    def __init__(self, job: AccountsJob, yarn: LocalYarn) -> None:
        self.job, self.yarn = job, yarn
        self.run = new_run("2026-01-01")
        self._spark_submit = yarn.folder / "bin" / "spark-submit"

    def task(self, **more: Any) -> StateflowRunOperator:
        return run_task(self.job, **more)

    def let_spark_hang(self) -> Path:
        """Returns the file that exists once spark-submit hangs."""
        kept = self._spark_submit.with_name("kept")
        self._spark_submit.rename(kept)
        self._spark_submit.write_text(f'#!/bin/sh\ntouch "{self.yarn.folder}/hangs"\nexec sleep 1000\n')
        self._spark_submit.chmod(0o700)
        return self.yarn.folder / "hangs"

    def let_spark_work(self) -> None:
        self._spark_submit.with_name("kept").rename(self._spark_submit)

    def kill_follower(self, task: StateflowRunOperator) -> Launch:
        """Kills the process that follows the driver, and nothing else; its shell records the exit code."""
        (launch,) = task._task_launcher().active_launches()
        followers = [child for child in psutil.Process(launch.pid).children() if "submit" in child.cmdline()]
        (follower,) = followers
        follower.kill()
        return launch


@pytest.fixture
def one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: AccountsJob) -> Iterator[OneDriver]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    more = {"run__until": "stopped", "storage__shared": "yes", "requests__interval": "20ms"}
    job.settings = {**job.settings, **more}
    job.deliver(30)
    with connected_yarn(tmp_path / "yarn", monkeypatch) as yarn:
        yield OneDriver(job, yarn)


@pytest.mark.slow(reason="starts drivers of a stand-in for YARN")
@pytest.mark.parametrize("other_host", [False, True], ids=["same-host", "other-host"])
def test_a_try_follows_the_driver_whose_follower_alone_was_killed(
    one_driver: OneDriver, background: ThreadPoolExecutor, other_host: bool
) -> None:
    job, yarn, run = one_driver.job, one_driver.yarn, one_driver.run
    first = one_driver.task()
    running = background.submit(first.execute, run.next_try())
    wait_for_rows(job, 30)
    launch = one_driver.kill_follower(first)
    with fails(TransientFailure, "signal", signal=signal.SIGKILL):
        running.result(DEADLINE)
    if other_host:
        lose_host(first, run)
    second = background.submit(one_driver.task().execute, run.next_try())
    wait_for(lambda: second.done() or "found the driver" in _logs(job), lambda: _logs(job))
    job.command("stop").check()
    assert second.result(DEADLINE)["stopped_because"] == "stopped"
    assert [app["applicationTags"] for app in yarn.applications()] == [f"stateflow-{launch.launch_id}"]
    assert not run.store and yarn.staged() == []
    job.check_results()


@pytest.mark.slow(reason="starts a driver of a stand-in for YARN")
def test_a_try_submits_once_what_a_killed_process_has_not_submitted(
    one_driver: OneDriver, background: ThreadPoolExecutor
) -> None:
    job, yarn, run = one_driver.job, one_driver.yarn, one_driver.run
    hangs = one_driver.let_spark_hang()
    first = one_driver.task()
    running = background.submit(first.execute, run.next_try())
    wait_for(hangs.exists, lambda: "spark-submit")
    launch = one_driver.kill_follower(first)
    with fails(TransientFailure, "signal", signal=signal.SIGKILL):
        running.result(DEADLINE)
    one_driver.let_spark_work()
    second = background.submit(one_driver.task().execute, run.next_try())
    wait_for_rows(job, 30)
    job.command("stop").check()
    assert second.result(DEADLINE)["rows_in"] == 30
    assert [app["applicationTags"] for app in yarn.applications()] == [f"stateflow-{launch.launch_id}"]


@pytest.mark.slow(reason="starts a driver of a stand-in for YARN")
def test_a_driver_takes_a_savepoint_for_a_task_and_ends_with_a_checkpoint_when_its_own_is_killed(
    one_driver: OneDriver, background: ThreadPoolExecutor
) -> None:
    job = one_driver.job
    task = one_driver.task()
    running = background.submit(task.execute, one_driver.run.next_try())
    wait_for_rows(job, 30)
    operator = StateflowSavepointOperator(task_id="savepoint", job_root=str(job.root), name="during")
    made = operator.execute(new_run("2026-01-02").next_try())
    assert (made["name"], made["made_from"]) == ("during", "run")
    task.on_kill()
    ended = running.result(DEADLINE)
    assert (ended["stopped_because"], ended["rows_in"]) == ("stopped", 30)
    assert job.commit_at(30).seq == ended["checkpoint_id"]
    assert [app["finalStatus"] for app in one_driver.yarn.applications()] == ["SUCCEEDED"]
    job.check_results()


@pytest.mark.slow(reason="starts a driver of a stand-in for YARN")
def test_a_deferred_task_that_a_user_ends_stops_its_driver_from_another_host(one_driver: OneDriver) -> None:
    job = one_driver.job
    trigger = deferred(one_driver.task(deferrable=True), one_driver.run)
    wait_for_rows(job, 30)
    elsewhere = LaunchTrigger({**trigger.launch, "host": "other"}, DEADLINE, job_root=trigger.job_root)
    asyncio.run(elsewhere.on_kill())
    event = asyncio.run(asyncio.wait_for(next_event(trigger), DEADLINE))
    returned = one_driver.task().execute_complete(one_driver.run.next_try(), event)
    assert (returned["stopped_because"], returned["rows_in"]) == ("stopped", 30)
    assert [app["finalStatus"] for app in one_driver.yarn.applications()] == ["SUCCEEDED"]


def _logs(job: AccountsJob) -> str:
    return "".join(path.read_text() for path in (job.folder.parent / "runs").rglob("driver.log"))


def test_a_stored_launch_of_an_earlier_version_is_read() -> None:
    stored = _lost(FakeRun(), None)
    del stored["launch_id"]
    assert Launch(**stored).launch_id is None


# -- on a real YARN, and in a real Kubernetes --------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where drivers of a test run.

    Attributes:
        connection: of Airflow.
        conf: settings of Spark.
        drivers: returns the ids of the drivers that the cluster knows.
    """

    connection: dict[str, Any]
    conf: dict[str, str]
    drivers: Callable[[], list[str]]


@contextmanager
def _on_yarn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with yarn_server(folder) as yarn:
        for name, value in yarn.variables.items():
            monkeypatch.setenv(name, value)
        yield Place(_YARN, yarn.conf(), lambda: [str(found["id"]) for found in yarn.applications()])


@contextmanager
def _in_kubernetes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    with kubernetes_cluster(folder / "cluster", {IMAGE: spark_image()}) as cluster:
        namespace = Namespace.create(cluster, "airflow", folder / "namespace")
        host, _, port = cluster.plane.url.rpartition(":")
        extra = {"deploy-mode": "cluster", "namespace": namespace.name}
        connection = {"conn_type": "spark", "host": f"k8s://{host}", "port": int(port), "extra": extra}
        seen: dict[str, None] = {}

        def drivers() -> list[str]:
            seen.update((pod["metadata"]["uid"], None) for pod in cluster.pods(namespace.name, spark_role="driver"))
            return list(seen)

        yield Place(connection, namespace.conf(), drivers)
        # The rights of the manifest were enough, and nothing is left behind.
        refused = cluster.requests(namespace.user("stateflow-submitter")) - granted("stateflow-submitter")
        assert not refused
        wait_for(lambda: not namespace.all_objects(), lambda: str(namespace.all_objects()))


@pytest.mark.slow(reason="starts a cluster, and Spark in it")
@pytest.mark.spark
@pytest.mark.parametrize("place", [_on_yarn, _in_kubernetes], ids=["yarn", "kubernetes"])
def test_a_task_in_a_cluster_survives_its_worker_and_returns_what_client_mode_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[..., AbstractContextManager[Place]]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with place(tmp_path / "cluster-of-tests", monkeypatch) as cluster:
        run, home = FakeRun(), tmp_path / "cluster"
        first = _task(monkeypatch, home, cluster)
        deferred(first, run)
        # The worker's host is lost with the process that follows the driver, and with its files.
        (launch,) = first._task_launcher().active_launches()
        claims = home / "root" / LAUNCHES / str(launch.launch_id)
        wait_for(lambda: any(claims.glob("run-*")), lambda: str(launch), 300)
        assert len(cluster.drivers()) == 1
        first._task_launcher().stop(launch, grace_seconds=0)
        run.store[StateflowRunOperator.external_id_key] |= {"host": "gone", "folder": "/gone"}
        os.rename(home / "runs", home / "lost")
        trigger = deferred(_task(monkeypatch, home, cluster), run)
        event = asyncio.run(asyncio.wait_for(next_event(trigger), 300))
        returned = _task(monkeypatch, home, cluster).execute_complete(run.next_try(), event)
        assert len(cluster.drivers()) == 1
        alone = FakeRun()
        in_client_mode = _task(monkeypatch, tmp_path / "client").execute(alone.next_try())
    assert returned["rows_in"] == 2
    assert _comparable(returned) == _comparable(in_client_mode)
    assert run.ti.pushed.keys() == alone.ti.pushed.keys()


@pytest.mark.slow(reason="starts YARN, and Spark in its containers")
@pytest.mark.spark
def test_a_task_in_client_mode_on_yarn_gives_its_secrets_to_the_driver_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    home, run = tmp_path / "home", FakeRun()
    with yarn_server(tmp_path / "yarn") as yarn:
        for name, value in yarn.variables.items():
            monkeypatch.setenv(name, value)
        place = Place({**_YARN, "extra": {"deploy-mode": "client"}}, yarn.conf(), list)
        trigger = deferred(_task(monkeypatch, home, place, MY_KEY=CANARY), run)
        # The first rows are processed, so driver and executors have their files.
        rows = FolderSink(home / "out").rows
        wait_for(
            lambda: (home / "out" / "versions").exists() and len(list(rows())) == 2, lambda: str(trigger.launch), 300
        )
        launch = to_launch(trigger.launch)
        assert yarn.files_with("fs.s3a.secret.key") and not yarn.files_with(CANARY)
        assert files_with(CANARY, Path(launch.folder)) == []
        containers = yarn.processes("container_")
        assert containers and not [each for each in containers if CANARY in " ".join(each.environ().values())]
        subprocess.run([sys.executable, "-m", "stateflow", "stop", "--job-root", str(home / "root")], check=True)
        event = asyncio.run(asyncio.wait_for(next_event(trigger), 300))
        assert _task(monkeypatch, home, place).execute_complete(run.next_try(), event)["rows_in"] == 2


def _task(
    monkeypatch: pytest.MonkeyPatch, home: Path, cluster: Place | None = None, **variables: str
) -> StateflowRunOperator:
    """A task of a job with two rows, in client mode without a cluster; deferrable with one.

    With variables of the driver, its run stays up.
    """
    local = {"conn_type": "spark", "host": "local[2,4]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(cluster.connection if cluster else local))
    (home / "in").mkdir(parents=True, exist_ok=True)
    (home / "in" / "1.json").write_text('{"name": "a", "number": 1}\n{"name": "b", "number": 2}\n')
    settings = {"job.home": str(home), "job.delay": "100000000", "parallelism": "2", "storage.shared": "yes"}
    settings |= {"run.until": "stopped"} if variables else {}
    return StateflowRunOperator(
        task_id="run", job=str(REPOSITORY / "tests" / "spark" / "jobs" / "continuous.py"),
        job_root=str(home / "root"), run_folder=str(home / "runs"), settings=settings,
        spark=SparkSubmit(conf=cluster.conf if cluster else {}, env_vars=variables), deferrable=cluster is not None,
    )  # fmt: skip


def _comparable(returned: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without the id that each job root has."""
    backlog = {**returned["backlog"], "measured_at": "", "rows_per_second": 0}
    return {**returned, "duration_ms": 0, "job_uuid": "", "backlog": backlog}
