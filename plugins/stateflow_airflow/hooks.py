"""The hook that builds the spark-submit command of a stateflow job from an Airflow connection.

Import this module only while a task runs: importing the Spark provider is slow.

Airflow's SparkSubmitHook handles connections, masters, Kerberos and some thirty options; stateflow runs the command
itself. `_Submit` has the private names of that hook that are used, and `versions` pins the releases that have them.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from stateflow.config.submit_options import CLUSTER_MODE, KUBERNETES, YARN, runs_drivers
from stateflow_airflow.failures import TransientFailure, config_failure
from stateflow_airflow.graceful_end import LAUNCH_ID
from stateflow_airflow.launch import Command
from stateflow_airflow.spark import SparkSubmit, hide_conf

_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Environment variable with Java options for spark-submit; the stateflow library reads it, too."""
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_JAVA_VERSIONS = (17, 21, 25)
"""Supported Java versions, as in the library; the module that has them there imports much."""


@dataclass(frozen=True)
class ClusterLaunch:
    """The launch of a driver in a cluster.

    Attributes:
        id: the id by which the cluster finds the driver again.
        end_timeout: how long the driver may take to end with a checkpoint.
        follow_only: whether no other driver is submitted if it has failed.
    """

    id: str
    end_timeout: timedelta
    follow_only: bool = False


class _Submit(SparkSubmitHook):
    """SparkSubmitHook with public access to the command line, and without the package that it has for Kubernetes."""

    def _resolve_connection(self) -> dict[str, object]:
        found: dict[str, object] = super()._resolve_connection()
        self.master = str(found["master"])
        # The constructor would ask for a client of Kubernetes, which no command line needs.
        return {**found, "master": ""} if self.master.startswith(KUBERNETES) else found

    @property
    def deploy_mode(self) -> str:
        return str(self._connection["deploy_mode"] or "client")

    def command_line(self, application: str) -> list[str]:
        self._connection["master"] = self.master
        if self.master.startswith(KUBERNETES) and self._connection["namespace"]:
            self._conf.setdefault("spark.kubernetes.namespace", self._connection["namespace"])
        return [str(part) for part in self._build_spark_submit_command(application)]


class StateflowSubmitHook(BaseHook):
    """Builds the command that runs a stateflow job on the Spark of one Airflow connection."""

    def __init__(self, spark: SparkSubmit) -> None:
        super().__init__()
        self.spark = spark

    def command(self, name: str, arguments: Sequence[str], folder: Path, *, with_log: bool = False) -> Command:
        """Returns the spark-submit command for the stateflow program.

        Spark's settings are in a file of the folder, not among the arguments, which every user of the host can see.

        Args:
            name: name of the Spark application.
            arguments: arguments of the stateflow program.
            folder: the folder of the launch.
            with_log: whether Spark's own log goes to a file in `folder`, unless the environment configures logging.

        Raises:
            PermanentFailure: the connection, spark-submit, Java or stateflow is missing, or the driver would not run on
                this host.
        """
        connection = self._existing_connection()
        submit = self._submit(name)
        self._check(connection, submit)
        program = str(_program())
        executable, *options = submit.command_line(program)[:-1]
        options, files = hide_conf(options, folder)
        environment = self._environment(submit.master)
        if with_log:
            environment |= _log_to_file(environment, folder)
        return Command([_executable(executable), *options, program, *arguments], environment, files)

    def cluster_command(
        self, name: str, arguments: Sequence[str], folder: Path, launch: ClusterLaunch
    ) -> Command | None:
        """Returns the command that runs the job in a cluster and follows it; None for a connection in client mode.

        Args:
            name: as of `command`.
            arguments: as of `command`.
            folder: as of `command`.
            launch: the launch that the cluster finds the driver by.

        Raises: as `command`.
        """
        connection = self._existing_connection()
        submit = self._submit(name)
        if submit.deploy_mode != CLUSTER_MODE:
            return None
        self._check(connection, submit, may_run_in_cluster=True)
        executable, *options = submit.command_line(str(_program()))[:-1]
        options, files = hide_conf(options, folder)
        given = [LAUNCH_ID, launch.id, "--end-timeout", f"{launch.end_timeout.total_seconds():.0f}s"]
        given += [f"--driver-env={variable}" for variable in sorted(self.spark.env_vars)]
        given += ["--follow-only"] if launch.follow_only else []
        command = [sys.executable, str(_program()), "submit", *arguments[1:], *given, "--", _executable(executable)]
        environment = {variable: str(value) for variable, value in self.spark.env_vars.items()}
        return Command([*command, *options], environment, files, launch.id)

    def check_client_mode(self) -> None:
        """Raises PermanentFailure for a connection in cluster mode, with which a task cannot run the job itself."""
        self._check_mode(self._submit("check"))

    def session(self, name: str, folder: Path) -> Command:
        """Returns the environment and files with which this process starts its Spark session as `command` would.

        Raises: as `command`.
        """
        command = self.command(name, (), folder)
        # The last argument is the program; a session replaces it with Spark's shell.
        arguments = shlex.join([*command.argv[1:-1], "pyspark-shell"])
        return replace(command, env={**command.env, "PYSPARK_SUBMIT_ARGS": arguments})

    def _submit(self, name: str) -> _Submit:
        conf = dict(self.spark.conf)
        # Without the variables: for YARN and Kubernetes, the provider's hook puts them into Spark's settings, which
        # many see. They are in the environment of the program, and so in the driver's.
        return _Submit(name=name, conn_id=self.spark.conn_id, conf=conf, **self.spark.options)

    def _existing_connection(self) -> Connection:
        try:
            connection = self.get_connection(self.spark.conn_id)
        except AirflowNotFoundException as error:
            raise config_failure(
                f"the Airflow connection {self.spark.conn_id!r} does not exist",
                f"airflow connections add {self.spark.conn_id} --conn-type spark --conn-host 'local[2,4]'",
                connection=self.spark.conn_id,
                missing="connection",
            ) from error
        if not connection.host and connection.conn_type == "spark":
            raise config_failure(
                f"the Airflow connection {self.spark.conn_id!r} has no host",
                "set its host to the Spark master, such as local[2,4] or spark://host:7077",
                connection=self.spark.conn_id,
                missing="host",
            )
        return connection

    def _check(self, connection: Connection, submit: _Submit, *, may_run_in_cluster: bool = False) -> None:
        if not may_run_in_cluster:
            self._check_mode(submit)
        if submit.deploy_mode != "client" and not runs_drivers(submit.master):
            raise config_failure(
                f"the master {submit.master!r} does not run Python drivers in the cluster",
                "use client mode; YARN and Kubernetes run drivers in the cluster",
                connection=self.spark.conn_id,
                deploy_mode=submit.deploy_mode,
                master=submit.master,
            )
        # If its own lookup of the connection fails, the provider's hook silently uses the master "yarn".
        if submit.master == YARN and "yarn" not in f"{connection.conn_type} {connection.host}":
            raise TransientFailure(
                "connection",
                f"the second read of the connection {self.spark.conn_id!r} failed",
                facts={"connection": self.spark.conn_id},
            )
        if not os.environ.get("JAVA_HOME") and "JAVA_HOME" not in self.spark.env_vars and not shutil.which("java"):
            raise config_failure(
                "Java was not found on this worker",
                f"install Java {' or '.join(map(str, _JAVA_VERSIONS))}, or set JAVA_HOME to one of them",
                missing="java",
                supported=_JAVA_VERSIONS,
            )

    def _check_mode(self, submit: _Submit) -> None:
        if submit.deploy_mode != "client":
            raise config_failure(
                f"deploy mode {submit.deploy_mode!r} of connection {self.spark.conn_id!r} is not supported here",
                "use a connection in client mode: only the run of a job can have its driver in the cluster. Drain the "
                "job while a run is active, or by a run with the setting run.drain",
                connection=self.spark.conn_id,
                deploy_mode=submit.deploy_mode,
            )

    def _environment(self, master: str) -> dict[str, str]:
        """The driver uses this Python interpreter, and so do Spark's workers if they run on this host."""
        defaults = {_DRIVER_PYTHON: sys.executable}
        if master.startswith("local"):
            defaults["PYSPARK_PYTHON"] = sys.executable
        chosen = {name: value for name, value in defaults.items() if name not in os.environ}
        return {**chosen, **{name: str(value) for name, value in self.spark.env_vars.items()}}


def prepend_check(command: Command) -> Command:
    """Returns the command that starts spark-submit only if there is something to do.

    The check runs in the driver's Python, whose packages the job file needs. If it cannot load the job file, for
    instance because spark-submit gets its modules as ``py_files``, spark-submit starts as without the check.

    Args:
        command: the command of ``stateflow run`` in spark-submit. Unchanged for a job that starts from a savepoint, or
            whose job root does not exist.
    """
    at = len(command.argv) - 1 - list(reversed(command.argv)).index(str(_program()))
    spark_submit, (program, _, *arguments) = command.argv[:at], command.argv[at:]
    root = arguments[arguments.index("--job-root") + 1]
    is_new = "--from-savepoint" in arguments or not ("://" in root or Path(root).is_dir())
    python = shutil.which(command.env.get(_DRIVER_PYTHON) or os.environ.get(_DRIVER_PYTHON) or sys.executable)
    if is_new or python is None:
        return command
    return replace(command, argv=[python, program, "submit", *arguments, "--", *spark_submit])


def _log_to_file(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns the environment that sends Spark's log to a file in `folder`, and only its errors to the task's log."""
    given = {**os.environ, **environment}
    options, home = (given.get(_JAVA_OPTIONS, ""), given.get("SPARK_CONF_DIR") or f"{given.get('SPARK_HOME', '')}/conf")
    if "log4j" in options or (Path(home) / "log4j2.properties").is_file():
        return {}
    configuration = (_program().parent / "runtime" / "spark" / "session" / "log4j2-quiet.properties").as_uri()
    added = [f"-Dlog4j2.configurationFile={configuration}", f"-Dstateflow.spark.log={folder / 'spark.log'}"]
    return {_JAVA_OPTIONS: " ".join(filter(None, [options, *map(shlex.quote, added)]))}


def _program() -> Path:
    """Returns the program for spark-submit, located without importing the library."""
    spec = importlib.util.find_spec("stateflow")
    for location in (spec and spec.submodule_search_locations) or ():
        if (program := Path(location) / "__main__.py").is_file():
            return program
    raise config_failure(
        "the Python package stateflow is not installed on this worker",
        f"install it from its checkout: {sys.executable} -m pip install .",
        missing="stateflow",
    )


def _executable(name: str) -> str:
    """Returns the path of an executable on the PATH, or in the folder of this Python, where pip installs it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        hint = f"{sys.executable} -m pip install pyspark"
        raise config_failure(f"{name} was not found on this worker", hint, missing=name)
    return found
