"""The guide about bootstrapped state: its code gives the job the state of the first files, and the job continues."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow import read_state
from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, read
from tests.support import delta_tables, local_flights
from tests.support.cli_fixture import invoke
from tests.support.job_fixture import multiset

# The rest needs Spark: tests/spark/test_imported_checkpoint.py.
GUIDE = read("bootstrap-state").partition("## Import a Structured Streaming checkpoint")[0]


@pytest.mark.slow(reason="runs the job twice over thousands of flights")
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
