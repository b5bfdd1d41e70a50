"""Windows, joins, changelogs, patterns and SQL in jobs that are killed and restored: with the same input and a final
watermark, the results are those of plain Python, whatever the batches, the parallelism, the kills and the restores.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/recovery/test_killed_operators.py``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import event, example, given, settings

from stateflow.failpoints import NAMES
from tests.joins.joins_job import JoinsJob
from tests.recovery.histories import JOBS, History, Step, histories
from tests.recovery.test_failpoints import HERE
from tests.support.job_fixture import ASYNCHRONOUS, mostly_slow
from tests.support.mutants import planted
from tests.windows.firings import FiringJob

_QUICK = {
    ("changelogs", "publish.after"),
    ("joins", "commit.manifest"),
    ("late_windows", "commit.after"),
    ("patterns", "batch.reported"),
    ("windows", "publish.before"),
    ("windows", "upload.after"),
}
"""One of each job that has no pinned history."""
# Without event time, a job has no timers.
_KILLS = [each for each in product(JOBS, [*HERE, *sorted(ASYNCHRONOUS)]) if each != ("changelogs", "task.fired")]


@pytest.mark.parametrize(("name", "failpoint"), mostly_slow(_KILLS, _QUICK))
def test_results_survive_a_kill_at_each_failpoint(tmp_path: Path, name: str, failpoint: str) -> None:
    kill = f"{failpoint}:{4 if failpoint.startswith('task.') else 1}"
    second = Step(20, kill=kill, checkpoints="asynchronous" if failpoint in ASYNCHRONOUS else "each")
    # Joins are declared by rows at first, and by columns from then on.
    history = History(name, (Step(30, columns=False), second, Step(30, parallelism=3)), retained=2)
    with history.begun(tmp_path / "job") as job:
        assert history.play(job) == [kill]
        # Results wait at the end of each run: only the end of the input emits the last ones.
        assert job.waiting() or job.complete == job.wanted().keys()
        assert history.drain(job) == [] and all(job.wanted().values())


_SAME_BATCHES = (Step(30), Step(20), Step(30, parallelism=3))
_FIRING = [*product(["late_windows", "triggered_windows"], ["task.fired:5", "batch.reported:2", "publish.before:3"])]


@pytest.mark.parametrize(("name", "kill"), mostly_slow(_FIRING, [("late_windows", "publish.before:3")]))
def test_each_early_and_late_result_survives_a_kill_if_the_batches_are_the_same(
    tmp_path: Path, name: str, kill: str
) -> None:
    whole, killed = (_played(tmp_path / f"job{each}", name, each) for each in ("", kill))
    assert killed.firings() == whole.firings()
    assert all(whole.of_batches().values()), "the readings or the batches test less than they should"


def _played(folder: Path, name: str, kill: str) -> FiringJob:
    """The job after runs of which the second is killed, unless `kill` is empty."""
    first, second, third = _SAME_BATCHES
    history = History(name, (first, replace(second, kill=kill), third))
    with history.begun(folder) as job:
        assert history.play(job) == history.kills and isinstance(job, FiringJob)
        history.drain(job)
    return job


def test_rows_of_a_join_expire_in_a_job_that_is_killed(tmp_path: Path) -> None:
    history = History("joins", (Step(40), Step(20, kill="commit.after:1"), Step(20, parallelism=3)))
    with history.begun(tmp_path / "job") as job:
        assert history.play(job) == ["commit.after:1"] and isinstance(job, JoinsJob)
        assert 0 < job.stored_rows("expiring") < job.stored_rows("regular") == 160
        history.drain(job)


def test_the_failpoints_are_those_of_a_run_without_requests() -> None:
    assert set(HERE) <= NAMES.keys()


_PINNED = (
    History(
        "triggered_windows",
        (
            Step(30, parallelism=1, batch_rows=100),
            Step(20, parallelism=3, kill="task.fired:9"),
            Step(10, parallelism=2, batch_rows=4, back="saved"),
        ),
        Step(10, kill="commit.after:1"),
    ),
    History(
        "corrected_joins",
        (
            Step(20, parallelism=3, kill="commit.manifest:2"),
            Step(20, parallelism=1, batch_rows=4, checkpoints="third", backend="filesystem", kill="publish.before:9"),
            Step(0, checkpoints="asynchronous", back="oldest"),
        ),
        Step(20, batch_rows=100),
    ),
)
"""Kills at timers, before and after a commit and in publishing; a restore to a savepoint and one to a checkpoint."""


@settings(max_examples=max(2, settings().max_examples // 40))
@given(histories)
@example(_PINNED[0])
@example(_PINNED[1])
def test_results_do_not_depend_on_batches_parallelism_kills_and_restores(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    with history.begun(tmp_path_factory.mktemp("history") / "job") as job:
        killed, restored = history.play(job) + history.drain(job), len(job.records("restore"))
    assert (killed, restored) == (history.kills, history.restores) or history not in _PINNED
    event(f"{len(killed)} of {len(history.kills)} kills, {restored} of {history.restores} restores")
    for point in killed:
        event(f"killed at {point.partition(':')[0]}")


@pytest.mark.slow(reason="plays histories until each bug is found")
@pytest.mark.parametrize("bug", ["lost-timers", "newest-first", "colliding-elements", "no-namespaces", "no-token"])
def test_planted_bugs_of_state_and_sinks_change_results(tmp_path: Path, bug: str) -> None:
    with planted(bug), pytest.raises(AssertionError):
        for history in _PINNED:
            with history.begun(tmp_path / history.job) as job:
                history.play(job)
                history.drain(job)
