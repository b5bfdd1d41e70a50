"""The command line in this process; and a small job in a folder, run in this process or as a user would."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner, Result

from stateflow.cli.main import main
from stateflow.errors import StateflowError
from stateflow.launch import RunRequest, RunResult, run_job
from stateflow.runtime.task import store_cache
from tests.support.errors import raises

JOB = """
from pathlib import Path

import msgspec

from stateflow import FileSource, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HERE = Path(__file__).parent


class Row(msgspec.Struct):
    key: str
    number: int


class Total(msgspec.Struct):
    key: str
    total: int


class Sum(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.number)
        yield Total(row.key, self.total.value())


ROWS = [Row("abc"[n % 3], n) for n in range(12)]


def source():
    return ScriptedSource(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4)


def sink():
    return FolderSink(HERE.parent / "table")

"""
BUILD = """
def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(sink(), uid="totals")
"""

ASKED = """
import json

from stateflow.api.source import Backlog


class Asked(ScriptedSource):
    def backlog(self, position):
        more = HERE.parent / "more.json"
        rows = len(ROWS) - (json.loads(position)["row"] if position else 0)
        return Backlog(rows=rows + (json.loads(more.read_text()) if more.exists() else 0))


def build(env):
    rows = env.from_source(Asked(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4), uid="rows")
    rows.key_by("key").process(Sum(), output=Total, uid="sum").sink_to(sink(), uid="totals")
"""
"""A job whose source tells how many rows wait: the rows of the list, and as many more as a file says."""

STREAM = "def build(env):\n    rows = env.from_source(source(), uid='rows')\n    "


class CliFixture:
    """A folder with a job file, a job root, a table and scratch space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder / "root")
        self.job = folder / "code" / "job.py"
        self.settings = {"local_dir": str(folder / "scratch"), "max_parallelism": "128"}
        self.job.parent.mkdir()
        self.write(BUILD)

    def write(self, build: str, head: str = JOB) -> None:
        self.job.write_text(head + textwrap.dedent(build))

    def run(self) -> RunResult:
        try:
            return run_job(RunRequest(self.job, self.root, (dict(self.settings),)))
        finally:
            store_cache.close_all()

    def command(self, *more: str) -> list[str]:
        sets = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        return ["run", str(self.job), "--job-root", self.root, *sets, *more]

    def state_files(self) -> list[Path]:
        return sorted(p for p in Path(self.root).glob("data/*/*/*") if p.suffix == ".sst")

    def on_disk(self) -> dict[str, str]:
        """Everything below the folder by its content, without what Python keeps of a module."""
        return contents(self.folder)


def contents(folder: Path) -> dict[str, str]:
    """Every file's hash and every folder below `folder`, by relative path, without records of failed starts."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts and "-failed-start-" not in path.name:
            name = str(path.relative_to(folder))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def stateflow(
    arguments: Iterable[str], cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    given = {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    command = [sys.executable, "-m", "stateflow", *arguments]
    return subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Case:
    """A mistake, and the error that it leads to.

    Attributes:
        error: the exact class.
        facts: that the error must have.
        shown: paths and other data that its text must contain.
        hint: an option, setting or function that its hint must name.
    """

    make: Callable[[CliFixture], object]
    error: type[StateflowError]
    facts: Mapping[str, object] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    hint: str = ""


def check(cli: CliFixture, case: Case) -> None:
    """Makes the mistake, runs the job, compares; nothing on disk may have changed."""
    case.make(cli)
    before = cli.on_disk()
    with raises(case.error) as caught:
        cli.run()
    error = caught.value
    assert {name: error.facts.get(name) for name in case.facts} == case.facts
    assert [datum for datum in case.shown if datum not in str(error)] == []
    assert error.hint and case.hint in error.hint and error.exit_code != 0
    assert cli.on_disk() == before


_PLAIN = {"COLUMNS": "120", "NO_COLOR": "1", "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": None}


def invoke(*arguments: str) -> Result:
    """Runs a command that prints to a pipe, without colours, and for 120 columns."""
    return CliRunner(env=_PLAIN).invoke(main, list(arguments), prog_name="stateflow")
