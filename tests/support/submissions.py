"""Jobs in folders, and ``stateflow submit`` for them as a process, with their drivers in a cluster or a stand-in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

from stateflow.storage.paths import LAUNCHES
from stateflow.testing.sinks import FolderSink
from tests.servers.local_yarn import LocalYarn
from tests.servers.running import ROOT
from tests.servers.yarn import Yarn
from tests.support.job_fixture import AccountsJob
from tests.support.mutants import VARIABLE as MUTANT
from tests.support.processes import Running, fork, wait_for

JOB = ROOT / "tests" / "spark" / "jobs" / "continuous.py"
SPARK = Path(pyspark.__file__).parent
DEADLINE = 600.0
_CLASSES = {"driver": "deploy.yarn.ApplicationMaster", "executor": "executor.YarnCoarseGrainedExecutorBackend"}


class Submission(ABC):
    """A job of a test, and ``stateflow submit`` for it as a process.

    Attributes:
        job: the job file.
        root: folder of the job root.
        job_root: as the command gets it.
        options: of the command, in addition.
        settings: of the job.
    """

    def __init__(self, folder: Path, launch: str) -> None:
        self.folder = folder
        self.launch = launch
        self.job = JOB
        self.root = folder / "root"
        self.job_root = str(self.root)
        self.options: list[str] = []
        self.settings = {"job.home": str(folder), "job.delay": "100000000", "parallelism": "2", "storage.shared": "yes"}
        (folder / "in").mkdir(parents=True)

    @abstractmethod
    def spark(self) -> Sequence[str]:
        """Returns the options of spark-submit."""

    @property
    @abstractmethod
    def variables(self) -> dict[str, str]:
        """Variables of the command's environment."""

    @property
    def working_folder(self) -> Path:
        """Folder in which the command is started."""
        return ROOT

    def add_rows(self, *names: str) -> None:
        number = len(list((self.folder / "in").iterdir()))
        lines = [json.dumps({"name": name, "number": number}) for name in names]
        (self.folder / "in" / f"{number}.json").write_text("\n".join(lines) + "\n")

    def counts(self) -> list[tuple[str, int]]:
        """The output: for each row, its name and how often that has occurred."""
        out = self.folder / "out"
        return (
            sorted((row["name"], row["number"]) for row in FolderSink(out).rows())
            if (out / "versions").exists()
            else []
        )

    def start(self, *spark_options: str, **variables: str) -> subprocess.Popen[bytes]:
        settings = [f"--set={name}={value}" for name, value in self.settings.items()]
        module = "tests.support.mutants" if os.environ.get(MUTANT) else "stateflow"
        command = [sys.executable, "-m", module, "submit", str(self.job), "--job-root", self.job_root, *settings]
        command += ["--launch-id", self.launch, "--result-file", str(self.folder / "result.json"), *self.options]
        command += ["--log-format", "text", "--", str(SPARK / "bin" / "spark-submit"), *self.spark(), *spark_options]
        environment = {**os.environ, **self.variables, **variables}
        with (self.folder / "submit.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.working_folder)

    def log(self) -> str:
        return (self.folder / "submit.log").read_text()

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        return process.wait(DEADLINE)

    def run(self, *spark_options: str) -> int:
        """Runs the command to its end; returns its exit code."""
        return self.finish(self.start(*spark_options))

    def wait_until_claimed(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until the run of this launch has claimed the job."""

        def claimed() -> bool:
            assert process.poll() is None, self.log()
            return any(self.root.glob(f"{LAUNCHES}{self.launch}/run-*"))

        wait_for(claimed, self.log, DEADLINE)

    def wait_for_log(self, process: subprocess.Popen[bytes], text: str) -> None:
        """Waits until the command has logged a text."""

        def logged() -> bool:
            assert text in self.log() or process.poll() is None, self.log()
            return text in self.log()

        wait_for(logged, self.log, DEADLINE)

    def wait_for_rows(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Waits until the job's output has a number of rows."""

        def written() -> bool:
            assert process.poll() is None, self.log()
            return len(self.counts()) == count

        wait_for(written, self.log, DEADLINE)

    def end_processes(self) -> None:
        """Kills the processes that the test has left."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in " ".join(process.cmdline()):
                    process.kill()


class YarnSubmission(Submission):
    """A job on YARN."""

    def __init__(self, yarn: Yarn, folder: Path, launch: str) -> None:
        super().__init__(folder, launch)
        self.yarn = yarn

    @property
    def variables(self) -> dict[str, str]:
        return self.yarn.variables

    def spark(self) -> Sequence[str]:
        return self.yarn.options()

    def start_in_client_mode(self, command: str, conf: dict[str, str], **variables: str) -> subprocess.Popen[bytes]:
        """Starts ``stateflow submit``, which becomes spark-submit, or ``stateflow run``, which starts Spark itself."""
        conf = {**self.yarn.conf(), "spark.yarn.tags": f"stateflow-{self.launch}", **conf}
        settings, words = dict(self.settings), list[str]()
        if command == "run":
            settings |= {"spark.master": "yarn", **{f"spark.conf.{name}": value for name, value in conf.items()}}
        else:
            options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
            words = ["--", str(SPARK / "bin" / "spark-submit"), "--master", "yarn", *options]
        given = [f"--set={name}={value}" for name, value in settings.items()]
        given += ["--result-file", str(self.folder / "result.json"), "--log-format", "text", *self.options]
        program = [sys.executable, "-m", "stateflow", command, str(JOB), "--job-root", self.job_root, *given, *words]
        with (self.folder / "submit.log").open("ab") as log:
            environment = {**os.environ, **self.variables, **variables}
            return subprocess.Popen(program, env=environment, stdout=log, stderr=log, cwd=self.working_folder)

    def application(self) -> dict[str, Any]:
        tag = f"stateflow-{self.launch}"
        return max((a for a in self.yarn.applications() if a["applicationTags"] == tag), key=lambda a: str(a["id"]))

    def containers(self, kind: str) -> list[psutil.Process]:
        """The Java processes of this launch's containers: of the driver, or of executors."""
        known = f"org.apache.spark.{_CLASSES[kind]}"
        found = self.yarn.processes(str(self.application()["id"]))
        # Each has a shell above it, with the same words.
        return [p for p in found if known in p.cmdline() and Path(p.cmdline()[0]).name == "java"]

    def assert_nothing_is_left(self) -> None:
        application = str(self.application()["id"])
        assert not list(self.yarn.staging.glob(f"**/{application}"))
        wait_for(lambda: not self.yarn.processes(application), self.log, DEADLINE)


# -- jobs without Spark, on the stand-in for YARN ----------------------------------------------------------------------


def submit_to_stand_in(
    job: AccountsJob, yarn: LocalYarn, launch: str, *options: str, failpoint: str = "", **settings: object
) -> Running:
    """Starts ``stateflow submit`` for a driver on the stand-in for YARN, with a failpoint of that driver."""
    output = job._next_output()
    given = ["--launch-id", launch, "--result-file", str(output.with_suffix(".json")), "--log-format", "text"]
    assignments = job._assignments(**{"storage__shared": "yes", **settings})
    words = ["submit", job.job_file, "--job-root", job.job_root, *given, *options, *assignments]
    environment = {**job._environment(failpoint), **yarn.variables}
    return job._start(fork, [*words, "--", *yarn.command_line], environment, output)


def stopped_driver(yarn: LocalYarn, submitter: Running | None = None, number: int = 1) -> psutil.Process:
    """The process of the newest driver, once it has stopped itself at its failpoint.

    Args:
        yarn: the stand-in.
        submitter: the process that follows it, if that must not end before.
        number: how many drivers were submitted at least.
    """
    found: list[psutil.Process] = []

    def stopped() -> bool:
        assert submitter is None or submitter.poll() is None, str(submitter)
        applications = yarn.applications()
        newest = applications[-1:] if len(applications) >= number else []
        containers = [yarn.driver(application["id"]) for application in newest]
        processes = [process for container in containers if container for process in container.children()]
        found[:] = [process for process in processes if process.status() == psutil.STATUS_STOPPED]
        return bool(found)

    wait_for(stopped, lambda: str(submitter))
    return found[0]
