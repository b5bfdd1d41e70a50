"""The manifests of docker/kubernetes on a real API server: rights, pods, labels, owner references, deletion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.kubernetes import Api, Cluster, Object, Refused, kubernetes_cluster
from tests.servers.running import CANARY
from tests.support.kubernetes_runs import ENTRYPOINT, IMAGE, MANIFESTS, Namespace, granted, pairs, spark_image

pytestmark = pytest.mark.slow(reason="starts the programs of Kubernetes, and drivers in it")

_PROGRAM = """
import hashlib, os, time
from pathlib import Path
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
def double(frames):
    while not Path(GATE).exists():
        time.sleep(0.05)
    yield from (frame * 2 for frame in frames)
total = session.range(1000).mapInPandas(double, "id long").groupBy().sum("id").collect()[0][0]
print("TOTAL", total, hashlib.sha256(os.environ["TESTS_SECRET_KEY"].encode()).hexdigest(), flush=True)
session.stop()
"""
_EVERYBODY = {
    ("create", "selfsubjectaccessreviews"), ("create", "selfsubjectrulesreviews"), ("create", "selfsubjectreviews"),
    *((verb, "clustertrustbundles") for verb in ("get", "list", "watch")),
}  # fmt: skip
"""Rights that each user of a cluster has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kubernetes_cluster(tmp_path_factory.mktemp("kubernetes"), {IMAGE: spark_image()}) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Namespace:
    name = request.node.name.replace("test_", "").replace("_", "-")[:40].strip("-")
    return Namespace.create(cluster, name, tmp_path)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file without which the tasks of the program wait."""
    return tmp_path / "gate"


@pytest.fixture
def program(tmp_path: Path, gate: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM.replace("GATE", repr(str(gate))))
    return path


def test_the_accounts_have_the_rights_of_the_manifest_in_their_namespace_and_no_others(namespace: Namespace) -> None:
    other = namespace.cluster.namespace("of-others")
    for account in ("stateflow-submitter", "stateflow-driver", "stateflow-executor"):
        with namespace.account(account) as api:
            assert _rights(api, namespace.name) == _EVERYBODY | granted(account), account
            assert _rights(api, other) == _EVERYBODY, account


def test_a_driver_uses_each_of_its_rights_and_leaves_nothing(namespace: Namespace, program: Path, gate: Path) -> None:
    """Also after the loss of an executor, whose pod it deletes."""
    submitted = namespace.submit(program, "driver")
    assert submitted.returncode == 0, submitted.stderr
    (first,) = namespace.cluster.wait_for(lambda: _running(namespace, "executor"), "an executor")
    namespace.cluster.node.pod(first["metadata"]["name"]).kill()
    second = namespace.cluster.wait_for(
        lambda: [e for e in _running(namespace, "executor") if e["metadata"]["uid"] != first["metadata"]["uid"]],
        "an executor instead of the lost one",
    )
    _check_pods(namespace, second[0])
    gate.touch()
    namespace.cluster.wait_for(lambda: _phase(namespace) == "Succeeded", "the end of the driver")
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    assert f"TOTAL {999 * 1000} {digest}" in namespace.cluster.node.pod("driver").log
    assert namespace.cluster.requests(namespace.user("stateflow-driver")) == granted("stateflow-driver")

    namespace.cluster.api.delete(namespace.path("pods", "driver"))
    namespace.cluster.wait_for(lambda: not namespace.all_objects(), lambda: namespace.all_objects())


def test_an_update_that_creates_an_object_needs_both_rights(namespace: Namespace) -> None:
    """As Spark creates config maps, services and network policies: the log of requests shows the update alone."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "stateflow-submitter"}}
    for verbs, is_refused in ((["patch"], True), (["create", "patch"], False)):
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]
        namespace.cluster.api.apply({**role, "rules": rules}, namespace.name)
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "b"}}
        with namespace.account("stateflow-submitter") as api:
            if is_refused:
                with pytest.raises(Refused, match="403"):
                    api.apply(document, namespace.name)
            else:
                namespace.cluster.wait_for(partial(_is_permitted, api, document, namespace.name))


def _is_permitted(api: Api, document: Object, namespace: str) -> bool:
    """Whether an object can be created: the API server uses a changed role after a moment."""
    try:
        return bool(api.apply(document, namespace))
    except Refused:
        return False


def test_the_deletion_of_a_driver_removes_its_executors_and_all_that_it_needed(
    namespace: Namespace, program: Path
) -> None:
    assert namespace.submit(program, "driver").returncode == 0
    namespace.cluster.wait_for(lambda: _running(namespace, "executor"), "an executor")
    (driver,) = _running(namespace, "driver")
    uid = driver["metadata"]["uid"]
    others = [each for each in namespace.all_objects() if each["metadata"]["uid"] != uid]
    assert {owner["uid"] for each in others for owner in each["metadata"]["ownerReferences"]} == {uid}
    containers = [
        process for pod in ("driver", others[0]["metadata"]["name"]) for process in _processes(namespace, pod)
    ]
    assert containers
    namespace.cluster.api.delete(namespace.path("pods", "driver"))
    namespace.cluster.wait_for(lambda: not namespace.all_objects(), lambda: namespace.all_objects())
    namespace.cluster.wait_for(lambda: not any(process.is_running() for process in containers), "the processes' end")


def test_settings_of_spark_and_arguments_have_no_secret(namespace: Namespace, program: Path, gate: Path) -> None:
    gate.touch()
    assert namespace.submit(program, "driver").returncode == 0
    namespace.cluster.wait_for(lambda: _phase(namespace) == "Succeeded", "the end of the driver")
    objects = [namespace.objects(kind) for kind in ("pods", "configmaps", "services")]
    assert CANARY not in json.dumps(objects)


def test_the_image_has_the_entrypoint_where_the_templates_expect_it() -> None:
    dockerfile = (MANIFESTS.parent / "Dockerfile").read_text()
    assert "COPY --chown=airflow:0 --chmod=0755 docker/kubernetes /opt/stateflow/kubernetes" in dockerfile
    assert (MANIFESTS / Path(ENTRYPOINT).name).is_file()
    for name in ("driver", "executor"):
        (container,) = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())["spec"]["containers"]
        assert container["command"] == [ENTRYPOINT]


def _rights(api: Api, namespace: str) -> set[tuple[str, str]]:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)["status"]
    assert not status["incomplete"]
    assert all("resourceNames" not in rule for rule in status["resourceRules"])
    return pairs(status["resourceRules"])


def _phase(namespace: Namespace) -> str:
    return str(namespace.cluster.api.get(namespace.path("pods", "driver"))["status"].get("phase"))


def _running(namespace: Namespace, role: str) -> list[Object]:
    pods = namespace.cluster.pods(namespace.name, spark_role=role)
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def _processes(namespace: Namespace, pod: str) -> list[Any]:
    return list(namespace.cluster.node.pod(pod).processes)


def _check_pods(namespace: Namespace, executor: Object) -> None:
    (driver,) = _running(namespace, "driver")
    assert driver["metadata"]["labels"]["spark-app-selector"] == executor["metadata"]["labels"]["spark-app-selector"]
    assert driver["spec"]["serviceAccountName"] == "stateflow-driver"
    assert executor["spec"]["serviceAccountName"] == "stateflow-executor"
    # An executor runs code of the job, and must not reach the API server.
    assert all("projected" not in volume for volume in executor["spec"]["volumes"])
    for pod in (driver, executor):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["command"] == [ENTRYPOINT]
