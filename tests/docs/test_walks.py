"""The walks of architecture.md, compared with the calls of a run and of a restore."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stateflow.cli.main import main
from stateflow.runtime.task import store_cache
from tests.support.cli_fixture import CliFixture

PACKAGE = Path(__file__).parents[2] / "stateflow"
ROW, BARRIER, PLAN, RESTORE = range(4)
WALKS = [ROW, BARRIER, PLAN, RESTORE]

_ELSEWHERE = re.compile(r"\(([^()]*)\bin `([\w/]+\.py)`\)")
_CODE = re.compile(r"`([\w.]+)`")

BUILD = """
from stateflow import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(str(HERE.parent / "table")), uid="totals")
"""


@dataclass(frozen=True)
class Function:
    """A function on a walk.

    Attributes:
        file: below `stateflow/`.
        name: qualified, as Python has it.
    """

    file: str
    name: str


@cache
def _defined(file: str) -> frozenset[str]:
    """Returns the qualified names of a file's functions and methods."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                yield prefix + node.name
            elif isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")

    return frozenset(names(ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body, ""))


def _functions(cell: str, file: str) -> Iterator[Function]:
    """Yields the functions of one row; a bare name belongs to the class before it, if that has such a method."""
    for part, place in [(_ELSEWHERE.sub("", cell), file), *_ELSEWHERE.findall(cell)]:
        owner = ""
        for name in _CODE.findall(part):
            method = f"{owner}.{name}"
            owner = name.rpartition(".")[0] or owner
            yield Function(place, method if "." not in name and method in _defined(place) else name)


@cache
def _walks() -> list[list[list[Function]]]:
    """Returns each walk's rows, and of each row the functions."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index("## Three walks") : text.index("## From a job's graph")]
    tables = re.findall(r"\| step \| function \| file \|\n\|[-|]+\n((?:\|.*\n)+)", section)
    rows = [[[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()] for table in tables]
    return [[list(_functions(cell, file.strip("`"))) for _, cell, file in table] for table in rows]


@contextmanager
def _recorded(calls: list[Function]) -> Iterator[None]:
    """Appends each function of the package when it is called and when it returns, in all threads."""
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(prefix):
            calls.append(Function(code.co_filename.removeprefix(prefix), code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def _missing(walk: int, calls: list[Function], without: tuple[str, ...] = ()) -> list[Function]:
    """Returns what the walk has and the calls have not, in this order; rows of files in `without` are left out."""
    rows = [row for row in _walks()[walk] if not row[0].file.startswith(without or ("-",))]
    position, missing = 0, []
    for row in rows:
        found = [calls.index(row[0], position)] if row[0] in calls[position:] else []
        missing += [row[0]] if not found else []
        position = found[0] if found else position
        missing += [f for f in row[1:] if f not in calls[position:]]
    return missing


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CliFixture]:
    fixture = CliFixture(tmp_path)
    fixture.write(BUILD)
    yield fixture
    store_cache.close_all()


@pytest.mark.parametrize("walk", WALKS)
def test_each_function_on_a_walk_is_in_its_file(walk: int) -> None:
    functions = [f for row in _walks()[walk] for f in row]
    assert len(functions) > 10
    assert [f for f in functions if f.name not in _defined(f.file)] == []


@pytest.mark.parametrize("walk", WALKS)
def test_no_walk_enters_a_file_more_than_three_times(walk: int) -> None:
    entered = Counter(row[0].file for row in _walks()[walk])
    assert {file: n for file, n in entered.items() if n > 3} == {}


def test_a_row_and_a_barrier_take_their_walks(job: CliFixture) -> None:
    calls: list[Function] = []
    with _recorded(calls):
        job.run()
    run_batch = Function("runtime/driver/job_run.py", "JobRun.run_batch")
    batch = calls[calls.index(run_batch) :]
    spark = "runtime/spark/"
    assert _missing(ROW, batch, (spark,)) == []
    # Asynchronous checkpoints only; with a request only.
    driver = "runtime/driver/"
    assert (
        _missing(BARRIER, batch, (spark, f"{driver}checkpointing/upload_waiter.py", f"{driver}request_server.py")) == []
    )


def test_a_restore_takes_its_walks(job: CliFixture) -> None:
    job.run()
    plan = str(job.folder / "plan.json")
    command = ["restore", str(job.job), "--job-root", job.root]
    planned: list[Function] = []
    with _recorded(planned):
        main([*command, "--plan", "2", "--out", plan], standalone_mode=False)
    executed: list[Function] = []
    with _recorded(executed):
        main([*command, "--execute", plan], standalone_mode=False)
    assert _missing(PLAN, planned) == []
    # Reached for a savepoint, or if state is dropped.
    assert _missing(RESTORE, executed, ("runtime/restore/state_import.py",)) == []
