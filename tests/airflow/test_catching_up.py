"""DAG runs of any date, in any order, once more after a clear: each goes on from the head, and no row is there twice.

The operator launches stateflow itself, over a job that needs no Spark; only spark-submit is a stand-in, which starts
the program that it is given. test_system.py has the same under a whole Airflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow_airflow.failures import TransientFailure
from tests.airflow.fakes import FakeRun
from tests.airflow.jobs import new_run, run_task, use_submit
from tests.support.job_fixture import AccountsJob


class Dag:
    """One DAG with one task, over the accounts job."""

    def __init__(self, folder: Path) -> None:
        self.box = AccountsJob(folder / "job")
        self._runs: dict[str, FakeRun] = {}

    def run(self, date: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        """The next try of the DAG run of this date."""
        task = run_task(self.box, environment)
        run = self._runs.setdefault(date, new_run(date))
        return task.execute(run.next_try())

    def clear(self, date: str) -> dict[str, Any]:
        """Clears the DAG run of this date, which then runs once more."""
        self._runs[date].clear()
        return self.run(date)


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dag:
    use_submit(tmp_path, monkeypatch)
    return Dag(tmp_path)


def test_dates_mean_nothing_to_a_run(dag: Dag) -> None:
    dag.box.deliver(30)
    first = dag.run("2026-03-02")
    assert (first["rows_in"], first["batches"], first["started_from"]) == (30, 3, 0)

    # Caught up, then backfilled: nothing is new, whatever the date.
    for date in ("2026-03-03", "2026-01-01"):
        idle = dag.run(date)
        assert (idle["rows_in"], idle["batches"]) == (0, 0)
        assert idle["started_from"] == idle["checkpoint_id"] == first["checkpoint_id"]
        assert idle["offsets"] == first["offsets"]

    # What has come since belongs to whichever run is next: here an old one, that is cleared.
    dag.box.deliver(50)
    cleared = dag.clear("2026-03-02")
    assert (cleared["rows_in"], cleared["started_from"]) == (20, first["checkpoint_id"])
    assert dag.clear("2026-03-02")["rows_in"] == 0

    dag.box.deliver(60)
    newer = dag.run("2026-02-01")
    assert (newer["rows_in"], newer["started_from"]) == (10, cleared["checkpoint_id"])
    assert dag.box.requested() == [(n, n + 10) for n in range(0, 60, 10)]
    dag.box.check_results()


def test_a_date_whose_run_was_killed_goes_on_after_a_retry_and_after_another_date(dag: Dag) -> None:
    dag.box.deliver(40)
    kill = {"STATEFLOW_FAILPOINT": "batch.reported:3"}
    with pytest.raises(TransientFailure):
        dag.run("2026-01-01", kill)
    other = dag.run("2026-01-02")
    retried = dag.run("2026-01-01")
    # The third slice was read twice, and committed once.
    assert (other["rows_in"], retried["rows_in"]) == (20, 0)
    assert retried["started_from"] == other["checkpoint_id"]
    assert dag.box.requested() == [(0, 10), (10, 20), (20, 30), (20, 30), (30, 40)]
    dag.box.check_results()
