"""Canonical savepoints that are created, rekeyed and restored while processes are killed."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.recovery.savepoints import BY_BACKEND, NewRoot, check_canonical, document_of, position_of
from tests.scoreboard.jobs import KILLED, Kills, accounts_job
from tests.scoreboard.row import Round, Row
from tests.support import canonical_reader, folder_tables, root_files, stored_state
from tests.support.job_fixture import AccountsJob, expected
from tests.support.processes import Running, wait_for
from tests.support.restores import begin, check_after, go_back, plan

_CANONICAL = ("--format", "canonical", "--json")
_REQUEST = ("savepoint", "create", "--name", "mine", "--request-id", "r1", *_CANONICAL)
_MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.share", "savepoint.copied", "savepoint.complete"]
_SERVING = [*_MAKING, "request.made"]
_DAMAGED = 4


@contextmanager
def _canonical_job(round_: Round) -> Iterator[AccountsJob]:
    """A job with any backend and parallelism."""
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "checkpoints__asynchronous": "no", **_any_backend(round_.rng)}
        yield job


def _any_backend(rng: random.Random) -> dict[str, Any]:
    return {**BY_BACKEND[rng.choice(sorted(BY_BACKEND))], "parallelism": rng.randint(1, 4)}


def _replace_leftovers(job: AccountsJob, since: int | None = None) -> None:
    """New rows make each subtask replace what killed runs left on this host.

    Args:
        since: the first event that `replace_events` has replaced.
    """
    job.deliver_more(40)
    if since is not None:
        job.replace_events(since)
    job.finish()


def _workers(rng: random.Random) -> tuple[str, ...]:
    """Any number of files of a subtask."""
    numbers = {"worker_bytes": 1, "max_workers": rng.randint(1, 3)}
    return tuple(each for name, value in numbers.items() for each in ("--set", f"savepoint.{name}={value}"))


def _path(made: root_files.Document) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


# -- creating ----------------------------------------------------------------------------------------------------------


@Row(
    26,
    "canonical-create",
    plays=(1, 12, 200),
    mutants=(
        "lost-last-group", "unsorted-groups", "early-savepoint", "empty-shards", "kept-leftovers", "no-savepoint-pin",
    ),
    within=12,
)  # fmt: skip
def test_a_killed_canonical_savepoint_is_complete_or_not_there(round_: Round) -> int:
    """A command or a run that creates a canonical savepoint, or one of its worker processes, is killed at a named step
    or at a random time, or stopped while a run releases the checkpoint.

    The repeated command succeeds. There is one savepoint, which has the state that plain dictionaries have, in order,
    and restores into any backend; a collection leaves no other file; no worker continues without its command.
    """
    with _canonical_job(round_) as job:
        kills = Kills.of(job, round_, 50)
        way = [_create, _create, _create_in_a_run, _create_while_a_run_collects][round_.seed % 4]
        into = _outside(job) if round_.seed % 4 == 1 else ()
        create = (*_REQUEST, *_workers(round_.rng), *into)
        killed = way(job, kills, create)
        _replace_leftovers(job)
        made = job.command(*create).check().document
        job.check()
        assert job.head.doc["pinned"] == []
        _check_only(_path(made))
        position = check_canonical(_path(made), job.delivered)
        job.command("savepoint", "verify", str(_path(made))).check()
        job.settings = {**job.settings, **_any_backend(round_.rng)}
        go_back(job, str(_path(made)))
        assert job.head.position == position
        check_after(job, since=position)
    return killed


def _outside(job: AccountsJob) -> tuple[str, ...]:
    return "--into", str(job.folder / "kept")


def _create(job: AccountsJob, kills: Kills, create: tuple[str, ...]) -> int:
    """Between two attempts runs and collections may come, which may be killed as well."""

    def attempt(failpoint: str) -> Running:
        if kills.rng.random() < 0.5:
            point = kills.rng.choice(["", "savepoint.given-up", "gc.deleting"])
            assert job.command("gc", failpoint=point).code in (0, KILLED)
        return job.begin(*create, failpoint=failpoint)

    return kills.until_done(attempt, _MAKING)


def _create_in_a_run(job: AccountsJob, kills: Kills, create: tuple[str, ...]) -> int:
    """Runs are killed while they serve the request."""
    job.deliver_more(50)
    job.settings = {**job.settings, "requests__interval": "20ms"}
    job.reach("batch.begin:2")
    requester = job.begin(*create, "--timeout", "120", "--acknowledge-timeout", "120")
    wait_for(lambda: any("." not in path.name for path in (job.root / "requests").glob("*")), lambda: "the request")
    killed = 1 + sum(kills.once(partial(_start, job), _SERVING) for _ in range(kills.rng.randint(1, 2)))
    job.finish()
    ended = requester.wait()
    # A run whose worker died answers that it could not create the savepoint.
    assert ended.code in (0, _DAMAGED), str(ended)
    return killed


def _start(job: AccountsJob, failpoint: str) -> Running:
    return job.start(failpoint)


def _create_while_a_run_collects(job: AccountsJob, kills: Kills, create: tuple[str, ...]) -> int:
    step = kills.rng.choice(["savepoint.pinned", "savepoint.started"])
    stopped = job.begin(*create, failpoint=f"{step}:1:stop").wait_stopped()
    job.deliver_more(50)
    job.finish(checkpoints__retained=1, checkpoints__collect_every=1)
    stopped.resume().wait().check()
    return 1


def _check_only(savepoint: Path) -> None:
    """There is nothing else where a savepoint is, except for the marks of those that were given up."""
    others = [folder for folder in savepoint.parent.iterdir() if folder != savepoint]
    assert {name for folder in others for name in root_files.files_below(folder)} <= {"_savepoint"}
    assert {(folder / "_savepoint").read_bytes() for folder in others} <= {b"given up\n"}


# -- another max parallelism -------------------------------------------------------------------------------------------

_GROUPS = [1, 2, 5, 7, 64, 129, 300, 1000, 32768]
_COPYING = ["savepoint.share", "savepoint.share:2", "savepoint.rekeyed"]
_BEGINNING = ["begin.created", *_COPYING[:2], "begin.imported", "begin.adopted"]


@Row(
    27, "canonical-rekey", plays=(1, 12, 200),
    mutants=("lost-last-bucket", "old-groups", "new-copy-each-time", "lost-divisions", "unsorted-groups"), within=12,
)  # fmt: skip
def test_a_killed_copy_with_another_max_parallelism_is_completed(round_: Round) -> int:
    """The copy of a savepoint with another max parallelism, and the start of a job root with another one, or one of
    their worker processes, are killed at a named step or at a random time.

    The same command completes it. The copy has exactly its files, in them the state that plain dictionaries have, and
    each key in the group that its hash gives; a job continues from it with any parallelism.
    """
    rng = round_.rng
    with _canonical_job(round_) as job:
        kills = Kills.of(job, round_, 50)
        stored_as = rng.choice([_CANONICAL[:2], ()])
        savepoint = _path(job.create_savepoint("mine", *_outside(job), *stored_as))
        before = root_files.digests(savepoint)
        groups, killed = rng.choice(_GROUPS), 0
        roots = NewRoot(job, round_.folder, savepoint)
        if round_.seed % 3:
            copies = round_.folder / "copies"
            rekey = ("savepoint", "rekey", str(savepoint), "--max-parallelism", str(groups), "--into", str(copies))
            killed += kills.until_done(lambda failpoint: job.begin(*rekey, failpoint=failpoint), _COPYING)
            (roots.savepoint,) = copies.iterdir()
            check_canonical(roots.savepoint, job.delivered, groups)
        killed += _begin_with_kills(roots, kills, groups, [*_BEGINNING] if round_.seed % 3 == 0 else [])
        assert root_files.digests(savepoint) == before
    return killed


def _begin_with_kills(roots: NewRoot, kills: Kills, groups: int, steps: list[str]) -> int:
    """Begins a job root with a savepoint, any parallelism and backend; returns how often it was killed."""
    rng = kills.rng
    settings = {**_any_backend(rng), "max_parallelism": groups}
    settings["parallelism"] = min(settings["parallelism"], groups)
    roots.new.settings = {**roots.new.settings, **settings}
    roots.new.variables = roots.old.variables
    roots.new.deliver(120)
    killed = kills.until_done(lambda failpoint: roots.begin(failpoint=failpoint), steps) if steps else 0
    roots.run_to(120)
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)
    assert stored_state.read_state(roots.new.root, "turnovers") == expected(roots.new.delivered).turnovers
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == groups
    return killed


# -- restoring ---------------------------------------------------------------------------------------------------------

_RESTORING = ["restore.begin", "restore.claimed", "restore.imported", "restore.intent", "rewind.table", "rewind.done"]
_FORKING = ["fork.pinned", "fork.created", "fork.imported", "fork.adopted"]
_LOADING = ["task.restored", "task.restored:2", "task.snapshot", "commit.manifest", "commit.after", "publish.after"]


@Row(
    28, "canonical-restore", plays=(1, 12, 200),
    mutants=("first-file-alone", "lost-last-owned", "lost-last-block", "unchecked-end"), within=12,
)  # fmt: skip
def test_a_killed_restore_from_a_canonical_savepoint_is_completed(round_: Round) -> int:
    """A restore to a canonical savepoint, a fork or a job root that begins with one is killed at a named step or at a
    random time, with any backends and any parallelism, and so is the run that loads the state; or a file of the
    savepoint ends too early, with hashes that fit.

    The same command completes it; then rows and state are what plain dictionaries contain, and no file is left over.
    The file that ends too early is refused.
    """
    rng = round_.rng
    with _canonical_job(round_) as job:
        kills = Kills.of(job, round_, 50)
        into = _outside(job) if rng.random() < 0.5 or round_.seed % 4 > 1 else ()
        made = job.create_savepoint("mine", *_CANONICAL[:2], *_workers(rng), *into)
        ways = [_restore, _fork, _begin_a_root, _begin_with_cut_file]
        return ways[round_.seed % 4](job, kills, _path(made))


def _restore(job: AccountsJob, kills: Kills, savepoint: Path) -> int:
    job.deliver_more(40)
    job.finish()
    job.settings = {**job.settings, **_any_backend(kills.rng)}
    plan(job, str(savepoint))
    killed = kills.until_done(lambda failpoint: begin(job, failpoint=failpoint), _RESTORING)
    position = job.head.position
    assert position == position_of(document_of(savepoint))
    job.replace_events(since=position)
    killed += kills.until_done(partial(_start, job), _LOADING)
    _replace_leftovers(job, position)
    job.check()
    return killed


def _fork(job: AccountsJob, kills: Kills, savepoint: Path) -> int:
    """The fork has tables of its own, with what comes after the savepoint."""
    roots = NewRoot(job, job.folder.parent, savepoint)
    fork, tables = roots.new, {"job__tables": roots.tables}
    fork.settings = {**fork.settings, **tables, **_any_backend(kills.rng)}
    command = ("fork", str(savepoint), "--into", str(fork.root))
    killed = kills.until_done(lambda failpoint: job.begin(*command, failpoint=failpoint), _FORKING)
    fork.deliver(120)
    killed += kills.until_done(partial(_start, fork), _LOADING)
    roots.check_own_tables()
    fork.collect()
    root_files.check_no_orphans(fork.root)
    assert job.head.doc["pinned"] == []
    return killed


def _begin_a_root(job: AccountsJob, kills: Kills, savepoint: Path) -> int:
    roots = NewRoot(job, job.folder.parent, savepoint)
    groups = kills.rng.choice([128, 128, *_GROUPS])
    steps = [step for step in _BEGINNING if groups != 128 or not step.startswith("savepoint.")]
    return _begin_with_kills(roots, kills, groups, [*steps, *_LOADING])


def _begin_with_cut_file(job: AccountsJob, kills: Kills, savepoint: Path) -> int:
    """A subtask that reads the file as a whole, and one that reads a part of it."""
    _cut_one(savepoint, kills.rng)
    roots = NewRoot(job, job.folder.parent, savepoint)
    roots.new.settings = {**roots.new.settings, **_any_backend(kills.rng), "parallelism": kills.rng.choice([1, 7])}
    roots.new.deliver(120)
    roots.run().check_error(_DAMAGED, "corrupt-file")
    assert not any(folder_tables.rows(table) for table in roots.tables.glob("*"))
    return 1


def _cut_one(savepoint: Path, rng: random.Random) -> None:
    """Cuts a file of keyed state after a key group or anywhere, and makes its hashes fit."""
    document = document_of(savepoint)
    subtasks = [s for o in document["manifest"]["operators"] for s in o["subtasks"] if s["files"]]
    file = rng.choice(rng.choice(subtasks)["files"])
    data = stored_state.content_of(savepoint, file)
    stream = io.BytesIO(data)
    canonical_reader.header(stream)
    ends = [stream.tell() for _ in canonical_reader.records(stream)]
    cut = savepoint / "files" / "cut"
    cut.write_bytes(data[: rng.choice([*ends, rng.randrange(len(data))])])
    file["handle"], file["part"] = root_files.handle_of(savepoint, cut), None
    (savepoint / "_savepoint").write_bytes(root_files.sealed(document))
