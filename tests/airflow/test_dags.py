"""Airflow finds the DAGs, quickly, and without anything that only a running task needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.airflow.conftest import REPOSITORY
from tests.support.cli_fixture import invoke

FILES = sorted(path.stem for path in (REPOSITORY / "dags").glob("*.py"))
HEAVY = {"pyspark", "rocksdict", "obstore", "pyarrow", "pandas", "deltalake", "stateflow"}

LOAD = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.serialized_objects import DagSerialization
before = set(sys.modules)
bag = DagBag(sys.argv[1])
runs = {dag.dag_id: dag.get_task("run") for dag in bag.dags.values() if dag.task_ids == ["run"]}
print(json.dumps({
    "errors": bag.import_errors,
    "seconds": {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats},
    "modules": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "dags": {dag.dag_id: [dag.fileloc, dag.catchup, dag.max_active_runs] for dag in bag.dags.values()},
    "versions": {dag.dag_id: SerializedDagModel.hash(DagSerialization.to_dict(dag)) for dag in bag.dags.values()},
    "runs": {name: {"job": run.job, "root": run.job_root, "settings": run.settings} for name, run in runs.items()},
}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Airflow's folder, which is part of a serialized DAG."""
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def loaded(home: str) -> dict[str, Any]:
    return _load(home)


def _load(home: str, **more: str) -> dict[str, Any]:
    environment = {**os.environ, "AIRFLOW_HOME": home, "PYTHONPATH": str(REPOSITORY / "plugins"), **more}
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(REPOSITORY / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_file_is_one_family_that_runs_one_at_a_time_and_never_catches_up(loaded: dict[str, Any]) -> None:
    assert loaded["errors"] == {}
    folder = REPOSITORY / "dags"
    assert loaded["dags"] == {
        f"{name}{suffix}": [str(folder / f"{name}.py"), False, 1]
        for name in FILES
        for suffix in ("", "_recovery", "_retention", "_savepoint")
    }
    # What Airflow itself has loaded before it looks at the files does not count for them.
    assert not HEAVY & set(loaded["modules"])
    assert sorted(loaded["seconds"]) == [f"{name}.py" for name in FILES]
    assert all(seconds < 1 for seconds in loaded["seconds"].values()), loaded["seconds"]


@pytest.mark.slow(reason="loads all DAGs in another process once more")
def test_another_process_makes_no_new_version_of_a_dag(loaded: dict[str, Any], home: str) -> None:
    """Nor does a savepoint in between: a DAG file does not import the library that reads job roots."""
    again = _load(home, PYTHONHASHSEED="4711")
    assert again["versions"] == loaded["versions"] and len(again["versions"]) == 4 * len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_dag_passes_the_settings_that_its_job_reads_and_no_others(loaded: dict[str, Any], name: str) -> None:
    run = loaded["runs"][name]
    # As a form that was sent as it is makes it.
    given = run["settings"] | {"run.drain": "false"}
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    done = invoke("plan", run["job"], *settings, "--no-spark", "--json")
    found = json.loads(done.stdout)
    assert found["job"] == name
    # The demo makes the folder of the flights.
    assert [p["code"] for p in found["problems"] if "landing" not in p["message"]] == [], done.stderr
    # No setting of the family is one that the job does not read.
    assert found["warnings"] == []
