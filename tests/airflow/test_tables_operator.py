"""The operator that optimizes and vacuums the tables of a job, over a real job and Delta tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.runtime.task import store_cache
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.retention import StateflowTablesOperator
from tests.airflow.fakes import FakeRun, fails
from tests.support.cli_fixture import CliFixture

_BUILD = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(HERE.parent / "newest", mode="upsert", keys="key"), uid="newest")
    totals.sink_to(DeltaSink(HERE.parent / "all"), uid="all")
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CliFixture]:
    """A job with three checkpoints and two tables."""
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.write(_BUILD)
    job.run()
    yield job
    store_cache.close_all()


def _execute(job: CliFixture, older_than: str = "0s", **more: Any) -> dict[str, Any]:
    code: dict[str, Any] = {"job": str(job.job), "job_root": job.root, "settings": job.settings}
    operator = StateflowTablesOperator(task_id="tables", older_than=older_than, **code, **more)
    return dict(operator.execute(FakeRun().next_try()))


def _files(job: CliFixture) -> int:
    return len(list(job.folder.glob("*/*.parquet")))


def test_tables_are_optimized_and_vacuumed_and_a_preview_changes_nothing(job: CliFixture) -> None:
    before = _files(job)
    planned = _execute(job, preview="True")
    assert _files(job) == before
    assert [(r["uid"], r["files_before"], r["files_after"]) for r in planned["optimized"]] == [
        ("all", 3, None),
        ("newest", 0, None),
    ]
    done = _execute(job)
    assert [(r["files_before"], r["files_after"]) for r in done["optimized"]] == [(3, 1), (0, 0)]
    holders = {r["uid"]: [h for held in r["held"] for h in held["holders"]] for r in done["vacuumed"]}
    assert holders["newest"] == holders["all"] != []
    assert _files(job) == before + 1 - sum(r["files"] for r in done["vacuumed"])


def test_tables_can_be_selected_and_only_vacuumed(job: CliFixture) -> None:
    done = _execute(job, tables=["newest"], optimize=False)
    assert (done["optimized"], [r["uid"] for r in done["vacuumed"]]) == ([], ["newest"])


def test_a_wrong_duration_and_a_missing_job_file_are_not_retried(job: CliFixture) -> None:
    with fails(PermanentFailure, "config", older_than="soon"):
        _execute(job, older_than="soon")
    job.job.unlink()
    with fails(PermanentFailure, "config", job=str(job.job)):
        _execute(job)
