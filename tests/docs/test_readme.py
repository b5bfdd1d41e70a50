"""The README and the first steps: every command exists, and the examples print what they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.docs.pages import ROOT, blocks, read, section

README, FIRST_STEPS = read("README.md"), read("docs/getting-started.md")
QUICKSTART = section(README, "Quickstart")


class Checkout:
    """An empty folder with the command `stateflow` on its path."""

    def __init__(self, folder: Path, program: str = "-m stateflow") -> None:
        self.folder = folder
        command = folder / "bin" / "stateflow"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
        command.chmod(0o755)

    def type(self, text: str) -> list[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
        command = ["bash", "-euc", text]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    def totals(self) -> dict[str, float]:
        rows = DeltaTable(self.folder / "totals").to_pyarrow_table().to_pylist()
        assert len({row["customer"] for row in rows}) == len(rows)
        return {row["customer"]: row["amount"] for row in rows}


def facts(lines: list[str]) -> list[str]:
    """Printed lines without ids, times and figures; the rows of `print` come in any order."""
    shown = [" ".join(re.sub(r"[0-9a-f]{32}|[\d.]+", "0", line).split()) for line in lines]
    return sorted(line for line in lines if line.startswith("(")) + [line for line in shown if line[0] != "("]


def test_each_make_target_file_and_extra_exists_and_is_described() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README + FIRST_STEPS, re.MULTILINE)) <= targets
    for page in (README, FIRST_STEPS):
        (pip,) = blocks(section(page, "Install"))
        (file,) = re.findall(r"pip install -r (\S+)", pip)
        assert (ROOT / file).is_file() and re.search(r"^pip install --no-deps \.", pip, re.MULTILINE)
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    (table,) = re.findall(r"^\| extra \|.*?\n\n", FIRST_STEPS, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z0-9]+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.MULTILINE)) >= set(extras)


def test_the_first_job_is_short_and_the_same_on_both_pages() -> None:
    (job,) = blocks(QUICKSTART, "python")
    assert len(job.splitlines()) <= 15
    assert blocks(FIRST_STEPS, "python") == [job]


@pytest.mark.slow(reason="types each command of a page; those that run start Spark")
@pytest.mark.spark
def test_the_quickstart_works_and_prints_as_written(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(*blocks(QUICKSTART, "python"))
    (run, restore), (printed, status) = blocks(QUICKSTART, "bash"), blocks(QUICKSTART, "text")
    checkout = Checkout(tmp_path)
    assert facts(checkout.type(run)) == facts(printed.splitlines())
    lines = checkout.type(restore)
    assert "(ann,1000000007.0)" in lines
    assert facts(lines[-len(status.splitlines()) :]) == facts(status.splitlines())
    assert checkout.totals() == {"ann": 7.0, "bob": 5.0}
    (tmp_path / "orders" / "2.json").write_text('{"customer": "ann", "amount": 1}')
    checkout.type("stateflow run job.py --job-root root")
    assert checkout.totals() == {"ann": 8.0, "bob": 5.0}


@pytest.mark.slow(reason="types each command of a page; those that run start Spark")
@pytest.mark.spark
def test_the_first_steps_work_and_print_as_written(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(*blocks(FIRST_STEPS, "python"))
    checkout = Checkout(tmp_path)
    typed = [block for block in blocks(FIRST_STEPS) if "stateflow run" in block]
    shown = blocks(FIRST_STEPS, "text")
    assert len(typed) == 3
    for command, printed in zip(typed, shown, strict=True):
        assert facts(checkout.type(command)) == facts(printed.splitlines())
    assert checkout.totals() == {"ann": 9.0, "bob": 5.0}
