"""Namespaces with the manifests of ``docker/kubernetes``, and how Spark submits drivers to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
import yaml

from tests.servers.kubernetes import Api, Cluster, Image, Object
from tests.servers.running import CANARY, ROOT

MANIFESTS = ROOT / "docker" / "kubernetes"
IMAGE = "stateflow:tests"
ENTRYPOINT = "/opt/stateflow/kubernetes/entrypoint.sh"
_SPARK = Path(pyspark.__file__).parent
_PASSED = ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "HOME", "HYPOTHESIS_PROFILE")


def spark_image() -> Image:
    """What the image of the pods has: this Python with its packages, Java, and the entrypoint of the pods."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    environment |= {"PATH": path, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return Image((), environment, {ENTRYPOINT: MANIFESTS / "entrypoint.sh"})


@dataclass
class Namespace:
    """A namespace with the manifests applied. `folder`: for files of the tests."""

    cluster: Cluster
    name: str
    folder: Path

    @classmethod
    def create(cls, cluster: Cluster, name: str, folder: Path) -> Namespace:
        folder.mkdir(parents=True, exist_ok=True)
        created = cls(cluster, cluster.namespace(name), folder)
        cluster.apply(MANIFESTS / "rbac.yaml", name)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stateflow-environment"}}
        cluster.api.create(created.path("secrets"), {**secret, "stringData": {"TESTS_SECRET_KEY": CANARY}})
        created.token_file.write_text(cluster.token(name, "stateflow-submitter"))
        return created

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def path(self, resource: str, name: str = "") -> str:
        group = "/apis/networking.k8s.io/v1" if resource == "networkpolicies" else "/api/v1"
        return f"{group}/namespaces/{self.name}/{resource}" + (f"/{name}" if name else "")

    def objects(self, resource: str) -> list[Object]:
        """The objects of a kind, without those that each namespace has."""
        given = ("kube-root-ca.crt", "stateflow-environment")
        found = self.cluster.api.items(self.path(resource))
        return [each for each in found if each["metadata"]["name"] not in given]

    def all_objects(self) -> list[Object]:
        """What runs have made and left."""
        kinds = ("pods", "configmaps", "services", "secrets", "networkpolicies")
        return [each for kind in kinds for each in self.objects(kind)]

    def account(self, name: str) -> Api:
        return self.cluster.as_account(self.name, name)

    def user(self, account: str) -> str:
        return f"system:serviceaccount:{self.name}:{account}"

    def conf(self, **changes: str) -> dict[str, str]:
        """Spark's settings, as docs/guides/run-on-kubernetes.md has them; names with ``__`` for a point."""
        return {
            "spark.kubernetes.namespace": self.name,
            "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.authenticate.submission.oauthTokenFile": str(self.token_file),
            "spark.kubernetes.authenticate.submission.caCertFile": str(self.cluster.plane.ca_file),
            "spark.kubernetes.authenticate.driver.serviceAccountName": "stateflow-driver",
            "spark.kubernetes.authenticate.executor.serviceAccountName": "stateflow-executor",
            "spark.kubernetes.driver.podTemplateFile": str(MANIFESTS / "driver.yaml"),
            "spark.kubernetes.executor.podTemplateFile": str(MANIFESTS / "executor.yaml"),
            # In a cluster, the default https://kubernetes.default.svc is right.
            "spark.kubernetes.driver.master": self.cluster.plane.url,
            "spark.executor.instances": "1",
            "spark.driver.memory": "500m",
            "spark.executor.memory": "500m",
            "spark.ui.enabled": "false",
        } | {name.replace("__", "."): value for name, value in changes.items()}

    def options(self, **changes: str) -> list[str]:
        """The command line of spark-submit without the program that it runs."""
        settings = [word for name, value in self.conf(**changes).items() for word in ("--conf", f"{name}={value}")]
        return ["--master", f"k8s://{self.cluster.plane.url}", "--deploy-mode", "cluster", *settings]

    def submit(self, program: Path, pod: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Submits a program of PySpark with spark-submit alone, and returns once its driver's pod was created."""
        own = {
            "spark.kubernetes.driver.pod.name": pod, "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
            "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        }  # fmt: skip
        return run_spark_submit([*self.options(**{**own, **changes}), f"local://{program}"])


def granted(account: str) -> set[tuple[str, str]]:
    """The verbs that the manifest permits to an account, each with a resource."""
    documents: list[Object] = list(yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()))
    roles = [each for each in documents if each["kind"] == "Role" and each["metadata"]["name"] == account]
    return {pair for role in roles for pair in pairs(role["rules"])}


def pairs(rules: list[Object]) -> set[tuple[str, str]]:
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def run_spark_submit(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [str(_SPARK / "bin" / "spark-submit"), *arguments]
    # A file of the user that runs the tests would be read otherwise.
    environment = {**os.environ, "KUBECONFIG": os.devnull, "SPARK_HOME": str(_SPARK)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
