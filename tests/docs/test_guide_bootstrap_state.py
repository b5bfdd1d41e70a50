"""The guide about bootstrapped state: its code gives the job the state of the first files, and the job continues."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow import diff, read_metadata, read_state
from stateflow.runtime.task import store_cache
from tests.docs.pages import blocks, read
from tests.support import local_flights
from tests.support.cli_fixture import invoke
from tests.support.flights_job import delta_rows
from tests.support.job_fixture import multiset

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
    _forget_module()
    by_command = _command(job, tmp_path, settings)
    assert diff(savepoint, by_command).keys == 0
    _forget_module()
    in_hours = _changed_by_command(job, tmp_path, settings, by_command)
    assert _rows(in_hours, "running-delay", ["tailnum"]) == _rows(
        str(tmp_path / "changed"), "running-delay", ["tailnum"]
    )
    assert set(read_metadata(in_hours, "operators")["operator"].to_pylist()) == {"running-delay"}
    more = ["--job-root", str(tmp_path / "root"), "--from-savepoint", by_command, *settings]
    _forget_module()
    ended = invoke("run", str(job), *more)
    store_cache.close_all()
    assert ended.exit_code == 0, ended.output
    for table, wanted in local_flights.expected(files, skip=2).items():
        assert multiset(delta_rows(tmp_path / "tables" / table)) == multiset(wanted)
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


def _command(job: Path, folder: Path, settings: list[str]) -> str:
    """Writes the savepoint with the command of the guide; returns its path."""
    (text,) = (block for block in blocks(GUIDE, "") if block.startswith("stateflow savepoint write"))
    output = str(folder / "by-command")
    given = {"flights.py": str(job), "/var/savepoints/history": output}
    given["flights=timestamp:2026-02-01T00:00"] = 'flights={"file": 2}'
    words = [given.pop(word, word) for word in shlex.split(text.replace("\\\n", " "))[1:]]
    assert not given
    ended = invoke(*words, *settings)
    assert ended.exit_code == 0, ended.output
    return output


def _changed_by_command(job: Path, folder: Path, settings: list[str], savepoint: str) -> str:
    """Changes the savepoint with the command of the guide; returns the path of the copy."""
    (text,) = (block for block in blocks(GUIDE, "") if block.startswith("stateflow savepoint change"))
    (code,) = (block for block in blocks(GUIDE, "python") if "def in_hours" in block)
    function = code[code.index("def in_hours") : code.index("writer =")]
    (folder / "changes.py").write_text(f"import pyarrow as pa\n\n\n{function}")
    output = str(folder / "changed-by-command")
    given = {"flights.py": str(job), "/var/savepoints/history": savepoint, "/var/savepoints/changed": output}
    words = [given.pop(word, word) for word in shlex.split(text.replace("\\\n", " "))[1:]]
    assert not given
    ended = invoke(*words, *settings)
    assert ended.exit_code == 0, ended.output
    return output
