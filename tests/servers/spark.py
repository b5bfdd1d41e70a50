"""A standalone Spark cluster of processes on loopback: a master and workers, stopped by their processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.servers.running import free_port, running

HOME = Path(pyspark.__file__).parent
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
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
    port: int
    variables: Mapping[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> None:
        """One more, with one core."""
        home = self.folder / f"worker-{len(self.workers)}"
        home.mkdir()
        command = [
            str(HOME / "bin" / "spark-class"),
            _WORKER,
            self.url,
            "--cores",
            "1",
            "--memory",
            "1g",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "--work-dir",
            str(home),
        ]
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            self.workers.append(subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, cwd=home))

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks now."""
        return [p for p in _below(self.workers) if any(_EXECUTOR in part for part in _command_of(p))]

    def kill_worker(self, number: int) -> None:
        """SIGKILL of a worker; what it has started sees that it is gone."""
        self.workers[number].kill()
        self.workers[number].wait()

    def stop(self) -> None:
        """Ends all workers and what is below them."""
        below = _below(self.workers)
        for worker in self.workers:
            worker.kill()
            worker.wait()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _environment(self) -> dict[str, str]:
        return {**_base(self.folder), **self.variables}


@contextlib.contextmanager
def spark_cluster(folder: Path, variables: Mapping[str, str] = {}, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for as long as the context.

    Args:
        variables: added to the environment of workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        str(HOME / "bin" / "spark-class"),
        _MASTER,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        "0",
    ]
    with running(command, port, folder / "master.log", environment=_base(folder)):
        cluster = Cluster(folder, f"spark://127.0.0.1:{port}", port, variables)
        try:
            for _ in range(workers):
                cluster.add_worker()
            yield cluster
        finally:
            cluster.stop()


def executor_of(task: psutil.Process) -> psutil.Process:
    """The executor that a Python process of a task belongs to."""
    return next(p for p in task.parents() if any(_EXECUTOR in part for part in _command_of(p)))


def _base(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYTHONPATH": "",
    }


def _below(processes: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += psutil.Process(process.pid).children(recursive=True)
    return found


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
