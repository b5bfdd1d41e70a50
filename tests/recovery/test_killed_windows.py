"""Savepoints, restores, claims, forks and new job roots of jobs with open windows and timers, killed at each step: when
the step is repeated, the results at the end of the input are those of plain Python."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import copy
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.recovery.histories import History
from tests.recovery.test_savepoints import MAKING, QUICK, SERVING
from tests.support.job_fixture import KILLED, OracleJob, mostly_slow
from tests.support.processes import Ended, wait_for
from tests.support.restores import go_back, kill_at_each_step, plan
from tests.windows.windows_job import WindowsJob

NAMES = ["late_windows", "triggered_windows", "windows"]
CREATE = ("savepoint", "create", "--name", "mine", "--request-id", "r1", "--json")
OF_EACH_FORMAT = [*product(MAKING, ["native"]), *product([*MAKING, "savepoint.share"], ["canonical"])]
BEGINNING = ["begin.created", "begin.imported", "begin.adopted", "claim.after", "task.restored:3", "task.fired:3"]
FORKING = ["fork.pinned", "fork.created", "fork.imported", "fork.adopted"]
RELOCATING = ["relocate.claimed", "relocate.stored", "relocate.adopted"]
CLAIM = ("--claim-mode", "claim")
DRAIN = {"run__drain": "yes"}


@pytest.fixture
def job(name: str, tmp_path: Path) -> Iterator[OracleJob]:
    """A job with open windows, at its 30th row."""
    with History(name, ()).begun(tmp_path / "job") as job:
        job.deliver_more(30)
        job.finish()
        assert job.waiting()
        yield job


def _check_end(job: OracleJob, **settings: object) -> None:
    """More rows arrive, and the input ends."""
    job.deliver_more(20)
    job.finish(**settings, **DRAIN)
    job.check_all()


@pytest.mark.parametrize(
    ("name", "point", "form"),
    mostly_slow(
        [(name, *each) for name, each in product(NAMES, OF_EACH_FORMAT)],
        [("windows", "savepoint.copied", "native"), ("late_windows", "savepoint.share", "canonical")],
    ),
)
def test_open_windows_are_in_a_savepoint_that_was_killed_and_made_again(job: OracleJob, point: str, form: str) -> None:
    create = (*CREATE, "--format", form)
    assert job.command(*create, failpoint=point).code == KILLED
    saved = job.found()
    job.command(*create).check()
    job.deliver_more(20)
    job.finish()
    assert job.found() != saved
    job.settings = {**job.settings, "parallelism": 3}
    go_back(job, "mine")
    assert job.found() == saved
    _check_end(job)


@pytest.mark.parametrize(("name", "point"), mostly_slow(product(NAMES, SERVING), [("windows", "savepoint.started")]))
def test_open_windows_survive_a_run_that_is_killed_in_a_savepoint(job: OracleJob, point: str) -> None:
    """The next run makes it, and the job can be restored to it."""
    job.settings = {**job.settings, **QUICK}
    job.deliver_more(20)
    job.reach("batch.begin:1")
    requester = job.begin(*CREATE, "--timeout", "60", "--acknowledge-timeout", "60")
    wait_for(lambda: any((job.root / "requests").glob("*")), lambda: "the request")
    job.reach(point)
    job.finish()
    requester.wait().check()
    job.check_all(drained=False)
    job.deliver_more(20)
    job.finish()
    go_back(job, "mine")
    _check_end(job)


@pytest.mark.parametrize("name", mostly_slow(NAMES, ["late_windows"]))
def test_open_windows_survive_a_restore_that_is_killed_at_each_step(job: OracleJob) -> None:
    saved = job.found()
    job.create_savepoint("mine")
    job.deliver_more(20)
    job.finish()
    job.settings = {**job.settings, "parallelism": 3, "state__backend": "filesystem"}
    kill_at_each_step(job, plan(job, "mine"))
    assert job.found() == saved
    _check_end(job)


@pytest.mark.spark
@pytest.mark.slow(reason="a kill at each step")
def test_open_windows_survive_a_relocation_that_is_killed_at_each_step(tmp_path: Path) -> None:
    job = WindowsJob(tmp_path / "job", {"job__spark": "yes"}, "windows")
    job.deliver_more(30)
    job.finish()
    assert job.waiting()
    old, new = job.folder / "in", tmp_path / "moved"
    shutil.move(old, new)
    relocate = ("source", "relocate", "--source", "readings", "--from", str(old), "--to", str(new), "--json")
    for point in RELOCATING:
        assert job.command(*relocate, failpoint=point).code == KILLED
    job.command(*relocate).check()
    old.symlink_to(new)  # where the job's rows are written
    job.settings = {**job.settings, "job__input": new}
    job.deliver_more(20)
    job.finish()
    _check_end(job)


# -- new job roots ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "point"), mostly_slow(product(NAMES, BEGINNING), [("windows", "task.fired:3")]))
def test_open_windows_survive_a_killed_start_from_a_savepoint(job: OracleJob, tmp_path: Path, point: str) -> None:
    savepoint = _savepoint(job, tmp_path)
    new = _new_root(job, tmp_path, parallelism=3)
    assert _start(new, savepoint, failpoint=point).code == KILLED
    _start(new, savepoint).check()
    new.check_all(drained=False)
    _check_end(new)


@pytest.mark.parametrize(
    ("name", "point"),
    mostly_slow(product(NAMES, ["savepoint.claimed", *BEGINNING]), [("windows", "savepoint.claimed")]),
)
def test_open_windows_survive_a_killed_start_that_claims_the_savepoint(
    job: OracleJob, tmp_path: Path, point: str
) -> None:
    savepoint = _savepoint(job, tmp_path)
    new = _new_root(job, tmp_path, parallelism=3, checkpoints__retained=1)
    assert _start(new, savepoint, *CLAIM, failpoint=point).code == KILLED
    _start(new, savepoint, *CLAIM).check()
    new.check_all(drained=False)
    _check_end(new)
    assert not Path(savepoint).exists()


@pytest.mark.parametrize(("name", "point"), mostly_slow(product(["windows"], FORKING), [("windows", "fork.created")]))
def test_open_windows_are_in_a_killed_fork(job: OracleJob, tmp_path: Path, point: str) -> None:
    """The fork has input and tables of its own; its tables have what comes after the savepoint.

    Only of this job is each result emitted once, so that the tables of both have the results of all rows.
    """
    fork = copy(job)
    fork.folder = tmp_path / "fork"
    fork.folder.mkdir()
    fork.deliver_more(0)
    command = ("fork", _savepoint(job, tmp_path), "--into", str(fork.root))
    assert job.command(*command, failpoint=point).code == KILLED
    job.command(*command).check()
    fork.settings = {**job.settings, "parallelism": 3}
    fork.deliver_more(20)
    fork.finish()
    fork.finish(**DRAIN)
    before, after = job.found(), fork.found()
    assert {name: before[name] + after[name] for name in before} == fork.wanted()
    _check_end(job)


@pytest.mark.parametrize(
    ("name", "step"), mostly_slow(product(NAMES, ["share", "rekeyed"]), [("triggered_windows", "rekeyed")])
)
def test_open_windows_survive_a_killed_change_of_max_parallelism(job: OracleJob, tmp_path: Path, step: str) -> None:
    into = ("--into", str(tmp_path / "kept"), "--name", "copy", "--json")
    command = ("savepoint", "rekey", _savepoint(job, tmp_path), "--max-parallelism", "7", *into)
    assert job.command(*command, failpoint=f"savepoint.{step}").code == KILLED
    copied = _path(job.command(*command).check())
    new = _new_root(job, tmp_path, parallelism=3, max_parallelism=7)
    _start(new, copied).check()
    new.check_all(drained=False)
    _check_end(new)


def _savepoint(job: OracleJob, folder: Path) -> str:
    """Makes a savepoint outside of the job root; returns its path."""
    return _path(job.command(*CREATE, "--into", str(folder / "kept")).check())


def _path(ended: Ended) -> str:
    return unquote(str(ended.document["path"]).removeprefix("file://"))


def _new_root(job: OracleJob, folder: Path, **settings: object) -> OracleJob:
    """Another job root for the job, with the same tables. More rows have arrived."""
    new = copy(job)
    new.root_folder = folder / "new"
    new.settings = {**job.settings, "local_dir": folder / "local", **settings}
    new.deliver_more(20)
    return new


def _start(new: OracleJob, savepoint: str, *more: str, failpoint: str = "") -> Ended:
    command = ("run", new.job_file, "--from-savepoint", savepoint, "--tables", "continue", *more)
    return new.command(*command, failpoint=failpoint, with_job=True)
