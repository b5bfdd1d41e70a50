"""The state of open windows, as users read it and write it again: in checkpoints, comparisons, savepoints and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stateflow
from stateflow import TimeWindow
from tests.bootstrap.test_state_files import stored_content
from tests.support.cli_fixture import invoke
from tests.windows.windows_job import WindowsJob

Content = dict[tuple[str, TimeWindow], Any]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WindowsJob]:
    job = WindowsJob(tmp_path / "job", {"checkpoints__retained": 100}, job_name="windows")
    job.deliver(40)
    job.finish()
    yield job
    job.end_all()


def _windows(location: Path, operator: str, snapshot: int | None = None, field: str = "value") -> Content:
    rows = stateflow.read_state(str(location), operator, "window-contents", snapshot).read_all().to_pylist()
    found: Content = {}
    for row in rows:
        assert row["namespace"]["type"] == "window"
        of = found.setdefault((row["sensor"], TimeWindow.parse(row["namespace"]["value"])), [])
        of.append(row["value"][field])
    return found


def _open_hours(job: WindowsJob) -> Content:
    """The windows that have not been written to the table."""
    waiting = job.hours() - job.windows("hours")
    return {(sensor, TimeWindow(start, end)): [value] for sensor, start, end, value in waiting}


@pytest.mark.long(reason="runs a job as processes")
def test_open_windows_are_rows_with_their_window_and_a_comparison_has_those_that_differ(job: WindowsJob) -> None:
    first, hours = job.head.checkpoint, _windows(job.root, "hours")
    assert hours == _open_hours(job) == _windows(job.root, "column-hours", field="value__sum") and len(hours) > 1
    sessions = stateflow.read_state(str(job.root), "sessions", "merging-window-set").read_all().to_pylist()
    contents = _windows(job.root, "sessions")
    found = {
        (row["sensor"], each["start"], each["end"], sum(contents[row["sensor"], TimeWindow(*_state_window(each))]))
        for row in sessions
        for each in row["value"]
    }
    assert found == set(job.sessions() - job.windows("sessions"))
    rows = stateflow.read_state(str(job.root), "all-hours", "window-contents").read_all().to_pylist()
    assert {row["all_rows"] for row in rows} == {0}
    of_all = {(TimeWindow.parse(row["namespace"]["value"]), row["value"]["value"]) for row in rows}
    waiting = job.all_hours() - job.windows("all-hours")
    assert of_all == {(TimeWindow(start, end), value) for _, start, end, value in waiting} and of_all
    job.deliver(60)
    job.finish()
    changes = stateflow.diff(f"{job.root}@{first}", str(job.root)).changes
    assert changes is not None
    rows = [row for row in changes.read_all().to_pylist() if row["state"] == "window-contents"]
    differing = {
        (json.loads(row["key"])[0], TimeWindow.parse(json.loads(row["namespace"])))
        for row in rows
        if row["operator"] == "hours"
    }
    changed = hours.keys() ^ _windows(job.root, "hours").keys()
    assert changed and changed <= differing
    assert {row["key"] for row in rows if row["operator"] == "all-hours"} == {"[0]"}


def _state_window(session: dict[str, int]) -> tuple[int, int]:
    return session["state_start"], session["state_end"]


@pytest.mark.long(reason="runs a job as processes")
def test_a_job_continues_its_windows_from_a_canonical_savepoint_with_other_key_groups(
    job: WindowsJob, tmp_path: Path
) -> None:
    saved = job.create_savepoint("before", "--format", "canonical")
    assert _windows(Path(saved["path"]), "hours") == _windows(job.root, "hours")
    new = WindowsJob(tmp_path / "new", {"max_parallelism": 64, "parallelism": 3}, job_name="windows")
    new.deliver(80)
    for name in ("hours", "sessions", "column-hours", "column-sessions", "all-hours", "column-all-hours"):
        new.table(name).parent.mkdir(exist_ok=True)
        job.table(name).rename(new.table(name))
    new.begin(
        "run", new.job_file, "--from-savepoint", saved["path"], "--tables", "continue", with_job=True
    ).wait().check()
    new.finish(run__drain="yes")
    assert new.by_columns("hours") == new.hours() and new.by_columns("sessions") == new.sessions()
    assert new.windows("hours") == new.hours() and new.windows("sessions") == new.sessions()
    assert new.windows("all-hours") == new.by_columns("all-hours") == new.all_hours()
    new.end_all()


@pytest.mark.slow(reason="a job on Spark and commands that read and write its savepoint")
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_exported_windows_are_written_again_with_their_timers(job: WindowsJob, tmp_path: Path, kind: str) -> None:
    saved = job.create_savepoint("before", "--format", "canonical")["path"]
    states = []
    for number, state in enumerate(stateflow.read_metadata(saved, "states").to_pylist()):
        file = str(tmp_path / f"{number}.{kind}")
        which = ["--operator", state["operator"], "--state", state["state"]]
        assert invoke("state", "export", saved, *which, "--output", file).exit_code == 0
        states += ["--state", f"{state['operator']}.{state['state']}={file}"]
    settings = ["--set", f"job.folder={job.folder}"]
    written = str(tmp_path / "written")
    ended = invoke("savepoint", "write", job.job_file, "--output", written, *states, *settings)
    assert ended.exit_code == 0, ended.output
    assert stored_content(written) == stored_content(saved)
    assert stateflow.diff(saved, written).keys == 0
