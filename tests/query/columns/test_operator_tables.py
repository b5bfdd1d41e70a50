"""Operator state of every kind as tables, from checkpoints and savepoints of a job."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import stateflow
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.clock import ManualClock
from stateflow.operations import SavepointRequest, create_savepoint
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job, group_of

GROUPS = 32
COLLECTED = [Row(number, "abc"[number % 3], number % 4, "collect", at=-1) for number in range(12)]
RATES = [Row(20 + number, "a", 1, "rate", name="xy"[number % 2], value=number, at=-1) for number in range(5)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    jobs = LocalJobs(tmp_path_factory.mktemp("job"), ManualClock(), max_parallelism=GROUPS, parallelism=2)
    jobs.run(build_job(jobs, [*COLLECTED, *RATES], GROUPS), source__max_rows_per_batch=1000)
    root = str(jobs.folder / "root")
    for form in SavepointFormat:
        create_savepoint(root, SavepointRequest(name=form.value, format=form, from_head=True))
    yield root


@pytest.fixture(params=[None, *(form.value for form in SavepointFormat)])
def snapshot(request: pytest.FixtureRequest) -> str | None:
    name: str | None = request.param
    return name


def _rows(root: str, snapshot: str | None, operator: str, state: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stateflow.read_state(root, operator, state, snapshot, **more).read_all().to_pylist()
    return found


def test_lists_have_the_elements_of_all_subtasks(root: str, snapshot: str | None) -> None:
    numbers = {row.number for row in COLLECTED}
    for state, kind in (("numbers", "split-list"), ("union", "union-list")):
        rows = _rows(root, snapshot, "every", f"_operator/{state}")
        assert {row["value"] for row in rows} == numbers and {row["kind"] for row in rows} == {kind}
        assert len(rows) == len(numbers) and {row["subtask"] for row in rows} == {0, 1}


def test_broadcast_state_has_each_entry_once(root: str, snapshot: str | None) -> None:
    rows = _rows(root, snapshot, "rates", "_operator/rates", columns=["map_key", "value"])
    assert sorted((row["map_key"], row["value"]) for row in rows) == [("x", 6), ("y", 4)]


def test_raw_state_has_the_bytes_that_the_function_has_written(root: str, snapshot: str | None) -> None:
    rows = _rows(root, snapshot, "every", "_raw")
    assert sorted(int(row["value"]) for row in rows) == sorted(row.number for row in COLLECTED)
    wanted: dict[int, list[int]] = defaultdict(list)
    for row in COLLECTED:
        wanted[group_of(row.place, GROUPS)].append(row.number)
    rows = _rows(root, snapshot, "every", "_raw_keyed")
    found = {row["key_group"]: sorted(json.loads(row["value"])) for row in rows}
    assert found == wanted
    first = min(wanted)
    some = _rows(root, snapshot, "every", "_raw_keyed", key_groups=(0, first), columns=["key_group"])
    assert some == [{"key_group": first}]
