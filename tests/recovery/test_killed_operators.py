"""Windows, joins and changelogs in jobs that are killed and restored: with the same input and a final watermark,
the results are those of plain Python, whatever the batches, the parallelism, the kills and the restores.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/recovery/test_killed_operators.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from stateflow.failpoints import NAMES
from tests.changelogs.changelogs_job import ChangelogsJob
from tests.joins.joins_job import JoinsJob
from tests.support import root_files
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, OracleJob, mostly_slow
from tests.support.mutants import planted
from tests.support.processes import Ended
from tests.support.restores import go_back, kill_at_each_step, plan
from tests.windows.windows_job import WindowsJob

JOBS: dict[str, type[OracleJob]] = {"changelogs": ChangelogsJob, "joins": JoinsJob, "windows": WindowsJob}
"""The jobs by the names of their files."""
HERE = sorted(NAMES.keys() - {"start.seeded"} - ON_REQUEST - ASYNCHRONOUS)
"""The failpoints that each run without Spark passes."""
CHECKPOINTS: dict[str, dict[str, object]] = {
    "each": {},
    "third": {"checkpoints__interval_batches": 3},
    "asynchronous": {"checkpoints__asynchronous": "yes"},
}
"""Which barriers become checkpoints, and when."""
SAVED = "saved"
"""The savepoint at the end of the first run of a history that is not killed."""


@dataclass(frozen=True)
class Step:
    """A run.

    Attributes:
        rows: how many rows arrive before it.
        checkpoints: a name of `CHECKPOINTS`.
        backend: the state backend.
        kill: the failpoint at which the run is killed, with a count, if the run reaches it; empty for no kill.
        back: what the job is restored to before the run: ``saved``, ``oldest`` or ``previous``, of the checkpoints
            that are kept; empty to continue.
        columns: whether joins are declared by columns, instead of by rows.
    """

    rows: int
    parallelism: int = 2
    batch_rows: int = 10
    checkpoints: str = "each"
    backend: str = "rocksdb"
    kill: str = ""
    back: str = ""
    columns: bool = True

    @property
    def settings(self) -> dict[str, object]:
        """The settings of the run."""
        job = {"job__batch_rows": self.batch_rows, "job__columns": "yes" if self.columns else "no"}
        return {"parallelism": self.parallelism, "state__backend": self.backend, **job, **CHECKPOINTS[self.checkpoints]}


@dataclass(frozen=True)
class History:
    """The runs of a job.

    Attributes:
        job: a name of `JOBS`.
        last: the run that drains.
        seed: of the rows; None for the job's own.
        retained: number of checkpoints that are kept.
    """

    job: str
    steps: tuple[Step, ...]
    last: Step = Step(0)
    seed: int | None = None
    retained: int = 100

    @property
    def kills(self) -> list[str]:
        """Where runs are to be killed."""
        return [step.kill for step in (*self.steps, self.last) if step.kill]

    @property
    def restores(self) -> int:
        """How often the job is to be restored."""
        return sum(step.back != "" for step in (*self.steps, self.last))

    @contextmanager
    def begun(self, folder: Path) -> Iterator[OracleJob]:
        """The job in a folder of its own, before the first run."""
        settings = {"checkpoints__collect_every": 2, "checkpoints__retained": self.retained}
        job = JOBS[self.job](folder, settings, job_name=self.job)
        job.seed = job.seed if self.seed is None else self.seed
        try:
            yield job
        finally:
            job.end_all()

    def play(self, job: OracleJob) -> list[str]:
        """Plays all runs but the last one; checks the tables after each that ends; returns where runs were killed."""
        killed, saves = [], any(step.back == SAVED for step in (*self.steps, self.last))
        for step in self.steps:
            if _is_killed(job, step):
                killed.append(step.kill)
                continue
            job.check_all(drained=False)
            if saves and not job.savepoints:
                job.create_savepoint(SAVED)
        return killed

    def drain(self, job: OracleJob) -> list[str]:
        """Plays the last run, repeats it if it is killed, and checks the tables; returns where it was killed."""
        killed = [self.last.kill] if _is_killed(job, self.last, run__drain="yes") else []
        if killed:
            job.finish(**self.last.settings, run__drain="yes")
        job.check_all()
        return killed


def _is_killed(job: OracleJob, step: Step, **more: object) -> bool:
    """Plays a run; returns whether it was killed: it may end without passing its failpoint as often."""
    job.deliver_more(step.rows)
    _go_back(job, step.back)
    if not step.kill:
        job.finish(**step.settings, **more)
        return False
    ended = job.run(step.kill, **step.settings, **more)
    assert ended.code == (KILLED if job.marker.exists() else 0), str(ended)
    return ended.code == KILLED


def _go_back(job: OracleJob, to: str) -> None:
    """Restores the job, if the checkpoint exists; a job that was killed early has no log."""
    kept = [str(entry.seq) for entry in root_files.kept_entries(job.root)] if root_files.entries(job.root) else []
    targets = {"oldest": kept[:1], "previous": kept[-2:-1], SAVED: [SAVED] if SAVED in job.savepoints else []}
    for target in targets.get(to, []):
        go_back(job, target)


_kills = st.builds(
    "{}:{}".format, st.sampled_from(sorted({*HERE, *ASYNCHRONOUS})), st.sampled_from([1, 2, 3, 5, 9, 20, 40])
)


def _steps(least_rows: int) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        rows=st.integers(least_rows, 45),
        parallelism=st.integers(1, 4),
        batch_rows=st.sampled_from([4, 10, 100]),
        checkpoints=st.sampled_from(sorted(CHECKPOINTS)),
        backend=st.sampled_from(["rocksdb", "filesystem"]),
        kill=st.just("") | _kills,
        back=st.sampled_from(["", "", SAVED, "oldest", "previous"]),
        columns=st.booleans(),
    )


histories = st.builds(
    History,
    job=st.sampled_from(sorted(JOBS)),
    steps=st.lists(_steps(1), min_size=1, max_size=3).map(tuple),
    last=_steps(0),
    seed=st.integers(0, 1000),
    retained=st.sampled_from([2, 100]),
)
"""Any history of any job. Failpoints and counts are drawn, too: some runs do not pass theirs as often as that."""


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
