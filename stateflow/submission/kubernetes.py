"""Drivers in Kubernetes: submitted by spark-submit, found by the name of their pod through the API server.

The name follows from the id of the launch, so that the API server itself refuses a second driver of a launch. A Secret
of the same name has the files of the shipment; it belongs to the pod, as the objects that Spark creates do, so that
the deletion of the pod removes all of them.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from stateflow.clock import Clock
from stateflow.config.submit_options import hide_conf, option
from stateflow.errors import ClusterFailed, ConfigError, StateflowError
from stateflow.http import BadAnswer, BoundedRetry, BoundedSession, UntrustedServer, exchange_json
from stateflow.private_files import write_private
from stateflow.submission.cluster import Application, Cluster, Phase, SparkSubmit, run_spark_submit
from stateflow.submission.shipment import JOB_FOLDER, LAUNCH_FILE, Shipment

log = logging.getLogger(__name__)

_LAUNCH_FOLDER = "/opt/stateflow/launch"
"""Folder in the driver's pod with the files of the Secret."""
_PROGRAM_FILE, _ARCHIVE = "stateflow-driver.py", "stateflow-job.zip"
_PROGRAM = f"""
import os, sys, tempfile, zipfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]
# The working folder of an image may be read-only.
os.chdir(tempfile.mkdtemp())
zipfile.ZipFile(os.path.join(here, {_ARCHIVE!r})).extractall({JOB_FOLDER!r})
from stateflow.cli.main import main

main()
"""
"""What spark-submit runs in the pod: unpacks the job, and runs the stateflow that the image has."""
_SECRET_BYTES = 1 << 20
"""Size of the largest Secret that an API server accepts, in bytes of its content."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with token and certificate of a process that runs in a pod."""
_AUTHENTICATE = "spark.kubernetes.authenticate.submission"
_INCOMPLETE = timedelta(seconds=30)
"""How long a pod may lack a config map: Spark creates them right after the pod, unless it was killed in between."""
_UNPULLED = timedelta(minutes=2)
"""How long the image may not be available, which a registry that restarts explains."""
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")
_SUBMISSION = "stateflow/submission"
"""Annotation of a pod: which process has submitted it."""
_POLL = timedelta(milliseconds=200)
_LONGEST_REASON = 3000
_CONFLICT = 409
"""Status of an answer to a deletion whose preconditions do not hold."""
_NEW_CA = "kubectl get configmap kube-root-ca.crt --output 'jsonpath={.data.ca\\.crt}' > ca.crt"
_Method = Literal["GET", "POST", "PATCH", "DELETE"]


class _Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, frozen=True):
    state: _State = _State()


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] = []
    container_statuses: list[_ContainerStatus] = []


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Volume(msgspec.Struct, frozen=True, rename="camel"):
    config_map: _Named | None = None


class _Spec(msgspec.Struct, frozen=True):
    volumes: list[_Volume] = []


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    """The fields of a pod that are used."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Kubernetes(Cluster):
    """A namespace of a Kubernetes cluster.

    Args:
        spark_submit: the command line, whose settings name the namespace and the credentials of spark-submit.
        clock: the clock of the caller.

    Raises:
        ConfigError: the settings name no credentials, and this process is not in a pod.
    """

    def __init__(self, spark_submit: SparkSubmit, clock: Clock) -> None:
        self._spark_submit = spark_submit
        self._clock = clock
        self._namespace = spark_submit.conf.get("spark.kubernetes.namespace") or "default"
        self._api = _Api(spark_submit, clock)
        self._followed: dict[str, Application] = {}
        self._uids: dict[str, str] = {}
        self._secrets: dict[str, Mapping[str, object]] = {}
        self._id = clock.new_id()
        self._since: dict[tuple[str, str], float] = {}

    def submit(self, shipment: Shipment, is_cancelled: Callable[[], bool]) -> None:
        name = pod_name(shipment.launch)
        secret = _secret(name, shipment)
        self._remove_ended(name)
        command = self._command(name, shipment)
        try:
            # One of an earlier submission has its settings.
            self._delete("secrets", name)
            self._api.call("POST", self._path("secrets"), secret)
            run_spark_submit(self._spark_submit, command, shipment, is_cancelled)
        except BaseException:
            # Also a request without an answer may have created them.
            try:
                self._remove_submitted(name)
            except StateflowError as e:
                log.warning("the Secret %s may be left, until the launch is looked for again: %s", name, e)
            raise
        self._secrets[name] = secret

    def _command(self, name: str, shipment: Shipment) -> list[str]:
        """Returns the words after ``spark-submit``; its settings are in a file of the shipment."""
        given = self._spark_submit
        own = {
            "spark.submit.deployMode": "cluster",
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.pod.name": name,
            f"spark.kubernetes.driver.secrets.{name}": _LAUNCH_FOLDER,
            "spark.kubernetes.driver.label.app.kubernetes.io/managed-by": "stateflow",
            "spark.kubernetes.driver.annotation.stateflow/launch": shipment.launch,
            f"spark.kubernetes.driver.annotation.{_SUBMISSION}": self._id,
            **self._api.credentials,
        }
        if option(given.options, "--name") is None:
            # The name of the program otherwise.
            own["spark.app.name"] = given.conf.get("spark.app.name", f"stateflow {Path(shipment.job).stem}")
        # State is in the job root: an executor has nothing that another one could take over with its volume.
        claims = [f"spark.kubernetes.driver.{verb}PersistentVolumeClaim" for verb in ("own", "reuse")]
        own |= {claim: "false" for claim in claims if claim not in given.conf}
        words = [word for key, value in own.items() for word in ("--conf", f"{key}={value}")]
        file = shipment.folder / "spark.conf"
        options, content = hide_conf([*given.options, *words], file)
        write_private(file, (content or "").encode())
        arguments = shipment.arguments(f"{_LAUNCH_FOLDER}/{LAUNCH_FILE}")
        return [*options, f"local://{_LAUNCH_FOLDER}/{_PROGRAM_FILE}", *arguments]

    def deliver(self, application: Application, shipment: Shipment) -> None:
        """Does nothing: the pod has mounted the Secret of the submission."""

    def find(self, launch: str) -> Application | None:
        name = pod_name(launch)
        pod = self._pod(name)
        if pod is None:
            followed = self._followed.get(launch)
            if followed is None and name not in self._secrets:
                # A process that was killed before there was a pod has left it, without an owner.
                self._delete("secrets", name)
            if followed is None or not followed.is_active:
                return followed
            found = Application(followed.id, Phase.KILLED, "its pod was deleted")
        else:
            if self._uids.get(name) != pod.metadata.uid:
                self._adopt(pod)
                self._uids[name] = pod.metadata.uid
            phase, reason = self._condition(pod)
            # The log is deleted with the pod of a driver that has ended; the reason has its last lines.
            shown = f"kubectl logs --namespace {self._namespace} {name}" if phase is Phase.RUNNING else ""
            found = Application(f"{self._namespace}/{name}", phase, reason, shown)
        self._followed[launch] = found
        return found

    def kill(self, application: Application) -> None:
        name = application.id.rpartition("/")[2]
        self._delete("pods", name, uid=self._uids.get(name))

    def clean_up(self, application: Application) -> None:
        name = application.id.rpartition("/")[2]
        if self._delete("pods", name, uid=self._uids.get(name)):
            # Usually the pod's end removes it. Without a pod, nothing would.
            self._delete("secrets", name)
            self._secrets.pop(name, None)
        self._followed.clear()

    # -- The pod ------------------------------------------------------------------------------------------------------

    def _condition(self, pod: _Pod) -> tuple[Phase, str]:
        """Returns how far a driver is, and why."""
        status = pod.status
        states = [each.state for each in status.container_statuses]
        if status.phase == "Succeeded":
            return Phase.SUCCEEDED, ""
        if status.phase == "Failed":
            ends = [state.terminated for state in states if state.terminated]
            texts = [status.reason, status.message]
            texts += [f"{end.reason}, exit code {end.exit_code}\n{end.message}" for end in ends]
            # The last lines of the log are at the end.
            return Phase.FAILED, "\n".join(text.strip() for text in texts if text.strip())[-_LONGEST_REASON:]
        if status.phase != "Pending":
            return Phase.RUNNING, ""
        return self._why_pending(pod, [state.waiting for state in states if state.waiting])

    def _why_pending(self, pod: _Pod, waiting: list[_Waiting]) -> tuple[Phase, str]:
        for each in waiting:
            if each.reason in _NO_IMAGE:
                is_lasting = self._lasts(pod, "no image", _UNPULLED)
                return Phase.FAILED if is_lasting else Phase.WAITING, f"{each.reason}: {each.message}"
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return Phase.WAITING, f"{condition.reason}: {condition.message}"
        maps = [volume.config_map.name for volume in pod.spec.volumes if volume.config_map]
        missing = [name for name in maps if self._get("configmaps", name) is None]
        if missing and self._lasts(pod, "incomplete", _INCOMPLETE):
            return Phase.FAILED, f"its submission was interrupted: the config map {missing[0]} does not exist"
        return Phase.WAITING, ""

    def _lasts(self, pod: _Pod, what: str, limit: timedelta) -> bool:
        """Returns whether this process has seen a state of a pod for some time."""
        now = self._clock.monotonic()
        return now - self._since.setdefault((pod.metadata.uid, what), now) > limit.total_seconds()

    def _pod(self, name: str) -> _Pod | None:
        found = self._get("pods", name)
        try:
            return None if found is None else msgspec.convert(found, _Pod)
        except msgspec.ValidationError as e:
            raise ClusterFailed(
                "the API server's answer is not of the documented form", hint="check the master", reason=str(e)
            ) from e

    def _remove_ended(self, name: str) -> None:
        """Removes the pod of an earlier submission of the same launch, which has ended or cannot start.

        Raises ClusterFailed if it is active: another process with the launch has submitted it in the meantime.
        """
        deadline = self._clock.monotonic() + _INCOMPLETE.total_seconds()
        while (pod := self._pod(name)) is not None:
            if pod.metadata.deletion_timestamp is None:
                phase, _ = self._condition(pod)
                if phase in (Phase.WAITING, Phase.RUNNING):
                    raise ClusterFailed(
                        "another process has submitted the driver of this launch",
                        hint="run the command again: it follows that driver",
                        pod=name,
                    )
                # Not another one with this name, and not one that could start after all.
                self._delete("pods", name, uid=pod.metadata.uid, resourceVersion=pod.metadata.resource_version)
            if self._clock.monotonic() > deadline:
                raise ClusterFailed(
                    "the pod of an earlier driver of this launch has not ended", hint="try again later", pod=name
                )
            self._clock.sleep(_POLL)

    def _remove_submitted(self, name: str) -> None:
        """Removes what this process has submitted in vain, and nothing of another one with the same launch."""
        pod = self._pod(name)
        if pod is not None and pod.metadata.annotations.get(_SUBMISSION) != self._id:
            return
        if pod is None or self._delete("pods", name, uid=pod.metadata.uid):
            self._delete("secrets", name)

    def _adopt(self, pod: _Pod) -> None:
        """Makes the pod the owner of its Secret, if that exists: the process that submitted may have been killed."""
        name = pod.metadata.name
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid}
        found = self._api.call("PATCH", self._path("secrets", name), {"metadata": {"ownerReferences": [owner]}})
        secret = self._secrets.get(name)
        if found is None and secret is not None and pod.metadata.annotations.get(_SUBMISSION) == self._id:
            # Another process has removed it: when it looked for the pod, there was none yet. The pod waits for it.
            metadata = {**_metadata(name), "ownerReferences": [owner]}
            self._api.call("POST", self._path("secrets"), {**secret, "metadata": metadata})

    # -- Requests -----------------------------------------------------------------------------------------------------

    def _path(self, resource: str, name: str = "") -> str:
        return "/".join(filter(None, ["/api/v1/namespaces", self._namespace, resource, name]))

    def _get(self, resource: str, name: str) -> object | None:
        return self._api.call("GET", self._path(resource, name))

    def _delete(self, resource: str, name: str, **of_object: str | None) -> bool:
        """Deletes an object, and what belongs to it; one that does not exist is not an error.

        Args:
            resource: the kind of the object.
            name: its name.
            **of_object: its ``uid`` and ``resourceVersion``, as far as they are known.

        Returns:
            False if there is another object with this name, which stays.
        """
        known = {field: value for field, value in of_object.items() if value}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self._api.call("DELETE", self._path(resource, name), {**options, "preconditions": known})
        except ClusterFailed as e:
            if e.facts.get("status") != _CONFLICT:
                raise
            return False
        return True


class _Api:
    """The API server, with the credentials of spark-submit.

    Attributes:
        credentials: Spark's settings for these credentials.
    """

    def __init__(self, spark_submit: SparkSubmit, clock: Clock) -> None:
        conf = spark_submit.conf
        address = spark_submit.master.removeprefix("k8s://").rstrip("/")
        self._address = address if "://" in address else f"https://{address}"
        self._namespace = conf.get("spark.kubernetes.namespace") or "default"
        self._clock = clock
        self._session = BoundedSession(BoundedRetry(0), connections=1)
        self._has_answered = False
        self._token = self._file(conf, "oauthTokenFile", "token")
        authority = self._file(conf, "caCertFile", "ca.crt")
        if authority:
            self._session.verify = authority
            # REQUESTS_CA_BUNDLE would count instead.
            self._session.trust_env = False
        certificate, key = (conf.get(f"{_AUTHENTICATE}.{name}", "") for name in ("clientCertFile", "clientKeyFile"))
        if certificate and key:
            _check_client_certificate(certificate, key)
            self._session.cert = (certificate, key)
        self._certificate = certificate
        files = {"oauthTokenFile": self._token, "caCertFile": authority}
        self.credentials = {f"{_AUTHENTICATE}.{name}": path for name, path in files.items() if path}
        if not (self._token or certificate or self._address.startswith("http://")):
            raise ConfigError(
                "there are no credentials for the API server of Kubernetes",
                hint=f"set {_AUTHENTICATE}.oauthTokenFile and {_AUTHENTICATE}.caCertFile, or run in a pod with a "
                "service account; a kubeconfig is not read",
                master=spark_submit.master,
            )

    @staticmethod
    def _file(conf: Mapping[str, str], setting: str, mounted: str) -> str:
        found = _ACCOUNT / mounted
        return conf.get(f"{_AUTHENTICATE}.{setting}") or (str(found) if found.is_file() else "")

    def call(self, method: _Method, path: str, body: Mapping[str, object] | None = None) -> object | None:
        """Returns the answer to a request; None if the object does not exist.

        Raises:
            ClusterFailed: the server cannot be reached, has failed, or a quota has refused the request. Also instead of
                ConfigError once the server has answered: its credentials may be replaced while a driver is followed.
            ConfigError: the credentials are not valid, or do not permit the request.
        """
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._read_token()}"
        self._session.headers.update(headers)
        try:
            status, document = exchange_json(self._session, method, f"{self._address}{path}", self._clock, body=body)
        except UntrustedServer as e:
            raise self._of_credentials()(
                "the certificate of the API server of Kubernetes is not accepted",
                hint=f"{_AUTHENTICATE}.caCertFile must be a PEM file with the authority that has signed it: {_NEW_CA}",
                address=self._address,
                authorities=e.authorities,
                reason=str(e),
            ) from e
        except BadAnswer as e:
            raise ClusterFailed(
                "the API server of Kubernetes cannot be reached",
                hint="check the master, the network and the proxy",
                address=self._address,
                reason=str(e),
            ) from e
        if status == 404:
            return None
        if status < 300:
            self._has_answered = True
            return document
        raise self._refusal(status, path, document)

    def _of_credentials(self) -> type[ClusterFailed] | type[ConfigError]:
        """Returns the class of an error of the credentials."""
        return ClusterFailed if self._has_answered else ConfigError

    def _read_token(self) -> str:
        """Returns the token, which the platform replaces in its file before it expires."""
        try:
            token = Path(self._token).read_bytes().strip()
            reason = "" if token.isascii() and len(token.split()) == 1 else "it has no token, or more than a token"
        except OSError as e:
            token, reason = b"", e.strerror or type(e).__name__
        if reason:
            raise self._of_credentials()(
                "the token for the API server of Kubernetes cannot be read",
                hint=self._new_token(),
                token_file=self._token,
                reason=reason,
            )
        return token.decode()

    def _new_token(self) -> str:
        command = f"kubectl create token stateflow-submitter --namespace {self._namespace} --duration 8h"
        renewed = f"(umask 077; {command} > {self._token})"
        return f"renew it before it expires: {renewed}; in a pod, the platform renews its own"

    def _unknown_user(self, **facts: object) -> ClusterFailed | ConfigError:
        """Returns the error of a server that does not know who sends a request."""
        kind = self._of_credentials()
        if self._token:
            what = "the API server of Kubernetes does not accept the token: it is wrong or expired"
            return kind(what, hint=self._new_token(), token_file=self._token, **facts)
        return kind(
            "the API server of Kubernetes requires credentials, or does not accept those that it gets",
            hint=f"set {_AUTHENTICATE}.oauthTokenFile to the file of a token, or renew the client certificate",
            client_certificate=self._certificate,
            **facts,
        )

    def _refusal(self, status: int, path: str, document: object) -> ClusterFailed | ConfigError:
        message = str(document.get("message", "")) if isinstance(document, dict) else ""
        facts = {"path": path, "status": status, "reason": message}
        if status == 401:
            return self._unknown_user(**facts)
        # A server that has just started does not know all rights yet.
        if status != 403 or self._has_answered or "exceeded quota" in message:
            return ClusterFailed("the API server of Kubernetes refused a request", hint="see the reason", **facts)
        return ConfigError(
            "the API server of Kubernetes does not permit a request",
            hint="apply docker/kubernetes/rbac.yaml to the namespace, and submit as stateflow-submitter",
            **facts,
        )


def _check_client_certificate(certificate: str, key: str) -> None:
    """Raises ConfigError for files that are not a certificate and its private key."""
    try:
        # Without the callable, OpenSSL asks for the passphrase of a key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=str)
    except (OSError, ValueError) as e:
        raise ConfigError(
            "the client certificate for the API server of Kubernetes cannot be used",
            hint=f"{_AUTHENTICATE}.clientCertFile and clientKeyFile must be PEM files without a passphrase",
            certificate=certificate,
            key=key,
            reason=(e.strerror if isinstance(e, OSError) else "") or type(e).__name__,
        ) from None


def _secret(name: str, shipment: Shipment) -> Mapping[str, object]:
    """Returns the Secret with the files of a shipment. Raises ConfigError."""
    files = {
        LAUNCH_FILE: shipment.launch_file.read_bytes(),
        _ARCHIVE: shipment.job_archive.read_bytes(),
        _PROGRAM_FILE: _PROGRAM.encode(),
    }
    size = sum(map(len, files.values()))
    if size > _SECRET_BYTES:
        raise ConfigError(
            "job file, modules and settings are larger than a Secret of Kubernetes",
            hint="install large modules in the image of the driver",
            size_bytes=size,
            limit_bytes=_SECRET_BYTES,
        )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(name),
        "immutable": True,
        "data": {key: base64.b64encode(content).decode() for key, content in files.items()},
    }


def _metadata(name: str) -> dict[str, object]:
    return {"name": name, "labels": {"app.kubernetes.io/managed-by": "stateflow"}}


def pod_name(launch: str) -> str:
    """Returns the name of the driver's pod of a launch, which is also its Secret's."""
    # An id of a launch has only letters that a name in Kubernetes may have.
    return f"stateflow-{launch}"
