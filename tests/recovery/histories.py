"""Histories of a job: runs over more and more rows with kills and restores, and the last one, which drains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from stateflow.failpoints import NAMES
from tests.changelogs.changelogs_job import ChangelogsJob
from tests.joins.joins_job import JoinsJob
from tests.support import root_files
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, OracleJob
from tests.support.restores import go_back
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
