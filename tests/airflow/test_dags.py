"""Airflow finds the DAGs, quickly, and without anything that only a running task needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import REPOSITORY

FILES = sorted(path.stem for path in (REPOSITORY / "dags").glob("*.py"))
DAGS = sorted(f"{name}{suffix}" for name in FILES for suffix in ("", "_recovery", "_retention", "_savepoint"))
HEAVY = {"pyspark", "rocksdict", "obstore", "pyarrow", "pandas", "deltalake", "stateflow"}

# What Airflow itself has loaded before it looks at the files does not count for them.
LOAD = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors,
    "seconds": {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats},
    "modules": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "dags": {d.dag_id: {"catchup": d.catchup, "runs": d.max_active_runs, "file": d.fileloc}
             for d in bag.dags.values()},
    "runs": {d.dag_id: {"job": d.get_task("run").job, "root": d.get_task("run").job_root,
                         "settings": d.get_task("run").settings}
             for d in bag.dags.values() if d.task_ids == ["run"]},
}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh DAG processor makes of the folder."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": str(REPOSITORY / "plugins"),
    }
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(REPOSITORY / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_file_is_one_family_and_jobs_are_none(loaded: dict[str, Any]) -> None:
    assert loaded["errors"] == {}
    assert sorted(loaded["dags"]) == DAGS
    assert {Path(dag["file"]).stem for dag in loaded["dags"].values()} == set(FILES)
    assert sorted(loaded["seconds"]) == [f"{name}.py" for name in FILES]


def test_each_parses_within_a_second(loaded: dict[str, Any]) -> None:
    assert all(seconds < 1 for seconds in loaded["seconds"].values()), loaded["seconds"]


def test_nothing_heavy_is_imported(loaded: dict[str, Any]) -> None:
    assert not HEAVY & set(loaded["modules"])


@pytest.mark.parametrize("name", DAGS)
def test_runs_one_at_a_time_and_never_catches_up(loaded: dict[str, Any], name: str) -> None:
    assert (loaded["dags"][name]["catchup"], loaded["dags"][name]["runs"]) == (False, 1)


@pytest.mark.parametrize("name", FILES)
def test_is_short(name: str) -> None:
    assert len((REPOSITORY / "dags" / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", FILES)
def test_gives_its_job_what_it_asks_for(loaded: dict[str, Any], name: str) -> None:
    run = loaded["runs"][name]
    # As a form that was sent as it is makes it.
    given = run["settings"] | {"run.drain": "false"}
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "stateflow", "plan", run["job"], *settings, "--no-spark", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["job"] == name
    # The demo makes the folder of the flights.
    assert [p["code"] for p in found["problems"] if "landing" not in p["message"]] == [], done.stderr
    # No setting of the family is one that the job does not read.
    assert found["warnings"] == []


def test_no_two_jobs_share_a_job_root_or_a_table(loaded: dict[str, Any]) -> None:
    assert len({run["root"] for run in loaded["runs"].values()}) == len(FILES)
    jobs = [(REPOSITORY / "dags" / "jobs" / f"{name}.py").read_text() for name in FILES]
    tables = [table for job in jobs for table in re.findall(r'DeltaSink\(f"([^"]+)"', job)]
    assert len(tables) == len(set(tables)) == sum(job.count("DeltaSink(") for job in jobs)
