"""A Kubernetes: etcd, API server and controllers as processes on loopback, and a node that runs pods as processes.

`make kubernetes` builds the programs from their Go modules (``kubernetes_modules``). API server and controllers are
Kubernetes' own, so names, rights, quotas, owner references and deletion are real. The node is not: it has no container
runtime, so that the containers of a pod have the files of this host, but mounts, processes, a host name and an address
of their own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil
import pytest
import yaml

from tests.servers import container
from tests.servers.listening import certificate
from tests.servers.running import ROOT, free_port

PROGRAMS = ROOT / ".kubernetes"
_NAMES = ("etcd", "kube-apiserver", "kube-controller-manager")
_STARTS_WITHIN = 60.0
_ADMINISTRATOR = secrets.token_hex(16)
_NODE = "tests-node"
_RETRY_SECONDS = 0.1
"""Time between two attempts of the node to reach the API server, or to find a config map that a pod mounts."""

Object = dict[str, Any]
_T = TypeVar("_T")


class Refused(AssertionError):
    """The API server has refused a request. `code`: the status of its answer. `reason`: a word of Kubernetes."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:2000]}")
        self.code = answer.status_code
        document = answer.json() if answer.headers.get("Content-Type", "").startswith("application/json") else {}
        self.reason = document.get("reason", "")


@dataclass
class Api:
    """Requests to an API server with one token."""

    url: str
    ca_file: Path
    token: str = field(repr=False)
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        self._client = httpx.Client(base_url=self.url, verify=trusted, headers=headers, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        return self._client.get("/readyz").is_success

    def get(self, path: str, **query: str) -> Object:
        return self._sent(self._client.get(path, params=query))

    def exists(self, path: str) -> bool:
        answer = self._client.get(path)
        return answer.status_code != httpx.codes.NOT_FOUND and bool(self._sent(answer))

    def items(self, path: str, **query: str) -> list[Object]:
        return list(self.get(path, **query)["items"])

    def create(self, path: str, document: Object) -> Object:
        return self._sent(self._client.post(path, json=document))

    def patch(self, path: str, document: Object) -> Object:
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._sent(self._client.patch(path, content=json.dumps(document), headers=headers))

    def apply(self, document: Object, namespace: str) -> Object:
        """Creates an object of a manifest in a namespace, or changes it."""
        headers = {"Content-Type": "application/apply-patch+yaml"}
        query = {"fieldManager": "tests", "force": "true"}
        path = f"{collection(document, namespace)}/{document['metadata']['name']}"
        return self._sent(self._client.patch(path, content=json.dumps(document), headers=headers, params=query))

    def delete(self, path: str, **options: object) -> None:
        document = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        self._sent(self._client.request("DELETE", path, json=document))

    def events(self, path: str, version: str) -> Iterator[Object]:
        """Yields the changes after a version, until the server ends the answer."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        with self._client.stream("GET", path, params=query, timeout=httpx.Timeout(30, read=60)) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                yield json.loads(line)

    @staticmethod
    def _sent(answer: httpx.Response) -> Object:
        if answer.is_error:
            raise Refused(answer)
        document: Object = answer.json()
        return document


def collection(document: Object, namespace: str) -> str:
    """Returns the path of the objects of a document's kind."""
    group, kind = document["apiVersion"], document["kind"]
    plural = f"{kind.lower()}s" if not kind.endswith("y") else f"{kind.lower()[:-1]}ies"
    base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    return f"{base}/{plural}" if kind in ("Namespace", "Node") else f"{base}/namespaces/{namespace}/{plural}"


# -- Control plane ----------------------------------------------------------------------------------------------------


class ControlPlane:
    """etcd, the API server and its controllers.

    Attributes:
        url: the API server's address.
        ca_file: the certificate of its authority.
        audit: the file with a line for each request that it has answered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"https://127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._certificate = certificate(folder)
        self.ca_file, self.audit = self._certificate.ca_file, folder / "audit.log"
        self._store = f"http://127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write_files()

    def start(self) -> None:
        peers = f"http://127.0.0.1:{free_port()}"
        self._run(
            "etcd", data_dir=self.folder / "etcd", listen_client_urls=self._store, advertise_client_urls=self._store,
            listen_peer_urls=peers, initial_advertise_peer_urls=peers, initial_cluster=f"default={peers}",
            unsafe_no_fsync="true", log_level="warn",
        )  # fmt: skip
        self.start_api_server()
        self._run(
            "kube-controller-manager", kubeconfig=self.folder / "kubeconfig", leader_elect="false", secure_port=0,
            root_ca_file=self.ca_file, service_account_private_key_file=self.folder / "accounts.pem",
            controllers="garbage-collector-controller,resourcequota-controller,serviceaccount-controller,"
            "root-ca-certificate-publisher-controller,namespace-controller",
        )  # fmt: skip

    def start_api_server(self) -> None:
        """Starts the API server, and waits until it is ready."""
        key = self._certificate.key_file
        self._run(
            "kube-apiserver", etcd_servers=self._store, secure_port=self.url.rpartition(":")[2],
            bind_address="127.0.0.1", tls_cert_file=self.ca_file, tls_private_key_file=key,
            service_account_issuer="https://kubernetes.default.svc", token_auth_file=self.folder / "tokens.csv",
            service_account_signing_key_file=self.folder / "accounts.pem", authorization_mode="RBAC",
            service_account_key_file=self.folder / "accounts.pem", service_cluster_ip_range="10.0.0.0/24",
            audit_policy_file=self.folder / "audit.yaml", audit_log_path=self.audit, profiling="false",
        )  # fmt: skip
        with self.administrator() as api:
            self._wait("kube-apiserver", api.is_ready)

    def kill_api_server(self) -> None:
        """Kills the API server; its objects stay in etcd, and pods run on."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        # It has the content of Secrets, which no file of a test may have.
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def administrator(self) -> Api:
        return Api(self.url, self.ca_file, _ADMINISTRATOR)

    def _run(self, program: str, **options: object) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with (self.folder / f"{program}.log").open("ab") as log:
            command = [str(PROGRAMS / program), *words]
            # Collecting garbage less often costs little memory here.
            environment = {**os.environ, "GOGC": "200"}
            self._processes[program] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _wait(self, program: str, is_ready: Callable[[], bool]) -> None:
        ends = time.monotonic() + _STARTS_WITHIN
        while True:
            with contextlib.suppress(httpx.TransportError, Refused, json.JSONDecodeError):
                if is_ready():
                    return
            if self._processes[program].poll() is not None or time.monotonic() > ends:
                log = (self.folder / f"{program}.log").read_text(errors="replace")
                raise AssertionError(f"{program} did not start:\n{log[-3000:]}")
            time.sleep(0.05)

    def _write_files(self) -> None:
        (self.folder / "tokens.csv").write_text(f'{_ADMINISTRATOR},administrator,1,"system:masters"\n')
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
        rules = {"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}
        (self.folder / "audit.yaml").write_text(json.dumps(policy | rules))
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "accounts.pem"), "2048"], check=True, capture_output=True
        )
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig(self.url, self.ca_file, _ADMINISTRATOR)))


def kubeconfig(url: str, ca_file: Path, token: str) -> Object:
    """Returns the file with which kubectl uses a cluster."""
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
    }  # fmt: skip


# -- Node -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    """What a node runs for an image.

    Attributes:
        entrypoint: the command, unless the pod has one.
        environment: the variables that the pod's are added to.
        files: folders and files of this host by their paths in the container.
    """

    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Node:
    """A node, as a kubelet: runs the pods that no node has, each with one container, and reports how they are.

    Attributes:
        images: the images that can be pulled, by name.
        may_start: whether it starts containers.
    """

    def __init__(self, plane: ControlPlane, images: Mapping[str, Image]) -> None:
        self.images = dict(images)
        self._plane, self._api = plane, plane.administrator()
        self._pods: dict[str, _Pod] = {}
        self._stopped, self.may_start = threading.Event(), threading.Event()
        self.may_start.set()
        self._watching = threading.Thread(target=self._watch, name="node")
        # Addresses of loopback that only this node uses: a service's name leads to its pod, as in a cluster.
        self._network, self._addresses = (
            f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}",
            iter(range(2, 255)),
        )

    def start(self) -> None:
        self._api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}})
        self._watching.start()

    def stop(self) -> None:
        """Kills all containers."""
        self._stopped.set()
        for pod in list(self._pods.values()):
            pod.lose()
            pod.join()
        # The server ends a watch only after minutes.
        self._api.__exit__()

    def pod(self, name: str) -> _Pod:
        """Returns a pod that this node has started, by its name."""
        return next(pod for pod in reversed(self._pods.values()) if pod.name == name)

    def evict(self, name: str) -> None:
        """Ends a pod as a node does that is out of memory; the pod itself stays."""
        self.pod(name).evict()

    def call(self, request: Callable[[Api], Any]) -> Any:
        """Returns the answer to a request, which is repeated while the API server cannot be reached."""
        while not self._stopped.is_set():
            try:
                return request(self._api)
            except httpx.TransportError:
                self._stopped.wait(_RETRY_SECONDS)
            except Refused as refused:
                if refused.code < httpx.codes.INTERNAL_SERVER_ERROR and refused.code != httpx.codes.TOO_MANY_REQUESTS:
                    raise
                self._stopped.wait(_RETRY_SECONDS)
        raise _Stopped

    def wait(self) -> None:
        """Waits before an attempt is repeated. Raises _Stopped."""
        if self._stopped.wait(_RETRY_SECONDS):
            raise _Stopped

    def next_address(self) -> str:
        return f"{self._network}.{next(self._addresses)}"

    def hosts(self) -> str:
        """Returns the names of the services, and the addresses of the pods behind them."""
        lines = ["127.0.0.1 localhost"]
        for service in self.call(lambda api: api.items("/api/v1/services")):
            selector, meta = service["spec"].get("selector", {}), service["metadata"]
            names = [f"{meta['name']}.{meta['namespace']}{end}" for end in (".svc", ".svc.cluster.local", "")]
            chosen = [pod for pod in self._pods.values() if pod.address and selector.items() <= pod.labels.items()]
            lines += [" ".join([pod.address, *names]) for pod in chosen if selector]
        return "\n".join(lines) + "\n"

    def _watch(self) -> None:
        with contextlib.suppress(_Stopped):
            while not self._stopped.is_set():
                listed = self.call(lambda api: api.get("/api/v1/pods"))
                for document in listed["items"]:
                    self._changed(document)
                for uid in self._pods.keys() - {document["metadata"]["uid"] for document in listed["items"]}:
                    self._pods[uid].lose()
                with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError, KeyError, RuntimeError):
                    for event in self._api.events("/api/v1/pods", listed["metadata"]["resourceVersion"]):
                        self._happened(event)

    def _happened(self, event: Object) -> None:
        if event["type"] == "DELETED":
            if gone := self._pods.get(event["object"]["metadata"]["uid"]):
                gone.lose()
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._changed(event["object"])

    def _changed(self, document: Object) -> None:
        meta = document["metadata"]
        known = self._pods.get(meta["uid"])
        if known is None:
            known = self._pods[meta["uid"]] = _Pod(self, document)
            known.start()
        if "deletionTimestamp" in meta:
            known.end(float(meta.get("deletionGracePeriodSeconds", 30)))


class _Stopped(Exception):
    """The node has stopped."""


class _Pod:
    """A pod of a node. `address`: its own, of loopback."""

    def __init__(self, node: Node, document: Object) -> None:
        meta = document["metadata"]
        self.name, self.namespace, self.uid = meta["name"], meta["namespace"], meta["uid"]
        self.labels: dict[str, str] = meta.get("labels", {})
        self.document = document
        self.address = ""
        self._node = node
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._thread = threading.Thread(target=self._live, name=self.name)
        self._folder = node._plane.folder / "pods" / self.namespace / f"{self.name}-{self.uid[:8]}"
        self._process: psutil.Process | None = None
        self._ending, self._outcome = threading.Event(), ""
        self._grace = 0.0
        self._was_killed = False

    @property
    def log(self) -> str:
        file = self._folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def processes(self) -> list[psutil.Process]:
        """The processes of its container, the first one first."""
        if self._process is None or not self._process.is_running():
            return []
        return [self._process, *self._process.children(recursive=True)]

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def end(self, grace: float) -> None:
        """Ends it as a deletion does: SIGTERM, and SIGKILL after the grace period."""
        self._grace = grace
        self._ending.set()

    def evict(self) -> None:
        self._outcome = "Evicted"
        self.kill()

    def lose(self) -> None:
        """Ends it without a report, as the end of its node does."""
        self._outcome = "Lost"
        self._ending.set()
        self.kill()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the container's first process; the others end with it."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)
                self._was_killed |= number == signal.SIGKILL

    def _live(self) -> None:
        with contextlib.suppress(_Stopped):
            try:
                self._run()
                self._ending.wait()
            except _Deleted:
                pass
            if self._outcome != "Lost":
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                with contextlib.suppress(Refused):
                    self._node.call(lambda api: api.delete(self._path, **options))

    def _run(self) -> None:
        phase = self.document.get("status", {}).get("phase")
        if phase in ("Succeeded", "Failed"):
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.name}, "target": target}
        if not self.document["spec"].get("nodeName"):
            self._call(lambda api: api.create(f"{self._path}/binding", binding))
        (given,) = self.document["spec"]["containers"]
        image = self._node.images.get(given["image"])
        if image is None:
            message = f"Back-off pulling image {given['image']!r}"
            self._report("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            return
        self._report("Pending", {"waiting": {"reason": "ContainerCreating"}})
        while not self._node.may_start.is_set() and not self._ending.is_set():
            self._node.wait()
        if self._ending.is_set():
            raise _Deleted
        self.address = self._node.next_address()
        with self._prepared(given, image) as process:
            self._process = self._first_process(process)
            self._report("Running", {"running": {"startedAt": _now()}})
            code = self._awaited(process)
        if self._outcome == "Lost":
            raise _Stopped
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
        if code and given.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            ended["message"] = self.log[-2048:]
        self._report("Succeeded" if code == 0 else "Failed", {"terminated": ended})

    @contextlib.contextmanager
    def _prepared(self, given: Object, image: Image) -> Iterator[subprocess.Popen[bytes]]:
        mounts = {path: str(file) for path, file in image.files.items()} | self._mounts(given)
        hosts = self._folder / "hosts"
        hosts.write_text(f"{self._node.hosts()}{self.address} {self.name}\n")
        words = [*(given.get("command") or image.entrypoint), *given.get("args", [])]
        environment = {**image.environment, **self._environment(given)}
        spec = {
            "hostname": self.name, "mounts": {**mounts, "/etc/hosts": str(hosts)}, "argv": words,
            "cwd": given.get("workingDir", str(self._folder)),
        }  # fmt: skip
        file = self._folder / "container.json"
        file.write_text(json.dumps(spec))
        with (self._folder / "log").open("wb") as log:
            command = container.command(file, sys.executable)
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=self._folder
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(self._folder / "volumes", ignore_errors=True)

    def _awaited(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the container's end, and ends it when the pod is deleted. Returns its exit code."""
        killed_at = None
        while True:
            if self._outcome or (killed_at is not None and time.monotonic() > killed_at):
                self.kill()
            elif self._ending.is_set() and killed_at is None:
                killed_at = time.monotonic() + self._grace
                self.kill(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.05)
                # unshare ends with 1 after its child was killed.
                return 128 + signal.SIGKILL if self._was_killed else code

    @staticmethod
    def _first_process(outer: subprocess.Popen[bytes]) -> psutil.Process | None:
        """Returns the first process of a container; None if it has ended."""
        while outer.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(outer.pid).children():
                    return child
            time.sleep(0.01)
        return None

    def _report(self, phase: str, state: Object) -> None:
        name = self.document["spec"]["containers"][0]["name"]
        image = self.document["spec"]["containers"][0]["image"]
        is_running = "running" in state
        entry = {
            "name": name, "image": image, "imageID": image, "ready": is_running, "restartCount": 0, "state": state
        }  # fmt: skip
        status: Object = {"phase": phase, "hostIP": "127.0.0.1", "containerStatuses": [entry]}
        status["conditions"] = [{"type": "Ready", "status": str(is_running)}]
        if self.address:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if self._outcome == "Evicted" and "terminated" in state:
            message = "The node was low on resource: memory."
            status |= {"phase": "Failed", "reason": "Evicted", "message": message}
        self._call(lambda api: api.patch(f"{self._path}/status", {"status": status}))

    def _call(self, request: Callable[[Api], Any]) -> Any:
        try:
            return self._node.call(request)
        except Refused as refused:
            if refused.code == httpx.codes.NOT_FOUND:
                raise _Deleted from refused
            raise

    # -- What a container gets ----------------------------------------------------------------------------------------

    def _mounts(self, given: Object) -> dict[str, str]:
        volumes = {volume["name"]: volume for volume in self.document["spec"].get("volumes", [])}
        found = {}
        for mount in given.get("volumeMounts", []):
            folder = self._folder / "volumes" / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            volume = volumes[mount["name"]]
            content = Path(volume["hostPath"]["path"]) if "hostPath" in volume else folder
            self._fill(volume, folder)
            found[mount["mountPath"]] = str(content / mount.get("subPath", ""))
        return found

    def _fill(self, volume: Object, folder: Path) -> None:
        for kind, source in volume.items():
            for name, content in self._files(kind, source).items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def _files(self, kind: str, source: Any) -> dict[str, bytes]:
        if kind == "projected":
            sources = [self._files(*one) for each in source["sources"] for one in each.items()]
            return {name: content for files in sources for name, content in files.items()}
        if kind == "serviceAccountToken":
            return {source["path"]: self._token(source).encode()}
        if kind == "downwardAPI":
            return {item["path"]: self._field(item["fieldRef"]["fieldPath"]).encode() for item in source["items"]}
        if kind not in ("configMap", "secret"):
            return {}
        content = self._content(kind, source.get("secretName") or source["name"], bool(source.get("optional")))
        paths = {item["key"]: item["path"] for item in source.get("items", [])} or {key: key for key in content}
        return {path: content[key] for key, path in paths.items()}

    def _content(self, kind: str, name: str, is_optional: bool = False) -> dict[str, bytes]:
        """Returns the content of a config map or secret, once it exists."""
        plural = "configmaps" if kind == "configMap" else "secrets"
        while True:
            try:
                found = self._node.call(lambda api: api.get(f"/api/v1/namespaces/{self.namespace}/{plural}/{name}"))
            except Refused:
                if is_optional:
                    return {}
                if self._ending.is_set():
                    raise _Deleted from None
                self._node.wait()
                continue
            texts = {key: value.encode() for key, value in (found.get("data") or {}).items()}
            if plural == "secrets":
                return {key: base64.b64decode(value) for key, value in texts.items()}
            return texts | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}

    def _token(self, source: Object) -> str:
        account = self.document["spec"].get("serviceAccountName", "default")
        pod = {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}
        spec: Object = {"expirationSeconds": source.get("expirationSeconds", 3600), "boundObjectRef": pod}
        spec["audiences"] = [source["audience"]] if "audience" in source else []
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        return str(self._call(lambda api: api.create(path, request))["status"]["token"])

    def _environment(self, given: Object) -> dict[str, str]:
        host, _, port = self._node._plane.url.removeprefix("https://").partition(":")
        found = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "HOSTNAME": self.name}
        for source in given.get("envFrom", []):
            for kind, of_kind in (("secretRef", "secret"), ("configMapRef", "configMap")):
                if kind in source:
                    content = self._content(of_kind, source[kind]["name"], bool(source[kind].get("optional")))
                    found |= {key: value.decode() for key, value in content.items()}
        for variable in given.get("env", []):
            found[variable["name"]] = self._value(variable)
        return found

    def _value(self, variable: Object) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        for kind, of_kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "configMap")):
            if kind in source:
                return self._content(of_kind, source[kind]["name"])[source[kind]["key"]].decode()
        return str(variable.get("value", ""))

    def _field(self, path: str) -> str:
        if path in ("status.podIP", "status.podIPs"):
            return self.address
        fields: dict[str, str] = {"spec.nodeName": _NODE, "status.hostIP": "127.0.0.1", "metadata.uid": self.uid}
        fields |= {"metadata.name": self.name, "metadata.namespace": self.namespace}
        return fields[path]


class _Deleted(Exception):
    """The pod was deleted before its container has started."""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- Cluster ----------------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A running cluster with one node."""

    plane: ControlPlane
    node: Node
    api: Api

    def namespace(self, name: str) -> str:
        """Creates a namespace, and waits until pods can be created in it."""
        self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        needed = [
            f"/api/v1/namespaces/{name}/{path}" for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
        ]
        self.wait_for(lambda: all(map(self.api.exists, needed)), needed)
        return name

    def apply(self, manifest: Path, namespace: str) -> None:
        for document in yaml.safe_load_all(manifest.read_text()):
            self.api.apply(document, namespace)

    def token(self, namespace: str, account: str) -> str:
        """Returns a token of a service account, as a pod gets it."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.api.create(path, request)["status"]["token"])

    def as_account(self, namespace: str, account: str) -> Api:
        return Api(self.plane.url, self.plane.ca_file, self.token(namespace, account))

    def pods(self, namespace: str, **labels: str) -> list[Object]:
        selector = ",".join(f"{name.replace('_', '-')}={value}" for name, value in labels.items())
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)

    def requests(self, user: str) -> set[tuple[str, str]]:
        """Returns which verbs a service account has used on which resources, with the requests that were refused."""
        found = set()
        for line in self.plane.audit.read_text().splitlines():
            entry = json.loads(line)
            reference = entry.get("objectRef", {})
            if entry["user"].get("username") == user and "resource" in reference:
                resource = "/".join(filter(None, [reference["resource"], reference.get("subresource")]))
                found.add((entry["verb"], resource))
        return found

    @staticmethod
    def wait_for(what: Callable[[], _T], description: object = "", seconds: float = 120) -> _T:
        """Returns the first result that is true."""
        ends = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < ends, f"it did not happen within {seconds} s: {description}"
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def kubernetes_cluster(folder: Path, images: Mapping[str, Image]) -> Iterator[Cluster]:
    """An empty cluster; the test is skipped if its programs were not built, or containers cannot be isolated here."""
    missing = [name for name in _NAMES if not (PROGRAMS / name).exists()]
    if missing:
        pytest.skip(
            f"no Kubernetes is installed ({', '.join(missing)} missing): make kubernetes builds it if Go is there"
        )
    if not container.can_isolate():
        pytest.skip("this host does not let this user create namespaces of processes")
    plane = ControlPlane(folder)
    node = Node(plane, images)
    try:
        plane.start()
        node.start()
        with plane.administrator() as api:
            yield Cluster(plane, node, api)
    finally:
        node.stop()
        plane.stop()
