"""Jobs that go back, begin with a savepoint, or continue a root of an earlier version."""

from __future__ import annotations

import json
import random
import re
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.new_roots import NewRoot
from tests.recovery.other_writer import TABLES, append, check_tables, newest_version
from tests.scoreboard.jobs import KILLED, accounts_job
from tests.scoreboard.row import Round, Row
from tests.support import job_fixture, root_files
from tests.support.job_fixture import AccountsJob
from tests.support.restores import check_after, execute, go_back, plan

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
    "claim.before",
    "claim.after",
    "start.published",
    "begin.created",
    "begin.imported",
    "begin.adopted",
    "commit.manifest",
    "commit.after",
    "publish.after",
    "gc.deleting",
    "run.end",
)


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
