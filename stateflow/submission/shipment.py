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

LAUNCH_FILE = "stateflow-launch.json"
"""Name of the launch file."""
JOB_FOLDER = "stateflow-job"
"""Name of the folder with job file and modules in the working folder of a driver."""
PASSED = ("AWS_*", "AZURE_*", "GOOGLE_*", "WEBHDFS_*", "OTEL_*", "STATEFLOW_*", "AIRFLOW_CTX_*")
"""Patterns of the environment variables that a driver gets. ``*`` matches any characters."""
_NOT_PASSED = ("STATEFLOW_LAUNCH",)
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class LaunchFile:
    """The content of a launch file.

    Attributes:
        launch: id of the launch.
        environment: variables that the driver adds to its environment.
        config: the text of the file of ``--config``; empty without one.
        assignments: as of ``--set``.
    """

    launch: str
    environment: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    assignments: Sequence[str] = ()

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
    }
    data = json.dumps(document).encode()
    if len(data) > _LARGEST_FILE:
        raise ConfigError(
            "the settings and variables of the job are too large to be shipped",
            hint="put large values into a file that the job reads",
            bytes=len(data),
            limit=_LARGEST_FILE,
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
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(
            "the launch file cannot be read",
            hint="only stateflow submit passes --launch-file; use --config and --set",
            path=str(path),
            reason=type(e).__name__,
        ) from e


def passed_environment(environment: Mapping[str, str], further: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables of this process that a driver in a cluster gets.

    Args:
        environment: the environment of this process.
        further: patterns in addition to `PASSED`.
    """
    patterns = (*PASSED, *further)
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_PASSED and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
