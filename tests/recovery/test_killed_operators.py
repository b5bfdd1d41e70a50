"""Windows, joins, changelogs and patterns in jobs that are killed: the results are those of plain Python."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stateflow.failpoints import NAMES
from tests.recovery.histories import JOBS, History, Step
from tests.recovery.test_failpoints import HERE

_QUICK = {
    ("changelogs", "publish.after"),
    ("joins", "commit.manifest"),
    ("patterns", "batch.reported"),
    ("windows", "publish.before"),
}
"""One of each job."""
# Without event time, a job has no timers.
_KILLS = [each for each in product(JOBS, HERE) if each != ("changelogs", "task.fired")]


def _parameters() -> list[Any]:
    return [pytest.param(*each, marks=() if each in _QUICK else pytest.mark.slow) for each in _KILLS]


@pytest.mark.parametrize(("name", "failpoint"), _parameters())
def test_results_survive_a_kill_at_each_failpoint(tmp_path: Path, name: str, failpoint: str) -> None:
    kill = f"{failpoint}:{4 if failpoint.startswith('task.') else 1}"
    # Joins are declared by rows at first, and by columns from then on.
    history = History(name, (Step(30, columns=False), Step(20, kill=kill), Step(30, parallelism=3)), retained=2)
    with history.begun(tmp_path / "job") as job:
        assert history.play(job) == [kill]
        # Results wait at the end of each run: only the end of the input emits the last ones.
        assert job.waiting() or job.complete == job.wanted().keys()
        assert history.drain(job) == [] and all(job.wanted().values())


def test_the_failpoints_are_those_of_a_run_without_requests() -> None:
    assert set(_QUICK) <= set(_KILLS) and set(HERE) <= NAMES.keys()
