"""The guides for operation: their commands are typed as they are written, against a job without Spark."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow import WatermarkStrategy
from stateflow.config.sources import resolve
from stateflow.testing.sinks import FolderSink
from tests.docs.pages import DOCS, ROOT, code, read, rows, section
from tests.docs.pages import blocks as blocks_of
from tests.support import folder_tables, root_files
from tests.support.job_fixture import JOBS, SLICE, AccountsJob, expected, multiset
from tests.support.processes import wait_for

RUN = 'stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"'


@dataclass
class Terminal:
    """A terminal in which the names of a guide's first block have the values of a test."""

    job: AccountsJob
    folder: Path

    def write_job(self, version: str, factor: int = 1) -> Path:
        text = (JOBS / "accounts.py").read_text()
        changed = text.replace("row.amount", f"(row.amount * {factor})")
        assert changed != text
        path = self.folder / version / "accounts.py"
        path.parent.mkdir()
        path.write_text(changed)
        return path

    def type(self, *blocks: str, **names: object) -> str:
        settings = self.folder / "accounts.toml"
        settings.write_text(
            f'local_dir = "{self.job.local}"\n[job]\nfolder = "{self.job.folder}"\n[checkpoints]\nretained = 100\n'
        )
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ROOT": str(self.job.root),
            "SETTINGS": str(settings),
            **{name: str(value) for name, value in names.items()},
        }
        command = ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{blocks}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "bin").mkdir()
    # What Airflow would do is tested below.
    programs = {"stateflow": f'exec "{sys.executable}" -W ignore -m stateflow "$@"', "airflow": "exit 0"}
    for name, line in programs.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/sh\n{line}\n")
        command.chmod(0o755)
    job = AccountsJob(tmp_path / "job")
    yield Terminal(job, tmp_path)
    job.end_all()


def blocks(guide: str) -> list[str]:
    found = blocks_of(read(guide))
    names = [block for block in found if all(line.startswith("export ") for line in block.splitlines())]
    assert len(names) == 1 and names[0] in found[:2]
    return [block for block in found if block not in names]


def savepoints(job: AccountsJob) -> list[Path]:
    return list(job.root.glob("savepoints/*/_savepoint"))


def movements(job: AccountsJob) -> object:
    return multiset(folder_tables.rows(job.table("movements")))


@pytest.mark.slow(reason="types some ten commands, each a process of its own")
def test_the_commands_of_the_guide_upgrade_with_a_savepoint_work(terminal: Terminal) -> None:
    job = terminal.job
    names = {"JOB": terminal.write_job("v1"), "NEW": terminal.write_job("v2", 3)}
    job.deliver(50)
    check, pause, stop, fork, renamed, deploy, unpause, back, dispose = blocks("upgrade-with-a-savepoint")
    # With --exact, the check would fail with 10 if stored values had to be migrated.
    terminal.type(RUN, check, f"{check.strip()} --exact", pause, stop, **names)
    assert len(savepoints(job)) == 1
    right = movements(job)
    job.deliver(80)
    terminal.type(fork, **names)
    assert len(folder_tables.rows(job.folder / "tables" / "movements_shadow")) == 30
    assert movements(job) == right
    _check_renamed(terminal, fork.splitlines()[1], renamed)
    assert movements(job) == right
    terminal.type(deploy, **names)
    assert len(folder_tables.rows(job.table("movements"))) == len(expected(job.delivered).movements)
    assert movements(job) != multiset(expected(job.delivered).movements)
    terminal.type(unpause, back, **names)
    assert movements(job) == multiset(expected(job.delivered).movements)
    terminal.type(dispose, **names)
    assert savepoints(job) == []


def _check_renamed(terminal: Terminal, run: str, restore: str) -> None:
    """A version with another uid is refused on the fork until a restore with a map."""
    job = terminal.write_job("v3", 3)
    job.write_text(job.read_text().replace('"turnovers")\n', '"new")\n'))
    terminal.type(f"! {run}", NEW=job)
    terminal.type(restore.replace("old=new", "turnovers=new"), run, NEW=job)


@pytest.mark.slow(reason="types some ten commands, each a process of its own")
def test_the_commands_of_the_guide_recover_at_3_am_work(terminal: Terminal) -> None:
    job = terminal.job
    right, wrong = terminal.write_job("v1"), terminal.write_job("v2", 3)
    job.deliver(50)
    terminal.type(RUN, JOB=right)
    job.deliver(80)
    terminal.type(RUN, JOB=wrong)
    bad = next(e for e in root_files.kept_entries(job.root) if e.doc["kind"] == "commit" and e.position == 60)
    names = {"JOB": right, "TARGET": f"before:{bad.doc['at']}"}
    pause, look, trigger, plan, execute, run, unpause = blocks("recover-at-3-am")
    before = movements(job)
    terminal.type(pause, look, trigger, plan, **names)
    planned = json.loads((terminal.folder / "plan.json").read_bytes())
    removed = {sink["uid"]: sink["rows_removed"] for sink in planned["sinks"]}
    assert removed["movements"] == 30 and movements(job) == before
    terminal.type(execute, **names)
    assert movements(job) == multiset(expected(job.delivered[:50]).movements)
    terminal.type(run, **names)
    lines = terminal.type('stateflow history --job-root "$ROOT" --json').splitlines()
    (restore,) = [each for each in map(json.loads, lines) if each.get("kind") == "restore"]
    assert restore["reason"] == "version 2 is wrong"
    terminal.type(unpause, **names)
    assert movements(job) == multiset(expected(job.delivered).movements)


# -- Airflow in the guides --------------------------------------------------------------------------------------------


WITHOUT_A_DAG = ("connections", "plugins", "pools", "standalone")
"""Commands that are right if Airflow can parse them."""


def _load_dags(folder: Path) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own
        bag = DagBag(str(folder))
    assert bag.import_errors == {}
    return dict(bag.dags)


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The DAGs of `dags/`, and those of the job that a guide writes."""
    # Airflow reads it at its first import, and would write files into the home of the user otherwise.
    os.environ.setdefault("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    folder = tmp_path_factory.mktemp("dags")
    (block,) = [block for block in blocks_of(read("write-a-job"), "python") if "stateflow_airflow.dags" in block]
    (folder / "payments.py").write_text(f"# airflow DAG\n{block}")
    return {**_load_dags(ROOT / "dags"), **_load_dags(folder)}


def _form(dag: Any, conf: str) -> dict[str, Any]:
    given = json.loads(conf or "{}")
    # Airflow accepts keys that are not in the form, and nothing reads them.
    assert given.keys() <= dag.params.keys(), dag.dag_id
    params = copy.deepcopy(dag.params)
    params.update(given)
    return dict(params.validate())


def test_airflow_would_run_each_command_of_the_guides(dags: dict[str, Any]) -> None:
    from airflow.cli.cli_parser import get_parser

    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "guides").glob("*.md"))
    text = re.sub(r" *\\\n *", " ", text)
    commands = {*re.findall(r"^airflow .*$", text, re.MULTILINE), *re.findall(r"`(airflow [^`]+)`", text)}
    for command in sorted(commands):
        words = shlex.split(command)[1:]
        parsed = get_parser().parse_args(words)
        if words[0] not in WITHOUT_A_DAG:
            assert parsed.subcommand in ("pause", "unpause", "trigger") and parsed.dag_id in dags, command
        if words[:2] == ["dags", "trigger"]:
            _form(dags[parsed.dag_id], parsed.conf)
    for start in ("dags pause", "dags unpause", "dags trigger flights_savepoint", "dags trigger flights_recovery"):
        assert [c for c in commands if c.startswith(f"airflow {start} ")], start


def test_the_commands_fill_the_forms_with_what_the_sentences_ask_for(dags: dict[str, Any]) -> None:
    (stop,) = re.findall(r"trigger flights_savepoint --conf '(.*)'", read("upgrade-with-a-savepoint"))
    form = _form(dags["flights_savepoint"], stop)
    wanted = {"name": "before-v2", "origin": "upgrade", "stop": True, "drain": False, "reason": None}
    assert form == wanted | {"format": "default"}
    (move,) = re.findall(r"trigger flights_savepoint --conf '(.*)'", read("move-state"))
    form = _form(dags["flights_savepoint"], move)
    assert (form["name"], form["format"], form["stop"]) == ("move", "canonical", False)
    (back,) = re.findall(r"trigger flights_recovery --conf '(.*)'", read("recover-at-3-am"))
    form = _form(dags["flights_recovery"], back)
    assert (form["target"], form["sinks"], form["run"]) == ("before:2026-01-31T03:00", "restore", False)


_AIRFLOWS_OWN = {
    *("Approve", "Awaiting Input", "Browse", "Failed", "Reject", "Required Action (1)", "Required Actions"),
    *("Trigger", "Unpause flights_recovery on trigger"),
}
"""Names in italics that are Airflow's."""


def _texts_of_pages() -> str:
    """The sources of the pages, which have their texts, and the name of their entry in Airflow's navigation."""
    sources = [path for path in sorted((DOCS.parent / "ui" / "src").rglob("*.ts*")) if ".test." not in path.name]
    sources.append(DOCS.parent / "plugins" / "stateflow_airflow" / "services" / "pages.py")
    return "".join(path.read_text(encoding="utf-8") for path in sources)


@pytest.mark.parametrize("guide", ["upgrade-with-a-savepoint", "recover-at-3-am", "move-state"])
def test_dags_and_fields_that_a_guide_names_exist(dags: dict[str, Any], guide: str) -> None:
    text = " ".join(read(guide).split())
    named = set(re.findall(r"`(flights_[a-z]+)`", text))
    assert named and named <= dags.keys()
    schemas = [param.schema for dag in dags.values() for _, param in dag.params.items()]
    titles = {schema.get(shown) for schema in schemas for shown in ("title", "section")}
    shown = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)) - _AIRFLOWS_OWN
    pages = _texts_of_pages()
    on_pages = {
        name for name in shown if re.search(rf"""["'`>]\s*(?:[1-9?✓✗]\.? )?{re.escape(name)}\s*["'`<]""", pages)
    }
    assert shown and shown - on_pages <= titles


def test_the_guide_to_recovery_has_the_tasks_and_errors_of_the_dag_and_the_runbook(dags: dict[str, Any]) -> None:
    (_, *table) = rows(section(read("recover-at-3-am"), "When a task[^\n]*"))
    tasks = {name for row in table for name in code(row[0])}
    assert tasks == set(dags["flights_recovery"].task_ids)
    cleared = {name for row in table for name in re.findall(r"clear `([^`]+)`", row[2])}
    assert cleared and cleared <= tasks
    assert [c for row in table for c in code(row[1]) if f"`{c}`" not in read("docs/runbook.md")] == []


# -- jobs that stay up: the settings are accepted, the commands start and stop a run ----------------------------------


GUIDE = read("run-continuously")
START, STOP = (shlex.split(block) for block in blocks_of(GUIDE))

NO_VALUES = ("run.until", "payments_savepoint")
"""Code in the first columns of tables that is not a value of ``run.until``."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    job = AccountsJob(tmp_path)
    yield job
    job.end_all()


def _published(job: AccountsJob) -> int:
    table = job.table("movements")
    # The folder of the versions is created before the first of them.
    return len(FolderSink(table).rows()) if any((table / "versions").glob("*")) else 0


def test_every_setting_of_the_guide_is_accepted() -> None:
    for block in blocks_of(GUIDE, "toml"):
        resolve(_flat(tomllib.loads(block)))
    first_cells = [cell for row in rows(GUIDE) for cell in code(row[0]) if cell not in NO_VALUES]
    assert [resolve({"run.until": cell}).run.end.continuous for cell in first_cells] == [False, *[True] * 5]


def _flat(table: Mapping[str, Any]) -> dict[str, object]:
    return {f"{group}.{name}": value for group, values in table.items() for name, value in values.items()}


def test_the_strategy_of_the_guide_has_an_idleness() -> None:
    names: dict[str, Any] = {"WatermarkStrategy": WatermarkStrategy, "timedelta": timedelta}
    (block,) = [block for block in blocks_of(GUIDE, "python") if "Watermark" in block]
    exec(block, names)
    assert names["strategy"].idleness == 60_000


@pytest.mark.slow(reason="waits for a run in a process of its own")
def test_the_commands_of_the_guide_start_a_run_and_stop_it_after_what_arrived_later(job: AccountsJob) -> None:
    job.deliver(2 * SLICE, (SLICE, {"pause": "gate"}))
    name, _, value = START[-1].partition("=")
    settings: dict[str, Any] = {name.replace(".", "__"): value}
    run = job.start(**settings)
    wait_for(lambda: _published(job) == SLICE, lambda: str(run))
    (job.folder / "gate").touch()
    wait_for(lambda: _published(job) == 2 * SLICE, lambda: str(run))
    job.command(STOP[1]).check()
    assert run.wait().check().result["stopped_because"] == "stopped"
    job.check()
