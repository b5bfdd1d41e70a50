"""Jobs that go back, begin with a savepoint, claim one, or continue a root of an earlier version."""

from __future__ import annotations

import json
import random
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.recovery.other_writer import TABLES, append, check_tables, newest_version
from tests.recovery.savepoints import BY_BACKEND, NewRoot
from tests.scoreboard.jobs import KILLED, Kills, accounts_job
from tests.scoreboard.row import Round, Row
from tests.support import job_fixture, root_files, stored_state
from tests.support.job_fixture import AccountsJob, expected
from tests.support.processes import Ended, Running
from tests.support.restores import ask, begin, check_after, execute, go_back, plan

_REFUSED = 4
_BEFORE_TABLES = ("rewind.table:1", "rewind.table:2")
_STEPS = ("restore.intent", *_BEFORE_TABLES, *_BEFORE_TABLES, "rewind.tables", "rewind.recorded", "rewind.done")
_PLANS = 20


class _Writer:
    """Appends periodically, and knows what must be there: all of it except what an executed plan named."""

    def __init__(self, job: AccountsJob, rng: random.Random) -> None:
        self.appended = 0
        self._box = job
        self._dice = rng
        self._there: dict[tuple[str, int], list[job_fixture.Row]] = {}

    def act(self, chance: float = 0.6) -> None:
        """Perhaps appends to some of the tables."""
        for table in TABLES:
            if self._dice.random() < chance:
                rows = append(self._box, table, self._dice.randint(1, 3))
                self._there[table, newest_version(self._box, table)] = rows
                self.appended += 1

    def approved(self, sinks: Iterable[dict[str, Any]]) -> None:
        """A user let this plan be executed."""
        for sink in sinks:
            for text in sink["others"]:
                # The version is the first number of a text.
                (version, *_) = map(int, re.findall(r"\d+", text))
                self._there.pop((sink["uid"], version), None)

    def check(self) -> None:
        """Tables have the job's rows once, and every row of this writer that no plan named."""
        wanted: dict[str, list[job_fixture.Row]] = {table: [] for table in TABLES}
        for (table, _), rows in self._there.items():
            wanted[table] += rows
        check_tables(self._box, wanted)


@Row(22, "other-writers", plays=(4, 40, 400), mutants=("blind-rewind",))
def test_rows_of_another_writer_go_only_with_a_plan_that_names_them(round_: Round) -> int:
    """Another application appends to a table of a job whose restore, automatic or requested, is killed at any step.

    Tables have the job's rows once, and every row of the other writer that no executed plan listed.
    """
    rng = round_.rng
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "checkpoints__retained": 100, "checkpoints__asynchronous": "no"}
        writer = _Writer(job, rng)
        job.deliver(50)
        job.finish()
        writer.act()
        point = root_files.head(job.root).checkpoint
        job.deliver(100)
        _lose_output(job, writer, rng) if round_.seed % 2 else _restore(job, writer, point, rng)
        writer.act(0.9)
        _finish_with_plans(job, writer, rng)
        writer.check()
    return writer.appended


def _lose_output(job: AccountsJob, writer: _Writer, rng: random.Random) -> None:
    """A start goes back by itself, and is killed there."""
    assert job.run(f"commit.after:{rng.randint(2, 4)}").code == KILLED
    writer.act()
    newest = root_files.head(job.root)
    table = rng.choice(TABLES)
    (job.table(table) / "data" / newest.pending[table][0]).unlink()
    job.marker.unlink()
    assert job.run(rng.choice(("log.created:2", *_STEPS[1:]))).code == KILLED
    job.marker.unlink()


def _restore(job: AccountsJob, writer: _Writer, point: int, rng: random.Random) -> None:
    """A user takes the job back, and the command is killed."""
    job.finish()
    writer.act()
    shown = plan(job, str(point))
    assert execute(job, failpoint=rng.choice(_STEPS)).code == KILLED
    writer.approved(shown["sinks"])
    job.marker.unlink()


def _finish_with_plans(job: AccountsJob, writer: _Writer, rng: random.Random) -> None:
    """Starts; where a run stops because of the other writer, a user plans again and approves what is shown."""
    for _ in range(_PLANS):
        ended = job.run()
        if ended.code == 0:
            return
        assert (ended.code, ended.error.code) == (_REFUSED, "foreign-rows"), str(ended)
        shown = plan(job, "latest")
        writer.act(0.2)
        ended = execute(job, failpoint=rng.choice(("", *_STEPS)))
        if ended.code == _REFUSED:
            assert ended.error.code == "plan-outdated", str(ended)
            continue
        assert ended.code in (0, KILLED), str(ended)
        job.marker.unlink(missing_ok=True)
        writer.approved(shown["sinks"])
        writer.act(0.2)
    raise AssertionError(f"the job did not finish after {_PLANS} plans: {json.dumps(shown)}")


_MOST_KILLS = 3
_BEGINNING = (
    "claim.before", "claim.after", "start.published", "begin.created", "begin.imported", "begin.adopted",
    "commit.manifest", "commit.after", "publish.after", "gc.deleting", "run.end",
)  # fmt: skip


@Row(24, "new-roots", plays=(0, 6, 60), mutants=("any-table", "no-take-over"), within=6)
def test_a_new_root_continues_a_savepoint(round_: Round) -> int:
    """A run that begins a new job root with a savepoint is killed; the tables may have newer versions, or a run of the
    old root is stopped between its COMMIT and its publication, and continues late.

    Rows and state are those of the oracle, without duplicates; tables that contain more than the savepoint are refused,
    and the late run reports that it is fenced.
    """
    rng = round_.rng
    roots = NewRoot(AccountsJob(round_.folder / "job"), round_.folder)
    try:
        has_gone_on = rng.random() < 0.5
        if has_gone_on:
            roots.old.deliver(50 + 10 * rng.randrange(1, 4))
            roots.old.finish()
        late = None
        if rng.random() < 0.5:
            shutil.rmtree(roots.old.root)
        elif not has_gone_on:
            roots.old.deliver(60)
            late = roots.old.start("publish.before:1:stop").wait_stopped()
        roots.new.deliver(100)
        if has_gone_on:
            refused = roots.run("--tables", "continue", own_tables=False)
            assert refused.code != 0, "rows after the savepoint are written a second time"
        injected = has_gone_on + _begin_with_kills(roots, rng, own_tables=has_gone_on)
        if late is not None:
            late.resume().wait().check_error(3, "fenced", by_job=roots.new.job_uuid)
            roots.new.check_results()
        return injected + (late is not None)
    finally:
        for job in (roots.old, roots.new):
            job.end_all()


def _begin_with_kills(roots: NewRoot, rng: random.Random, own_tables: bool) -> int:
    """The same command until it succeeds; returns how often it was killed."""
    more = () if own_tables else ("--tables", "continue")
    killed = 0
    for _ in range(rng.randrange(1, _MOST_KILLS + 1)):
        roots.new.marker.unlink(missing_ok=True)
        ended = roots.run(*more, failpoint=rng.choice(_BEGINNING), own_tables=own_tables)
        assert ended.code in (0, KILLED), str(ended)
        killed += ended.code == KILLED
    ended = roots.run(*more, own_tables=own_tables)
    assert ended.code == 0, str(ended)
    roots.check_own_tables() if own_tables else roots.new.check_results()
    return killed


_GOLDEN = Path(__file__).parents[1] / "data" / "jobs"
_FORMAT = 1
_KINDS: dict[str, dict[str, object]] = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem"},
    "memory": {"state__backend": "memory"},
    "asynchronous": {"checkpoints__asynchronous": "yes", "checkpoints__retained": 3},
}


@Row(21, "formats", plays=(1, 1, 1), mutants=("any-format",), within=1)
def test_roots_of_released_formats_continue(round_: Round) -> int:
    """Job roots of each released format, and of a future format.

    Released formats continue and are restored with all their content; the future one is refused and not changed.
    """
    archives = sorted(_GOLDEN.glob("format-*.tar.gz"))
    for archive in archives:
        job = AccountsJob(round_.folder / archive.name.partition(".")[0])
        with tarfile.open(archive) as stored:
            # Python before 3.11.4 has no filters.
            stored.extraction_filter = getattr(tarfile, "data_filter", None)
            stored.extractall(job.folder)
        _check_refused(job)
        job.deliver(90)
        check_after(job)
        go_back(job, "golden")
        check_after(job)
        shutil.rmtree(job.folder)
    return 2 * len(archives)


def _check_refused(job: AccountsJob) -> None:
    path = job.root / "FORMAT"
    written = path.read_bytes()
    document, _ = root_files.unsealed(written)
    path.write_bytes(root_files.sealed({**document, "version": _FORMAT + 1}))
    before = root_files.digests(job.root, job.folder / "tables")
    ended = job.run()
    assert (ended.code, ended.error.code) == (2, "wrong-job-root"), str(ended)
    assert ended.error.facts["found"] == _FORMAT + 1, str(ended)
    assert root_files.digests(job.root, job.folder / "tables") == before
    path.write_bytes(written)


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_of_job_has_a_root_of_the_current_format(tmp_path: Path, kind: str) -> None:
    """A missing one is written: after 60 events, in several runs, with a savepoint. None is ever written again."""
    stored = _GOLDEN / f"format-{_FORMAT}-{kind}.tar.gz"
    if stored.exists():
        return
    job = AccountsJob(tmp_path / "job", _KINDS[kind])
    job.deliver(30)
    job.finish()
    assert job.command("savepoint", "create", "--name", "golden").code == 0
    job.deliver(60)
    job.finish()
    job.check_results()
    with tarfile.open(stored, "w:gz") as archive:
        for name in ("root", "tables", "events.jsonl"):
            archive.add(job.folder / name, name)
    pytest.fail(f"{stored.name} was missing and is written now: commit it")


# -- claims -----------------------------------------------------------------------------------------------------------

_CLAIM = ("--claim-mode", "claim")
_REWINDING = ["restore.intent", "rewind.table", "rewind.tables", "rewind.recorded", "rewind.done"]
_CLAIMING = ["restore.begin", "restore.claimed", "savepoint.claimed", "restore.imported", *_REWINDING]
_BEGINNING_WITH_CLAIM = ["begin.created", "savepoint.claimed", "begin.imported", "begin.adopted"]
_UNDOING = ["savepoint.released", "claim.after", "commit.after"]
_DELETING = ["savepoint.disposing", "savepoint.disposed", "savepoint.collected"]
_CLAIM_REFUSED, _FENCED = 2, 3
_AT = 50
_SINCE = 40


@dataclass(frozen=True)
class _Savepoint:
    """A savepoint, and the jobs that may claim it. `files`: hashes of its own files."""

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
        backend: dict[str, Any] = BY_BACKEND[round_.rng.choice(sorted(BY_BACKEND))]
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
        "impatient-owner", "shared-claim", "kept-claim", "unannounced-claim", "unslotted-undo", "forgotten-first",
        "unreserved-deletion",
    ),
    within=15,
)  # fmt: skip
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
        refused.check_error(_CLAIM_REFUSED, "savepoint-claimed", job_uuid=winner.job_uuid)
        loser.finish()
        savepoint.check_at_rest()
        loser.check()
        refused = ask(loser, str(savepoint.folder), *_CLAIM, "--from-other-job")
        refused.check_error(_CLAIM_REFUSED, "savepoint-claimed", job_uuid=winner.job_uuid)
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
            killed += kills.once(lambda failpoint: roots.begin(*_CLAIM, failpoint=failpoint), _BEGINNING_WITH_CLAIM)
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
            job.command(*dispose).check_error(_CLAIM_REFUSED, "savepoint-claimed", job_uuid=job.job_uuid)
            claiming.resume().wait().check()
            savepoint.check_at_rest()
            return 1 + _release(job, kills, savepoint)
        deleting = job.begin(*dispose, failpoint="savepoint.disposing:1:stop").wait_stopped()
        claiming.resume().wait().check_error(_CLAIM_REFUSED, "config")
        deleting.resume().wait().check()
        assert not root_files.files_below(savepoint.folder) and savepoint.owners() == []
        job.finish()
        job.check()
        return 1


_WAYS = [_claim, _claim_twice, _begin_with_claim, _wake_after_the_undo, _delete_meanwhile]
