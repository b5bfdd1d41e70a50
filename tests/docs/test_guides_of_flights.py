"""Guides that are followed with the flights: their commands are typed, print what is shown, and leave what is right."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import stateflow
from stateflow import read_state
from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, load_module, read, section
from tests.support import canonical_reader, delta_tables, local_flights, root_files, stored_state
from tests.support.cli_fixture import invoke
from tests.support.job_fixture import Row, multiset
from tests.support.screens import normalized

pytestmark = pytest.mark.slow(reason="runs jobs over thousands of flights, some of them five times")

RUN = 'stateflow run "$JOB" --job-root "$ROOT" --config "$SETTINGS"'
RENAMED = (
    ('uid="running-delay"', 'uid="aircraft-delay"'),
    (
        'ValueStateDescriptor("stats", Stats))\n\n    def process_element(self, row: Flight, ctx: Context) -> None:',
        'ValueStateDescriptor("figures", Stats))\n\n    def process_element(self, row: Flight, ctx: Context) -> None:',
    ),
)
"""From version 1 to version 2 of the guide that moves state."""
WRONG = ("            self.total += delay\n", "            self.total += max(delay, 0.0)\n")
"""In version 2 of the guide that tests it, flights that are early have no part in the mean."""
FOLDERS = ("opt/jobs/v2", "data/flights", "data/jobs", "backup", "mnt/other/savepoints", "mnt/other/jobs")


class Walk:
    """A user who follows a guide; its absolute paths are below a folder.

    Attributes:
        names: the variables of the user's shell.
    """

    def __init__(self, folder: Path, *changes: tuple[str, str], settings: str = "") -> None:
        self.folder = folder
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
        (folder / "opt/jobs/flights.py").write_text(local_flights.job_text())
        (folder / "opt/jobs/v2/flights.py").write_text(local_flights.job_text(*changes))
        data = f'[job]\nflights = "{folder}/data/flights"\ntables = "{folder}/data/tables"\n'
        (folder / "opt/jobs/flights.toml").write_text(f'local_dir = "{folder}/local"\n{settings}{data}')
        jobs = {"JOB": "flights.py", "NEW": "v2/flights.py", "SETTINGS": "flights.toml"}
        self.names = {name: f"{folder}/opt/jobs/{path}" for name, path in jobs.items()}
        self._staged = local_flights.stage(folder / "staging")

    def deliver(self, files: int) -> None:
        for file in self._staged[:files]:
            if file.exists():
                file.rename(self.folder / "data/flights" / file.name)

    @property
    def flights(self) -> list[Row]:
        return [row for file in sorted((self.folder / "data/flights").iterdir()) for row in local_flights.rows_of(file)]

    def type(self, *commands: str, more: tuple[str, ...] = ()) -> str:
        printed = ""
        for line in (line for command in commands for line in command.splitlines()):
            if exported := re.match(r"export (.*)", line):
                self.names |= {name: self.here(path) for name, path in re.findall(r"(\w+)=(\S+)", exported[1])}
            else:
                printed += self._type([*self.words(line), *more])
        return printed

    def refusal(self, command: str) -> str:
        """Types a command that must fail; returns the code of its error."""
        done = invoke(*self.words(command)[1:])
        found = re.search(r"^error \[([\w-]+)\]", done.stderr, re.MULTILINE)
        assert done.exit_code != 0 and found is not None, done.output
        return found[1]

    def screen(self, printed: str) -> str:
        """What a command has printed as the guide shows it, without what differs from one job to the other."""
        return normalized(printed.replace(str(self.folder), ""))

    def check_tables(self, tables: str, files: int, skip: int = 0) -> None:
        """Checks that tables have the output of these files, each once; see `local_flights.expected`."""
        delivered = sorted((self.folder / "data/flights").iterdir())[:files]
        for table, wanted in local_flights.expected(delivered, skip).items():
            assert multiset(delta_tables.rows(self.folder / tables / table)) == multiset(wanted), table

    def operators(self, root: str) -> dict[str, Any]:
        path = self.folder / root
        manifest = root_files.read_manifest(path, root_files.head(path).doc["manifest"])
        return {operator["uid"]: operator for operator in manifest["operators"]}

    def here(self, text: str) -> str:
        text = re.sub(r"(?<![\w.$}/-])/(?=(data|opt|backup|mnt)/)", f"{self.folder}/", text)
        if "move-3f2a9c01" not in text:
            return text
        (name,) = {path.name for path in (self.folder / "mnt/other/savepoints").iterdir()} or {
            path.name for path in (self.folder / "backup/flights").glob("move-????????")
        }
        return text.replace("move-3f2a9c01", name)

    def words(self, line: str) -> list[str]:
        return shlex.split(Template(self.here(line)).substitute(self.names), comments=True)

    def _type(self, words: list[str]) -> str:
        if words[0] == "stateflow":
            done = invoke(*words[1:])
            assert done.exit_code == 0, f"{words}\n{done.output}"
            return done.stdout
        environment = {**os.environ, "PYTHONPATH": str(Path(canonical_reader.__file__).parent)}
        command = [sys.executable if words[0] == "python3" else words[0], *words[1:]]
        ended = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    store_cache.close_all()


# -- move state -------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_guide_move_state_work_and_print_its_screens(folder: Path) -> None:
    guide = read("move-state")
    first, create, path, airflow, backend, groups, rekey, other, claim, claimed, *graph = blocks(guide)
    assert airflow.startswith("airflow ")
    walk = Walk(folder, *RENAMED)
    (folder / "count_entries.py").write_text(blocks(guide, "python")[0])
    walk.deliver(1)
    walk.type(first, RUN)
    printed = [walk.type(create)]
    walk.deliver(2)
    walk.type(path, backend)
    walk.check_tables("data/tables", 2)
    operators = walk.operators("data/jobs/flights").values()
    assert {o["parallelism"] for o in operators} == {3}
    assert {subtask["backend"] for o in operators for subtask in o["subtasks"]} == {"filesystem"}

    walk.type(groups)
    printed.append(walk.type(rekey))
    walk.type(other)
    for tables, root, max_parallelism in (
        ("data/tables-256", "data/jobs/flights-256", 256),
        ("mnt/other/tables", "mnt/other/jobs/flights", 128),
    ):
        walk.check_tables(tables, 2, skip=1)
        assert root_files.unsealed((folder / root / "FORMAT").read_bytes())[0]["max_parallelism"] == max_parallelism

    walk.type(claim)
    walk.check_tables("data/tables", 1)
    printed.append(walk.type(claimed))
    _change_the_graph(walk, printed, *graph)
    assert [walk.screen(text) for text in printed] == [walk.screen(block) for block in blocks(guide, "text")]


def _change_the_graph(walk: Walk, printed: list[str], *commands: str) -> None:
    """The part of the guide from the plan with another graph on."""
    plan, execute, again, stop, upgraded, count = commands
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
    savepoint = Path(walk.names["SAVEPOINT"])
    assert savepoint.exists()
    walk.type(upgraded.replace("stateflow run", "stateflow run --set checkpoints.retained=1"))
    walk.check_tables("data/tables", 3)
    assert not savepoint.exists()
    printed.append(walk.type(count))


# -- test a new version -----------------------------------------------------------------------------------------------


def test_the_commands_of_the_guide_find_the_keys_that_a_wrong_version_has_changed(folder: Path) -> None:
    guide = read("test-a-new-version")
    first, fork, runs, compare, keys, since, clean_up = blocks(guide)
    walk = Walk(folder, WRONG)
    walk.deliver(1)
    walk.type(first, runs.splitlines()[0], fork)
    walk.deliver(2)
    walk.type(runs)
    found: dict[str, Any] = json.loads(walk.type(compare, more=("--json",)))
    by_operator = {state["operator"]: state for state in found["states"]}
    # The savepoint has the first file's statistics from before the change.
    early = {row["tailnum"] for row in walk.flights[1000:] if (row["arr_delay"] or 0) < 0}
    assert by_operator["running-delay"]["changed"] == len(early)
    printed = walk.type(keys)
    assert len(re.findall(r"^~ running-delay\.stats ", printed, re.MULTILINE)) == 5
    assert f"{len(early) - 5} keys more" in printed
    (changed,) = (
        state
        for state in json.loads(walk.type(since, more=("--json",)))["states"]
        if state["operator"] == "running-delay"
    )
    touched, known = ({row["tailnum"] for row in rows} for rows in (walk.flights[1000:], walk.flights[:1000]))
    assert (changed["added"], changed["changed"]) == (len(touched - known), len(touched & known))
    *python, airflow = blocks(guide, "python")
    compared = load_module(folder / "compared.py", walk.here("\n".join(python)))
    assert len(compared.changed) == len(compared.stats) == len(early) and len(compared.largest) == 3
    dag = load_module(folder / "validation_dag.py", airflow).dag
    assert dag.task_dict["compare"].upstream_task_ids == {"shadow"}
    walk.type(clean_up)


# -- debug one key ----------------------------------------------------------------------------------------------------


def test_the_commands_of_the_guide_show_the_batch_and_the_key(folder: Path) -> None:
    guide = read("debug-one-key")
    listed, replayed, key, _ = blocks(guide)
    walk = Walk(folder, settings="[checkpoints]\nasynchronous = false\n")
    walk.deliver(4)
    walk.type(*blocks(guide, "bash"), RUN)
    assert "yes" in walk.type(listed)
    assert walk.type(replayed).splitlines()[-1].endswith("checkpoint 4")
    assert blocks(guide, "text")[0] in walk.type(key)
    names: dict[str, Any] = {}
    exec(walk.here(blocks(guide, "python")[0]), names)
    (found,) = names["report"].keys
    assert [len(call.emitted) for call in found.calls] == [1, 1]


# -- look into state --------------------------------------------------------------------------------------------------

LOOK = read("look-into-state")


@pytest.fixture(scope="module")
def looked_into(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    walk = Walk(tmp_path_factory.mktemp("guide"), settings="[checkpoints]\nasynchronous = false\n")
    walk.deliver(3)
    walk.type(blocks(LOOK)[0], RUN)
    yield walk
    store_cache.close_all()


def test_the_commands_print_what_the_guide_shows(looked_into: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = looked_into
    monkeypatch.chdir(walk.folder)
    shell = section(LOOK, "On the command line")
    *_, shows, gets, exports = blocks(shell)
    shown, got = blocks(shell, "text")
    assert normalized(walk.type(shows)) == normalized(shown)
    assert walk.type(gets) == got
    aircraft = [row for row in walk.flights if row["tailnum"] == "N14228"]
    assert json.loads(got.splitlines()[0])["value"]["flights"] == len(aircraft)
    walk.type(exports)
    wanted = {(row["carrier"], row["origin"]) for row in walk.flights}
    lines = [json.loads(line) for line in (walk.folder / "routes.jsonl").read_text().splitlines()]
    for rows in (lines, pq.read_table(walk.folder / "routes.parquet").to_pylist()):
        assert {(row["carrier"], row["origin"]) for row in rows} == wanted


def test_the_code_returns_the_state_of_the_flights(looked_into: Walk) -> None:
    names: dict[str, Any] = {}
    for block in blocks(section(LOOK, "In Python"), "python"):
        exec(looked_into.here(block), names)
    flights = looked_into.flights
    assert names["flights"] == len(flights)
    delays: dict[tuple[str, str], list[float]] = {}
    for row in flights:
        if row["arr_delay"] is not None:
            delays.setdefault((row["carrier"], row["origin"]), []).append(row["arr_delay"])
    latest = sorted((sum(found) / len(found) for found in delays.values()), reverse=True)[:3]
    assert names["latest"]["mean"].tolist() == pytest.approx(latest)
    known = {row["tailnum"] for row in flights} & {"N14228", "N24211"}
    assert set(names["aircraft"]["tailnum"].to_pylist()) == known
    assert {row["operator"] for row in names["sizes"]} == {"running-delay", "route-delay"}


@pytest.mark.spark
def test_a_dataframe_has_the_state_of_the_flights(looked_into: Walk, spark_session: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark_session, "stateflow": stateflow, "ROOT": looked_into.names["ROOT"]}
    exec(blocks(section(LOOK, "In Spark"), "python")[0], names)
    flights = Counter(row["origin"] for row in looked_into.flights if row["carrier"] == "UA")
    assert {row["origin"]: row["value"]["flights"] for row in names["united"].collect()} == flights


def test_another_snapshot_is_read_by_its_name_and_id(looked_into: Walk) -> None:
    create, show, get = blocks(section(LOOK, "Another snapshot"))[0].splitlines()
    assert "savepoint monday of flights" in looked_into.type(create, more=("--acknowledge-timeout", "0"))
    assert looked_into.type(show).startswith("savepoint monday of flights")
    value = json.loads(looked_into.type(get))["value"]
    assert value["flights"] == len([row for row in looked_into.flights[:1000] if row["tailnum"] == "N14228"])


# -- bootstrap state --------------------------------------------------------------------------------------------------


# The rest needs Spark: tests/spark/test_imported_checkpoint.py.
GUIDE = read("bootstrap-state").partition("## Import a Structured Streaming checkpoint")[0]


def test_the_job_continues_after_the_files_whose_state_the_guide_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "jobs" / "flights.py"
    job.parent.mkdir()
    job.write_text(local_flights.job_text())
    monkeypatch.syspath_prepend(str(job.parent))
    _forget_module()
    monkeypatch.chdir(tmp_path)
    files = local_flights.stage(tmp_path / "data")
    savepoint = str(tmp_path / "history")
    given = {"files": files, "folder": str(tmp_path / "data"), "position": {"file": 2}}
    given |= {"savepoint": savepoint, "changed": str(tmp_path / "changed")}
    code = "\n".join(blocks(GUIDE, "python"))
    # As in the job: a source that needs no Spark.
    code = code.replace("FileSource(", "FlightFiles(").replace(
        "from stateflow import FileSource, ", "from stateflow import "
    )
    exec(compile(f"from tests.support.local_flights import FlightFiles\n{code}", "guide", "exec"), given)
    _check_changed(savepoint, str(tmp_path / "changed"))
    options = [
        f"job.flights={tmp_path / 'data'}",
        f"job.tables={tmp_path / 'tables'}",
        f"local_dir={tmp_path / 'local'}",
    ]
    settings = [part for option in options for part in ("--set", option)]
    more = ["--job-root", str(tmp_path / "root"), "--from-savepoint", savepoint, *settings]
    _forget_module()
    ended = invoke("run", str(job), *more)
    store_cache.close_all()
    assert ended.exit_code == 0, ended.output
    for table, wanted in local_flights.expected(files, skip=2).items():
        assert multiset(delta_tables.rows(tmp_path / "tables" / table)) == multiset(wanted)
    _forget_module()


def _forget_module() -> None:
    """Lets the next job file of this name be loaded; monkeypatch would put the module back for later tests."""
    sys.modules.pop("flights", None)


def _check_changed(savepoint: str, changed: str) -> None:
    before, after = (_rows(path, "route-delay", ["carrier", "origin"]) for path in (savepoint, changed))
    assert after == {key: value for key, value in before.items() if key[1] == "EWR"} and len(after) < len(before)
    before, after = (_rows(path, "running-delay", ["tailnum"]) for path in (savepoint, changed))
    for value in before.values():
        value["total"] /= 60
    assert after == before


def _rows(savepoint: str, operator: str, key: list[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    rows = read_state(savepoint, operator, "stats").read_all().to_pylist()
    return {tuple(row[name] for name in key): row["value"] for row in rows}
