"""A stand-in for YARN and spark-submit: containers are processes of this host, and jobs on it do without Spark.

It answers as the ResourceManager does where stateflow asks (``tests/submission/resource_manager`` has real answers).
Its spark-submit starts the program that it is given, with the archives that the settings name. A driver starts within a
second instead of thirty.

As a program: ``python -m tests.servers.local_yarn FOLDER submit|tool|driver …``, for scripts in ``bin`` and containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import psutil
from pyspark import SparkContext

from stateflow.config.submit_options import option
from stateflow.private_files import open_private
from tests.servers.listening import QuietHandler, listening
from tests.servers.running import ROOT
from tests.support.mutants import VARIABLE as MUTANT
from tests.support.mutants import plant_from_environment

_USER = "tests"
_APPLICATIONS, _STAGING = "applications", f"staging/{_USER}/.sparkStaging"


@dataclass(frozen=True)
class LocalYarn:
    """A running stand-in.

    Attributes:
        folder: of its applications, each with the working folder of its driver.
        variables: the environment variables of processes that use it.
    """

    folder: Path
    variables: dict[str, str]

    @property
    def command_line(self) -> list[str]:
        """The command line of spark-submit that runs drivers here."""
        return [str(self.folder / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]

    def applications(self) -> list[dict[str, Any]]:
        """All applications, oldest first, as the ResourceManager describes them."""
        return [_describe(path) for path in sorted((self.folder / _APPLICATIONS).iterdir()) if (path / "pid").exists()]

    def driver(self, application: str) -> psutil.Process | None:
        """The container of a driver; None once it has ended."""
        return _container(self.folder / _APPLICATIONS / application)

    def kill_driver(self, application: str) -> None:
        """Kills the container of a driver, which a host may do that runs out of memory."""
        _kill(self.folder / _APPLICATIONS / application)

    def lose_driver(self, application: str) -> None:
        """Gives up the host of a driver, whose container continues: the host cannot be reached."""
        (self.folder / _APPLICATIONS / application / "lost").touch()

    def staged(self) -> list[str]:
        """The applications with a staging folder."""
        return sorted(path.name for path in (self.folder / _STAGING).iterdir())

    def end_all(self) -> None:
        for path in (self.folder / _APPLICATIONS).iterdir():
            _kill(path)


@contextlib.contextmanager
def local_yarn(folder: Path) -> Iterator[LocalYarn]:
    """An empty one; nothing that runs on it outlives it."""
    for name in (_APPLICATIONS, _STAGING, "bin"):
        (folder / name).mkdir(parents=True)
    for name, kind in (("spark-submit", "submit"), ("spark-class", "tool")):
        script = folder / "bin" / name
        words = f'"{sys.executable}" -m tests.servers.local_yarn "{folder}" {kind} "$@"'
        script.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec {words}\n')
        script.chmod(0o700)
    with listening(_Manager, folder=folder) as address:
        name, host = "yarn.resourcemanager.webapp.address", address.removeprefix("http://")
        text = f"<a><property><name>{name}</name><value>{host}</value></property></a>"
        (folder / "yarn-site.xml").write_text(text)
        (folder / "spark-defaults.conf").write_text(f"spark.yarn.stagingDir {folder}/staging\n")
        yarn = LocalYarn(folder, {"HADOOP_CONF_DIR": str(folder), "SPARK_CONF_DIR": str(folder), "YARN_CONF_DIR": ""})
        try:
            yield yarn
        finally:
            yarn.end_all()


class _Manager(QuietHandler):
    folder: Path

    def do_GET(self) -> None:
        tag = unquote(urlsplit(self.path).query.removeprefix("applicationTags="))
        found = [_describe(path) for path in (self.folder / _APPLICATIONS).iterdir() if (path / "pid").exists()]
        apps = [app for app in found if tag in app["applicationTags"].split(",")]
        body = json.dumps({"apps": {"app": apps} if apps else {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _describe(path: Path) -> dict[str, Any]:
    is_active = _container(path) is not None
    code = (path / "exit").read_text().strip() if (path / "exit").exists() else ""
    if (path / "lost").exists():
        is_active, state, final = False, "FAILED", "FAILED"
    elif (path / "killed").exists() and not is_active:
        state, final = "KILLED", "KILLED"
    elif is_active:
        state, final = "RUNNING", "UNDEFINED"
    else:
        state, final = ("FINISHED", "SUCCEEDED") if code == "0" else ("FAILED", "FAILED")
    known: dict[str, Any] = json.loads((path / "application.json").read_text())
    diagnostics = "" if is_active else f"exit code: {code or 'none'}"
    return {**known, "id": path.name, "state": state, "finalStatus": final, "diagnostics": diagnostics}


def _container(path: Path) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int((path / "pid").read_text()))
        # Another process may have got its number since.
        if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(path):
            return process
    return None


def _kill(path: Path) -> None:
    if (path / "pid").exists() and (shell := _container(path)) is not None:
        for process in (*shell.children(recursive=True), shell):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


# The manager knows it once it has begun, also if the process that started it was killed. Its exit code is the driver's,
# in whose folder it is started; a successful driver leaves nothing staged.
_CONTAINER = """
echo $$ >pid.new && mv pid.new pid
"$@" >stdout 2>stderr </dev/null
echo $? >exit.new && mv exit.new exit
[ "$(cat exit)" = 0 ] && rm -rf "$0"
"""


def _submit(folder: Path, words: list[str]) -> None:
    at = next(number for number, word in enumerate(words) if word.endswith("stateflow_driver.py"))
    properties = Path(words[words.index("--properties-file") + 1]).read_text()
    conf = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line)
    number = len(list((folder / _APPLICATIONS).iterdir())) + 1
    path, staged = (folder / name / f"application_1_{number:04d}" for name in (_APPLICATIONS, _STAGING))
    path.mkdir()
    staged.mkdir(mode=0o700)
    known = {
        "user": _USER,
        "applicationTags": conf["spark.yarn.tags"],
        "startedTime": number,
        "name": option(words, "--name") or conf["spark.app.name"],
    }
    (path / "application.json").write_text(json.dumps(known))
    for file in (words[at], *(each.partition("#")[0] for each in conf["spark.yarn.dist.archives"].split(","))):
        shutil.copy(file.removeprefix("file://"), staged)
    shutil.copy(words[at], path)
    with zipfile.ZipFile(staged / "stateflow-job.zip") as archive:
        archive.extractall(path / "stateflow-job")
    command = [sys.executable, "-m", "tests.servers.local_yarn", str(folder), "driver"]
    of_the_run = ("STATEFLOW_", "OPENLINEAGE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_the_run)}
    subprocess.Popen(
        ["/bin/sh", "-c", _CONTAINER, str(staged), *command, str(path / "stateflow_driver.py"), *words[at + 1 :]],
        cwd=path,
        env={
            **environment,
            MUTANT: os.environ.get(MUTANT, ""),
            "PYTHONPATH": str(ROOT),
            "SPARK_YARN_STAGING_DIR": str(staged),
        },
        start_new_session=True,
    )
    while not (path / "pid").exists():
        time.sleep(0.01)


def _drive(folder: Path, words: list[str]) -> None:
    """Runs the program of a driver, with the planted bug of the tests."""
    plant_from_environment()
    sys.argv = words
    with patch.object(SparkContext, "_ensure_initialized"), patch.object(SparkContext, "_jvm", local_java()):
        runpy.run_path(words[0], run_name="__main__")


def local_java() -> SimpleNamespace:
    """What the program of a driver uses of Java and Hadoop, for files of this host."""

    def opened(path: str) -> SimpleNamespace:
        file = open(path, "rb")
        return SimpleNamespace(readAllBytes=file.read, close=file.close)

    class Name(str):
        def getFileSystem(self, conf: object) -> SimpleNamespace:
            return SimpleNamespace(exists=os.path.exists, open=opened, delete=lambda path, recursive: os.unlink(path))

    util = SimpleNamespace(get=lambda: SimpleNamespace(conf=lambda: None))
    spark = SimpleNamespace(deploy=SimpleNamespace(SparkHadoopUtil=util))
    apache = SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=Name)), spark=spark)
    return SimpleNamespace(org=SimpleNamespace(apache=apache))


def _tool(folder: Path, words: list[str]) -> None:
    if words[:3] == ["org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application", "-kill"]:
        path = folder / _APPLICATIONS / words[-1]
        (path / "killed").touch()
        _kill(path)
        return
    assert words[:2] == ["org.apache.hadoop.fs.FsShell", "-conf"], words
    words = words[3:]
    if words[:4] == ["-D", "fs.permissions.umask-mode=077", "-put", "-f"]:
        given, path = Path(unquote(urlsplit(words[4]).path)), Path(words[5])
        with open_private(path.with_name("copying")) as file:
            file.write(given.read_bytes())
        path.with_name("copying").rename(path)
    else:
        assert words[:4] == ["-rm", "-r", "-f", "-skipTrash"], words
        shutil.rmtree(words[-1], ignore_errors=True)


def main() -> None:
    folder, kind, *words = sys.argv[1:]
    {"submit": _submit, "tool": _tool, "driver": _drive}[kind](Path(folder), words)


if __name__ == "__main__":
    main()
