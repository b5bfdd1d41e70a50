"""Drivers in Kubernetes, without a real one: the names, Secrets, phases and refusals of a small API server."""

from __future__ import annotations

import base64
import itertools
import json
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stateflow.clock import ManualClock
from stateflow.errors import ClusterFailed, ConfigError
from stateflow.submission import open_cluster
from stateflow.submission.cluster import Phase, SparkSubmit
from stateflow.submission.kubernetes import Kubernetes
from stateflow.submission.shipment import LAUNCH_FILE, LaunchFile, make_shipment
from tests.servers.listening import QuietHandler, certificate, listening

_SECRET = "what-nobody-may-see"
_POD, _SECRETS = "/api/v1/namespaces/jobs/pods/stateflow-one", "/api/v1/namespaces/jobs/secrets/stateflow-one"
_SUBMIT = """#!{python}
import json, sys, urllib.request
from pathlib import Path

Path({seen!r}).write_text(json.dumps(sys.argv[1:]))
conf = Path(sys.argv[sys.argv.index("--properties-file") + 1]).read_text()
Path({seen!r} + ".conf").write_text(conf)
if "fail=1" in conf:
    sys.exit("Exception in thread main: pods stateflow-one is forbidden: exceeded quota: few")
ids = [line.partition("=")[2] for line in conf.splitlines() if "annotation.stateflow/submission" in line]
metadata = {{"name": "stateflow-one", "uid": "u1", "annotations": {{"stateflow/submission": ids[0]}}}}
pod = {{"kind": "Pod", "metadata": metadata, "status": {{"phase": "Pending"}}}}
request = urllib.request.Request({address!r} + "/api/v1/namespaces/jobs/pods", json.dumps(pod).encode(), method="POST")
urllib.request.urlopen(request)
if "fail=2" in conf:
    sys.exit("Exception in thread main: the API server is away")
"""


class _ApiServer(QuietHandler):
    """Objects by path; `refusal` is the answer to every request, and answers to the `lost` methods do not arrive."""

    objects: ClassVar[dict[str, dict[str, Any]]] = {}
    lost: ClassVar[set[str]] = set()
    versions: ClassVar[Iterator[int]] = itertools.count(1)
    before: ClassVar[dict[tuple[str, str], Callable[[], object]]] = {}
    """What another process does before a request, by its method and path."""
    requests: ClassVar[list[tuple[str, str, str]]] = []
    refusal: ClassVar[list[tuple[int, str]]] = []

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        self.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        self.before.pop((self.command, self.path), lambda: None)()
        if self.refusal:
            self._answer(self.refusal[0][0], {"kind": "Status", "message": self.refusal[0][1]})
        elif self.command == "POST":
            path = f"{self.path}/{body['metadata']['name']}"
            is_new = path not in self.objects
            if is_new:
                body["metadata"] = {"resourceVersion": str(next(self.versions)), **body["metadata"]}
                self.objects[path] = body
            self._answer(201 if is_new else 409, body)
        elif self.path not in self.objects:
            self._answer(404, {"kind": "Status", "reason": "NotFound"})
        elif self.command == "DELETE":
            metadata = self.objects[self.path]["metadata"]
            if (body.get("preconditions") or {}).items() <= metadata.items():
                self._answer(200, self.objects.pop(self.path))
            else:
                self._answer(409, {"kind": "Status", "reason": "Conflict"})
        else:
            if self.command == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                self.objects[self.path]["metadata"] |= body["metadata"]
            self._answer(200, self.objects[self.path])

    do_POST = do_PATCH = do_DELETE = do_GET

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        if self.command in self.lost:
            self.close_connection = True
            return
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Setup:
    """An API server, and a spark-submit that creates a pod in it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder, self.clock = address, folder, ManualClock()
        self.token = folder / "token"
        self.token.write_text("first\n")
        self.submit = folder / "spark-submit"
        seen = str(folder / "seen")
        self.submit.write_text(_SUBMIT.format(python=sys.executable, seen=seen, address=address))
        self.submit.chmod(0o700)
        (folder / "pay.py").write_text("def build(env): ...\n")

    def open(self, *conf: str) -> Kubernetes:
        settings = ["spark.kubernetes.namespace=jobs", *conf]
        settings.append(f"spark.kubernetes.authenticate.submission.oauthTokenFile={self.token}")
        words = [word for setting in settings for word in ("--conf", setting)]
        options = ["--master", f"k8s://{self.address}", "--deploy-mode", "cluster", *words]
        opened = open_cluster(SparkSubmit(str(self.submit), options, {"SPARK_CONF_DIR": "/nowhere"}), self.clock)
        assert isinstance(opened, Kubernetes)
        return opened

    def submit_one(self, kubernetes: Kubernetes, config: str = "") -> None:
        content = LaunchFile("one", {"AWS_SECRET_ACCESS_KEY": _SECRET}, config)
        options = ["--job-root", "s3://bucket/jobs"]
        kubernetes.submit(make_shipment(self.folder, self.folder / "pay.py", content, options), lambda: False)

    def set_status(self, **status: object) -> None:
        _ApiServer.objects[_POD]["status"] = status


@pytest.fixture(autouse=True)
def _new_server() -> None:
    """The API server is a class: it has no objects and faults of the test before."""
    _ApiServer.objects.clear()
    _ApiServer.requests.clear()
    _ApiServer.refusal.clear()
    _ApiServer.lost.clear()
    _ApiServer.before.clear()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    with listening(_ApiServer) as address:
        yield Setup(address, tmp_path)


def test_settings_and_job_are_in_a_secret_that_belongs_to_the_pod(setup: Setup) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    words = json.loads((setup.folder / "seen").read_text())
    conf = (setup.folder / "seen.conf").read_text()
    assert words[words.index("local:///opt/stateflow/launch/stateflow-driver.py") :] == [
        "local:///opt/stateflow/launch/stateflow-driver.py", "run", "stateflow-job/pay.py", "--job-root",
        "s3://bucket/jobs", "--launch-file", f"/opt/stateflow/launch/{LAUNCH_FILE}",
    ]  # fmt: skip
    assert "spark.kubernetes.driver.secrets.stateflow-one=/opt/stateflow/launch" in conf
    assert "spark.kubernetes.driver.pod.name=stateflow-one" in conf
    assert _SECRET not in f"{words}{conf}"
    secret = _ApiServer.objects[_SECRETS]
    content = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    assert json.loads(content[LAUNCH_FILE])["environment"] == {"AWS_SECRET_ACCESS_KEY": _SECRET}
    assert stat.S_IMODE((setup.folder / "spark.conf").stat().st_mode) == 0o600
    found = kubernetes.find("one")
    assert found is not None and found.id == "jobs/stateflow-one"
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "stateflow-one", "u1")


def test_a_process_that_finds_the_driver_gives_it_the_secret(setup: Setup) -> None:
    """The one that submitted it was killed before."""
    setup.submit_one(setup.open())
    assert setup.open().find("one") is not None
    assert "ownerReferences" in _ApiServer.objects[_SECRETS]["metadata"]


def test_a_secret_that_is_too_large_is_refused_before_anything_is_created(setup: Setup) -> None:
    kubernetes = setup.open()
    with pytest.raises(ConfigError):
        setup.submit_one(kubernetes, f"# {'x' * (1 << 20)}")
    assert not _ApiServer.objects


@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        ({"phase": "Running"}, Phase.RUNNING, ""),
        ({"phase": "Unknown"}, Phase.RUNNING, ""),
        ({"phase": "Succeeded"}, Phase.SUCCEEDED, ""),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, Phase.FAILED, "Evicted\nlow on memory"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {
                "exitCode": 137, "reason": "OOMKilled", "message": "the last line\n"}}}]},
            Phase.FAILED, "OOMKilled, exit code 137\nthe last line",
        ),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/3 nodes are available"}]},
            Phase.WAITING, "Unschedulable: 0/3 nodes are available",
        ),
    ],
    ids=["running", "unknown", "succeeded", "evicted", "out-of-memory", "unschedulable"],
)  # fmt: skip
def test_a_pod_s_status_is_how_far_the_driver_is(
    setup: Setup, status: dict[str, object], phase: Phase, reason: str
) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    setup.set_status(**status)
    setup.clock.sleep(timedelta(hours=1))
    found = kubernetes.find("one")
    assert found is not None and (found.phase, found.reason) == (phase, reason)
    # Without a container there is no log, and that of one that has ended is deleted with its pod.
    shown = "kubectl logs --namespace jobs stateflow-one"
    assert found.log == (shown if phase is Phase.RUNNING else "")


def test_an_image_that_is_not_there_for_two_minutes_ends_the_launch(setup: Setup) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    phases = []
    for reason, seconds in (("ErrImagePull", 100), ("ImagePullBackOff", 30), ("ErrImagePull", 0)):
        waiting = {"waiting": {"reason": reason, "message": "not found"}}
        setup.set_status(phase="Pending", containerStatuses=[{"state": waiting}])
        phases.append(_phase(kubernetes))
        setup.clock.sleep(timedelta(seconds=seconds))
    assert phases == [Phase.WAITING, Phase.WAITING, Phase.FAILED]


def test_a_pod_without_its_config_map_ends_the_launch_and_the_next_submission_replaces_it(setup: Setup) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    _ApiServer.objects[_POD]["spec"] = {"volumes": [{"name": "conf", "configMap": {"name": "made-later"}}]}
    assert _phase(kubernetes) is Phase.WAITING
    setup.clock.sleep(timedelta(seconds=31))
    assert _phase(kubernetes) is Phase.FAILED
    old = _ApiServer.objects[_POD]
    setup.submit_one(kubernetes)
    assert _ApiServer.objects[_POD] is not old


def test_a_pod_whose_config_map_was_made_late_can_start(setup: Setup) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    _ApiServer.objects[_POD]["spec"] = {"volumes": [{"name": "conf", "configMap": {"name": "made-later"}}]}
    assert _phase(kubernetes) is Phase.WAITING
    setup.clock.sleep(timedelta(seconds=31))
    _ApiServer.objects["/api/v1/namespaces/jobs/configmaps/made-later"] = {}
    assert _phase(kubernetes) is Phase.WAITING


def test_a_driver_that_was_followed_and_is_gone_was_deleted(setup: Setup) -> None:
    kubernetes = setup.open()
    assert kubernetes.find("one") is None
    setup.submit_one(kubernetes)
    found = kubernetes.find("one")
    assert found is not None
    kubernetes.kill(found)
    gone = kubernetes.find("one")
    assert gone is not None and gone.phase is Phase.KILLED
    kubernetes.clean_up(gone)
    assert not _ApiServer.objects
    assert kubernetes.find("one") is None


def test_what_spark_submit_could_not_submit_leaves_no_secret(setup: Setup) -> None:
    with pytest.raises(ClusterFailed) as caught:
        setup.submit_one(setup.open("fail=1"))
    assert "exceeded quota" in str(caught.value.facts["reason"])
    assert not _ApiServer.objects


def test_what_spark_submit_created_before_it_failed_is_removed(setup: Setup) -> None:
    with pytest.raises(ClusterFailed) as caught:
        setup.submit_one(setup.open("fail=2"))
    assert "away" in str(caught.value.facts["reason"])
    assert not _ApiServer.objects


def test_a_submission_whose_answers_are_lost_leaves_no_secret_once_the_server_is_back(setup: Setup) -> None:
    _ApiServer.lost.add("POST")
    with pytest.raises(ClusterFailed):
        setup.submit_one(setup.open())
    assert not _ApiServer.objects
    _ApiServer.lost.add("DELETE")
    _ApiServer.objects[_SECRETS] = {"metadata": {"name": "stateflow-one"}}
    with pytest.raises(ClusterFailed) as caught:
        setup.submit_one(setup.open())
    assert caught.value.facts["address"] == setup.address


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_submission_that_ends_by_any_error_leaves_no_secret(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*arguments: object) -> None:
        assert _SECRETS in _ApiServer.objects
        raise error

    monkeypatch.setattr("stateflow.submission.kubernetes.run_spark_submit", fail)
    with pytest.raises(error):
        setup.submit_one(setup.open())
    assert not _ApiServer.objects


def test_the_secret_of_a_submitter_that_was_killed_before_there_was_a_pod_is_removed(setup: Setup) -> None:
    """Also if its successor has nothing to submit."""
    _ApiServer.objects[_SECRETS] = {"metadata": {"name": "stateflow-one"}}
    kubernetes = setup.open()
    assert kubernetes.find("one") is None
    assert not _ApiServer.objects


def test_a_secret_that_a_successor_removed_too_early_is_created_again(setup: Setup) -> None:
    """It saw no pod, and removed the Secret when the pod had just been created."""
    first = setup.open()
    setup.submit_one(first)
    secret = _ApiServer.objects.pop(_SECRETS)
    assert first.find("one") is not None
    assert _ApiServer.objects[_SECRETS]["data"] == secret["data"]
    (owner,) = _ApiServer.objects[_SECRETS]["metadata"]["ownerReferences"]
    assert owner["uid"] == "u1"


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_an_active_driver_of_another_process_is_not_replaced(setup: Setup, phase: str) -> None:
    setup.submit_one(setup.open())
    setup.set_status(phase=phase)
    before = dict(_ApiServer.objects)
    with pytest.raises(ClusterFailed):
        setup.submit_one(setup.open())
    assert _ApiServer.objects == before


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_driver_that_has_ended_is_replaced(setup: Setup, phase: str) -> None:
    setup.submit_one(setup.open())
    setup.set_status(phase=phase)
    setup.submit_one(setup.open())
    assert _ApiServer.objects[_POD]["status"] == {"phase": "Pending"}


def _of_another_process() -> Callable[[], object]:
    pod = {"metadata": {"name": "stateflow-one", "uid": "u2"}, "status": {"phase": "Running"}}
    return lambda: _ApiServer.objects.update({_POD: pod})


@pytest.mark.parametrize("act", ["submit", "clean-up", "kill"])
def test_a_driver_that_another_process_has_replaced_in_between_is_not_deleted(setup: Setup, act: str) -> None:
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    setup.set_status(phase="Failed")
    found = kubernetes.find("one")
    assert found is not None
    _ApiServer.before[("DELETE", _POD)] = _of_another_process()
    if act == "submit":
        with pytest.raises(ClusterFailed):
            setup.submit_one(kubernetes)
    elif act == "kill":
        kubernetes.kill(found)
    else:
        kubernetes.clean_up(found)
    assert _ApiServer.objects[_POD]["metadata"]["uid"] == "u2"
    assert _SECRETS in _ApiServer.objects


def test_a_submission_that_fails_does_not_remove_the_driver_of_another_process(setup: Setup) -> None:
    _ApiServer.before[("POST", _POD.rpartition("/")[0])] = _of_another_process()
    with pytest.raises(ClusterFailed):
        setup.submit_one(setup.open())
    assert _ApiServer.objects[_POD]["metadata"]["uid"] == "u2"
    assert _SECRETS in _ApiServer.objects


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (403, "pods is forbidden: User x cannot get resource pods", ConfigError),
        (401, "Unauthorized", ConfigError),
        (403, "secrets is forbidden: exceeded quota: few", ClusterFailed),
        (500, "etcd is away", ClusterFailed),
        (429, "too many requests", ClusterFailed),
    ],
)
def test_a_refused_request_is_an_error_with_the_server_s_reason(
    setup: Setup, status: int, message: str, error: type[Exception]
) -> None:
    _ApiServer.refusal.append((status, message))
    with pytest.raises(error) as caught:
        setup.open().find("one")
    assert isinstance(caught.value, ClusterFailed | ConfigError)
    assert (caught.value.facts["status"], caught.value.facts["reason"]) == (status, message)


def test_a_server_that_has_answered_before_may_have_restarted(setup: Setup) -> None:
    """It does not know all rights yet: the run is followed further."""
    kubernetes = setup.open()
    setup.submit_one(kubernetes)
    _ApiServer.refusal.append((403, "pods is forbidden"))
    with pytest.raises(ClusterFailed):
        kubernetes.find("one")


def test_a_server_that_is_away_is_an_error_of_the_cluster(tmp_path: Path) -> None:
    with listening(_ApiServer) as address:
        setup = Setup(address, tmp_path)
    with pytest.raises(ClusterFailed) as caught:
        setup.open().find("one")
    assert "Connection refused" in str(caught.value.facts["reason"])


@pytest.mark.parametrize("is_followed", [False, True], ids=["at first", "while a driver is followed"])
def test_a_token_that_is_not_accepted_is_named(setup: Setup, is_followed: bool) -> None:
    """While a driver is followed, another token may come in time."""
    kubernetes = setup.open()
    if is_followed:
        setup.submit_one(kubernetes)
    _ApiServer.refusal.append((401, "Unauthorized"))
    with pytest.raises(ClusterFailed if is_followed else ConfigError) as caught:
        kubernetes.find("one")
    assert isinstance(caught.value, ClusterFailed | ConfigError)
    assert caught.value.facts["token_file"] == str(setup.token)
    command = f"kubectl create token stateflow-submitter --namespace jobs --duration 8h > {setup.token}"
    assert f"(umask 077; {command})" in caught.value.hint
    assert "rbac" not in caught.value.hint and "first" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"two tokens", b"\xff"], ids=["missing", "empty", "two", "binary"])
def test_a_file_without_a_token_is_named(setup: Setup, content: bytes | None) -> None:
    setup.token.unlink() if content is None else setup.token.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        setup.open().find("one")
    assert caught.value.facts["token_file"] == str(setup.token)
    assert not _ApiServer.requests


@pytest.mark.parametrize("content", [None, "not a certificate", "another authority"])
def test_a_certificate_that_is_not_accepted_is_an_error_of_the_settings(tmp_path: Path, content: str | None) -> None:
    own, file = certificate(tmp_path), tmp_path / "ca.crt"
    (tmp_path / "other").mkdir()
    trusted = f"spark.kubernetes.authenticate.submission.caCertFile={own.ca_file}"
    with listening(_ApiServer, own) as address:
        setup = Setup(address, tmp_path)
        assert setup.open(trusted).find("one") is None
        if content == "another authority":
            file.write_bytes(certificate(tmp_path / "other").ca_file.read_bytes())
        elif content is not None:
            file.write_text(content)
        with pytest.raises(ConfigError) as caught:
            setup.open(trusted.replace(str(own.ca_file), str(file))).find("one")
    assert caught.value.facts["authorities"] == str(file)
    expected = {
        None: "No such file or directory",
        "not a certificate": "[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found",
        "another authority": "self-signed certificate",
    }
    assert str(caught.value.facts["reason"]).startswith(expected[content])


def test_a_client_certificate_that_cannot_be_used_is_named(setup: Setup) -> None:
    files = {"clientCertFile": setup.token, "clientKeyFile": setup.folder / "missing"}
    with pytest.raises(ConfigError) as caught:
        setup.open(*[f"spark.kubernetes.authenticate.submission.{name}={path}" for name, path in files.items()])
    assert caught.value.facts["key"] == str(setup.folder / "missing")


def test_a_token_that_was_replaced_is_used(setup: Setup) -> None:
    kubernetes = setup.open()
    kubernetes.find("one")
    setup.token.write_text("second\n")
    kubernetes.find("one")
    used = [authorization for _, _, authorization in _ApiServer.requests]
    assert [token for token, _ in itertools.groupby(used)] == ["Bearer first", "Bearer second"]


def test_a_master_without_credentials_is_refused() -> None:
    options = ["--master", "k8s://https://127.0.0.1:1", "--deploy-mode", "cluster"]
    with pytest.raises(ConfigError):
        open_cluster(SparkSubmit("spark-submit", options, {"SPARK_CONF_DIR": "/nowhere"}), ManualClock())


def _phase(kubernetes: Kubernetes) -> Phase:
    found = kubernetes.find("one")
    assert found is not None
    return found.phase
