"""Drivers on YARN: submitted by spark-submit, found by their tag through the REST interface of the ResourceManager.

Spark copies the files of a shipment into a staging folder of this user alone (mode 0700), and sets their mode to 0644.
YARN gives them to the containers, in caches of the hosts. So none of them has secrets: the launch file follows, with
mode 0600, once the application and thus the folder exists. The driver's program waits for it, and deletes it.
`deliver`, `kill` and `clean_up` run programs of Hadoop that are part of Spark's JARs, with the configuration and the
login of spark-submit: they work wherever it does, and need no installation of Hadoop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from stateflow.clock import Clock
from stateflow.config.submit_options import hide_conf, hide_credentials, option
from stateflow.errors import ClusterFailed, ConfigError
from stateflow.http import BadAnswer, BoundedRetry, BoundedSession, UntrustedServer, exchange_json
from stateflow.private_files import write_private
from stateflow.submission.cluster import Application, Cluster, Phase, SparkSubmit, run_spark_submit
from stateflow.submission.shipment import JOB_FOLDER, LAUNCH_FILE, Shipment

_PREFIX = "stateflow-"
_PHASES = {
    **dict.fromkeys(("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"), Phase.WAITING),
    "RUNNING": Phase.RUNNING,
    "FINAL_SAVING": Phase.RUNNING,
    "FINISHING": Phase.RUNNING,
    "FAILED": Phase.FAILED,
    "KILLED": Phase.KILLED,
}
"""By YARN's name of an application's state. FINISHED depends on the final status as well."""
_SUCCEEDED = "SUCCEEDED"
_APPLICATION = re.compile(r"application_[0-9]+_[0-9]+")
_ARCHIVES, _TAGS, _NAME = "spark.yarn.dist.archives", "spark.yarn.tags", "spark.app.name"
_STAGING = "spark.yarn.stagingDir"
_LONGEST_START, _LONGEST_DEFAULT = "spark.yarn.am.waitTime", "300s"
"""How long YARN's part of Spark waits for a driver's session. By its default of 100 s, a driver could not wait as long
for its settings."""
_USER = re.compile(r"\w[\w.@$+-]*")
_LONGEST_REASON = 2000
PROGRAM = f"""\
import os
import sys
import time

# Modules next to it would shadow others.
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]

from pyspark import SparkContext

SparkContext._ensure_initialized()
java = SparkContext._jvm
path = java.org.apache.hadoop.fs.Path(os.environ["SPARK_YARN_STAGING_DIR"] + "/{LAUNCH_FILE}")
files = path.getFileSystem(java.org.apache.spark.deploy.SparkHadoopUtil.get().conf())
ends = time.monotonic() + 180
while not files.exists(path):
    if time.monotonic() > ends:
        sys.exit("this driver has got no settings: the process that submitted it has ended, or could not write them")
    time.sleep(0.1)
stream = files.open(path)
content = stream.readAllBytes()
stream.close()
files.delete(path, False)
launch_file = os.memfd_create("stateflow-launch")
os.write(launch_file, content)
sys.argv += ["--launch-file", f"/proc/self/fd/{{launch_file}}"]

from stateflow.cli.main import main

main()
"""
"""The program of a driver: as ``stateflow/__main__.py``, with the launch file in memory.

It reads the file as Spark's Java process does, which has the configuration and the tokens for it.
"""


class _App(msgspec.Struct, frozen=True):
    """The fields of an application in an answer of the ResourceManager that are used."""

    id: str
    state: str
    final_status: str = msgspec.field(name="finalStatus", default="")
    diagnostics: str | None = None
    log: str | None = msgspec.field(name="amContainerLogs", default=None)
    user: str = ""
    started: int = msgspec.field(name="startedTime", default=0)


class _Apps(msgspec.Struct, frozen=True):
    app: list[_App] = []


class _Found(msgspec.Struct, frozen=True):
    apps: _Apps | None = None


class Yarn(Cluster):
    """A YARN that the configuration of Hadoop names.

    Args:
        spark_submit: the command line, and the environment with ``HADOOP_CONF_DIR`` or ``YARN_CONF_DIR``.
        clock: the clock of the caller.

    Raises:
        ConfigError: the configuration is missing, or does not name the ResourceManager.
    """

    def __init__(self, spark_submit: SparkSubmit, clock: Clock) -> None:
        self._spark_submit = spark_submit
        self._clock = clock
        self._addresses = resource_managers(read_yarn_site(spark_submit.environment))
        self._session = BoundedSession(BoundedRetry(0), connections=1)
        self._has_answered = False

    def submit(self, shipment: Shipment, is_cancelled: Callable[[], bool]) -> None:
        given = self._spark_submit
        conf = {
            **{name: value for name, value in hide_credentials(given.environment).items() if name not in given.conf},
            "spark.submit.deployMode": "cluster",
            # A second attempt would fence the first one, and this process follows one run.
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
            _LONGEST_START: given.conf.get(_LONGEST_START, _LONGEST_DEFAULT),
            _TAGS: _joined(given.conf.get(_TAGS), _tag(shipment.launch)),
            _ARCHIVES: _joined(given.conf.get(_ARCHIVES), f"{shipment.job_archive.as_uri()}#{JOB_FOLDER}"),
        }
        if option(given.options, "--name") is None:
            # The name of the program otherwise.
            conf[_NAME] = given.conf.get(_NAME, f"stateflow {Path(shipment.job).stem}")
        driver = shipment.folder / "stateflow_driver.py"
        driver.write_text(PROGRAM)
        own = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        file = shipment.folder / "spark.conf"
        options, content = hide_conf([*given.options, *own], file)
        write_private(file, (content or "").encode())
        run_spark_submit(given, [*options, str(driver), *shipment.arguments(None)], shipment, is_cancelled)

    def deliver(self, application: Application, shipment: Shipment) -> None:
        to = f"{self._staging_folder(application)}/{LAUNCH_FILE}"
        # It appears under its name with its whole content.
        words = ("-D", "fs.permissions.umask-mode=077", "-put", "-f", shipment.launch_file.as_uri(), to)
        self._spark_submit.change_files(*words)
        shipment.launch_file.unlink()

    def find(self, launch: str) -> Application | None:
        found = self._get(f"/ws/v1/cluster/apps?applicationTags={_tag(launch)}")
        apps = found.apps.app if found.apps else []
        return _application(max(apps, key=lambda app: (app.started, app.id))) if apps else None

    def kill(self, application: Application) -> None:
        self._spark_submit.tool(
            "org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application", "-kill", _checked_id(application.id)
        )

    def clean_up(self, application: Application) -> None:
        if application.phase is Phase.SUCCEEDED:
            # Spark has removed it.
            return
        self._spark_submit.change_files("-rm", "-r", "-f", "-skipTrash", self._staging_folder(application))

    def _staging_folder(self, application: Application) -> str:
        """Returns the folder into which Spark has copied the files of an application."""
        shared = self._spark_submit.conf.get(_STAGING, "")
        if shared and not _USER.fullmatch(application.user):
            raise ClusterFailed(
                "the user of an application of YARN is not the name of a folder",
                hint=f"do not set {_STAGING}: Spark uses the user's own folder then",
                user=application.user[:100],
            )
        # Without a folder of all users, it is relative to the user's own one in the default file system.
        within = [shared.rstrip("/"), application.user] if shared else []
        return "/".join([*within, ".sparkStaging", _checked_id(application.id)])

    def _get(self, path: str) -> _Found:
        problem, untrusted = "", None
        # The standby of a pair answers with a redirection, or not at all.
        for address in self._addresses:
            try:
                status, document = exchange_json(self._session, "GET", f"{address}{path}", self._clock)
                if status == 200:
                    found = msgspec.convert(document, _Found)
                    self._has_answered = True
                    return found
                problem = f"HTTP {status}"
                if status in (401, 403):
                    raise ConfigError(
                        "the ResourceManager requires a login that stateflow does not have",
                        hint="permit reading of its REST interface from this host, or run the job in client mode",
                        address=address,
                        status=status,
                    )
            except BadAnswer as e:
                problem = str(e)
                untrusted = e if isinstance(e, UntrustedServer) else untrusted
            except msgspec.ValidationError:
                problem = "its answer is not of the documented form"
        if untrusted is not None and not self._has_answered:
            raise ConfigError(
                "the certificate of the ResourceManager is not accepted",
                hint="set REQUESTS_CA_BUNDLE to a PEM file with the authority that has signed it",
                addresses=list(self._addresses),
                authorities=untrusted.authorities,
                reason=str(untrusted),
            )
        raise ClusterFailed(
            "the ResourceManager does not answer",
            hint="check yarn.resourcemanager.webapp.address in yarn-site.xml",
            addresses=list(self._addresses),
            reason=problem,
        )


def read_yarn_site(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties in ``yarn-site.xml``, by name. Raises ConfigError."""
    folders = [Path(environment[name]) for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR") if environment.get(name)]
    found = next((path for folder in folders if (path := folder / "yarn-site.xml").is_file()), None)
    if found is None:
        raise ConfigError(
            "the configuration of YARN was not found",
            hint="set HADOOP_CONF_DIR or YARN_CONF_DIR to the folder with yarn-site.xml",
            folders=[str(folder) for folder in folders],
        )
    try:
        # A file of this machine, which spark-submit trusts as well.
        properties = ElementTree.parse(found).getroot().findall("property")
    except (OSError, ElementTree.ParseError) as e:
        raise ConfigError("the configuration of YARN cannot be read", hint="correct it", path=str(found)) from e
    pairs = ((each.findtext("name") or "", each.findtext("value") or "") for each in properties)
    return {name.strip(): value.strip() for name, value in pairs}


def resource_managers(site: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the addresses of the REST interface of the ResourceManager, or of all of a pair, without a final slash.

    Raises ConfigError if the configuration does not name it.
    """
    secure = site.get("yarn.http.policy") == "HTTPS_ONLY"
    key, port = ("webapp.https.address", 8090) if secure else ("webapp.address", 8088)
    prefix = "yarn.resourcemanager."
    is_pair = site.get(f"{prefix}ha.enabled") == "true"
    ids = [f".{each.strip()}" for each in site.get(f"{prefix}ha.rm-ids", "").split(",")] if is_pair else [""]
    found = []
    for suffix in ids:
        host = site.get(f"{prefix}hostname{suffix}", "")
        address = site.get(f"{prefix}{key}{suffix}") or (f"{host}:{port}" if host else "")
        address = address.replace("${yarn.resourcemanager.hostname}", host)
        if not address or "${" in address or address.startswith("0.0.0.0"):
            raise ConfigError(
                "the configuration of YARN does not name the ResourceManager",
                hint=f"set {prefix}hostname{suffix} or {prefix}{key}{suffix} in yarn-site.xml",
                found=address,
            )
        found.append(f"{'https' if secure else 'http'}://{address}")
    return tuple(found)


def _application(app: _App) -> Application:
    if app.state == "FINISHED":
        phase = {_SUCCEEDED: Phase.SUCCEEDED, "KILLED": Phase.KILLED}.get(app.final_status, Phase.FAILED)
    else:
        # An unknown state is one of a newer YARN, and has not ended.
        phase = _PHASES.get(app.state, Phase.RUNNING)
    return Application(_checked_id(app.id), phase, _reason(app.diagnostics or ""), app.log or "", app.user)


def _reason(diagnostics: str) -> str:
    """Returns diagnostics without the lines of stack traces of Java."""
    lines = (line.strip() for line in diagnostics.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("at ", "... ")))[:_LONGEST_REASON]


def _checked_id(text: str) -> str:
    """Returns an id that is passed on to programs. Raises ClusterFailed for any other text."""
    if not _APPLICATION.fullmatch(text):
        raise ClusterFailed("the id of an application of YARN is not valid", hint="check the address", id=text[:100])
    return text


def _tag(launch: str) -> str:
    return f"{_PREFIX}{launch}"


def _joined(given: str | None, own: str) -> str:
    return ",".join(filter(None, [given, own]))
