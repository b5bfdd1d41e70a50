"""The interface to a kind of cluster that runs drivers, and what all kinds share.

A cluster finds the application of a launch by the launch's id, which is stored with the application in the cluster. So
nothing that the submitting process knows has to survive it: not even the answer to the submission.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from xml.sax.saxutils import escape

from stateflow.config.submit_options import CLUSTER_MODE, HADOOP, default_conf_file, option, read_conf
from stateflow.errors import ClusterFailed, ConfigError, Interrupted
from stateflow.process_limits import end_with_this_process
from stateflow.submission.shipment import Shipment

_DEPLOY_MODE, _MASTER = "spark.submit.deployMode", "spark.master"
_POLL_SECONDS = 0.2
_SHOWN_LINES = 15
"""Lines of spark-submit's output that an error shows."""
_TOOL_SECONDS = 120.0
"""How long a program of Hadoop may take."""
_JAVA_OPTIONS, _SHORT_RUN = "JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1"
"""Half of the CPU time of a program of Hadoop is that of Java's second compiler, which gains nothing in a second."""


class Phase(StrEnum):
    """How far the application of a driver is."""

    WAITING = "waiting"
    """Accepted; its driver has not started."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True)
class Application:
    """The application of a launch, as the cluster describes it.

    Attributes:
        id: its id in the cluster.
        phase: how far it is.
        reason: the cluster's diagnostics; may be empty.
        log: where a user finds the driver's log; empty if it is unknown.
        user: who runs it; empty if it is unknown.
    """

    id: str
    phase: Phase
    reason: str = ""
    log: str = ""
    user: str = ""

    @property
    def is_active(self) -> bool:
        """Whether its driver may still work, or start to."""
        return self.phase in (Phase.WAITING, Phase.RUNNING)


class Cluster(ABC):
    """A cluster that runs drivers.

    Calls raise ClusterFailed if the cluster does not respond, and ConfigError if it refuses for a reason that remains.
    """

    @abstractmethod
    def submit(self, shipment: Shipment, is_cancelled: Callable[[], bool]) -> None:
        """Submits a driver, and returns once the cluster has accepted it.

        The application must have one attempt only, and be found by the id of the launch. Secrets are in
        `Shipment.launch_file`; they must not get into arguments, Spark's settings or descriptions of the application,
        and may be left to `deliver`.

        Args:
            shipment: the driver.
            is_cancelled: whether the caller has been asked to end; raises Interrupted then.
        """

    @abstractmethod
    def deliver(self, application: Application, shipment: Shipment) -> None:
        """Gives the driver of an active application what its submission has not given to it, and it waits for.

        Called after the submission; again by another process, with its own shipment, if the job was not claimed.
        """

    @abstractmethod
    def find(self, launch: str) -> Application | None:
        """Returns the newest application of a launch; None if the cluster knows none."""

    @abstractmethod
    def kill(self, application: Application) -> None:
        """Asks the cluster to end an application; returns before it has ended. One that has ended is not an error."""

    @abstractmethod
    def clean_up(self, application: Application) -> None:
        """Removes what an application that has ended may have left, such as staged files."""


@dataclass(frozen=True)
class SparkSubmit:
    """A command line of spark-submit, without the program that it runs.

    Attributes:
        program: path of spark-submit.
        options: its options.
        environment: the environment in which it runs.
    """

    program: str
    options: Sequence[str]
    environment: Mapping[str, str]

    @cached_property
    def conf(self) -> dict[str, str]:
        """Spark's settings from options and files, by name. Raises ConfigError."""
        try:
            return read_conf(self.options, default_conf_file(self.environment, _home_of(self.program)))
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(
                "a file of Spark settings cannot be read", hint="check --properties-file", reason=str(e)
            ) from e

    @property
    def master(self) -> str:
        """The master, such as ``yarn``; empty if none is given."""
        return option(self.options, "--master") or self.conf.get(_MASTER, "")

    @property
    def is_cluster_mode(self) -> bool:
        """Whether the driver runs in the cluster."""
        return (option(self.options, "--deploy-mode") or self.conf.get(_DEPLOY_MODE, "")) == CLUSTER_MODE

    def change_files(self, *arguments: str) -> None:
        """Runs Hadoop's program for files as `tool` does, with what Spark's settings say about Hadoop."""
        # In memory, and not among the arguments: it may have secrets.
        with open(os.memfd_create("hadoop-site"), "wb", buffering=0) as site:
            site.write(self._hadoop_site().encode())
            file = site.fileno()
            self.tool("org.apache.hadoop.fs.FsShell", "-conf", f"/proc/self/fd/{file}", *arguments, inherited=[file])

    def tool(self, java_class: str, *arguments: str, inherited: Sequence[int] = ()) -> None:
        """Runs a program of Hadoop that is part of Spark's JARs, with the configuration and the user of spark-submit.

        Args:
            java_class: the program.
            arguments: its arguments.
            inherited: open files that it gets.

        Raises:
            ClusterFailed: it cannot be started, fails, or does not end in time.
        """
        spark_class = str(Path(self.program).with_name("spark-class"))
        given_java = self.environment.get(_JAVA_OPTIONS, "")
        environment = {**self.environment, _JAVA_OPTIONS: f"{_SHORT_RUN} {given_java}".strip()}
        if user := option(self.options, "--proxy-user"):
            environment["HADOOP_PROXY_USER"] = user
        # A program that outlives it could write secrets again that the driver has deleted.
        ends_with_this_process = end_with_this_process(os.getpid())
        try:
            done = subprocess.run(
                [spark_class, java_class, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TOOL_SECONDS,
                check=False,
                pass_fds=inherited,
                # A signal of the terminal is for this process, which then ends the driver.
                start_new_session=True,
                preexec_fn=ends_with_this_process,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ClusterFailed(
                "a program of Hadoop did not run", hint="check the configuration of Hadoop", program=java_class
            ) from e
        if done.returncode:
            raise ClusterFailed(
                "a program of Hadoop has failed",
                hint="see the reason",
                program=java_class,
                reason=_reason(done.stdout + done.stderr),
            )

    def _hadoop_site(self) -> str:
        """Returns a configuration file of Hadoop with what Spark's settings say about it."""
        settings = {name.removeprefix(HADOOP): value for name, value in self.conf.items() if name.startswith(HADOOP)}
        properties = (
            f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        return f"<configuration>{''.join(properties)}</configuration>"


def run_spark_submit(
    spark_submit: SparkSubmit, options: Sequence[str], shipment: Shipment, is_cancelled: Callable[[], bool]
) -> None:
    """Runs spark-submit until it has submitted a driver; its output goes to a file in the folder of the shipment.

    Args:
        spark_submit: the program and its environment.
        options: the complete options, followed by the program and its arguments.
        shipment: the driver.
        is_cancelled: as of `Cluster.submit`.

    Raises:
        ClusterFailed: it has failed, with the end of its output.
        Interrupted: the call was cancelled; the driver may have been submitted nevertheless.
    """
    output_file = shipment.folder / "spark-submit.log"
    with output_file.open("wb") as output:
        process = subprocess.Popen(
            [spark_submit.program, *options],
            env=dict(spark_submit.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A successor of this process may not find what spark-submit would submit later, and submit a second driver.
            preexec_fn=end_with_this_process(os.getpid()),
        )
    try:
        while (code := _wait(process)) is None:
            if is_cancelled():
                raise Interrupted("the submission was interrupted", hint="run the command again")
    finally:
        process.kill()
        process.wait()
    if code:
        raise ClusterFailed(
            "spark-submit could not submit the driver",
            hint="see its last lines",
            exit_code=code,
            reason=_reason(output_file.read_text(errors="replace")),
        )


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _reason(output: str) -> str:
    """Returns the exception in the output of spark-submit; its last lines if there is none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("Exception in thread", "Caused by:", "Error:"))]
    return "\n".join(errors[:3] or lines[-_SHOWN_LINES:])


def _home_of(spark_submit: str) -> Path | None:
    """Returns Spark's folder, of which spark-submit is in ``bin``; None if it is elsewhere, as with pip."""
    found = shutil.which(spark_submit)
    home = Path(os.path.realpath(found)).parent.parent if found else None
    return home if home is not None and (home / "jars").is_dir() else None
