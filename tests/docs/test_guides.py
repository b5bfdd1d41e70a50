"""The guides: their commands are typed as they stand there, against a job without Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recovery import disk
from tests.recovery.harness import JOBS, AccountsBox, expected, multiset

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
RUNBOOK = ROOT / "docs" / "runbook.md"


@dataclass
class Desk:
    """A terminal in which the first block's names have the values of a test."""

    box: AccountsBox
    folder: Path

    def write_job(self, version: str, factor: int = 1) -> Path:
        """A version of the job, that multiplies amounts."""
        text = (JOBS / "accounts.py").read_text()
        changed = text.replace("row.amount", f"(row.amount * {factor})")
        assert changed != text
        path = self.folder / version / "accounts.py"
        path.parent.mkdir()
        path.write_text(changed)
        return path

    def type(self, block: str, **names: object) -> str:
        """Types a block; returns what it prints."""
        settings = self.folder / "accounts.toml"
        settings.write_text(
            f'local_dir = "{self.box.local}"\n[job]\nfolder = "{self.box.folder}"\n[checkpoints]\nretained = 100\n'
        )
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ROOT": str(self.box.root),
            "SETTINGS": str(settings),
            **{name: str(value) for name, value in names.items()},
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], env=environment, cwd=self.folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "bin").mkdir()
    for name, program in (("stateflow", f'exec "{sys.executable}" -m stateflow "$@"'), ("airflow", "exit 0")):
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/sh\n{program}\n")
        command.chmod(0o755)
    box = AccountsBox(tmp_path / "job")
    yield Desk(box, tmp_path)
    box.end_all()


def blocks(guide: str) -> list[str]:
    """The blocks to type, without the first, which names things."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert all(line.startswith("export ") for line in found[0].splitlines())
    return found[1:]


def movements(box: AccountsBox) -> object:
    return multiset(disk.folder_rows(box.table("movements")))


@pytest.mark.slow
def test_upgrade_with_a_savepoint(desk: Desk) -> None:
    box = desk.box
    names = {"JOB": desk.write_job("v1"), "NEW": desk.write_job("v2", 3)}
    box.deliver(50)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', **names)
    pause, stop, fork, deploy, unpause, back, dispose = blocks("upgrade-with-a-savepoint")
    desk.type(pause, **names)
    assert "all as recorded" in desk.type(stop, **names)
    right = movements(box)
    box.deliver(80)
    assert "30 rows" in desk.type(fork, **names)
    assert len(disk.folder_rows(box.folder / "tables" / "movements_shadow")) == 30
    assert movements(box) == right
    assert "30 rows" in desk.type(deploy, **names)
    assert movements(box) != multiset(expected(box.delivered).movements)
    desk.type(unpause, **names)
    desk.type(back, **names)
    assert movements(box) == multiset(expected(box.delivered).movements)
    assert "deleted savepoint before-v2" in desk.type(dispose, **names)


@pytest.mark.slow
def test_recover_at_3_am(desk: Desk) -> None:
    box = desk.box
    right, wrong = desk.write_job("v1"), desk.write_job("v2", 3)
    box.deliver(50)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', JOB=right)
    box.deliver(80)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', JOB=wrong)
    bad = next(e for e in disk.entries(box.root) if e.doc["kind"] == "commit" and e.position == 60)
    names = {"JOB": right, "TARGET": f"before:{bad.doc['at']}"}
    pause, look, trigger, plan, execute, run, unpause = blocks("recover-at-3-am")
    for block in (pause, look, trigger):
        desk.type(block, **names)
    before = movements(box)
    assert "30" in desk.type(plan, **names) and movements(box) == before
    desk.type(execute, **names)
    assert movements(box) == multiset(expected(box.delivered[:50]).movements)
    assert "restore by" in desk.type(run, **names)
    desk.type(unpause, **names)
    assert movements(box) == multiset(expected(box.delivered).movements)


def test_the_tasks_and_errors_of_the_runbook_are_those_that_there_are() -> None:
    text = (GUIDES / "recover-at-3-am.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in text.partition("## When a task")[2].splitlines() if "|" in line][
        2:
    ]
    tasks = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert tasks == {"plan", "approve", "restore", "verify", "run"}
    codes = {code for row in rows for code in re.findall(r"`([^`]+)`", row[1])}
    assert [code for code in codes if f"`{code}`" not in RUNBOOK.read_text(encoding="utf-8")] == []
