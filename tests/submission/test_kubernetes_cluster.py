"""Drivers in a real Kubernetes: its API server, and a node of the tests, run what spark-submit submits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.submission.cluster import Application, Phase, SparkSubmit
from stateflow.submission.kubernetes import Kubernetes, pod_name
from tests.docs.pages import blocks, read
from tests.servers.kubernetes import Cluster, Object, kubernetes_cluster
from tests.servers.running import CANARY, ROOT
from tests.support.kubernetes_runs import IMAGE, Namespace, granted, spark_image
from tests.support.processes import wait_for
from tests.support.submissions import DEADLINE, JOB, SPARK, Submission

pytestmark = [pytest.mark.slow(reason="starts Kubernetes, and Spark in its pods"), pytest.mark.spark]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kubernetes_cluster(tmp_path_factory.mktemp("kubernetes"), {IMAGE: spark_image()}) as cluster:
        yield cluster


class KubernetesSubmission(Submission):
    """A job in a namespace of its own."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        super().__init__(folder, "daily-run-1")
        self.namespace = namespace
        self.cluster = namespace.cluster

    @property
    def pod(self) -> str:
        return pod_name(self.launch)

    @property
    def variables(self) -> dict[str, str]:
        return {"KUBECONFIG": os.devnull}

    def spark(self) -> Sequence[str]:
        return self.namespace.options()

    def driver(self) -> Object:
        return self.cluster.api.get(self.namespace.path("pods", self.pod))

    def executors(self) -> list[Object]:
        pods = self.cluster.pods(self.namespace.name, spark_role="executor")
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    def assert_nothing_is_left(self) -> None:
        wait_for(lambda: not self.namespace.all_objects(), lambda: str(self.namespace.all_objects()), DEADLINE)

    def result_of_next_launch(self) -> list[tuple[str, int]]:
        """The rows after a run that ends by itself, with one more row of ``a``."""
        self.settings.pop("run.until", None)
        self.add_rows("a")
        assert self.run() == 0, self.log()
        self.assert_nothing_is_left()
        return self.counts()


@pytest.fixture
def submission(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KubernetesSubmission]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())
    namespace = Namespace.create(cluster, name.removeprefix("test-")[-60:].strip("-"), tmp_path / "namespace")
    given = KubernetesSubmission(namespace, tmp_path / "home")
    yield given
    given.end_processes()
    cluster.node.may_start.set()
    for pod in cluster.pods(namespace.name):
        cluster.api.delete(namespace.path("pods", pod["metadata"]["name"]), gracePeriodSeconds=0)


def test_a_job_runs_to_its_end_with_the_rights_of_the_manifest(submission: KubernetesSubmission) -> None:
    submission.add_rows("a", "b", "a")
    submission.cluster.node.may_start.clear()
    process = submission.start()
    submission.wait_for_log(process, "is waiting")
    labels = submission.driver()["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "stateflow" and labels["spark-role"] == "driver"
    assert submission.driver()["metadata"]["annotations"]["stateflow/launch"] == submission.launch
    # All belongs to the driver: when it is deleted, nothing else stays, whatever happens to this process.
    uid = submission.driver()["metadata"]["uid"]
    others = [each for each in submission.namespace.all_objects() if each["metadata"]["uid"] != uid]
    assert len(others) >= 4
    assert {owner["uid"] for each in others for owner in each["metadata"]["ownerReferences"]} == {uid}
    submission.cluster.node.may_start.set()
    assert submission.finish(process) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2), ("b", 1)]
    result = submission.result()
    assert (result["status"], result["result"]["rows_in"], result["result"]["rows_out"]) == ("finished", 3, {"out": 3})
    assert f"kubectl logs --namespace {submission.namespace.name} {submission.pod}" in submission.log()
    submission.assert_nothing_is_left()
    user = submission.namespace.user("stateflow-submitter")
    assert submission.cluster.requests(user) == granted("stateflow-submitter") - {("create", "configmaps"),
        ("create", "services"), ("create", "networkpolicies")}  # fmt: skip


def test_secrets_are_in_no_argument_setting_or_object_but_the_secret(submission: KubernetesSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    (submission.folder / "job.toml").write_text(f'[job]\nsecret = "{CANARY}"\n')
    submission.options = ["--config", str(submission.folder / "job.toml"), "--driver-env", "MY_*"]
    process = submission.start(AWS_SECRET_ACCESS_KEY=CANARY, MY_KEY=CANARY)
    submission.wait_until_claimed(process)
    (submission.folder / "job.toml").unlink()
    kinds = ("pods", "configmaps", "services", "networkpolicies")
    shown = [json.dumps(submission.namespace.objects(kind)) for kind in kinds]
    shown += [" ".join(_words(each)) for each in psutil.process_iter()]
    assert "spark.kubernetes.driver.secrets" in shown[1]
    assert not [text for text in shown if CANARY in text]
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 0, submission.log()
    assert submission.result()["result"]["stopped_because"] == "stopped"
    assert CANARY not in submission.log()
    submission.assert_nothing_is_left()


def test_a_pod_keeps_its_own_identity_and_gets_variables_of_other_services(submission: KubernetesSubmission) -> None:
    found = submission.folder / "environment.json"
    of_host = {"AWS_ACCESS_KEY_ID": "host", "AWS_SECRET_ACCESS_KEY": "host", "AZURE_STORAGE_ACCOUNT_NAME": "host"}
    submission.job = submission.folder / "job.py"
    # Executors import the file as well, and do not call build.
    submission.job.write_text(f"""{JOB.read_text()}
import json, os
declared = build

def build(env):
    names = {["AWS_ROLE_ARN", *of_host]}
    Path({str(found)!r}).write_text(json.dumps({{name: os.environ.get(name) for name in names}}))
    declared(env)
""")
    submission.add_rows("a")
    process = submission.start("--conf", "spark.kubernetes.driverEnv.AWS_ROLE_ARN=pod", **of_host)
    assert submission.finish(process) == 0, submission.log()
    assert json.loads(found.read_text()) == {
        "AWS_ROLE_ARN": "pod",
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
        "AZURE_STORAGE_ACCOUNT_NAME": "host",
    }


def test_the_submitting_process_is_killed_and_its_successor_ends_the_run_with_a_checkpoint(
    submission: KubernetesSubmission,
) -> None:
    submission.settings |= {"run.until": "stopped"}
    first = submission.start()
    submission.wait_until_claimed(first)
    first.kill()
    first.wait()
    uid = submission.driver()["metadata"]["uid"]
    second = submission.start()
    submission.add_rows("a", "b")
    submission.wait_for_rows(second, 2)
    assert submission.driver()["metadata"]["uid"] == uid
    second.send_signal(signal.SIGTERM)
    assert submission.finish(second) == 0, submission.log()
    result = submission.result()
    assert (result["status"], result["result"]["stopped_because"], result["result"]["rows_in"]) == (
        "finished",
        "stopped",
        2,
    )
    submission.assert_nothing_is_left()


def test_a_driver_that_does_not_stop_in_time_is_deleted(submission: KubernetesSubmission) -> None:
    submission.options = ["--end-timeout", "2s"]
    submission.settings |= {"run.until": "stopped"}
    process = submission.start()
    submission.wait_until_claimed(process)
    for child in submission.cluster.node.pod(submission.pod).processes[1:]:
        child.suspend()
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 130, submission.log()
    assert submission.result()["error"]["code"] == "interrupted"
    submission.assert_nothing_is_left()


def _evict(submission: KubernetesSubmission) -> None:
    """As ``kubectl drain`` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": submission.pod}}
    submission.cluster.api.create(f"{submission.namespace.path('pods', submission.pod)}/eviction", body)


def _run_out_of_memory(submission: KubernetesSubmission) -> None:
    submission.cluster.node.evict(submission.pod)


def _crash(submission: KubernetesSubmission) -> None:
    submission.cluster.node.pod(submission.pod).kill()


def _lose_node(submission: KubernetesSubmission) -> None:
    submission.cluster.node.pod(submission.pod).lose()
    submission.cluster.api.delete(submission.namespace.path("pods", submission.pod), gracePeriodSeconds=0)


@pytest.mark.parametrize(
    ("end", "phase", "reason"),
    [
        (_evict, "killed", "its pod was deleted"),
        (_run_out_of_memory, "failed", "low on resource: memory"),
        (_crash, "failed", "exit code 137"),
        (_lose_node, "killed", "its pod was deleted"),
    ],
    ids=["evicted", "out-of-memory", "crashed", "lost"],
)
def test_a_driver_is_lost_and_the_next_launch_continues(
    submission: KubernetesSubmission, end: Callable[[KubernetesSubmission], None], phase: str, reason: str
) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    end(submission)
    assert submission.finish(process) == 5, submission.log()
    error = submission.result()["error"]
    # Of a driver that had the time to store an error, that counts.
    assert error["retryable"] and error["code"] in ("cluster-failed", "spark-gone")
    if error["code"] == "cluster-failed":
        assert error["facts"]["phase"] == phase and reason in error["facts"]["reason"]
    submission.assert_nothing_is_left()
    assert submission.result_of_next_launch() == [("a", 1), ("a", 2)]


def test_a_driver_that_ended_while_nobody_followed_is_replaced(submission: KubernetesSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    process.kill()
    process.wait()
    _crash(submission)
    wait_for(lambda: submission.driver()["status"]["phase"] == "Failed", lambda: str(submission.driver()), DEADLINE)
    assert submission.result_of_next_launch() == [("a", 1), ("a", 2)]


def test_an_executor_is_lost_and_the_run_continues(submission: KubernetesSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    (executor,) = submission.executors()
    submission.cluster.api.delete(submission.namespace.path("pods", executor["metadata"]["name"]))
    submission.add_rows("a", "b")
    submission.wait_for_rows(process, 3)
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2), ("b", 1)]
    submission.assert_nothing_is_left()


def test_the_api_server_restarts_and_the_run_and_its_follower_continue(submission: KubernetesSubmission) -> None:
    submission.settings |= {"run.until": "stopped"}
    submission.add_rows("a")
    process = submission.start()
    submission.wait_for_rows(process, 1)
    submission.cluster.plane.kill_api_server()
    submission.wait_for_log(process, "cannot be reached")
    submission.add_rows("a")
    submission.wait_for_rows(process, 2)
    submission.cluster.plane.start_api_server()
    process.send_signal(signal.SIGTERM)
    assert submission.finish(process) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2)]
    submission.assert_nothing_is_left()


def test_a_quota_that_refuses_the_driver_is_the_error(submission: KubernetesSubmission) -> None:
    _set_quota(submission, 0)
    submission.add_rows("a")
    assert submission.run() == 5, submission.log()
    error = submission.result()["error"]
    assert error["code"] == "cluster-failed" and "exceeded quota" in error["facts"]["reason"]
    submission.assert_nothing_is_left()


def test_a_quota_that_refuses_executors_delays_the_run(submission: KubernetesSubmission) -> None:
    _set_quota(submission, 1)
    submission.add_rows("a", "a")
    process = submission.start()
    submission.wait_for_log(process, "is running")
    driver = submission.cluster.node.pod(submission.pod)
    wait_for(lambda: "exceeded quota" in driver.log, lambda: driver.log, DEADLINE)
    _set_quota(submission, 5)
    assert submission.finish(process) == 0, submission.log()
    assert submission.counts() == [("a", 1), ("a", 2)]
    submission.assert_nothing_is_left()


def test_an_image_that_cannot_be_pulled_ends_the_command_and_the_next_launch_runs(
    submission: KubernetesSubmission,
) -> None:
    """The command waits two minutes for the image."""
    submission.add_rows("a")
    process = submission.start("--conf", "spark.kubernetes.container.image=nowhere:1")
    submission.wait_for_log(process, "is waiting")
    pod = f"{submission.namespace.name}/{submission.pod}"
    assert submission.finish(process) == 5, submission.log()
    error = submission.result()["error"]
    assert (error["code"], error["retryable"]) == ("cluster-failed", True)
    assert (error["facts"]["application"], error["facts"]["phase"]) == (pod, "failed")
    assert error["facts"]["reason"] == "ImagePullBackOff: Back-off pulling image 'nowhere:1'"
    assert error["hint"] and "kubectl logs" not in error["hint"]
    submission.assert_nothing_is_left()
    assert submission.result_of_next_launch() == [("a", 1), ("a", 2)]


def test_an_account_without_rights_is_told_what_to_apply(submission: KubernetesSubmission) -> None:
    submission.namespace.token_file.write_text(submission.cluster.token(submission.namespace.name, "default"))
    submission.add_rows("a")
    assert submission.run() == 2, submission.log()
    error = submission.result()["error"]
    assert (error["code"], error["facts"]["status"]) == ("config", 403)


def test_a_driver_whose_submission_was_killed_before_its_config_map_fails_after_some_time(
    submission: KubernetesSubmission,
) -> None:
    mount = {"name": "conf", "mountPath": "/opt/conf"}
    container = {"name": "driver", "image": IMAGE, "command": ["true"], "volumeMounts": [mount]}
    volume = {"name": "conf", "configMap": {"name": "never-made"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": submission.pod}}
    spec = {"containers": [container], "volumes": [volume], "restartPolicy": "Never"}
    submission.cluster.api.create(submission.namespace.path("pods"), {**pod, "spec": spec})
    clock = ManualClock()
    kubernetes = _open(submission, clock)

    def found() -> Application:
        application = kubernetes.find(submission.launch)
        assert application is not None
        return application

    wait_for(lambda: submission.driver()["status"].get("containerStatuses"), submission.log, DEADLINE)
    assert found().phase is Phase.WAITING
    clock.sleep(timedelta(minutes=3))
    assert found().phase is Phase.FAILED and "never-made" in found().reason
    kubernetes.clean_up(found())
    submission.assert_nothing_is_left()
    assert _open(submission, SystemClock()).find(submission.launch) is None


def test_the_commands_and_settings_of_the_guide_run_a_job(cluster: Cluster, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    prepare, conf, token = blocks(read("run-on-kubernetes"))[:3]
    (tmp_path / "docker").symlink_to(ROOT / "docker")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / name).write_text("of the guide")
    administrator = {**os.environ, "KUBECONFIG": str(cluster.plane.folder / "kubeconfig")}
    subprocess.run(["bash", "-ec", prepare + token], cwd=tmp_path, env=administrator, check=True)
    changes = {
        "spark.kubernetes.container.image": IMAGE, "spark.kubernetes.driver.master": cluster.plane.url,
        "spark.executor.instances": "1", "spark.executor.memory": "500m", "spark.driver.memory": "500m",
    }  # fmt: skip
    lines = "".join(f"{name} {value}\n" for name, value in changes.items())
    (tmp_path / "kubernetes.conf").write_text(conf + lines)
    submission = _FromGuide(cluster, tmp_path / "home", tmp_path)
    submission.add_rows("a")
    assert submission.run() == 0, submission.log()
    assert submission.counts() == [("a", 1)]
    assert submission.result()["status"] == "finished"


class _FromGuide(Submission):
    """A job whose submission has the file of the guide."""

    def __init__(self, cluster: Cluster, folder: Path, guide: Path) -> None:
        super().__init__(folder, "of-the-guide")
        self._cluster, self._guide = cluster, guide

    @property
    def variables(self) -> dict[str, str]:
        return {"KUBECONFIG": os.devnull}

    @property
    def working_folder(self) -> Path:
        return self._guide

    def spark(self) -> Sequence[str]:
        master = f"k8s://{self._cluster.plane.url}"
        return ["--master", master, "--deploy-mode", "cluster", "--properties-file", "kubernetes.conf"]


def _open(submission: KubernetesSubmission, clock: Clock) -> Kubernetes:
    return Kubernetes(SparkSubmit(str(SPARK / "bin" / "spark-submit"), submission.spark(), os.environ), clock)


def _set_quota(submission: KubernetesSubmission, pods: int) -> None:
    """Limits the pods of the namespace, and waits until the limit holds."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": str(pods)}},
    }
    api, path = submission.cluster.api, submission.namespace.path("resourcequotas", "pods")
    api.apply(quota, submission.namespace.name)
    wait_for(lambda: api.get(path)["status"].get("hard") == {"pods": str(pods)}, lambda: str(api.get(path)), DEADLINE)


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
