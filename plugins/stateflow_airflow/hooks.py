"""From an Airflow connection to the command line that launches a stateflow job with spark-submit.

Import this module only where a task runs: the provider that it uses is not light.

Airflow's SparkSubmitHook knows connections, masters, Kerberos and some thirty options; its way of *running*
the command is not ours. The two private names used of it stand in `_Submit`, and `versions` pins the
releases that have them."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from stateflow_airflow.failures import TransientFailure, misconfigured
from stateflow_airflow.launcher import Command
from stateflow_airflow.spark import SparkSubmit

# Java options of spark-submit, in addition to those of the configuration: stateflow's library reads the same variable.
_OPTIONS = "SPARK_SUBMIT_OPTS"


class _Submit(SparkSubmitHook):
    """The parts of SparkSubmitHook that are not public."""

    @property
    def master(self) -> str:
        return str(self._connection["master"])

    @property
    def deploy_mode(self) -> str:
        return str(self._connection["deploy_mode"] or "client")

    def command_line(self, application: str) -> list[str]:
        return [str(part) for part in self._build_spark_submit_command(application)]


class StateflowSubmitHook(BaseHook):
    """Builds the command that runs a stateflow job on the Spark of one connection."""

    def __init__(self, spark: SparkSubmit) -> None:
        super().__init__()
        self.spark = spark

    def command(self, name: str, arguments: Sequence[str], folder: Path | None = None) -> Command:
        """The spark-submit command for stateflow's program with `arguments`, under Spark's name `name`.

        Args:
            folder: where Spark's own log goes, unless the environment configures it; None to leave it to Spark.

        Raises PermanentFailure when the connection, spark-submit, Java or stateflow is missing, or when the
        driver would not run on this host.
        """
        connection = self._connection_or_fail()
        submit = _Submit(
            name=name,
            conn_id=self.spark.conn_id,
            conf=dict(self.spark.conf),
            env_vars=dict(self.spark.env_vars),
            application_args=list(arguments),
            **self.spark.options,
        )
        self._check(connection, submit)
        argv = submit.command_line(str(_program()))
        environment = self._environment(submit.master)
        if folder is not None:
            environment |= _quiet(environment, folder)
        return Command(argv=[_executable(argv[0]), *argv[1:]], env=environment)

    def session_environment(self, name: str) -> dict[str, str]:
        """The environment in which a Spark session of this process is that of the connection.

        Raises as `command` does.
        """
        command = self.command(name, ())
        # The last argument is the program: a session starts Spark's shell in its place.
        arguments = shlex.join([*command.argv[1:-1], "pyspark-shell"])
        return {**command.env, "PYSPARK_SUBMIT_ARGS": arguments}

    def _connection_or_fail(self) -> Connection:
        try:
            connection = self.get_connection(self.spark.conn_id)
        except AirflowNotFoundException as error:
            raise misconfigured(
                f"there is no Airflow connection {self.spark.conn_id!r}",
                f"airflow connections add {self.spark.conn_id} --conn-type spark --conn-host 'local[2,4]'",
            ) from error
        if not connection.host and connection.conn_type == "spark":
            raise misconfigured(
                f"the Airflow connection {self.spark.conn_id!r} has no host",
                "its host is the Spark master, such as local[2,4] or spark://host:7077",
            )
        return connection

    def _check(self, connection: Connection, submit: _Submit) -> None:
        if submit.deploy_mode != "client":
            raise misconfigured(
                f"deploy mode {submit.deploy_mode!r} of connection {self.spark.conn_id!r} is not supported",
                "use client mode: the driver has to run where the task can see and end it",
            )
        # The provider's hook takes any error on its own look-up of the connection for "use yarn".
        if submit.master == "yarn" and "yarn" not in f"{connection.conn_type} {connection.host}":
            raise TransientFailure(
                "connection", f"the connection {self.spark.conn_id!r} could not be read twice"
            )
        if (
            not os.environ.get("JAVA_HOME")
            and "JAVA_HOME" not in self.spark.env_vars
            and not shutil.which("java")
        ):
            raise misconfigured(
                "there is no Java on this worker", "install Java 17 or 21, or set JAVA_HOME to one of them"
            )

    def _environment(self, master: str) -> dict[str, str]:
        """The driver runs in this very Python, and so do Spark's workers when they are on this host."""
        ours = {"PYSPARK_DRIVER_PYTHON": sys.executable}
        if master.startswith("local"):
            ours["PYSPARK_PYTHON"] = sys.executable
        chosen = {name: value for name, value in ours.items() if name not in os.environ}
        return {**chosen, **{name: str(value) for name, value in self.spark.env_vars.items()}}


def _quiet(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Spark's log in a file of the launch, and only its errors in the task's log."""
    given = {**os.environ, **environment}
    options, home = (
        given.get(_OPTIONS, ""),
        given.get("SPARK_CONF_DIR") or f"{given.get('SPARK_HOME', '')}/conf",
    )
    if "log4j" in options or (Path(home) / "log4j2.properties").is_file():
        return {}
    configuration = (_program().parent / "runtime" / "log4j2-quiet.properties").as_uri()
    ours = [f"-Dlog4j2.configurationFile={configuration}", f"-Dstateflow.spark.log={folder / 'spark.log'}"]
    return {_OPTIONS: " ".join(filter(None, [options, *map(shlex.quote, ours)]))}


def _program() -> Path:
    """The program that spark-submit is given; found without importing the library."""
    spec = importlib.util.find_spec("stateflow")
    for location in (spec and spec.submodule_search_locations) or ():
        if (program := Path(location) / "__main__.py").is_file():
            return program
    raise misconfigured(
        "the Python package stateflow is not installed on this worker",
        f"{sys.executable} -m pip install stateflow",
    )


def _executable(name: str) -> str:
    """Where spark-submit is: on the PATH, or beside this Python, where pip puts it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise misconfigured(f"there is no {name} on this worker", f"{sys.executable} -m pip install pyspark")
    return found
