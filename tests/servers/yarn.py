"""A YARN: a ResourceManager and a NodeManager as processes on loopback, from the JARs of the set-up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pyspark
import pytest

from tests.servers.running import ROOT, files_with, free_port, running

_HADOOP, _BOUNCY_CASTLE = ROOT / ".venv" / "hdfs", ROOT / ".venv" / "yarn"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_STARTS_WITHIN = 240.0
_SERVERS = "org.apache.hadoop.yarn.server"
_CAPACITY = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"


@dataclass
class Yarn:
    """A running YARN.

    Attributes:
        folder: its configuration, its logs, and the folders of its containers.
        staging: the folder in which submissions stage their files.
        address: the address of its REST API.
        variables: the environment variables that spark-submit and stateflow need to use it.
    """

    folder: Path
    staging: Path
    address: str
    variables: dict[str, str]
    _manager: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _nodes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def conf(self) -> dict[str, str]:
        """Spark's settings for small drivers and executors."""
        parts = ("driver", "executor")
        return {
            "spark.yarn.jars": f"local:{_SPARK_JARS}/*",
            "spark.yarn.stagingDir": self.staging.as_uri(),
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            **{f"spark.{part}.memory": "600m" for part in parts},
            **{f"spark.{part}.memoryOverhead": "300m" for part in parts},
            # Compiling well costs more than it gives.
            **{f"spark.{part}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for part in parts},
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **{f"spark.{part}.SPARK_LOCAL_IP": "127.0.0.1" for part in ("executorEnv", "yarn.appMasterEnv")},
            **{f"spark.{part}.PYTHONPATH": str(ROOT) for part in ("executorEnv", "yarn.appMasterEnv")},
        }

    def options(self) -> list[str]:
        """The command line of spark-submit without the program that it runs."""
        conf = [word for name, value in self.conf().items() for word in ("--conf", f"{name}={value}")]
        return ["--master", "yarn", "--deploy-mode", "cluster", *conf]

    def applications(self) -> list[dict[str, object]]:
        """All applications that the ResourceManager knows, as it describes them."""
        found = httpx.get(f"{self.address}/ws/v1/cluster/apps", timeout=30).json()["apps"] or {"app": []}
        applications: list[dict[str, object]] = found["app"]
        return applications

    def files_with(self, secret: str) -> list[str]:
        """Files of applications, and those in archives that are staged, that contain a secret."""
        found = files_with(secret, self.folder)
        for path in self.staging.glob("**/*.zip"):
            with zipfile.ZipFile(path) as archive:
                found += [f"{path}/{name}" for name in archive.namelist() if secret.encode() in archive.read(name)]
        return found

    def processes(self, word: str) -> list[psutil.Process]:
        """The processes of containers whose command line has the word."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()) and str(self.folder) in " ".join(process.environ().values()):
                    found.append(process)
        return found

    def start_manager(self) -> None:
        """Starts the ResourceManager, again if it was stopped; it then knows the applications that it has stored."""
        command = _java(self.folder, "resourcemanager.ResourceManager")
        port = int(self.address.rpartition(":")[2])
        number = len(list(self.folder.glob("manager-*.log")))
        log = self.folder / f"manager-{number}.log"
        self._manager.enter_context(running(command, port, log, self.folder, within=_STARTS_WITHIN))

    def stop_manager(self) -> None:
        """Kills the ResourceManager; nodes and containers continue."""
        self._manager.close()

    def start_node(self) -> None:
        """Starts the NodeManager, again if it was stopped, and waits until it is registered."""
        port = free_port()
        log = self.folder / f"node-{port}.log"
        options = {
            "yarn.nodemanager.address": "127.0.0.1:0",
            "yarn.nodemanager.localizer.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{port}",
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        command = [*_java(self.folder, "nodemanager.NodeManager"), *given]
        self._nodes.enter_context(running(command, port, log, within=_STARTS_WITHIN))
        self.wait_for_nodes(1)

    def stop_node(self) -> None:
        """Kills the NodeManager; its containers continue, and end once the ResourceManager has lost it."""
        self._nodes.close()

    def wait_for_nodes(self, count: int) -> None:
        ends = time.monotonic() + _STARTS_WITHIN
        while True:
            metrics = httpx.get(f"{self.address}/ws/v1/cluster/metrics", timeout=30).json()["clusterMetrics"]
            if metrics["activeNodes"] == count:
                return
            assert time.monotonic() < ends, f"YARN has not {count} nodes: {metrics}"
            time.sleep(0.1)


@contextlib.contextmanager
def yarn_server(folder: Path) -> Iterator[Yarn]:
    """A YARN without applications; the test is skipped if its JARs are not installed."""
    if not (_HADOOP.exists() and _BOUNCY_CASTLE.exists()):
        pytest.skip("no YARN is installed: make setup downloads it if Maven Central can be reached")
    conf, staging = folder / "conf", folder / "staging"
    for each in (conf, staging, folder / "local", folder / "logs"):
        each.mkdir(parents=True)
    web = free_port()
    _write_settings(conf, folder, web)
    (conf / "log4j.properties").write_text(_LOG)
    address = f"http://127.0.0.1:{web}"
    variables = {"HADOOP_CONF_DIR": str(conf), "YARN_CONF_DIR": str(conf), "HADOOP_USER_NAME": "tests"}
    yarn = Yarn(folder, staging, address, variables)
    try:
        yarn.start_manager()
        yarn.start_node()
        yield yarn
    finally:
        yarn.stop_node()
        yarn.stop_manager()
        _end_containers(yarn)


def _end_containers(yarn: Yarn) -> None:
    """Ends what a killed NodeManager leaves."""
    for process in yarn.processes(""):
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def _java(folder: Path, program: str) -> list[str]:
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    path = f"{folder}/conf:{_HADOOP}/*:{_BOUNCY_CASTLE}/*:{_SPARK_JARS}/*"
    return [java, "-Xmx400m", "-cp", path, f"{_SERVERS}.{program}"]


_LOG = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def _write_settings(conf: Path, folder: Path, web: int) -> None:
    ports = {
        name: f"127.0.0.1:{free_port()}"
        for name in ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    }
    yarn = {
        **{f"yarn.resourcemanager.{name}": address for name, address in ports.items()},
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.bind-host": "127.0.0.1",
        "yarn.resourcemanager.webapp.address": f"127.0.0.1:{web}",
        "yarn.resourcemanager.scheduler.class": _CAPACITY,
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": f"{_SERVERS}.resourcemanager.recovery.FileSystemRMStateStore",
        "yarn.resourcemanager.fs.state-store.uri": (folder / "state").as_uri(),
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
        "yarn.resourcemanager.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
        "yarn.am.liveness-monitor.expiry-interval-ms": "120000",
        "yarn.nodemanager.bind-host": "127.0.0.1",
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": "6000",
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.delete.debug-delay-sec": "0",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.log-aggregation-enable": "false",
    }
    capacity = {
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
        "yarn.scheduler.capacity.node-locality-delay": "-1",
    }
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
    _write(conf / "yarn-site.xml", yarn)
    _write(conf / "capacity-scheduler.xml", capacity)


def _write(path: Path, settings: Mapping[str, str]) -> None:
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{text}</configuration>")
