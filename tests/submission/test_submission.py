"""Drivers in a cluster, without a real one: what is shipped; how a run is followed, found again, stopped and killed."""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
import requests
from pyspark import SparkContext

from stateflow.checkpoint.job_requests import open_requests
from stateflow.checkpoint.launches import KEEP, generation_of, read_launch_result, record_run, store_result
from stateflow.checkpoint.log.documents import RequestKind
from stateflow.clock import ManualClock, SystemClock
from stateflow.config.submit_options import default_conf_file, read_conf
from stateflow.errors import (
    ClusterFailed,
    ConfigError,
    DataError,
    EnvironmentUnsupported,
    Fenced,
    Interrupted,
    JobDefinitionError,
    StateflowError,
    StorageError,
    error_class,
)
from stateflow.storage import MemoryStorage
from stateflow.storage.locations import HOST_NAMES, NAMES
from stateflow.storage.paths import LAUNCHES, launch_result_key
from stateflow.submission import open_cluster
from stateflow.submission.cluster import Application, Cluster, Phase, SparkSubmit
from stateflow.submission.cluster_run import ClusterRun, RunInCluster
from stateflow.submission.shipment import LaunchFile, Shipment, make_shipment, passed_environment, read_launch_file
from stateflow.submission.yarn import PROGRAM, Yarn, resource_managers
from stateflow_airflow.spark import driver_environment
from tests.checkpoint.log.memory_job import MemoryJob
from tests.docs.pages import code, read, rows, section
from tests.servers.listening import QuietHandler, certificate, listening
from tests.servers.local_yarn import local_java
from tests.servers.running import ROOT
from tests.support.processes import unless_ended, wait_for

_ANSWERS = Path(__file__).parent / "resource_manager"
_SECRET = "what-nobody-may-see"


# -- what is shipped ---------------------------------------------------------------------------------------------------


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_job_file_and_the_modules_that_it_imports_are_shipped(tmp_path: Path) -> None:
    folder = _write(
        tmp_path / "jobs",
        pay_py="import rates, not_installed_here\nfrom shop.visits import Visits\ndef build(env): ...\n",
        rates_py="FACTOR = 2",
        shop__init_py="",
        other_py="raise RuntimeError",
    )
    _write(folder, shop__visits_py="class Visits: ...")
    (folder / "shop" / "init.py").rename(folder / "shop" / "__init__.py")
    content = LaunchFile("one", {"AWS_KEY": _SECRET}, "[job]\nname = 'x'\n", ["job.secret=s"], ["AWS_KEY"])
    made = make_shipment(tmp_path, folder / "pay.py", content, ["--job-root", "/root"])
    assert sorted(zipfile.ZipFile(made.job_archive).namelist()) == [
        "pay.py", "rates.py", "shop/__init__.py", "shop/visits.py",
    ]  # fmt: skip
    assert made.arguments("launch.json") == [
        "run", "stateflow-job/pay.py", "--job-root", "/root", "--launch-file", "launch.json",
    ]  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made.job_archive, made.launch_file)} == {0o600}
    found = read_launch_file(made.launch_file)
    assert found == content
    assert found.layers() == ({"job.name": "x"}, {"job.secret": "s"})


def test_a_job_file_of_a_package_keeps_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "shop"
    folder.mkdir(parents=True)
    for name, text in {"__init__.py": "", "pay.py": "from .rates import A", "rates.py": "A = 1"}.items():
        (folder / name).write_text(text)
    made = make_shipment(tmp_path, folder / "pay.py", LaunchFile("one"), [])
    assert made.job == "shop/pay.py"
    assert sorted(zipfile.ZipFile(made.job_archive).namelist()) == ["shop/__init__.py", "shop/pay.py", "shop/rates.py"]


_STATIC = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "AWS_ENDPOINT_URL": "e"}
_POD_IDENTITY = {"AWS_ROLE_ARN": "r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/of/the/host", "AWS_REGION": "eu"}
_PASSED = {
    **_STATIC,
    **dict.fromkeys(
        ("HADOOP_USER_NAME", "WEBHDFS_TOKEN", "WEBHDFS_NAMENODES", "AWS_REGION", "AWS_SSE_KMS_KEY_ID"), "1"
    ),
    **dict.fromkeys(("GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY"), "1"),
    **dict.fromkeys(("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"), "1"),
    **dict.fromkeys(("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"), "1"),
    **dict.fromkeys(
        ("OPENLINEAGE_URL", "OPENLINEAGE__TRANSPORT", "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_NAMESPACE"), "1"
    ),
    **dict.fromkeys(("STATEFLOW_FAILPOINT", "STATEFLOW_ALLOWED_LOCATIONS", "AIRFLOW_CTX_DAG_ID"), "1"),
}
_KEPT = {
    **_POD_IDENTITY,
    **dict.fromkeys(("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"), "1"),
    **dict.fromkeys(("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "SERVICE_ACCOUNT"), "1"),
    **dict.fromkeys(("GCE_METADATA_HOST", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_USE_AZURE_CLI"), "1"),
    **dict.fromkeys(("OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY", "OTEL_CONFIG_FILE"), "1"),
    **dict.fromkeys(("OPENLINEAGE_CONFIG", "STATEFLOW_LAUNCH", "PATH", "HADOOP_CONF_DIR", "DB_PASSWORD"), "1"),
}
del _KEPT["AWS_REGION"]


def test_the_driver_gets_the_variables_of_services_but_not_the_identity_of_this_host() -> None:
    passed, yielding = passed_environment({**_PASSED, **_KEPT, "MY_A": "1"}, ["MY_*"])
    assert passed == {**_PASSED, "MY_A": "1"}
    of_the_run = ("OPENLINEAGE_", "STATEFLOW_", "AIRFLOW_")
    assert yielding == sorted(name for name in _PASSED if not name.startswith(of_the_run))


def test_all_that_the_storage_reads_is_passed_or_about_the_host() -> None:
    everything = dict.fromkeys(NAMES, "1")
    assert set(passed_environment(everything)[0]) == {*NAMES} - {*HOST_NAMES}
    assert set(driver_environment(everything)) == {*NAMES}


def test_a_variable_that_is_named_is_passed_and_does_not_give_way() -> None:
    assert passed_environment(_POD_IDENTITY, ["AWS_*"]) == (_POD_IDENTITY, [])
    assert passed_environment({"OPENLINEAGE_CONFIG": "f"}, ["OPENLINEAGE_CONFIG"]) == ({"OPENLINEAGE_CONFIG": "f"}, [])


def test_the_id_of_an_identity_is_passed_with_its_secret_only() -> None:
    assert passed_environment({"AZURE_CLIENT_ID": "i", "AZURE_TENANT_ID": "t"})[0] == {"AZURE_TENANT_ID": "t"}


def test_the_guide_s_table_of_variables() -> None:
    table = rows(section(read("run-on-kubernetes"), "Environment variables"))[1:]
    named, of_the_run, of_services, of_the_host = (
        [name.replace("*", "X") for name in code(row[0])] for row in table[:4]
    )
    assert named == ["--driver-env", "env_vars"]
    assert {name.partition("_")[0] for name in of_the_run} == {"OPENLINEAGE", "STATEFLOW", "AIRFLOW"}
    assert passed_environment(dict.fromkeys(of_the_run, "1")) == (dict.fromkeys(of_the_run, "1"), [])
    assert passed_environment(dict.fromkeys(of_services, "1")) == (dict.fromkeys(of_services, "1"), sorted(of_services))
    assert len(of_the_host) >= 7 and not passed_environment(dict.fromkeys(of_the_host, "1"))[0]


@pytest.mark.parametrize(
    ("own", "given_way"),
    [
        ({}, set()),
        ({"PATH": "p", "AWS_PROFILE": "x"}, set()),
        # Also the token: with the pod's keys, it would not be valid.
        ({"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"}, {*_STATIC}),
        (_POD_IDENTITY, {*_STATIC}),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23"}, {*_STATIC}),
        ({"AWS_REGION": "mine"}, {"AWS_REGION"}),
        ({"WEBHDFS_TOKEN": "mine"}, {"HADOOP_USER_NAME", "WEBHDFS_TOKEN", "WEBHDFS_NAMENODES"}),
        ({"GCE_METADATA_HOST": "mine"}, {"GOOGLE_SERVICE_ACCOUNT_KEY"}),
        # The header would be sent to another receiver.
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "mine"},
            {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"},
        ),
        ({"OTEL_SERVICE_NAME": "mine"}, {"OTEL_SERVICE_NAME"}),
        ({"STATEFLOW_ALLOWED_LOCATIONS": "/", "OPENLINEAGE_URL": "mine"}, set()),
    ],
)
def test_variables_of_a_service_give_way_to_those_of_the_driver_s_host(
    own: dict[str, str], given_way: set[str]
) -> None:
    environment, yielding = passed_environment(_PASSED)
    hidden = _PASSED.keys() - LaunchFile("one", environment, yielding=yielding).variables(own).keys()
    of_aws = {name for name in _PASSED if name.startswith("AWS_")}
    assert hidden == (of_aws if given_way == {*_STATIC} else given_way)
    named = passed_environment(_PASSED, ["*"])[0]
    assert LaunchFile("one", named).variables(own) == _PASSED


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"launch": "../x", "environment": {}, "config": "", "assignments": []}']
)
def test_a_launch_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises(ConfigError):
        read_launch_file(tmp_path / "launch.json")


# -- the options of spark-submit ---------------------------------------------------------------------------------------


def test_settings_come_from_options_and_from_one_file(tmp_path: Path) -> None:
    defaults, own = tmp_path / "spark-defaults.conf", tmp_path / "own.conf"
    defaults.write_text("# comment\nspark.master  yarn\nspark.submit.deployMode=cluster\n\nspark.yarn.tags: a,b\n")
    own.write_text("spark.master=local[2]")
    assert read_conf([], defaults) == {
        "spark.master": "yarn", "spark.submit.deployMode": "cluster", "spark.yarn.tags": "a,b",
    }  # fmt: skip
    assert read_conf(["--properties-file", str(own), "--conf", "spark.x=a=b"], defaults) == {
        "spark.master": "local[2]", "spark.x": "a=b",
    }  # fmt: skip
    assert default_conf_file({"SPARK_CONF_DIR": str(tmp_path)}, None) == defaults
    assert default_conf_file({}, None) is None


@pytest.mark.parametrize("options", [["--deploy-mode", "cluster"], ["--conf", "spark.submit.deployMode=cluster"]])
@pytest.mark.parametrize("master", ["spark://host:7077", "local[2]", ""])
def test_a_master_that_runs_no_python_drivers_is_refused(options: list[str], master: str) -> None:
    given = [*options, *(["--master", master] if master else [])]
    submit = SparkSubmit("spark-submit", given, {"SPARK_CONF_DIR": "/nowhere"})
    assert submit.is_cluster_mode
    with pytest.raises(ConfigError):
        open_cluster(submit, SystemClock())


# -- what the driver stores --------------------------------------------------------------------------------------------


def test_results_of_the_newest_launches_are_kept() -> None:
    storage = MemoryStorage()
    for number in range(KEEP + 5):
        record_run(storage, f"l{number}", number)
        store_result(storage, f"l{number}", number + 1, {"status": "finished", "number": number})
    kept = {blob.key.split("/")[1] for blob in storage.list(LAUNCHES)}
    assert kept == {f"l{number}" for number in range(5, KEEP + 5)}
    assert read_launch_result(storage, "l7") == {"status": "finished", "number": 7}
    assert (generation_of(storage, "l7"), generation_of(storage, "l1")) == (7, 0)


def test_a_result_that_is_too_long_loses_its_details() -> None:
    storage = MemoryStorage()
    error = {"code": "data", "message": "m", "facts": {"rows": "x" * (2 << 20)}}
    store_result(storage, "one", 0, {"status": "failed", "error": error, "result": None})
    shorter = {**error, "facts": {}}
    assert read_launch_result(storage, "one") == {"status": "failed", "error": shorter, "result": None}
    result = {"rows_in": 3, "offsets": {"a": 1}, "quarantined": [{"error": "x" * (2 << 20)}]}
    store_result(storage, "two", 0, {"status": "finished", "error": None, "result": result})
    kept = {"rows_in": 3, "offsets": {"a": 1}}
    assert read_launch_result(storage, "two") == {"status": "finished", "error": None, "result": kept}


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_result_is_an_error(data: bytes) -> None:
    storage = MemoryStorage()
    storage.put_new(launch_result_key("one", 0, 3), data)
    with pytest.raises(DataError):
        read_launch_result(storage, "one")


def test_errors_keep_their_class() -> None:
    assert error_class("fenced") is Fenced
    assert error_class("of-a-newer-version") is ClusterFailed


# -- a run -------------------------------------------------------------------------------------------------------------


class FakeCluster(Cluster):
    """A cluster whose applications do what `script` says at each call of `find`; None is a call that fails."""

    def __init__(self, *script: Phase | None) -> None:
        self.script = list(script)
        self.submitted = 0
        self.delivered = 0
        self.on_deliver: Callable[[], None] = lambda: None
        self.killed = 0
        self.cleaned = 0
        self.on_find: Callable[[int], None] = lambda number: None
        self.calls = 0

    def submit(self, shipment: Shipment, is_cancelled: Callable[[], bool]) -> None:
        self.submitted += 1

    def deliver(self, application: Application, shipment: Shipment) -> None:
        self.delivered += 1
        self.on_deliver()

    def find(self, launch: str) -> Application | None:
        self.calls += 1
        assert self.calls < 5_000, "the run is followed without an end"
        self.on_find(self.calls)
        if self.killed:
            return Application("a-1", Phase.KILLED)
        phase = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if phase is None:
            raise ClusterFailed("away")
        return Application("a-1", phase, "why", "http://log")

    def kill(self, application: Application) -> None:
        self.killed += 1

    def clean_up(self, application: Application) -> None:
        self.cleaned += 1


class Unknown(FakeCluster):
    """A cluster that does not know the launch before it is submitted."""

    def find(self, launch: str) -> Application | None:
        return super().find(launch) if self.submitted else None


def _run(cluster: Cluster, storage: MemoryStorage, end_timeout: float = 60, *, follow_only: bool = False) -> Any:
    run = RunInCluster("one", storage, timedelta(seconds=end_timeout), "note", lambda step: None)
    given = None if follow_only else _no_shipment
    return ClusterRun(cluster, run, SystemClock(), poll=timedelta(milliseconds=1)).run(given)


def _no_shipment() -> Shipment:
    return Shipment("one", Path(), Path(), Path(), "job.py", [])


RESULT = {"status": "finished", "checkpoint_id": 4}


def test_a_run_is_submitted_and_followed_while_the_cluster_is_sometimes_away() -> None:
    storage = MemoryStorage()
    store_result(storage, "one", 3, {"status": "of an earlier submission"})
    cluster = Unknown(Phase.WAITING, None, Phase.RUNNING, None, Phase.SUCCEEDED)
    cluster.on_find = lambda number: store_result(storage, "one", 4, RESULT) if number == 4 else None
    assert _run(cluster, storage) == RESULT
    assert (cluster.submitted, cluster.delivered, cluster.killed, cluster.cleaned) == (1, 1, 0, 1)


@pytest.mark.parametrize("found", [Phase.RUNNING, Phase.SUCCEEDED])
def test_a_driver_that_an_earlier_process_has_submitted_is_followed(found: Phase) -> None:
    storage = MemoryStorage()
    store_result(storage, "one", 4, RESULT)
    cluster = FakeCluster(found, Phase.SUCCEEDED)
    assert _run(cluster, storage) == RESULT
    assert cluster.submitted == 0


@pytest.mark.parametrize("found", [Phase.FAILED, Phase.KILLED, Phase.SUCCEEDED])
def test_a_driver_that_has_failed_or_has_stored_no_result_is_submitted_again(found: Phase) -> None:
    storage = MemoryStorage()
    if found is not Phase.SUCCEEDED:
        store_result(storage, "one", 4, {"status": "failed"})
    cluster = FakeCluster(found, Phase.RUNNING, Phase.SUCCEEDED)
    with pytest.raises(ClusterFailed) as caught:
        _run(cluster, storage)
    assert cluster.submitted == 1
    # The process that had followed the first one may have been killed before it had removed anything.
    assert cluster.cleaned == 2
    assert caught.value.facts["phase"] == "succeeded"


@pytest.mark.parametrize(
    "script", [(Phase.FAILED,), (Phase.KILLED,), (Phase.WAITING, Phase.FAILED)], ids=["failed", "killed", "ends"]
)
def test_a_process_that_only_follows_submits_no_driver(script: tuple[Phase, ...]) -> None:
    storage, cluster = MemoryStorage(), FakeCluster(*script)
    with pytest.raises(ClusterFailed):
        _run(cluster, storage, follow_only=True)
    assert (cluster.submitted, cluster.cleaned) == (0, 1)
    store_result(storage, "one", 4, RESULT)
    assert _run(cluster, storage, follow_only=True) == RESULT
    assert cluster.submitted == 0


@pytest.mark.parametrize(
    ("found", "claimed", "follow_only", "delivered"),
    [
        (Phase.WAITING, False, False, 1),
        (Phase.RUNNING, False, False, 1),
        (Phase.RUNNING, True, False, 0),
        (Phase.RUNNING, False, True, 0),
        (Phase.SUCCEEDED, False, False, 0),
    ],
)
def test_a_driver_gets_its_settings_from_the_successor_of_a_process_that_was_killed_before(
    found: Phase, claimed: bool, follow_only: bool, delivered: int
) -> None:
    storage = MemoryStorage()
    store_result(storage, "one", 4, RESULT)
    if claimed:
        record_run(storage, "one", 3)
    cluster = FakeCluster(found, Phase.SUCCEEDED)
    assert _run(cluster, storage, follow_only=follow_only) == RESULT
    assert (cluster.submitted, cluster.delivered) == (0, delivered)


@pytest.mark.parametrize(
    ("phase", "facts"),
    [(Phase.RUNNING, {"reason": "quota"}), (Phase.FAILED, {"application": "a-1", "phase": "failed", "reason": "why"})],
)
def test_settings_that_a_driver_cannot_get_are_an_error_unless_it_has_ended(
    phase: Phase, facts: dict[str, str]
) -> None:
    cluster = Unknown(Phase.WAITING, phase)

    def fail() -> None:
        raise ClusterFailed("a program of Hadoop has failed", reason="quota")

    cluster.on_deliver = fail
    with pytest.raises(ClusterFailed) as caught:
        _run(cluster, MemoryStorage())
    assert caught.value.facts == facts


def test_a_signal_that_interrupts_the_delivery_of_settings_ends_the_driver() -> None:
    cluster = Unknown(Phase.RUNNING)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise ClusterFailed("a program of Hadoop has failed")

    cluster.on_deliver = interrupt
    with pytest.raises(Interrupted):
        _run(cluster, MemoryStorage(), end_timeout=0)
    assert (cluster.killed, cluster.cleaned) == (1, 1)


def test_a_driver_is_followed_although_the_job_file_of_today_is_damaged() -> None:
    storage, cluster = MemoryStorage(), FakeCluster(Phase.RUNNING, Phase.SUCCEEDED)
    store_result(storage, "one", 4, RESULT)

    def fail() -> Shipment:
        raise JobDefinitionError("the job file has a syntax error")

    run = RunInCluster("one", storage, timedelta(seconds=60), "note", lambda step: None)
    assert ClusterRun(cluster, run, SystemClock(), poll=timedelta(milliseconds=1)).run(fail) == RESULT
    assert (cluster.submitted, cluster.delivered) == (0, 0)


_SUBMITTING = """
import sys
from pathlib import Path
from stateflow.submission.cluster import SparkSubmit, run_spark_submit
from stateflow.submission.shipment import Shipment
folder = Path(sys.argv[1])
shipment = Shipment("one", folder, folder, folder, "job.py", [])
run_spark_submit(SparkSubmit(str(folder / "spark-submit"), [], {}), [], shipment, lambda: False)
"""


def test_spark_submit_ends_with_the_process_that_was_killed(tmp_path: Path) -> None:
    """It would submit a driver after a successor has looked for one."""
    program = tmp_path / "spark-submit"
    program.write_text('#!/bin/sh\necho $$ >"$(dirname "$0")/pid.new"\nmv "$0" "$0-old"\nexec /bin/sleep 100\n')
    program.chmod(0o700)
    process = subprocess.Popen([sys.executable, "-c", _SUBMITTING, str(tmp_path)], cwd=ROOT)
    wait_for(lambda: (tmp_path / "spark-submit-old").exists(), lambda: f"exit code {process.poll()}")
    child = psutil.Process(int((tmp_path / "pid.new").read_text()))
    process.kill()
    process.wait()
    try:
        # Its new parent may not have reaped it.
        zombie = psutil.STATUS_ZOMBIE
        wait_for(lambda: unless_ended(child.status, zombie) == zombie, lambda: str(child), seconds=5)
    finally:
        unless_ended(child.kill, None)


@pytest.mark.parametrize("submitted", [0, 1], ids=["claimed", "not-claimed"])
def test_a_driver_of_an_interrupted_submission_is_submitted_again(submitted: int) -> None:
    storage = MemoryStorage()
    if not submitted:
        record_run(storage, "one", 3)
    cluster = FakeCluster(Phase.WAITING, Phase.FAILED, Phase.WAITING, Phase.FAILED)
    with pytest.raises(ClusterFailed):
        _run(cluster, storage)
    # Once: the second one was submitted by this process to its end.
    assert (cluster.submitted, cluster.cleaned) == (submitted, 1 + submitted)


def test_a_driver_without_a_result_has_failed_for_the_reason_of_the_cluster() -> None:
    cluster = FakeCluster(Phase.RUNNING, Phase.FAILED)
    with pytest.raises(ClusterFailed) as caught:
        _run(cluster, MemoryStorage())
    assert caught.value.facts == {"application": "a-1", "phase": "failed", "reason": "why"}
    assert "http://log" in caught.value.hint
    assert cluster.cleaned == 1


def test_the_result_counts_whatever_the_cluster_says() -> None:
    storage = MemoryStorage()
    store_result(storage, "one", 4, RESULT)
    assert _run(FakeCluster(Phase.RUNNING, Phase.FAILED), storage) == RESULT


def test_the_result_of_a_driver_that_was_replaced_and_ends_later_does_not_count() -> None:
    storage = MemoryStorage()
    cluster = Unknown(Phase.RUNNING, Phase.SUCCEEDED)
    late = {"status": "failed", "error": {"code": "fenced"}}

    def on_find(number: int) -> None:
        store_result(storage, "one", 9, RESULT, generation=7)
        # Its cluster could not reach it, so it was replaced while it still worked.
        store_result(storage, "one", 9, late, generation=3)
        store_result(storage, "one", 12, late, generation=3)

    cluster.on_find = on_find
    assert _run(cluster, storage) == RESULT


class Refusing(FakeCluster):
    """A cluster whose submission fails with an error, and may have an application nevertheless."""

    def __init__(self, error: StateflowError, *script: Phase | None) -> None:
        super().__init__(*script)
        self.error = error

    def submit(self, shipment: Shipment, is_cancelled: Callable[[], bool]) -> None:
        super().submit(shipment, is_cancelled)
        raise self.error

    def find(self, launch: str) -> Application | None:
        return super().find(launch) if self.submitted and self.script else None


def test_an_application_that_fails_at_once_gives_the_reason_of_the_submission() -> None:
    with pytest.raises(ClusterFailed) as caught:
        _run(Refusing(ClusterFailed("exit code 1", reason="FAILED"), Phase.FAILED), MemoryStorage())
    assert caught.value.facts == {"application": "a-1", "phase": "failed", "reason": "why"}
    with pytest.raises(ClusterFailed) as caught:
        _run(Refusing(ClusterFailed("exit code 1", reason="no cluster")), MemoryStorage())
    assert caught.value.facts == {"reason": "no cluster"}


def test_a_submission_that_was_interrupted_is_followed_if_the_cluster_has_accepted_it() -> None:
    storage = MemoryStorage()
    cluster = Refusing(Interrupted("interrupted"), Phase.RUNNING, Phase.SUCCEEDED)
    cluster.on_find = lambda number: store_result(storage, "one", 4, RESULT) if number == 2 else None
    assert _run(cluster, storage) == RESULT
    with pytest.raises(Interrupted):
        _run(Refusing(Interrupted("interrupted")), storage)


def _signals_at(first: int, *others: int) -> Callable[[int], None]:
    def send(number: int) -> None:
        if number in (first, *others):
            os.kill(os.getpid(), signal.SIGTERM)

    return send


def test_a_signal_requests_the_run_of_the_launch_to_stop() -> None:
    job = MemoryJob()
    head = job.head
    record_run(job.storage, "one", head.entry.generation)
    cluster = FakeCluster(Phase.RUNNING)

    def on_find(number: int) -> None:
        _signals_at(2)(number)
        if number == 6:
            store_result(job.storage, "one", 9, RESULT)
            cluster.script = [Phase.SUCCEEDED]

    cluster.on_find = on_find
    assert _run(cluster, job.storage) == RESULT
    (request,) = open_requests(job.storage)
    assert (request.kind, request.generation) == (RequestKind.STOP, head.entry.generation)
    assert (cluster.killed, cluster.submitted) == (0, 0)


@pytest.mark.parametrize("failing", [range(2, 6), range(7, 12)], ids=["before-the-request", "after-it"])
def test_a_storage_that_fails_for_a_moment_does_not_end_a_run_that_is_stopping(
    monkeypatch: pytest.MonkeyPatch, failing: range
) -> None:
    job = MemoryJob()
    record_run(job.storage, "one", job.head.entry.generation)
    cluster = FakeCluster(Phase.RUNNING)

    def find_generation(storage: MemoryStorage, launch: str) -> int:
        if cluster.calls in failing:
            raise StorageError("the server is overloaded", hint="try again")
        return generation_of(storage, launch)

    def on_find(number: int) -> None:
        _signals_at(2)(number)
        if number == 15:
            store_result(job.storage, "one", 9, RESULT)
            cluster.script = [Phase.SUCCEEDED]

    monkeypatch.setattr("stateflow.submission.cluster_run.generation_of", find_generation)
    cluster.on_find = on_find
    assert _run(cluster, job.storage) == RESULT
    assert len(open_requests(job.storage)) == 1
    assert cluster.killed == 0


def test_a_run_whose_storage_stays_away_is_killed_at_the_end_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(storage: MemoryStorage, launch: str) -> int:
        raise StorageError("the server is overloaded", hint="try again")

    cluster = FakeCluster(Phase.RUNNING)
    cluster.on_find = _signals_at(2)
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr("stateflow.submission.cluster_run.generation_of", fail)
        _run(cluster, MemoryStorage(), end_timeout=0.05)
    assert cluster.killed == 1


@pytest.mark.parametrize(
    ("claimed", "end_timeout", "signals"),
    [(False, 60, (2,)), (True, 0.01, (2,)), (True, 60, (2, 4))],
    ids=["no-run", "too-slow", "second-signal"],
)
def test_a_run_that_cannot_stop_is_killed_by_the_cluster(
    claimed: bool, end_timeout: float, signals: tuple[int, ...]
) -> None:
    job = MemoryJob()
    if claimed:
        record_run(job.storage, "one", job.head.entry.generation)
    cluster = FakeCluster(Phase.RUNNING)
    cluster.on_find = _signals_at(*signals)
    with pytest.raises(Interrupted):
        _run(cluster, job.storage, end_timeout)
    assert (cluster.killed, cluster.cleaned) == (1, 1)


# -- YARN, by answers of a real ResourceManager ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "found"),
    [
        ({"hostname": "rm"}, ("http://rm:8088",)),
        ({"hostname": "rm", "webapp.address": "${yarn.resourcemanager.hostname}:99"}, ("http://rm:99",)),
        (
            {"ha.enabled": "true", "ha.rm-ids": "a, b", "hostname.a": "one", "webapp.address.b": "two:80"},
            ("http://one:8088", "http://two:80"),
        ),
    ],
)
def test_the_address_of_the_resource_manager(site: dict[str, str], found: tuple[str, ...]) -> None:
    assert resource_managers({f"yarn.resourcemanager.{name}": value for name, value in site.items()}) == found


def test_a_secure_resource_manager_and_none() -> None:
    secure = {"yarn.http.policy": "HTTPS_ONLY", "yarn.resourcemanager.hostname": "rm"}
    assert resource_managers(secure) == ("https://rm:8090",)
    for site in ({}, {"yarn.resourcemanager.hostname": "0.0.0.0"}):
        with pytest.raises(ConfigError):
            resource_managers(site)


class _Handler(QuietHandler):
    answer: tuple[int, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def _yarn(folder: Path, status: int, body: bytes) -> Iterator[tuple[Yarn, list[str]]]:
    asked: list[str] = []
    with listening(_Handler, answer=(status, body), asked=asked) as address:
        yield _yarn_at(folder, address.removeprefix("http://")), asked


def _yarn_at(folder: Path, address: str, *, secure: bool = False) -> Yarn:
    name = f"yarn.resourcemanager.webapp.{'https.' if secure else ''}address"
    given = {name: address, **({"yarn.http.policy": "HTTPS_ONLY"} if secure else {})}
    texts = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in given.items()]
    (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(texts)}</configuration>")
    return Yarn(SparkSubmit("spark-submit", [], {"HADOOP_CONF_DIR": str(folder)}), ManualClock())


@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        ("accepted", Phase.WAITING),
        ("running", Phase.RUNNING),
        ("succeeded", Phase.SUCCEEDED),
        ("no-python", Phase.FAILED),
        ("unknown-queue", Phase.FAILED),
        ("am-killed", Phase.FAILED),
    ],
)
def test_an_application_as_the_resource_manager_describes_it(tmp_path: Path, answer: str, phase: Phase) -> None:
    body = (_ANSWERS / f"{answer}.json").read_bytes()
    (app,) = json.loads(body)["apps"]["app"]
    with _yarn(tmp_path, 200, body) as (yarn, asked):
        found = yarn.find("one")
    assert found is not None
    assert (found.id, found.phase, found.log) == (app["id"], phase, app.get("amContainerLogs", ""))
    assert "\tat " not in found.reason and len(found.reason) <= 2000
    assert asked == ["/ws/v1/cluster/apps?applicationTags=stateflow-one"]


def test_the_resource_manager_knows_no_application(tmp_path: Path) -> None:
    with _yarn(tmp_path, 200, b'{"apps":{}}') as (yarn, _):
        assert yarn.find("one") is None


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"<html>", ClusterFailed),
        (200, b'{"apps": {"app": [{"id": "application_1_2; rm -r"', ClusterFailed),
        (200, b'{"apps": {"app": [{"id": "--help", "state": "RUNNING"}]}}', ClusterFailed),
        (200, b'{"apps": {"app": 3}}', ClusterFailed),
        (307, b"", ClusterFailed),
        (500, b"{}", ClusterFailed),
        (401, b"{}", ConfigError),
    ],
)
def test_another_answer_is_an_error(tmp_path: Path, status: int, body: bytes, error: type[StateflowError]) -> None:
    with _yarn(tmp_path, status, body) as (yarn, _), pytest.raises(error):
        yarn.find("one")


def test_a_host_without_the_packages_cannot_submit_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stateflow.http", "stateflow.submission.yarn", "stateflow.submission.kubernetes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(EnvironmentUnsupported) as caught:
        open_cluster(SparkSubmit("spark-submit", ["--master", "yarn"], {}), ManualClock())
    assert caught.value.facts["package"] == "requests" and "stateflow[cluster]" in caught.value.hint


@pytest.mark.parametrize("reason", ["Connection refused", "Name or service not known"])
def test_a_resource_manager_that_is_away_is_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, reason)

    if reason.startswith("Name"):
        # Without a name server, the answer would be another one.
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ClusterFailed) as caught:
        _yarn_at(tmp_path, "127.0.0.1:1").find("one")
    assert reason in str(caught.value.facts["reason"])


def test_the_certificate_of_a_resource_manager_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, missing = certificate(tmp_path), str(tmp_path / "missing")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with listening(_Handler, own, answer=(200, b'{"apps":{}}'), asked=[]) as address:
        yarn = _yarn_at(tmp_path, address.removeprefix("https://"), secure=True)
        for bundle in ("", missing):
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", bundle)
            with pytest.raises(ConfigError) as caught:
                yarn.find("one")
            assert caught.value.facts["authorities"] == (bundle or requests.utils.DEFAULT_CA_BUNDLE_PATH)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(own.ca_file))
        assert yarn.find("one") is None
        # While a driver is followed, the file may be replaced.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", missing)
        with pytest.raises(ClusterFailed):
            yarn.find("one")


def _submitted_to_yarn(tmp_path: Path) -> tuple[Yarn, Shipment]:
    """Submits a driver by a spark-submit that only writes down its arguments, in the file ``words``."""
    _write(tmp_path, on_yarn_py="def build(env): ...\n")
    program = tmp_path / "spark-submit"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\n')
    program.chmod(0o700)
    options = ["--queue", "q", "--conf", f"spark.secret={_SECRET}", "--conf", "spark.yarn.tags=mine"]
    options += ["--conf", "spark.hadoop.fs.s3a.access.key=given", "--conf", "spark.hadoop.note=a<&b"]
    (tmp_path / "yarn-site.xml").write_text(
        "<a><property><name>yarn.resourcemanager.hostname</name><value>h</value></property></a>"
    )
    environment = {**os.environ, "HADOOP_CONF_DIR": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
    environment |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_SESSION_TOKEN": _SECRET}
    content = LaunchFile("one", {"AWS_KEY": _SECRET}, "", [f"job.secret={_SECRET}"])
    shipment = make_shipment(tmp_path, tmp_path / "on_yarn.py", content, ["--job-root", "/root"])
    yarn = Yarn(SparkSubmit(str(program), options, environment), ManualClock())
    yarn.submit(shipment, lambda: False)
    return yarn, shipment


def test_the_command_line_on_yarn(tmp_path: Path) -> None:
    _, shipment = _submitted_to_yarn(tmp_path)
    words = (tmp_path / "words").read_text().splitlines()
    driver = tmp_path / "stateflow_driver.py"
    at = words.index(str(driver))
    assert words[at + 1 :] == ["run", "stateflow-job/on_yarn.py", "--job-root", "/root"]
    assert words[:2] == ["--queue", "q"] and _SECRET not in " ".join(words)
    conf = read_conf(words[:at], None)
    assert conf["spark.yarn.tags"] == "mine,stateflow-one"
    assert (conf["spark.yarn.maxAppAttempts"], conf["spark.submit.deployMode"]) == ("1", "cluster")
    # Longer than the program waits for its settings, with the time of its start.
    assert conf["spark.yarn.am.waitTime"] == "300s" and "180" in driver.read_text()
    assert conf["spark.app.name"] == "stateflow on_yarn"
    # Spark would take them from its environment, and write them to a file that all containers get.
    keys = {name: conf[f"spark.hadoop.fs.s3a.{name}"] for name in ("access.key", "secret.key", "session.token")}
    assert keys == {"access.key": "given", "secret.key": "", "session.token": ""}
    # Archives go to executors, too, and stay in a cache of their hosts.
    assert conf["spark.yarn.dist.archives"] == f"{shipment.job_archive.as_uri()}#stateflow-job"
    assert "spark.yarn.dist.files" not in conf
    assert _SECRET not in driver.read_text()


def test_the_launch_file_is_put_into_the_folder_of_its_application_and_deleted(tmp_path: Path) -> None:
    yarn, shipment = _submitted_to_yarn(tmp_path)
    hadoop = tmp_path / "spark-class"
    hadoop.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\ncat "$3" >{tmp_path}/site.xml\n')
    hadoop.chmod(0o700)
    yarn.deliver(Application("application_1_0001", Phase.WAITING, user="u"), shipment)
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:2] == ["org.apache.hadoop.fs.FsShell", "-conf"] and _SECRET not in " ".join(words)
    # The folder of another application would get the secrets.
    assert words[3:] == [
        "-D", "fs.permissions.umask-mode=077", "-put", "-f", shipment.launch_file.as_uri(),
        ".sparkStaging/application_1_0001/stateflow-launch.json",
    ]  # fmt: skip
    # The configuration of spark-submit, not what keeps credentials out of it.
    properties = ElementTree.parse(tmp_path / "site.xml").iter("property")
    assert [(each.findtext("name"), each.findtext("value")) for each in properties] == [
        ("fs.s3a.access.key", "given"), ("note", "a<&b"),
    ]  # fmt: skip
    assert not shipment.launch_file.exists()


@pytest.mark.parametrize(
    ("staging", "user", "folder"),
    [
        ("", "u", ".sparkStaging/application_1_0001"),
        ("hdfs://n/staging/", "u.v@w", "hdfs://n/staging/u.v@w/.sparkStaging/application_1_0001"),
        ("/", "u", "/u/.sparkStaging/application_1_0001"),
        ("/staging", "../other", None),
        ("/staging", "*", None),
        ("/staging", "", None),
    ],
)
def test_the_staging_folder_of_an_application(tmp_path: Path, staging: str, user: str, folder: str | None) -> None:
    (tmp_path / "yarn-site.xml").write_text(
        "<a><property><name>yarn.resourcemanager.hostname</name><value>h</value></property></a>"
    )
    (tmp_path / "spark-class").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\n')
    (tmp_path / "spark-class").chmod(0o700)
    environment = {**os.environ, "HADOOP_CONF_DIR": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
    options = ["--conf", f"spark.yarn.stagingDir={staging}"] if staging else []
    yarn = Yarn(SparkSubmit(str(tmp_path / "spark-submit"), options, environment), ManualClock())
    application = Application("application_1_0001", Phase.FAILED, user=user)
    if folder is None:
        with pytest.raises(ClusterFailed):
            yarn.clean_up(application)
    else:
        yarn.clean_up(application)
        assert (tmp_path / "words").read_text().splitlines()[3:] == ["-rm", "-r", "-f", "-skipTrash", folder]


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The staging folder of an application, whose driver's program runs in this process."""
    monkeypatch.setenv("SPARK_YARN_STAGING_DIR", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: None)
    monkeypatch.setattr(SparkContext, "_jvm", local_java())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["program"])
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_a_driver_s_program_reads_its_settings_and_deletes_them(staging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr("stateflow.cli.main.main", lambda: found.append(Path(sys.argv[2]).read_bytes()))
    (staging / "stateflow-launch.json").write_bytes(b"{}")
    runpy.run_path(str(staging / "program.py"))
    assert found == [b"{}"]
    assert [path.name for path in staging.iterdir()] == ["program.py"]


def test_a_driver_that_gets_no_settings_ends(staging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that has submitted it was killed, and no other follows it."""
    seconds = iter((0, 100, 200))
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda pause: None)
    monkeypatch.setitem(sys.modules, "time", clock)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(staging / "program.py"))
    assert caught.value.code not in (None, 0)
