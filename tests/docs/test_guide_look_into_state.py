"""The guide about reading state: its commands are typed against the flights, and its code returns their state."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import stateflow
from stateflow.runtime.task import store_cache
from tests.airflow.fakes import FakeRun
from tests.docs.pages import blocks, load_module, read, section
from tests.support import local_flights
from tests.support.cli_fixture import invoke
from tests.support.screens import normalized

GUIDE = read("look-into-state")
_FILES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the guide's absolute paths, after a run over some files of flights."""
    folder = tmp_path_factory.mktemp("guide")
    for name in ("data/flights", "data/jobs"):
        (folder / name).mkdir(parents=True)
    for file in local_flights.stage(folder / "staging")[:_FILES]:
        file.rename(folder / "data/flights" / file.name)
    (folder / "flights.py").write_text(local_flights.job_text())
    settings = {"job.flights": "data/flights", "job.tables": "data/tables", "local_dir": "local"}
    sets = [part for name, path in settings.items() for part in ("--set", f"{name}={folder / path}")]
    root = str(folder / "data/jobs/flights")
    done = invoke("run", str(folder / "flights.py"), "--job-root", root, *sets, "--set", "checkpoints.asynchronous=no")
    assert done.exit_code == 0, done.output
    yield folder
    store_cache.close_all()


def _type(folder: Path, block: str) -> str:
    """Types the commands of a block; returns what they print."""
    printed = ""
    for line in block.splitlines():
        root = str(folder / "data/jobs/flights")
        _, *words = shlex.split(Template(line).substitute(ROOT=root))
        words = [str(folder / word) if word.startswith("routes.") else word for word in words]
        done = invoke(*words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        printed += done.stdout
    return printed


def _flights(folder: Path) -> list[dict[str, Any]]:
    """The flights of the files that were processed, by the order of the files."""
    return [row for file in sorted((folder / "data/flights").iterdir()) for row in local_flights.rows_of(file)]


def _delays(rows: list[dict[str, Any]]) -> list[float]:
    return [row["arr_delay"] for row in rows if row["arr_delay"] is not None]


def test_the_commands_print_what_the_guide_shows(folder: Path) -> None:
    shell = section(GUIDE, "On the command line")
    shows, gets, exports = blocks(shell)
    shown, got = blocks(shell, "text")
    assert normalized(_type(folder, shows)) == normalized(shown)
    assert _type(folder, gets) == got
    aircraft = [row for row in _flights(folder) if row["tailnum"] == "N14228"]
    assert json.loads(got.splitlines()[0])["value"]["flights"] == len(aircraft)
    assert "routes.parquet" in _type(folder, exports)
    wanted = {(row["carrier"], row["origin"]) for row in _flights(folder)}
    lines = [json.loads(line) for line in (folder / "routes.jsonl").read_text().splitlines()]
    for rows in (lines, pq.read_table(folder / "routes.parquet").to_pylist()):
        assert {(row["carrier"], row["origin"]) for row in rows} == wanted


def test_the_dag_exports_the_routes(folder: Path) -> None:
    (block,) = blocks(section(GUIDE, "On the command line"), "python")
    dag = load_module(folder / "export_dag.py", block.replace('"/data/', f'"{folder}/data/')).dag
    task = dag.task_dict["export"]
    task.render_template_fields({"ds": "2026-01-31"})
    assert task.execute(FakeRun().next_try())["rows"] == len({(r["carrier"], r["origin"]) for r in _flights(folder)})
    assert pq.read_table(folder / "data/exports/2026-01-31/routes.parquet").num_rows > 0


def test_the_code_returns_the_state_of_the_flights(folder: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(section(GUIDE, "In Python"), "python"):
        exec(block.replace('"/data/', f'"{folder}/data/'), names)
    flights = _flights(folder)
    assert names["flights"] == len(flights)
    routes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in flights:
        routes.setdefault((row["carrier"], row["origin"]), []).append(row)
    means = {route: sum(found) / len(found) for route, rows in routes.items() if (found := _delays(rows))}
    latest = sorted(means.values(), reverse=True)[:3]
    assert names["latest"]["mean"].tolist() == pytest.approx(latest)
    known = {row["tailnum"] for row in flights} & {"N14228", "N24211"}
    assert set(names["aircraft"]["tailnum"].to_pylist()) == known
    assert {row["operator"] for row in names["sizes"]} == {"running-delay", "route-delay"}
    assert names["snapshots"]["is_current"].tolist() == [False] * (len(names["snapshots"]) - 1) + [True]


@pytest.mark.slow(reason="runs the programs of a guide on Spark")
@pytest.mark.spark
def test_a_dataframe_has_the_state_of_the_flights(folder: Path, spark_session: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark_session, "stateflow": stateflow, "ROOT": str(folder / "data/jobs/flights")}
    (block,) = blocks(section(GUIDE, "In Spark"), "python")
    exec(block, names)
    flights = Counter(row["origin"] for row in _flights(folder) if row["carrier"] == "UA")
    assert {row["origin"]: row["value"]["flights"] for row in names["united"].collect()} == flights


def test_another_snapshot_is_read_by_its_name_and_id(folder: Path) -> None:
    (block,) = blocks(section(GUIDE, "Another snapshot"))
    create, show, get = block.splitlines()
    assert re.search(r"savepoint monday of flights", _type(folder, create + " --acknowledge-timeout 0"))
    assert _type(folder, show).startswith("savepoint monday of flights")
    first = _flights(folder)[:1000]
    value = json.loads(_type(folder, get))["value"]
    assert value["flights"] == len([row for row in first if row["tailnum"] == "N14228"])
