"""An HDFS: a NameNode and a DataNode as processes on loopback, from the JARs of the set-up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import httpx
import pyspark
import pytest

from tests.servers.running import ROOT, free_port, running

_JARS = ROOT / ".venv" / "hdfs"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_STARTS_WITHIN = 60.0
_SERVERS = "org.apache.hadoop.hdfs.server"


class Hdfs(NamedTuple):
    """A running HDFS.

    Attributes:
        address: the address of its root, as stateflow takes it.
        variables: the environment variables that other processes need to use it; this process has them.
    """

    address: str
    variables: dict[str, str]


@contextlib.contextmanager
def hdfs_server(folder: Path) -> Iterator[Hdfs]:
    """An empty HDFS; the test is skipped if its JARs are not installed."""
    if not _JARS.exists():
        pytest.skip("no HDFS is installed: make setup downloads it if Maven Central can be reached")
    folder.mkdir(parents=True, exist_ok=True)
    rpc, http, data, data_http = (free_port() for _ in range(4))
    settings = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{rpc}",
        "dfs.namenode.http-address": f"127.0.0.1:{http}",
        "dfs.namenode.name.dir": str(folder / "names"),
        "dfs.datanode.data.dir": str(folder / "data"),
        "dfs.datanode.hostname": "localhost",
        "dfs.datanode.address": f"127.0.0.1:{data}",
        "dfs.datanode.http.address": f"127.0.0.1:{data_http}",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": "1",
    }
    _write_settings(folder, settings)
    name_node, data_node = _java(folder, "namenode.NameNode"), _java(folder, "datanode.DataNode")
    subprocess.run([*name_node, "-format", "-nonInteractive"], check=True, capture_output=True)
    with (
        running(name_node, http, folder / "names.log", folder),
        running(data_node, data_http, folder / "data.log", folder),
    ):
        _wait_until_operational(http)
        variables = {"WEBHDFS_DATANODE_PORTS": str(data_http)}
        with patch.dict(os.environ, variables):
            yield Hdfs(f"webhdfs://127.0.0.1:{http}", variables)


def _wait_until_operational(port: int) -> None:
    """Waits until the NameNode knows its DataNode and accepts files."""
    url = f"http://127.0.0.1:{port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    ends = time.monotonic() + _STARTS_WITHIN
    while True:
        (state,) = httpx.get(url, timeout=30).json()["beans"] or [{}]
        # A DataNode is live before it has reported its space, and has no room for a file until then.
        if state.get("FSState") == "Operational" and state.get("CapacityRemaining", 0) > 0:
            return
        assert time.monotonic() < ends, f"HDFS did not start: {state}"
        time.sleep(0.05)


def _java(folder: Path, program: str) -> list[str]:
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    return [java, "-Xmx256m", "-cp", f"{folder}:{_JARS}/*:{_SPARK_JARS}/*", f"{_SERVERS}.{program}"]


def _write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{text}</configuration>")
