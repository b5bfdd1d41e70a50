"""An HDFS: a NameNode and a DataNode as processes on loopback, from the JARs of the set-up."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import httpx
import pyspark
import pytest

from tests.servers.listening import QuietHandler, listening
from tests.servers.running import ROOT, free_port, running

_JARS = ROOT / ".venv" / "hdfs"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_STARTS_WITHIN = 60.0
_SERVERS = "org.apache.hadoop.hdfs.server"


class Hdfs(NamedTuple):
    """A running HDFS.

    Attributes:
        address: the address of its root, as stateflow takes it.
        hadoop_address: as Hadoop and Spark take it.
        variables: the environment variables that other processes need to use it; this process has them.
    """

    address: str
    hadoop_address: str
    variables: dict[str, str]


@contextlib.contextmanager
def hdfs_server(folder: Path, page: int = 1000) -> Iterator[Hdfs]:
    """An empty HDFS that lists so many entries at once; the test is skipped if its JARs are not installed."""
    if not _JARS.exists():
        pytest.skip("no HDFS is installed: make setup downloads it if Maven Central can be reached")
    folder.mkdir(parents=True, exist_ok=True)
    rpc, http, data, data_http = (free_port() for _ in range(4))
    settings = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{rpc}", "dfs.namenode.http-address": f"127.0.0.1:{http}",
        "dfs.namenode.name.dir": str(folder / "names"), "dfs.datanode.data.dir": str(folder / "data"),
        "dfs.datanode.hostname": "localhost", "dfs.datanode.address": f"127.0.0.1:{data}",
        "dfs.datanode.http.address": f"127.0.0.1:{data_http}", "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": "1", "dfs.ls.limit": str(page),
    }  # fmt: skip
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
            yield Hdfs(f"webhdfs://127.0.0.1:{http}", settings["fs.defaultFS"], variables)


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


# -- WebHDFS ----------------------------------------------------------------------------------------------------------

_PREFIX = "/webhdfs/v1"
_DATA = "data-node"
_PAGE = 1000
_SIGNED = bytes(byte ^ 0x80 for byte in range(256))
NAME_NODE, HTTP_FS, HADOOP_2 = "NameNode", "HttpFS", "Hadoop-2"
"""Servers whose lists differ: in pages, in pages that have all entries (HDFS-14663), and without pages."""


@contextlib.contextmanager
def webhdfs_server(folder: Path, token: str, lists: str = NAME_NODE) -> Iterator[str]:
    """Listens on loopback; yields its address, as ``http://host:port``.

    Args:
        folder: its root.
        token: what requests to the NameNode must have.
        lists: whose lists it answers with.
    """
    with listening(_Handler, folder=folder, token=token, lists=lists) as address:
        yield address


class _Handler(QuietHandler):
    folder: Path
    token: str
    lists: str

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self._query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._path = self._local(unquote(parts.path.removeprefix(_PREFIX)))
        operation = self._query["op"]
        if _DATA not in self._query and self._query.get("delegation") != self.token:
            self._fail(401, "SecurityException")
        elif operation in ("OPEN", "CREATE") and _DATA not in self._query:
            # By the name that the client knows, which may be that of a proxy.
            query = {name: value for name, value in self._query.items() if name != "delegation"} | {_DATA: "1"}
            location = f"http://{self.headers['Host']}{parts.path}?{urlencode(query)}"
            self._send(307, b"", location)
        else:
            try:
                getattr(self, f"_{operation.lower()}")(body)
            except (FileNotFoundError, NotADirectoryError):
                self._fail(404, "FileNotFoundException")
            except FileExistsError:
                self._fail(403, "FileAlreadyExistsException")
            except OSError:
                self._fail(403, "PathIsNotEmptyDirectoryException")
            except NotImplementedError:
                self._fail(400, "IllegalArgumentException")

    do_PUT = do_DELETE = do_GET

    def _local(self, path: str) -> Path:
        return self.folder / path.strip("/")

    def _getfilestatus(self, _: bytes) -> None:
        self._answer({"FileStatus": _status(self._path, "")})

    def _liststatus(self, _: bytes) -> None:
        self._answer(_statuses(self._children()))

    def _liststatus_batch(self, _: bytes) -> None:
        if self.lists == HADOOP_2:
            raise NotImplementedError
        # Hadoop 3.5 knows the parameter in small letters only.
        after = _signed(self._query.get("startafter", ""))
        is_paged = self.lists == NAME_NODE
        found = [path for path in self._children() if _signed(path.name) > after or not is_paged]
        page = found[: _PAGE if is_paged else None]
        batch = {"partialListing": _statuses(page), "remainingEntries": len(found) - len(page)}
        self._answer({"DirectoryListing": batch})

    def _children(self) -> list[Path]:
        return sorted(self._path.iterdir(), key=lambda path: _signed(path.name))

    def _open(self, _: bytes) -> None:
        with self._path.open("rb") as file:
            file.seek(int(self._query["offset"]))
            self._send(200, file.read(int(self._query["length"])))

    def _create(self, body: bytes) -> None:
        _make_folders(self._path.parent, 0o755)
        self._path.write_bytes(body)
        self._path.chmod(int(self._query.get("permission", "644"), 8))
        self._send(201, b"")

    def _rename(self, _: bytes) -> None:
        # One step that never overwrites.
        os.link(self._path, self._local(self._query["destination"]))
        self._path.unlink()
        self._send(200, b"")

    def _mkdirs(self, _: bytes) -> None:
        _make_folders(self._path, int(self._query.get("permission", "755"), 8))
        self._answer({"boolean": True})

    def _delete(self, _: bytes) -> None:
        is_there = self._path.exists()
        if self._path.is_dir():
            self._path.rmdir()
        elif is_there:
            self._path.unlink()
        self._answer({"boolean": is_there})

    def _fail(self, status: int, exception: str) -> None:
        self._answer({"RemoteException": {"exception": exception, "message": "no"}}, status)

    def _answer(self, document: object, status: int = 200) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)


def _make_folders(path: Path, mode: int) -> None:
    """Creates a folder and those above it, all with this mode, as HDFS does."""
    for folder in reversed([path, *path.parents]):
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)


def _signed(name: str) -> bytes:
    """A key for the order in which a NameNode has names: by their bytes as Java has them, which have a sign."""
    return name.encode().translate(_SIGNED)


def _statuses(paths: Iterable[Path]) -> dict[str, object]:
    return {"FileStatuses": {"FileStatus": [_status(path, path.name) for path in paths]}}


def _status(path: Path, name: str) -> dict[str, object]:
    found = path.stat()
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    return {"pathSuffix": name, "type": kind, "length": found.st_size, "modificationTime": int(found.st_mtime * 1000)}
