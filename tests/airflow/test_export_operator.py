"""The operator that exports a state, over a real job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.export import StateflowExportOperator
from tests.airflow.fakes import FakeRun, fails
from tests.serving.shops_job import ShopsJob


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> ShopsJob:
    jobs = ShopsJob(tmp_path_factory.mktemp("job"))
    jobs.sell(20)
    jobs.sell(5)
    return jobs


def _operator(jobs: ShopsJob, output: Path | str, **more: Any) -> StateflowExportOperator:
    arguments: dict[str, Any] = {
        "job_root": jobs.root,
        "operator_uid": "totals",
        "state_name": "largest",
        "into": str(output),
        "locations": [str(jobs.folder / "exports")],
        **more,
    }
    return StateflowExportOperator(task_id="export", **arguments)


def test_a_task_writes_the_rows_of_a_snapshot_and_a_retry_replaces_them(jobs: ShopsJob) -> None:
    first, newest = sorted(jobs.expected)
    output = jobs.folder / "exports" / "2026-01-31" / "largest.jsonl"
    run, asset = FakeRun(), Asset("exports")
    for snapshot in (str(first), "", newest):
        found = _operator(jobs, output, snapshot=snapshot, outlets=[asset]).execute(run.next_try())
        wanted = jobs.expected[first if snapshot == str(first) else newest].largest
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert {(row["shop"], row["day"]): row["value"] for row in rows} == wanted
        assert (found["rows"], found["bytes"]) == (len(wanted), output.stat().st_size)
        assert run.events[asset].extra == found
    assert [path.name for path in output.parent.iterdir()] == ["largest.jsonl"]
    assert JobRoot.open(jobs.storage, jobs.clock).head().entry.pinned == []


def test_the_name_of_a_file_gives_its_format_unless_an_argument_does(jobs: ShopsJob) -> None:
    largest = jobs.expected[max(jobs.expected)].largest
    for name, stored_as in (("a.parquet", ""), ("b.rows", "parquet")):
        output = jobs.folder / "exports" / name
        _operator(jobs, output, stored_as=stored_as).execute(FakeRun().next_try())
        rows = pq.read_table(output).to_pylist()
        assert {(row["shop"], row["day"]): row["value"] for row in rows} == largest


@pytest.mark.parametrize(
    "wrong",
    [
        {"into": "relative.jsonl"},
        {"into": "/elsewhere/rows.jsonl"},
        {"into": "{exports}/"},
        {"into": "{root}/log/rows.jsonl", "locations": ["{root}"]},
        {"stored_as": "csv"},
        {"state_name": "larger"},
        {"operator_uid": "total"},
        {"snapshot": "99"},
        {"job_root": "relative"},
    ],
)
def test_a_wrong_argument_is_not_retried_and_leaves_no_file(
    jobs: ShopsJob, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    places = {"exports": str(tmp_path), "root": jobs.root}
    given: dict[str, Any] = {
        name: [text.format(**places) for text in value] if isinstance(value, list) else value.format(**places)
        for name, value in wrong.items()
    }
    with fails(PermanentFailure, "config"):
        into = given.pop("into", tmp_path / "rows.jsonl")
        _operator(jobs, into, **{"locations": [str(tmp_path)], **given}).execute(FakeRun().next_try())
    assert list(tmp_path.iterdir()) == []
    assert not jobs.storage.list("log/rows")
