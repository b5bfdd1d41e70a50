"""A standalone Spark cluster of processes on loopback: a master and workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.servers.running import free_port, options, running

HOME = Path(pyspark.__file__).parent
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass
class Cluster:
    """A master and its workers.

    Attributes:
        url: of the master, as Spark takes it.
        variables: of the environment of workers, and so of executors.
    """

    folder: Path
    url: str
    variables: Mapping[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> None:
        home = self.folder / f"worker-{len(self.workers)}"
        home.mkdir()
        given = options(cores=1, memory="1g", host="127.0.0.1", webui_port=0, work_dir=home)
        environment = {**_environment(self.folder), **self.variables}
        with home.with_suffix(".log").open("wb") as log:
            command = [*_spark_class("worker.Worker"), self.url, *given]
            self.workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home))

    def executors(self) -> list[psutil.Process]:
        return list(filter(_is_executor, _descendants(self.workers)))

    def kill_worker(self, number: int) -> None:
        """Kills a worker by SIGKILL; its executors end by themselves."""
        self.workers[number].kill()
        self.workers[number].wait()

    def stop(self) -> None:
        """Ends all workers and their descendants."""
        below = _descendants(self.workers)
        for number in range(len(self.workers)):
            self.kill_worker(number)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def spark_cluster(folder: Path, variables: Mapping[str, str] = {}, workers: int = 2) -> Iterator[Cluster]:
    """A cluster; `variables` are added to the environment of its workers."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [*_spark_class("master.Master"), *options(host="127.0.0.1", port=port, webui_port=0)]
    with running(command, port, folder / "master.log", environment=_environment(folder)):
        cluster = Cluster(folder, f"spark://127.0.0.1:{port}", variables)
        try:
            for _ in range(workers):
                cluster.add_worker()
            yield cluster
        finally:
            cluster.stop()


def executor_of(task: psutil.Process) -> psutil.Process:
    return next(filter(_is_executor, task.parents()))


def _spark_class(name: str) -> list[str]:
    return [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_DIRS": str(folder / "local"), "PYTHONPATH": "",
    }  # fmt: skip


def _descendants(processes: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += psutil.Process(process.pid).children(recursive=True)
    return found


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
