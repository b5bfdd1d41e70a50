"""Savepoints that jobs claim while processes are killed, stopped, or claim and delete the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.recovery.canonical_state import BACKENDS
from tests.recovery.new_roots import NewRoot
from tests.scoreboard.jobs import Kills, accounts_job
from tests.scoreboard.row import Round, Row
from tests.support import root_files, stored_state
from tests.support.job_fixture import AccountsJob, expected
from tests.support.processes import Ended, Running
from tests.support.restores import ask, begin, execute, plan

_CLAIM = ("--claim-mode", "claim")
_REWINDING = ["restore.intent", "rewind.table", "rewind.tables", "rewind.recorded", "rewind.done"]
_CLAIMING = ["restore.begin", "restore.claimed", "savepoint.claimed", "restore.imported", *_REWINDING]
_BEGINNING = ["begin.created", "savepoint.claimed", "begin.imported", "begin.adopted"]
_UNDOING = ["savepoint.released", "claim.after", "commit.after"]
_DELETING = ["savepoint.disposing", "savepoint.disposed", "savepoint.collected"]
_REFUSED, _FENCED = 2, 3
_AT = 50
_SINCE = 40


@dataclass(frozen=True)
class _Savepoint:
    """A savepoint, and the jobs that may claim it.

    Attributes:
        files: hashes of its own files.
    """

    folder: Path
    jobs: Sequence[AccountsJob]
    files: dict[str, str]

    @property
    def claimed_by(self) -> list[str]:
        """The job that owns it according to its folder, if any."""
        slots = root_files.claims(self.folder) if self.folder.exists() else []
        return [job for state, job, _ in slots[-1:] if state == "claimed"]

    def owners(self) -> list[AccountsJob]:
        """The jobs whose log says that they have adopted its state by a claim."""
        return [job for job in self.jobs if any(c["checkpoint"] for c in _claimed(job))]

    def check(self, was_owned: bool = False) -> None:
        """At any time: at most one job owns it, and it is complete while that job keeps the checkpoint, or no job owns
        it.

        Args:
            was_owned: whether a job owned it, which may have deleted it as a whole since.
        """
        owners = self.owners()
        assert len(owners) <= 1
        needed = {c["checkpoint"] for job in owners for c in _claimed(job)}
        kept = {ref["id"] for job in owners for ref in root_files.kept_refs(job.root)}
        kept |= {job.head.checkpoint for job in owners}
        if was_owned and not owners:
            assert not root_files.files_below(self.folder)
        elif needed & kept or not owners:
            own = {name: digest for name, digest in root_files.digests(self.folder).items() if "/claims/" not in name}
            assert own == self.files

    def check_at_rest(self) -> None:
        self.check()
        assert self.claimed_by == [job.job_uuid for job in self.owners()]
        assert all(c["checkpoint"] for job in self.jobs for c in _claimed(job))


def _claimed(job: AccountsJob) -> list[root_files.Document]:
    return list(job.head.doc["claimed_savepoints"]) if (job.root / "log").is_dir() else []


@contextmanager
def _jobs(round_: Round) -> Iterator[tuple[AccountsJob, Kills]]:
    """A job that keeps all checkpoints."""
    with accounts_job(round_) as job:
        backend: dict[str, Any] = BACKENDS[round_.rng.choice(sorted(BACKENDS))]
        more = {"checkpoints__asynchronous": "no", "checkpoints__retained": 100, "checkpoints__collect_every": 1}
        job.settings = {**job.settings, **more, **backend}
        yield job, Kills.of(job, round_, _AT)


def _savepoint_of(job: AccountsJob, round_: Round, jobs: Sequence[AccountsJob] = (), into: bool = False) -> _Savepoint:
    """A savepoint at the job's position, in its root or outside, in one of the formats."""
    outside = into or round_.rng.random() < 0.5
    place = ("--into", str(round_.folder / "kept")) if outside else ()
    made = job.create_savepoint("early", "--format", round_.rng.choice(["canonical", "native"]), *place)
    folder = Path(unquote(made["path"].removeprefix("file://")))
    return _Savepoint(folder, jobs or [job], root_files.digests(folder))


@Row(
    29,
    "canonical-claim",
    plays=(1, 15, 250),
    mutants=(
        "impatient-owner",
        "shared-claim",
        "kept-claim",
        "unannounced-claim",
        "unslotted-undo",
        "forgotten-first",
        "unreserved-deletion",
    ),
    within=15,
)
def test_a_killed_claim_of_a_savepoint_is_completed_or_undone(round_: Round) -> int:
    """A restore, or the start of a job root, that claims a savepoint is killed at a named step or at a random time, or
    stopped while a start undoes its claim, another job claims the savepoint, or a user deletes it; so are the starts
    that complete, undo or delete.

    The next start or the same command completes or undoes the claim. At most one job owns the savepoint, in its folder
    and in the logs. It is complete until no kept checkpoint has its state, then it is deleted as a whole; a savepoint
    that no job owns is never changed. Rows and state are what plain dictionaries contain.
    """
    return _WAYS[round_.seed % len(_WAYS)](round_)


def _claim(round_: Round) -> int:
    """By restores that are killed, between starts that may be killed as well."""
    with _jobs(round_) as (job, kills):
        savepoint = _savepoint_of(job, round_)
        job.run_to(_AT + _SINCE)
        killed = 0
        for _ in range(2):
            if job.head.doc["rewind"] or not savepoint.owners():
                killed += _plan_and_claim(job, kills, savepoint)
            if round_.rng.random() < 0.7:
                killed += kills.once(partial(_start, job), _UNDOING)
                savepoint.check()
                job.finish()
                savepoint.check_at_rest()
        job.finish()
        savepoint.check_at_rest()
        job.check_results()
        return killed + _release(job, kills, savepoint)


def _plan_and_claim(job: AccountsJob, kills: Kills, savepoint: _Savepoint) -> int:
    if job.head.doc["rewind"]:
        job.finish()
        return 0
    plan(job, str(savepoint.folder), *_CLAIM)
    killed = kills.once(lambda failpoint: begin(job, failpoint=failpoint), _CLAIMING, at_step=True)
    savepoint.check()
    if kills.rng.random() < 0.5:
        execute(job).check()
        savepoint.check_at_rest()
        assert savepoint.owners() == [job] and job.head.position == _AT
    return killed


def _start(job: AccountsJob, failpoint: str) -> Running:
    return job.start(failpoint)


def _release(job: AccountsJob, kills: Kills, savepoint: _Savepoint) -> int:
    """Releases the job's checkpoints; runs that delete the savepoint are killed."""
    is_owned = job in savepoint.owners()
    job.settings = {**job.settings, "checkpoints__retained": 1}
    killed = 0
    for _ in range(kills.rng.randint(1, 2)):
        job.deliver_more(30)
        killed += kills.once(partial(_start, job), _DELETING)
        savepoint.check(is_owned)
    job.deliver_more(20)
    job.finish()
    job.collect()
    assert _claimed(job) == []
    if is_owned:
        assert not root_files.files_below(savepoint.folder)
    else:
        savepoint.check_at_rest()
    assert stored_state.read_state(job.root, "balances") == expected(job.delivered).balances
    root_files.check_no_orphans(job.root)
    return killed


def _claim_twice(round_: Round) -> int:
    """Two jobs claim the savepoint of a third one at the same time; one of them may be killed."""
    with _jobs(round_) as (job, kills):
        jobs = [AccountsJob(round_.folder / name, job.settings) for name in ("one", "other")]
        savepoint = _savepoint_of(job, round_, jobs)
        for each in jobs:
            job.processes += each.processes
            each.run_to(30)
            each.deliver(120)
            plan(each, str(savepoint.folder), *_CLAIM, "--from-other-job")
        claiming = [begin(each, failpoint="restore.claimed:1:stop").wait_stopped() for each in jobs]
        ended = _wake(claiming, round_)
        savepoint.check()
        (winner,) = [each for each, end in zip(jobs, ended, strict=True) if end.code == 0]
        (loser,) = [each for each in jobs if each is not winner]
        assert savepoint.owners() == [winner] and savepoint.claimed_by == [winner.job_uuid]
        refused = ended[jobs.index(loser)]
        refused.check_error(_REFUSED, "savepoint-claimed", job_uuid=winner.job_uuid)
        loser.finish()
        savepoint.check_at_rest()
        loser.check()
        refused = ask(loser, str(savepoint.folder), *_CLAIM, "--from-other-job")
        refused.check_error(_REFUSED, "savepoint-claimed", job_uuid=winner.job_uuid)
        winner.finish()
        return len(jobs) + _release(winner, kills, savepoint)


def _wake(stopped: Sequence[Running], round_: Round) -> list[Ended]:
    for process in round_.rng.sample(stopped, len(stopped)):
        process.resume()
    return [process.wait() for process in stopped]


def _begin_with_claim(round_: Round) -> int:
    """The same command with or without a claim, which is completed or undone as the last one says."""
    rng = round_.rng
    with _jobs(round_) as (job, kills):
        made = _savepoint_of(job, round_, into=True)
        roots = NewRoot(job, round_.folder, made.folder)
        roots.new.settings = {**job.settings, **roots.new.settings, "job__tables": roots.tables}
        savepoint = _Savepoint(made.folder, [roots.new], made.files)
        roots.new.deliver(120)
        killed = 0
        for _ in range(rng.randint(1, 2)):
            killed += kills.once(lambda failpoint: roots.begin(*_CLAIM, failpoint=failpoint), _BEGINNING)
            savepoint.check()
        again = rng.choice([_CLAIM, ()])
        is_begun = bool(savepoint.owners())
        roots.run_to(120, *again)
        savepoint.check_at_rest()
        assert bool(savepoint.owners()) == (is_begun or bool(again))
        killed += _release(roots.new, kills, savepoint)
    return killed


def _wake_after_the_undo(round_: Round) -> int:
    """A process that claims is stopped while a start undoes its claim."""
    with _jobs(round_) as (job, kills):
        savepoint = _savepoint_of(job, round_)
        job.run_to(_AT + _SINCE)
        plan(job, str(savepoint.folder), *_CLAIM)
        step = round_.rng.choice(["restore.claimed", "restore.claimed", "savepoint.claimed", "restore.imported"])
        claiming = begin(job, failpoint=f"{step}:1:stop").wait_stopped()
        job.finish()
        savepoint.check_at_rest()
        claiming.resume().wait().check_error(_FENCED, "fenced")
        savepoint.check_at_rest()
        assert savepoint.owners() == []
        job.check()
        return 1 + _release(job, kills, savepoint)


def _delete_meanwhile(round_: Round) -> int:
    """A user deletes the savepoint while a restore claims it: one of them is refused."""
    with _jobs(round_) as (job, kills):
        savepoint = _savepoint_of(job, round_)
        job.run_to(_AT + _SINCE)
        plan(job, str(savepoint.folder), *_CLAIM)
        is_first = round_.seed // len(_WAYS) % 2 == 1
        step = "savepoint.claimed" if is_first else "restore.claimed"
        claiming = begin(job, failpoint=f"{step}:1:stop").wait_stopped()
        dispose = ("savepoint", "dispose", str(savepoint.folder))
        if is_first:
            job.command(*dispose).check_error(_REFUSED, "savepoint-claimed", job_uuid=job.job_uuid)
            claiming.resume().wait().check()
            savepoint.check_at_rest()
            return 1 + _release(job, kills, savepoint)
        deleting = job.begin(*dispose, failpoint="savepoint.disposing:1:stop").wait_stopped()
        claiming.resume().wait().check_error(_REFUSED, "config")
        deleting.resume().wait().check()
        assert not root_files.files_below(savepoint.folder) and savepoint.owners() == []
        job.finish()
        job.check()
        return 1


_WAYS = [_claim, _claim_twice, _begin_with_claim, _wake_after_the_undo, _delete_meanwhile]
