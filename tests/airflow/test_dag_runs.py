"""DAG runs of a task over a real job, in any order of their dates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow_airflow.failures import PermanentFailure, TransientFailure
from tests.airflow.fakes import FakeRun, fails
from tests.airflow.jobs import new_run, run_task, use_submit
from tests.support.job_fixture import AccountsJob


class OneTaskDag:
    """A DAG with one task, over a job without Spark; only spark-submit is a stand-in, which starts the program."""

    def __init__(self, folder: Path) -> None:
        self.job = AccountsJob(folder / "job")
        self._runs: dict[str, FakeRun] = {}

    def run(self, date: str, failpoint: str = "") -> dict[str, Any]:
        """The next try of the DAG run of this date."""
        run = self._runs.setdefault(date, new_run(date))
        return run_task(self.job, {"STATEFLOW_FAILPOINT": failpoint}).execute(run.next_try())

    def clear(self, date: str) -> dict[str, Any]:
        self._runs[date].clear()
        return self.run(date)


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneTaskDag:
    use_submit(tmp_path, monkeypatch)
    return OneTaskDag(tmp_path)


def test_the_failure_of_a_real_run_has_the_facts_of_its_error(dag: OneTaskDag) -> None:
    dag.job.settings = {"parallelism": 0}
    dag.job.deliver(1)
    with fails(PermanentFailure, "config", name="parallelism", value="0"):
        dag.run("2026-01-01")


@pytest.mark.slow(reason="launches seven runs in processes of their own")
def test_a_run_of_any_date_continues_from_the_head(dag: OneTaskDag) -> None:
    dag.job.deliver(30)
    first = dag.run("2026-03-02")
    assert (first["rows_in"], first["batches"], first["started_from"]) == (30, 3, 0)

    # Caught up, then backfilled: nothing is new, whatever the date.
    for date in ("2026-03-03", "2026-01-01"):
        idle = dag.run(date)
        assert (idle["rows_in"], idle["batches"]) == (0, 0)
        assert idle["started_from"] == idle["checkpoint_id"] == first["checkpoint_id"]
        assert idle["offsets"] == first["offsets"]

    # What has come since belongs to whichever run is next: here an old one, that is cleared.
    dag.job.deliver(50)
    cleared = dag.clear("2026-03-02")
    assert (cleared["rows_in"], cleared["started_from"]) == (20, first["checkpoint_id"])
    assert dag.clear("2026-03-02")["rows_in"] == 0

    dag.job.deliver(60)
    newer = dag.run("2026-02-01")
    assert (newer["rows_in"], newer["started_from"]) == (10, cleared["checkpoint_id"])
    assert dag.job.requested() == [(n, n + 10) for n in range(0, 60, 10)]
    dag.job.check_results()


@pytest.mark.slow(reason="launches three runs in processes of their own")
def test_a_date_whose_run_was_killed_continues_after_a_retry_and_after_another_date(dag: OneTaskDag) -> None:
    dag.job.deliver(40)
    with pytest.raises(TransientFailure):
        dag.run("2026-01-01", "batch.reported:3")
    other = dag.run("2026-01-02")
    retried = dag.run("2026-01-01")
    # The third slice was read twice, and committed once.
    assert (other["rows_in"], retried["rows_in"]) == (20, 0)
    assert retried["started_from"] == other["checkpoint_id"]
    assert dag.job.requested() == [(0, 10), (10, 20), (20, 30), (20, 30), (30, 40)]
    dag.job.check_results()
