"""The guide about moving state: its commands are typed against the flights, and print what the guide shows."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest

from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, code, read, rows, section
from tests.support import canonical_reader, local_flights, root_files, stored_state
from tests.support.cli_fixture import invoke
from tests.support.flights_job import delta_rows
from tests.support.job_fixture import multiset
from tests.support.screens import normalized

GUIDE = read("move-state")
RUN = 'stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"'
RENAMED = (
    ('uid="running-delay"', 'uid="aircraft-delay"'),
    (
        'ValueStateDescriptor("stats", Stats))\n\n    def process_element(self, row: Flight, ctx: Context) -> None:',
        'ValueStateDescriptor("figures", Stats))\n\n    def process_element(self, row: Flight, ctx: Context) -> None:',
    ),
)
"""From version 1 to version 2 of the guide."""


class Walk:
    """A user who follows the guide; its absolute paths are below a folder.

    Attributes:
        names: the variables of the user's shell.
    """

    def __init__(self, folder: Path, *, on_spark: bool = False) -> None:
        self.folder = folder
        self.names: dict[str, str] = {}
        self._on_spark = on_spark
        for name in ("opt/jobs/v2", "data/flights", "backup", "mnt/other/savepoints", "mnt/other/jobs"):
            (folder / name).mkdir(parents=True)
        (folder / "opt/jobs/flights.py").write_text(local_flights.job_text(on_spark=on_spark))
        (folder / "opt/jobs/v2/flights.py").write_text(local_flights.job_text(*RENAMED, on_spark=on_spark))
        (folder / "opt/jobs/flights.toml").write_text(
            f'local_dir = "{folder}/local"\n[job]\nflights = "{folder}/data/flights"\ntables = "{folder}/data/tables"\n'
        )
        (folder / "count_entries.py").write_text(blocks(GUIDE, "python")[0])
        self._staged = local_flights.stage(folder / "staging")

    def deliver(self, files: int) -> None:
        """Makes that many files be there."""
        for file in self._staged[:files]:
            if file.exists():
                file.rename(self.folder / "data/flights" / file.name)

    def type(self, *commands: str) -> str:
        """Types commands of the guide; returns what they print."""
        lines = [line for command in commands for line in command.splitlines()]
        return "".join(self._type(self._words(line)) for line in lines)

    def export(self, block: str) -> None:
        """Sets the names that a block exports."""
        for name, path in re.findall(r"^export (\w+)=(\S+)", block, re.MULTILINE):
            self.names[name] = self._here(path)

    def refusal(self, command: str) -> str:
        """Types a command that must fail; returns the code of its error."""
        done = invoke(*self._words(command)[1:])
        assert done.exit_code != 0, done.output
        found = re.search(r"^error \[([\w-]+)\]", done.stderr, re.MULTILINE)
        assert found is not None, done.stderr
        return found[1]

    def screen(self, printed: str) -> str:
        """What a command has printed as the guide shows it, without what differs from one job to the other."""
        return normalized(printed.replace(str(self.folder), ""))

    def rows(self, tables: str, table: str) -> object:
        """The rows of a table in a folder of tables."""
        return multiset(delta_rows(self.folder / tables / table))

    def check_tables(self, tables: str, files: int, skip: int = 0) -> None:
        """Checks that tables have the output of these files, each once; see `local_flights.expected`."""
        delivered = sorted((self.folder / "data/flights").iterdir())[:files]
        for table, wanted in local_flights.expected(delivered, skip).items():
            assert self.rows(tables, table) == multiset(wanted), table

    @property
    def savepoint(self) -> Path:
        """The savepoint of the guide."""
        return Path(self.names["SAVEPOINT"])

    def _here(self, text: str) -> str:
        text = re.sub(r"(?<![\w.$}\"/-])/(?=(data|opt|backup|mnt)/)", f"{self.folder}/", text)
        if "move-3f2a9c01" not in text:
            return text
        (name,) = {path.name for path in (self.folder / "mnt/other/savepoints").iterdir()} or {
            path.name for path in (self.folder / "backup/flights").glob("move-????????")
        }
        return text.replace("move-3f2a9c01", name)

    def _words(self, line: str) -> list[str]:
        return shlex.split(Template(self._here(line)).substitute(self.names))

    def _type(self, words: list[str]) -> str:
        if words[0] == "stateflow" and not self._on_spark:
            done = invoke(*words[1:])
            assert done.exit_code == 0, f"{words}\n{done.output}"
            return done.stdout
        return self._in_shell(words)

    def _in_shell(self, words: list[str]) -> str:
        programs = {"stateflow": [sys.executable, "-W", "ignore", "-m", "stateflow"], "python3": [sys.executable]}
        support = Path(canonical_reader.__file__).parent
        environment = {**os.environ, "PYTHONPATH": f"{local_flights.FLIGHTS.parents[2]}:{support}", "COLUMNS": "120"}
        command = [*programs.get(words[0], words[:1]), *words[1:]]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    monkeypatch.chdir(tmp_path)
    yield Walk(tmp_path)
    store_cache.close_all()


def _stored(root: str, walk: Walk) -> dict[str, Any]:
    """The operators in the manifest of a job root, by uid."""
    path = walk.folder / root
    operators = root_files.read_manifest(path, root_files.head(path).doc["manifest"])["operators"]
    return {operator["uid"]: operator for operator in operators}


def test_the_commands_of_the_guide_move_state_work_and_print_its_screens(walk: Walk) -> None:
    first, create, path, airflow, backend, groups, rekey, other, claim, claimed, *graph = blocks(GUIDE)
    assert airflow.startswith("airflow ")
    walk.export(first)
    walk.deliver(1)
    walk.type(RUN)
    printed = [walk.type(create)]
    walk.export(path)

    walk.deliver(2)
    walk.type(backend)
    walk.check_tables("data/tables", 2)
    assert {o["parallelism"] for o in _stored("data/jobs/flights", walk).values()} == {3}
    subtasks = [s for o in _stored("data/jobs/flights", walk).values() for s in o["subtasks"]]
    assert {subtask["backend"] for subtask in subtasks} == {"filesystem"}

    walk.type(groups)
    printed.append(walk.type(rekey))
    walk.type(other)
    for tables, root in {
        "data/tables-256": "data/jobs/flights-256",
        "mnt/other/tables": "mnt/other/jobs/flights",
    }.items():
        walk.check_tables(tables, 2, skip=1)
        layout = root_files.unsealed((walk.folder / root / "FORMAT").read_bytes())[0]
        assert layout["max_parallelism"] == (256 if root.endswith("256") else 128)

    walk.type(claim)
    walk.check_tables("data/tables", 1)
    printed.append(walk.type(claimed))
    _change_the_graph(walk, printed, *graph)
    shown = [walk.screen(block) for block in blocks(GUIDE, "text")]
    assert [walk.screen(text) for text in printed] == shown


def _change_the_graph(walk: Walk, printed: list[str], *commands: str) -> None:
    """The part of the guide from the plan with another graph on."""
    plan, execute, again, stop, upgraded, count = commands
    walk.export(plan)
    plan = "\n".join(line for line in plan.splitlines() if not line.startswith("export "))
    assert walk.refusal(RUN.replace("$JOB", "$NEW")) == "config"
    before = root_files.digests(walk.folder / "data/jobs")
    printed.append(walk.type(plan))
    assert root_files.digests(walk.folder / "data/jobs") == before
    walk.type(execute)
    walk.check_tables("data/tables", 2)
    assert stored_state.read_state(walk.folder / "data/jobs/flights", "aircraft-delay")
    routes = stored_state.read_state(walk.folder / "data/jobs/flights", "route-delay")
    assert {name for name, *_ in routes} == {"figures"}
    printed.append(walk.type(again))

    walk.type(stop)
    (upgrade,) = (walk.folder / "data/jobs/flights/savepoints").glob("before-upgrade-*")
    assert root_files.unsealed((upgrade / "_savepoint").read_bytes())[0]["format"] == "canonical"
    walk.deliver(3)
    assert walk.savepoint.exists()
    walk.type(upgraded.replace("stateflow run", "stateflow run --set checkpoints.retained=1"))
    walk.check_tables("data/tables", 3)
    assert not walk.savepoint.exists()
    printed.append(walk.type(count))


def test_a_version_that_does_not_know_a_newer_format_refuses_as_the_guide_says(walk: Walk) -> None:
    first, create, path, *_ = blocks(GUIDE)
    walk.export(first)
    walk.deliver(1)
    walk.type(RUN, create)
    walk.export(path)
    root, savepoint = Path(walk.names["ROOT"]), walk.savepoint
    commands = {
        "the job root": RUN,
        "a savepoint": 'stateflow savepoint verify "$SAVEPOINT"',
        "a canonical file": 'stateflow savepoint rekey "$SAVEPOINT" --max-parallelism 256 --into "$KEPT"',
    }
    described = {row[0]: code(row[2])[0] for row in rows(section(GUIDE, "Between versions of stateflow"))[1:]}
    forged = {root / "FORMAT": {"version": 2}, savepoint / "_savepoint": {"version": 2}}
    before = {file: file.read_bytes() for file in forged}
    for file, change in forged.items():
        file.write_bytes(root_files.sealed({**root_files.unsealed(before[file])[0], **change}))
    refused = {what: walk.refusal(commands[what]) for what in ("the job root", "a savepoint")}
    for file, data in before.items():
        file.write_bytes(data)
    _write_newer_files(savepoint)
    refused["a canonical file"] = walk.refusal(commands["a canonical file"])
    assert refused == described


def _write_newer_files(savepoint: Path) -> None:
    """Gives each canonical file of a savepoint another version, and all hashes the values for it."""
    document = root_files.unsealed((savepoint / "_savepoint").read_bytes())[0]
    subtasks = [s for o in document["manifest"]["operators"] for s in o["subtasks"]]
    parts = [file for subtask in subtasks for file in subtask["files"]]
    (path,) = {savepoint / file["handle"]["key"] for file in parts}
    data = bytearray(path.read_bytes())
    for file in parts:
        data[file["part"]["offset"] + 4] += 1
    for file in parts:
        start, size = file["part"]["offset"], file["part"]["size"]
        file["part"]["sha256"] = hashlib.sha256(data[start : start + size]).hexdigest()
        file["handle"]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    (savepoint / "_savepoint").write_bytes(root_files.sealed(document))


@pytest.mark.slow(reason="runs the programs of a guide on Spark")
@pytest.mark.spark
def test_the_demo_s_job_moves_to_another_max_parallelism_and_to_other_paths_on_spark(tmp_path: Path) -> None:
    first, create, path, _, _, groups, *_ = blocks(GUIDE)
    walk = Walk(tmp_path, on_spark=True)
    walk.export(first)
    walk.deliver(1)
    walk.type(RUN, create)
    walk.export(path)
    walk.deliver(2)
    walk.type(f"{groups.strip()} --set state.backend=memory --set parallelism=3")
    walk.check_tables("data/tables", 1)
    walk.check_tables("data/tables-256", 2, skip=1)
    subtasks = [s for o in _stored("data/jobs/flights-256", walk).values() for s in o["subtasks"]]
    assert {s["last_group"] for s in subtasks} == {85, 170, 255}
    walk.type(
        'stateflow fork "$SAVEPOINT" --job-root "$ROOT" --into "$ROOT-fork" --shadow',
        "cp -rp /data/flights /data/moved",
        'stateflow source relocate --job-root "$ROOT-fork" --source flights --from /data/flights --to /data/moved',
    )
    fork = tmp_path / "data/jobs/flights-fork"
    (source,) = root_files.read_manifest(fork, root_files.head(fork).doc["manifest"])["sources"]
    assert str(tmp_path / "data/moved") in source["description"]
