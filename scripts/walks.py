"""Counts the files that four walks through the code enter: an Arrow batch, a barrier, a restore, an SQL statement.

``python scripts/walks.py`` runs a small job with one keyed operator and a Delta sink in this process, records each call
of a function of the package, and prints a JSON object with calls, files and folders of each walk. With ``--show`` it
prints the files in the order in which a walk enters them, each with the function that enters it first.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import stateflow
from stateflow.cli.main import main as command
from stateflow.launch import RunRequest, run_job

PACKAGE = Path(stateflow.__file__).parent
JOB = """
from pathlib import Path

import msgspec

from stateflow import DeltaSink, KeyedProcessFunction, ValueStateDescriptor
from stateflow.testing.sources import ScriptedSource

HERE = Path(__file__).parent


class Row(msgspec.Struct):
    key: str
    number: int


class Sum(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.number)
        yield Row(row.key, self.total.value())


def source():
    rows = [Row("abc"[n % 3], n) for n in range(12)]
    return ScriptedSource(Row, rows, HERE / "ledger.json", slice_rows=4)


"""
KEYED = """
def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Row, uid="sum")
    totals.sink_to(DeltaSink(str(HERE / "table")), uid="totals")
"""
SQL = """
def build(env):
    env.register_table("numbers", env.from_source(source(), uid="rows"))
    env.register_sink("totals", DeltaSink(str(HERE / "totals"), mode="upsert", keys="key"))
    env.sql("INSERT INTO totals SELECT key, SUM(number) AS number FROM numbers GROUP BY key")
"""


@dataclass
class Walk:
    """The calls below one function.

    Attributes:
        roots: the functions that begin it, by their qualified names.
        without: functions whose calls belong to another walk.
        files: those entered, relative to the package, with the function that was called first.
    """

    roots: tuple[str, ...]
    without: tuple[str, ...] = ()
    calls: int = 0
    files: dict[str, str] = field(default_factory=dict)


def recorded(walk: Walk, work: Callable[[], object]) -> Walk:
    """Does some work, and records the calls of a walk in all threads."""
    prefix = f"{PACKAGE}/"
    inside: Counter[int] = Counter()
    outside: Counter[int] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(prefix):
            return
        thread, step = threading.get_ident(), 1 if event == "call" else -1
        outside[thread] += step * (code.co_qualname in walk.without)
        inside[thread] += step * (code.co_qualname in walk.roots)
        if event == "call" and inside[thread] > 0 and not outside[thread]:
            walk.calls += 1
            walk.files.setdefault(code.co_filename.removeprefix(prefix), code.co_qualname)

    with _profiled(note):
        work()
    if not walk.calls:
        raise LookupError(f"no function of {walk.roots} was called")
    return walk


@contextmanager
def _profiled(note: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walks(folder: Path) -> dict[str, Walk]:
    """Runs the jobs below a folder, and returns the walks by title."""

    def job(name: str, build: str) -> Path:
        path = folder / name / "job.py"
        path.parent.mkdir()
        path.write_text(JOB + build)
        return path

    def run(path: Path) -> None:
        run_job(RunRequest(path, str(path.parent / "root"), ({"local_dir": str(folder / "scratch")},)))

    def restore(path: Path) -> None:
        plan, arguments = (
            str(path.parent / "plan.json"),
            ["restore", str(path), "--job-root", str(path.parent / "root")],
        )
        command([*arguments, "--plan", "2", "--out", plan], standalone_mode=False)
        command([*arguments, "--execute", plan], standalone_mode=False)

    batch, barrier = job("batch", KEYED), job("barrier", KEYED)
    return {
        "an Arrow batch": recorded(Walk(("run_level",)), lambda: run(batch)),
        "a barrier": recorded(Walk(("JobRun.run_batch",), without=("run_level",)), lambda: run(barrier)),
        "a restore": recorded(Walk(("plan_restore", "restore")), lambda: restore(batch)),
        "an SQL statement": recorded(Walk(("StreamExecutionEnvironment.sql",)), lambda: run(job("sql", SQL))),
    }


def main() -> None:
    """Prints the walks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print the files of each walk in their order")
    shows = parser.parse_args().show
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        found = walks(Path(folder))
    if not shows:
        print(json.dumps({title: _counts(walk) for title, walk in found.items()}))
        return
    for title, walk in found.items():
        print(f"\n{title}: {walk.calls} calls")
        for file, function in walk.files.items():
            print(f"  {file:<50} {function}")


def _counts(walk: Walk) -> dict[str, int]:
    return {"calls": walk.calls, "files": len(walk.files), "folders": len({Path(file).parent for file in walk.files})}


if __name__ == "__main__":
    main()
