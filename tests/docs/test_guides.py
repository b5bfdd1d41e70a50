"""The guides: their commands are typed as they are written, against a job without Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs import airflow_cli_check
from tests.support import root_files
from tests.support.job_fixture import JOBS, AccountsJob, expected, multiset

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
RUNBOOK = ROOT / "docs" / "runbook.md"


@dataclass
class Desk:
    """A terminal in which the first block's names have the values of a test."""

    box: AccountsJob
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
            "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "ROOT": str(self.box.root),
            "SETTINGS": str(settings),
            **{name: str(value) for name, value in names.items()},
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "bin").mkdir()
    for name, module in (("stateflow", "stateflow"), ("airflow", "tests.docs.airflow_cli_check")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m {module} "$@"\n')
        command.chmod(0o755)
    box = AccountsJob(tmp_path / "job")
    yield Desk(box, tmp_path)
    box.end_all()


def blocks(guide: str) -> list[str]:
    """The blocks to type, without the first, which names things."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [block for language, block in fenced if not language]
    assert all(line.startswith("export ") for line in found[0].splitlines())
    return found[1:]


def savepoints(box: AccountsJob) -> list[Path]:
    return list(box.root.glob("savepoints/*/_savepoint"))


def movements(box: AccountsJob) -> object:
    return multiset(root_files.folder_rows(box.table("movements")))


@pytest.mark.slow
def test_upgrade_with_a_savepoint(desk: Desk) -> None:
    box = desk.box
    names = {"JOB": desk.write_job("v1"), "NEW": desk.write_job("v2", 3)}
    box.deliver(50)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', **names)
    check, pause, stop, fork, deploy, unpause, back, dispose = blocks("upgrade-with-a-savepoint")
    desk.type(check, **names)
    # With this option, it would end with 10 if stored values had to be migrated.
    desk.type(f"{check.strip()} --exact", **names)
    desk.type(pause, **names)
    desk.type(stop, **names)
    assert len(savepoints(box)) == 1
    right = movements(box)
    box.deliver(80)
    desk.type(fork, **names)
    assert len(root_files.folder_rows(box.folder / "tables" / "movements_shadow")) == 30
    assert movements(box) == right
    desk.type(deploy, **names)
    assert len(root_files.folder_rows(box.table("movements"))) == len(expected(box.delivered).movements)
    assert movements(box) != multiset(expected(box.delivered).movements)
    desk.type(unpause, **names)
    desk.type(back, **names)
    assert movements(box) == multiset(expected(box.delivered).movements)
    desk.type(dispose, **names)
    assert savepoints(box) == []


@pytest.mark.slow
def test_recover_at_3_am(desk: Desk) -> None:
    box = desk.box
    right, wrong = desk.write_job("v1"), desk.write_job("v2", 3)
    box.deliver(50)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', JOB=right)
    box.deliver(80)
    desk.type('stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"', JOB=wrong)
    bad = next(e for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit" and e.position == 60)
    names = {"JOB": right, "TARGET": f"before:{bad.doc['at']}"}
    pause, look, trigger, plan, execute, run, unpause = blocks("recover-at-3-am")
    for block in (pause, look, trigger):
        desk.type(block, **names)
    before = movements(box)
    desk.type(plan, **names)
    planned = json.loads((desk.folder / "plan.json").read_bytes())
    removed = {sink["uid"]: sink["rows_removed"] for sink in planned["sinks"]}
    assert removed["movements"] == 30 and movements(box) == before
    desk.type(execute, **names)
    assert movements(box) == multiset(expected(box.delivered[:50]).movements)
    desk.type(run, **names)
    lines = desk.type('stateflow history --job-root "$ROOT" --json').splitlines()
    (restore,) = [each for each in map(json.loads, lines) if each.get("kind") == "restore"]
    assert restore["reason"] == "version 2 is wrong"
    desk.type(unpause, **names)
    assert movements(box) == multiset(expected(box.delivered).movements)


# -- Airflow in the guides ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # Read when Airflow is first imported; without it the home of whoever runs the tests gets its files.
    os.environ.setdefault("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    made = tmp_path_factory.mktemp("dags")
    # The family of the guide's own job.
    (block,) = re.findall(r"^```python\n(from stateflow_airflow\.dags .*?)^```$", _text("write-a-job"), re.M | re.S)
    (made / "payments.py").write_text(f"# airflow DAG\n{block}")
    return {**airflow_cli_check.load_dags(), **airflow_cli_check.load_dags(made)}


def _text(guide: str) -> str:
    return (GUIDES / f"{guide}.md").read_text(encoding="utf-8")


def _airflow_commands() -> list[str]:
    """In blocks and in sentences."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in GUIDES.glob("*.md"))
    lines = re.findall(r"^airflow .*$", text, re.MULTILINE)
    return sorted({*lines, *re.findall(r"`(airflow [^`]+)`", text)})


@pytest.mark.parametrize("command", _airflow_commands())
def test_airflow_would_do_what_the_guides_ask_for(dags: dict[str, Any], command: str) -> None:
    airflow_cli_check.check(shlex.split(command)[1:], dags)


def test_there_are_commands_to_check() -> None:
    commands = _airflow_commands()
    for start in ("dags pause", "dags unpause", "dags trigger flights_savepoint", "dags trigger flights_recovery"):
        assert [c for c in commands if c.startswith(f"airflow {start} ")], start


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("dags pause flight", "dag"),
        ("dags trigger flights_restore", "dag"),
        ("dags halt flights", "command"),
        ("dags trigger flights_savepoint --config {}", "command"),
        ("""dags trigger flights_savepoint --conf '{"nme": "x"}'""", "key"),
        ("""dags trigger flights_savepoint --conf '{"origin": "periodic"}'""", "value"),
        ("""dags trigger flights_savepoint --conf '{"stop": "yes"}'""", "value"),
        ("""dags trigger flights_recovery --conf '{"target": "latest"}'""", "value"),
        ("""dags trigger flights_recovery --conf '{"target": "1", "reason": "x", "sinks": "drop"}'""", "value"),
        ("variables set a b", "not known here"),
    ],
)
def test_a_mistake_in_a_guide_would_be_found(dags: dict[str, Any], command: str, wrong: str) -> None:
    with pytest.raises(airflow_cli_check.WouldFail) as caught:
        airflow_cli_check.check(shlex.split(command), dags)
    assert caught.value.wrong == wrong


def test_what_the_commands_fill_into_the_forms_is_what_the_sentences_ask_for(dags: dict[str, Any]) -> None:
    (stop,) = re.findall(r"trigger flights_savepoint --conf '(.*)'", _text("upgrade-with-a-savepoint"))
    form = airflow_cli_check.check_form(dags["flights_savepoint"], json.loads(stop))
    assert form == {"name": "before-v2", "origin": "upgrade", "stop": True, "drain": False, "reason": None}
    (back,) = re.findall(r"trigger flights_recovery --conf '(.*)'", _text("recover-at-3-am"))
    form = airflow_cli_check.check_form(dags["flights_recovery"], json.loads(back))
    assert (form["target"], form["sinks"], form["run"]) == ("before:2026-01-31T03:00", "restore", False)


@pytest.mark.parametrize("guide", ["upgrade-with-a-savepoint", "recover-at-3-am"])
def test_dags_and_fields_that_a_guide_names_are_there(dags: dict[str, Any], guide: str) -> None:
    text = " ".join(_text(guide).split())
    named = set(re.findall(r"`(flights_[a-z]+)`", text))
    assert named and named <= dags.keys()
    titles = {param.schema.get("title") for dag in dags.values() for _, param in dag.params.items()}
    shown = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)) - _AIRFLOWS_OWN
    assert shown and shown <= titles


_AIRFLOWS_OWN = {
    "Approve",
    "Awaiting Input",
    "Browse",
    "Failed",
    "Reject",
    "Required Action (1)",
    "Required Actions",
    "Trigger",
    "Unpause flights_recovery on trigger",
}
"""Set off in the guides, but of Airflow itself."""


def test_the_tasks_and_errors_of_the_runbook_are_those_that_there_are(dags: dict[str, Any]) -> None:
    text = _text("recover-at-3-am")
    table = [line for line in text.partition("## When a task")[2].splitlines() if "|" in line][2:]
    rows = [line.split("|")[1:4] for line in table]
    tasks = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert tasks == set(dags["flights_recovery"].task_ids)
    cleared = {name for row in rows for name in re.findall(r"clear `([^`]+)`", row[2])}
    assert cleared and cleared <= tasks
    codes = {code for row in rows for code in re.findall(r"`([^`]+)`", row[1])}
    assert [code for code in codes if f"`{code}`" not in RUNBOOK.read_text(encoding="utf-8")] == []
