"""What the driver of a job in a cluster needs, and gets as files: job file and modules, settings, credentials.

The arguments of a program and Spark's settings are shown to many: by ``ps``, by the web interfaces of Spark and of the
cluster. So settings of the job and environment variables are in the launch file, which only the user of the driver may
read. Its arguments have names and paths only.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from stateflow.checkpoint.launches import check_launch
from stateflow.config.sources import SettingsLayer, parse_assignments, parse_toml
from stateflow.errors import ConfigError
from stateflow.private_files import open_private, write_private
from stateflow.runtime.job_loader import collect_job_files
from stateflow.storage.locations import HOST_NAMES, NAMES

LAUNCH_FILE = "stateflow-launch.json"
"""Name of the launch file."""
JOB_FOLDER = "stateflow-job"
"""Name of the folder with job file and modules in the working folder of a driver."""
_OF_THE_RUN = ("STATEFLOW_*", "OPENLINEAGE_*", "AIRFLOW_CTX_*")
_TELEMETRY = "OTEL_*"
_OF_THIS_HOST = (
    *HOST_NAMES,
    *("STATEFLOW_LAUNCH", "OPENLINEAGE_CONFIG", "OTEL_*_CERTIFICATE", "OTEL_*_CLIENT_KEY", "OTEL_*_FILE"),
)
"""Patterns of variables about an identity or a file of this host."""
_SERVICES = {"GCE": "GOOGLE", "SERVICE": "GOOGLE", "HADOOP": "WEBHDFS"}
"""By the first word of a variable, the first word of the other variables of the same service."""
_NOT_DECISIVE = ("AWS_REGION", "AWS_DEFAULT_REGION", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
"""Variables that platforms set without access to a service."""
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class LaunchFile:
    """The content of a launch file.

    Attributes:
        launch: id of the launch.
        environment: variables for the driver.
        config: the text of the file of ``--config``; empty without one.
        assignments: as of ``--set``.
        yielding: those of the variables that give way to the driver's own.
    """

    launch: str
    environment: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    assignments: Sequence[str] = ()
    yielding: Sequence[str] = ()

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables that the driver adds to its environment.

        All that give way and are about one service come from one place: the driver's host, if it has any of them.
        Otherwise an address, a key and a token of different places would be used together.

        Args:
            own: the environment of the driver.
        """
        served = {_service(name) for name in own if _is_of_service(name) and name not in _NOT_DECISIVE}
        hidden = {name for name in self.yielding if name in own or _service(name) in served}
        return {name: value for name, value in self.environment.items() if name not in hidden}

    def layers(self) -> tuple[SettingsLayer, ...]:
        """Returns the layers of settings. Raises ConfigError."""
        assigned = parse_assignments(tuple(self.assignments))
        return (*([parse_toml(self.config.encode(), Path(LAUNCH_FILE))] if self.config else []), assigned)


@dataclass(frozen=True)
class Shipment:
    """A driver to submit.

    Attributes:
        launch: id of the launch.
        folder: folder of this user alone for files that exist until the driver has been submitted.
        launch_file: the launch file, with mode 0600.
        job_archive: zip file with the job file and its modules.
        job: path of the job file within the archive.
        run_options: options of ``stateflow run`` without secrets.
    """

    launch: str
    folder: Path
    launch_file: Path
    job_archive: Path
    job: str
    run_options: Sequence[str]

    def arguments(self, launch_file: str | None, job_folder: str = JOB_FOLDER) -> list[str]:
        """Returns the arguments of the stateflow program in the cluster.

        Args:
            launch_file: path of the launch file there; None if the program has it.
            job_folder: path of the unpacked archive there.
        """
        given = [] if launch_file is None else ["--launch-file", launch_file]
        return ["run", f"{job_folder}/{self.job}", *self.run_options, *given]


def make_shipment(folder: Path, job: Path, content: LaunchFile, run_options: Sequence[str]) -> Shipment:
    """Writes the files that a driver needs into a folder of this user alone.

    Raises:
        JobDefinitionError: the job file does not exist, or one of its modules has the name of an existing one.
        ConfigError: the settings are larger than a driver reads.
    """
    at, texts = collect_job_files(job)
    archive, file = folder / "stateflow-job.zip", folder / LAUNCH_FILE
    with open_private(archive) as opened, zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in sorted(texts.items()):
            # Always the same bytes of the same job, whatever the time.
            zipped.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
    document = {
        "launch": check_launch(content.launch),
        "environment": dict(content.environment),
        "config": content.config,
        "assignments": list(content.assignments),
        "yielding": list(content.yielding),
    }
    data = json.dumps(document).encode()
    if len(data) > _LARGEST_FILE:
        raise ConfigError(
            "the settings and variables of the job are too large to be shipped",
            hint="put large values into a file that the job reads",
            size_bytes=len(data),
            limit_bytes=_LARGEST_FILE,
        )
    write_private(file, data)
    return Shipment(content.launch, folder, file, archive, at, list(run_options))


def read_launch_file(path: Path) -> LaunchFile:
    """Returns the content of a launch file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_FILE + 1))
        return LaunchFile(
            launch=check_launch(found["launch"]),
            environment={str(name): str(value) for name, value in found["environment"].items()},
            config=cast("str", found["config"]),
            assignments=[str(text) for text in found["assignments"]],
            yielding=[str(name) for name in found["yielding"]],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(
            "the launch file cannot be read",
            hint="only stateflow submit passes --launch-file; use --config and --set",
            path=str(path),
            reason=type(e).__name__,
        ) from e


def passed_environment(environment: Mapping[str, str], named: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Returns the variables of this process that a driver in a cluster gets, and the names of those that give way.

    Variables of services (storage and OpenTelemetry) give way to the driver's own, and those about an identity or a
    file of this host are not passed, unless they are named.

    Args:
        environment: the environment of this process.
        named: patterns of variables that are passed whatever they are about. ``*`` matches any characters.
    """
    asked = {name for name in environment if _matches(name, named)}
    local = {name for name in environment if _matches(name, _OF_THIS_HOST)}
    if not any(name in NAMES and name.endswith("_CLIENT_SECRET") for name in environment):
        # Without a secret, it selects an identity of this host.
        local |= {name for name in NAMES if name.endswith("_CLIENT_ID")}
    services = {name for name in environment.keys() - asked - local if _is_of_service(name)}
    others = {name for name in environment.keys() - local if _matches(name, _OF_THE_RUN)}
    passed = asked | services | others
    return {name: value for name, value in environment.items() if name in passed}, sorted(services)


def _is_of_service(name: str) -> bool:
    return name in NAMES or _matches(name, (_TELEMETRY,))


def _service(name: str) -> str:
    word = name.partition("_")[0]
    return _SERVICES.get(word, word)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
