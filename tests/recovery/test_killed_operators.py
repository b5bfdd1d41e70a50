"""Windows, joins and changelogs in jobs that are killed and restored: with the same input and a final watermark,
the results are those of plain Python, whatever the batches, the parallelism, the kills and the restores.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/recovery/test_killed_operators.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import event, example, given, settings

from tests.joins.joins_job import JoinsJob
from tests.recovery.histories import HERE, JOBS, History, Step, histories
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, OracleJob, mostly_slow
from tests.support.mutants import planted
from tests.support.processes import Ended
from tests.support.restores import kill_at_each_step, plan

_QUICK = {("joins", "commit.manifest"), ("windows", "batch.reported")}
"""What `make test` runs."""
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


@pytest.mark.slow(reason="starts a process for each kill")
def test_rows_of_a_join_expire_in_a_job_that_is_killed(tmp_path: Path) -> None:
    history = History("joins", (Step(40), Step(20, kill="commit.after:1"), Step(20, parallelism=3)))
    with history.begun(tmp_path / "job") as job:
        assert history.play(job) == ["commit.after:1"] and isinstance(job, JoinsJob)
        assert 0 < job.stored_rows("expiring") < job.stored_rows("regular") == 160
        history.drain(job)


_PINNED = (
    History(
        "windows",
        (
            Step(30, parallelism=1, batch_rows=100),
            Step(20, parallelism=3, kill="task.fired:9"),
            Step(10, parallelism=2, batch_rows=4, back="saved"),
        ),
        Step(10, kill="commit.after:1"),
    ),
    History(
        "joins",
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
@pytest.mark.slow(reason="runs whole jobs from random histories")
def test_results_do_not_depend_on_batches_parallelism_kills_and_restores(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    with history.begun(tmp_path_factory.mktemp("history") / "job") as job:
        killed, restored = history.play(job) + history.drain(job), len(job.records("restore"))
    assert (killed, restored) == (history.kills, history.restores) or history not in _PINNED
    event(f"{len(killed)} of {len(history.kills)} kills, {restored} of {history.restores} restores")
    for point in killed:
        event(f"killed at {point.partition(':')[0]}")


@pytest.mark.slow(reason="plays whole histories with each bug")
@pytest.mark.parametrize("bug", ["lost-timers", "colliding-elements", "no-namespaces", "no-token"])
def test_planted_bugs_of_state_and_sinks_change_results(tmp_path: Path, bug: str) -> None:
    with planted(bug), pytest.raises(AssertionError):
        for history in _PINNED:
            with history.begun(tmp_path / history.job) as job:
                history.play(job)
                history.drain(job)


# -- savepoints, restores and new job roots with open windows and timers ---------------------------------------------

BEGINNING = ["begin.imported", "claim.after", "task.restored:3", "task.fired:3"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[OracleJob]:
    """A job with open windows, at its 30th row."""
    with History("windows", ()).begun(tmp_path / "job") as job:
        job.deliver_more(30)
        job.finish()
        assert job.waiting()
        yield job


def _check_end(job: OracleJob) -> None:
    """More rows arrive, and the input ends."""
    job.deliver_more(20)
    job.finish(run__drain="yes")
    job.check_all()


@pytest.mark.parametrize("form", ["native", "canonical"])
@pytest.mark.slow(reason="starts a process for each kill")
def test_open_windows_survive_a_savepoint_and_a_restore_that_are_killed_at_each_step(job: OracleJob, form: str) -> None:
    saved = job.found()
    create = ("savepoint", "create", "--name", "mine", "--request-id", "r1", "--format", form)
    assert job.command(*create, failpoint="savepoint.copied").code == KILLED
    job.command(*create).check()
    job.deliver_more(20)
    job.finish()
    assert job.found() != saved
    job.settings = {**job.settings, "parallelism": 3, "state__backend": "filesystem"}
    kill_at_each_step(job, plan(job, "mine"))
    assert job.found() == saved
    _check_end(job)


@pytest.mark.parametrize(("point", "groups"), mostly_slow(product(BEGINNING, [128, 7]), []))
def test_open_windows_survive_a_killed_start_from_a_savepoint(
    job: OracleJob, tmp_path: Path, point: str, groups: int
) -> None:
    """Also from a copy with another max parallelism."""
    into = ("--into", str(tmp_path / "kept"), "--json")
    savepoint = _path(job.command("savepoint", "create", "--name", "mine", *into).check())
    if groups != 128:
        rekey = ("savepoint", "rekey", savepoint, "--max-parallelism", str(groups), "--name", "copy")
        savepoint = _path(job.command(*rekey, *into).check())
    new = copy(job)
    new.root_folder = tmp_path / "new"
    new.settings = {**job.settings, "local_dir": tmp_path / "local", "parallelism": 3, "max_parallelism": groups}
    new.deliver_more(20)
    start = ("run", new.job_file, "--from-savepoint", savepoint, "--tables", "continue")
    assert new.command(*start, failpoint=point, with_job=True).code == KILLED
    new.command(*start, with_job=True).check()
    new.check_all(drained=False)
    _check_end(new)


def _path(ended: Ended) -> str:
    return unquote(str(ended.document["path"]).removeprefix("file://"))
