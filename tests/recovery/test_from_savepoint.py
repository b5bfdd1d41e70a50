"""New job roots: those that begin with a savepoint whose own root is gone, and forks."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.recovery.savepoints import NewRoot
from tests.servers.kafka import kafka_cluster
from tests.servers.postgres import postgres_server
from tests.support import folder_tables, root_files, stored_state
from tests.support.errors import ReportedError
from tests.support.job_fixture import JOBS, KILLED, ON_REQUEST, AccountsJob, expected, mostly_slow, multiset
from tests.support.processes import Ended
from tests.support.restores import ask, everything, execute, go_back, kill_at_each_step, plan, plan_file
from tests.support.table_jobs import FoldersJob, IcebergJob, KafkaJob, PostgresJob

STEPS = [*sorted(n for n in ON_REQUEST if n.startswith("begin.")), "claim.after", "start.published", "commit.after"]
CONTINUE = ("--tables", "continue")


def _format(roots: NewRoot) -> dict[str, Any]:
    return root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]


def _origin(roots: NewRoot) -> str:
    return str(roots.new.command("status", "--json").document["origin"])


def test_a_new_job_root_continues_from_a_savepoint_of_a_deleted_root(roots: NewRoot) -> None:
    shutil.rmtree(roots.old.root)
    roots.run_to(120)
    (record,) = roots.new.records("fork")
    facts = record["facts"]
    assert facts["savepoint_path"].endswith(roots.savepoint.name)
    assert _format(roots)["begun_with"] == facts["savepoint_path"]
    assert facts["target_label"] in _origin(roots) and "mine" in facts["target_label"]
    (found,) = (roots.new.root / "history").glob("*-fork-made.json")
    hidden = found.rename(roots.new.folder / found.name)
    assert facts["savepoint_path"] in _origin(roots)
    hidden.rename(found)
    # It is its own: a savepoint of it, and a job without the argument, need nothing of the first one.
    shutil.rmtree(roots.savepoint)
    roots.new.run_to(140, job__tables=roots.tables)
    roots.check_own_tables()
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


@pytest.mark.parametrize("name", mostly_slow(STEPS, ["begin.created", "begin.adopted"]))
def test_a_killed_start_from_a_savepoint_is_completed_by_the_same_command(roots: NewRoot, name: str) -> None:
    roots.new.deliver(120)
    assert roots.run(failpoint=name).code == KILLED
    if name in ("begin.created", "begin.imported"):
        assert roots.new.run(job__tables=roots.tables).code == 2
    roots.run_to(120)
    assert len(roots.new.records("fork")) == 1
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


@pytest.mark.slow(reason="runs jobs many times")
def test_two_concurrent_starts_from_a_savepoint_begin_the_same_job(roots: NewRoot) -> None:
    roots.new.deliver(120)
    slow = roots.begin(failpoint="begin.imported:1:stop").wait_stopped()
    roots.run_to(120)
    roots.new.collect()
    slow.resume().wait().check()
    roots.check_own_tables()


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs a job in several processes")
def test_a_run_from_a_savepoint_writes_the_original_job_s_tables_only_with_an_option(roots: NewRoot) -> None:
    """Tables with the savepoint's content get the rows after it, and no row twice."""
    shutil.rmtree(roots.old.root)
    refused = roots.run(own_tables=False)
    refused.check_error(2, "config", sink="movements")
    assert "--tables continue" in refused.err
    assert not roots.new.root.exists()
    roots.run_to(120, *CONTINUE, own_tables=False)
    roots.new.check_results()
    # From now on they are the new job's own.
    roots.run_to(140, own_tables=False)
    roots.new.check_results()


def test_tables_with_rows_after_the_savepoint_are_refused_until_their_rewind(roots: NewRoot) -> None:
    roots.old.run_to(80)
    roots.new.deliver(120)
    before = root_files.digests(roots.old.folder / "tables")
    roots.run(*CONTINUE, own_tables=False).check_error(4, "sink-diverged", version_of_savepoint=5)
    assert (root_files.digests(roots.old.folder / "tables"), roots.new.root.exists()) == (before, False)
    # After the rewind they have the savepoint's content, whatever their tokens are.
    go_back(roots.old, str(roots.savepoint))
    roots.run_to(120, *CONTINUE, own_tables=False)
    roots.new.check_results()


def _forget_versions(savepoint: Path) -> None:
    """Rewrites a savepoint as one that does not know the versions of its tables."""
    path = savepoint / "_savepoint"
    document, _ = root_files.unsealed(path.read_bytes())
    for sink in document["sinks"].values():
        sink["version"] = -1
    path.write_bytes(root_files.sealed(document))


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("tables", "is_version_known"), [("continue", True), ("continue", False), ("refuse", True)])
def test_rows_that_another_new_root_wrote_after_the_savepoint_are_not_written_again(
    roots: NewRoot, tables: str, is_version_known: bool
) -> None:
    """In the tables of the savepoint's job, and in tables that only the other new root knows."""
    is_old_table = tables == "continue"
    if not is_version_known:
        _forget_versions(roots.savepoint)
    roots.run_to(120, "--tables", tables, own_tables=not is_old_table)
    shutil.rmtree(roots.new.root)
    folder = roots.old.folder / "tables" if is_old_table else roots.tables
    before = root_files.digests(folder)
    roots.new.deliver(140)
    for policy in ("continue", "refuse"):
        refused = roots.run("--tables", policy, own_tables=not is_old_table)
        assert refused.code == (2 if is_old_table and policy == "refuse" else 4), str(refused)
        assert (root_files.digests(folder), roots.new.root.exists()) == (before, False)
    roots.run("--tables", "keep", own_tables=not is_old_table).check()
    rows = expected(roots.new.delivered).movements
    found = multiset(folder_tables.rows(folder / "movements"))
    assert found == multiset(rows[0 if is_old_table else 50 :]) + multiset(rows[50:120])


def _check_fenced(ended: Ended, by: AccountsJob) -> None:
    ended.check_error(3, "fenced", by_root=by.root.as_uri(), by_job=by.job_uuid)


def test_a_root_whose_tables_were_taken_over_publishes_nothing(roots: NewRoot) -> None:
    """Nor does it restore them; a driver that sleeps before its publication finds them taken over."""
    roots.old.deliver(80)
    asleep = roots.old.start("publish.before:1:stop").wait_stopped()
    roots.run_to(120, *CONTINUE, own_tables=False)
    _check_fenced(asleep.resume().wait(), roots.new)
    _check_fenced(roots.old.run(), roots.new)
    assert roots.old.command("status", "--json").document["failure"]["code"] == "fenced"
    _check_fenced(roots.old.command("restore", roots.old.job_file, "--plan", "latest", with_job=True), roots.new)
    roots.new.check_results()
    roots.run_to(140, own_tables=False)
    roots.new.check_results()


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize("name", ["begin.adopted", "rewind.table:2"])
def test_of_two_roots_one_publishes_after_the_savepoint(roots: NewRoot, name: str) -> None:
    """The new one is killed as it takes over, and the old one runs before the new one starts again."""
    roots.new.deliver(120)
    assert roots.run(*CONTINUE, own_tables=False, failpoint=name).code == KILLED
    is_taken_over = name != "begin.adopted"
    old = roots.old.run()
    if is_taken_over:
        _check_fenced(old, roots.new)
    new = roots.run(*CONTINUE, own_tables=False)
    if not is_taken_over:
        old.check()
        new.check_error(4, "sink-diverged", by_job=roots.old.job_uuid)
    (roots.new if is_taken_over else roots.old).check_results()


@contextmanager
def _job_with(sinks: str, folder: Path) -> Iterator[AccountsJob]:
    """A job whose sinks are of one kind."""
    with ExitStack() as stack:
        job: AccountsJob
        if sinks == "iceberg":
            job = IcebergJob.create(folder)
        elif sinks == "kafka":
            job = KafkaJob.create(stack.enter_context(kafka_cluster(folder / "kafka", 1)), folder=folder / "job")
        elif sinks == "postgres":
            job = PostgresJob.create(stack.enter_context(postgres_server()), "jobs", folder=folder / "job")
        else:
            job = FoldersJob.create(folder / "job", sinks)
        stack.callback(job.end_all)
        yield job


@pytest.mark.slow(reason="starts servers, and runs nine jobs over each kind of table")
@pytest.mark.parametrize("sinks", ["delta", "files", "iceberg", "kafka", "postgres"])
def test_tables_of_each_kind_of_sink_move_from_root_to_root(tmp_path: Path, sinks: str) -> None:
    """A root that sleeps between COMMIT and publication publishes nothing after it woke, and no fresh root begins.

    Nor does one that begins with the same savepoint, after whose rows the tables have those of another root.
    """
    with _job_with(sinks, tmp_path) as first:
        line = [first]
        for number in range(2):
            move = NewRoot(line[-1], tmp_path / str(number)) if not number else _next_root(line[-1], tmp_path / "1")
            move.old.deliver_more(20)
            asleep = move.old.start("publish.before:1:stop").wait_stopped()
            move.run(own_tables=False).check_error(2, "config", sink="movements")
            move.run(*CONTINUE, own_tables=False).check()
            _check_fenced(asleep.resume().wait(), move.new)
            line.append(move.new)
            late = replace(move.new, root_folder=tmp_path / f"late {number}")
            again = ("run", late.job_file, "--from-savepoint", str(move.savepoint), *CONTINUE)
            late.command(*again, with_job=True).check_error(4, "sink-diverged")
            assert not late.root.exists()
            move.new.check_results()
        for former, following in itertools.pairwise(line):
            _check_fenced(former.run(), following)
        fresh = replace(first, root_folder=tmp_path / "fresh")
        fresh.run().check_error(2, "config", sink="movements")
        line[-1].deliver_more(20)
        line[-1].finish()
        line[-1].check_results()


def _next_root(job: AccountsJob, folder: Path, tables: Path | None = None) -> NewRoot:
    """The root that begins with a savepoint of a job, with the same tables."""
    made = job.create_savepoint("mine", "--into", str(folder / "kept"))
    following = NewRoot(job, folder, Path(unquote(made["path"].removeprefix("file://"))))
    following.tables = tables or following.tables
    return following


@pytest.mark.slow(reason="runs jobs many times")
def test_a_new_root_without_a_savepoint_writes_to_another_one_s_tables_only_with_an_option(
    job: AccountsJob, tmp_path: Path
) -> None:
    job.run_to(50)
    fresh = AccountsJob(job.folder, {"local_dir": tmp_path / "local"}, root_folder=tmp_path / "fresh")
    refused = fresh.run()
    refused.check_error(2, "config", sink="movements")
    assert job.job_uuid in refused.err and "--tables keep" in refused.err and not (fresh.root / "FORMAT").exists()
    planned = fresh.command("explain", fresh.job_file, "--json", with_job=True)
    assert planned.code == 20 and "another job root" in planned.out
    keep = ("run", fresh.job_file, "--tables", "keep")
    fresh.command(*keep, with_job=True).check()
    assert multiset(job.rows("movements")) == multiset(expected(job.delivered).movements * 2)
    # From now on the tables are its own, too; and both jobs write to them.
    for each in (fresh, job):
        each.run_to(60)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_missing_table_or_a_damaged_savepoint_prevents_a_new_job_root(roots: NewRoot) -> None:
    shutil.rmtree(roots.old.table("movements"))
    refused = roots.run(*CONTINUE, own_tables=False)
    assert refused.code == 2 and not roots.new.root.exists(), str(refused)
    next((roots.savepoint / "files").iterdir()).unlink()
    refused = roots.run()
    assert refused.code == 4 and not (roots.new.root / "FORMAT").exists(), str(refused)


def test_a_run_from_a_savepoint_refuses_a_folder_with_other_content(roots: NewRoot) -> None:
    roots.old.root_folder = roots.new.root
    roots.old.finish(job__tables=roots.tables)
    refused = roots.run(own_tables=False)
    refused.check_error(2, "config", root=roots.new.root.as_uri(), savepoint=str(roots.savepoint))
    thesis = roots.new.root.with_name("thesis")
    thesis.mkdir()
    (thesis / "thesis.txt").write_text("years of work")
    roots.new.root_folder = thesis
    assert roots.run().code == 2


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(
    ("other", "option", "facts"),
    [
        ("name=ledger", ("--from-other-job",), {"of_job": "accounts", "this_job": "ledger"}),
        ("job.parts=movements", ("--drop", "turnovers"), {}),
    ],
    ids=["another job's", "state that is dropped"],
)
def test_a_savepoint_that_does_not_fit_the_job_is_restored_only_with_an_option(
    roots: NewRoot, other: str, option: tuple[str, ...], facts: dict[str, object]
) -> None:
    refused = roots.run("--set", other)
    refused.check_error(2, "config", **facts)
    assert option[0] in refused.err and option[-1] in refused.err and not roots.new.root.exists()
    roots.run_to(120, "--set", other, *option)


@pytest.mark.slow(reason="runs jobs many times")
def test_max_parallelism_defaults_to_that_of_the_restored_state(job: AccountsJob, tmp_path: Path) -> None:
    """Where neither the job nor its settings set one, it needs not be said again; keys find their state."""
    job_file = tmp_path / "accounts.py"
    job_file.write_text((JOBS / "accounts.py").read_text().replace("env.configure(max_parallelism=128)", ""))

    class Unset(AccountsJob):
        @property
        def job_file(self) -> str:
            return str(job_file)

    old = Unset(job.folder, {"max_parallelism": 64})
    roots = NewRoot(old, tmp_path)
    old.settings = {}
    roots.new = replace(roots.new, settings={"local_dir": tmp_path / "local"})
    old.run_to(120)
    old.check_results()
    roots.run_to(120)
    assert _format(roots)["max_parallelism"] == 64
    assert roots.run("--set", "max_parallelism=128").code == 2


# -- forks -------------------------------------------------------------------------------------------------------------


FORK_STEPS = sorted(n for n in ON_REQUEST if n.startswith("fork."))
FORKS = [*zip(FORK_STEPS, ["latest", "mine", "before:2999-01-01", "latest"], strict=True)]
SHADOW = ("--shadow", "--by", "ada")


@pytest.fixture
def job_at_50(job: AccountsJob) -> AccountsJob:
    """A job at its 50th event, with its newest checkpoint only."""
    job.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    job.run_to(50)
    return job


def _forked(job_at_50: AccountsJob, root: Path) -> AccountsJob:
    """The fork of a job, which writes to shadow tables next to the job's."""
    return AccountsJob(job_at_50.folder, {**job_at_50.settings, "local_dir": root.parent / "local"}, root_folder=root)


def _fork(job_at_50: AccountsJob, target: str, into: Path, *more: str, failpoint: str = "") -> Ended:
    return job_at_50.command("fork", target, "--into", str(into), *more, failpoint=failpoint)


def _check_shadow(job_at_50: AccountsJob, since: int) -> None:
    """The fork's own table has what came after its start."""
    assert multiset(job_at_50.rows("movements_shadow")) == multiset(expected(job_at_50.delivered).movements[since:])


@pytest.mark.parametrize(("name", "target"), mostly_slow(FORKS, FORKS[1:2]))
def test_a_fork_that_was_killed_is_completed_by_the_same_command(
    job_at_50: AccountsJob, tmp_path: Path, name: str, target: str
) -> None:
    """Also when the job continued, and collected, and *latest* is another checkpoint by now."""
    origin = job_at_50.create_savepoint("mine")["id"] if target == "mine" else f"{job_at_50.job_uuid}/"
    forked = _forked(job_at_50, tmp_path / "fork")
    assert _fork(job_at_50, target, forked.root, *SHADOW, failpoint=name).code == KILLED
    begun = name != "fork.pinned"
    if begun and name != "fork.adopted":
        assert str(forked.run().check_error(2, "config").facts["of"]).startswith(origin)
    job_at_50.run_to(80)
    _fork(job_at_50, target, forked.root, *SHADOW).check()
    position = 50 if begun or target == "mine" else 80
    assert forked.head.position == position
    # Nothing is left in the job that it was made of: no pin, and no file that a pin had kept.
    assert job_at_50.head.doc["pinned"] == []
    assert len(job_at_50.records("fork")) == len(forked.records("fork")) == 1
    job_at_50.check()
    job_at_50.deliver(120)
    forked.finish()
    _check_shadow(job_at_50, since=position)


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same file system", "other file system"])
def test_a_fork_changes_nothing_of_the_original_job(
    early: AccountsJob, tmp_path: Path, request: pytest.FixtureRequest, is_elsewhere: bool
) -> None:
    """It changes nothing of the job's."""
    folder = request.getfixturevalue("elsewhere") if is_elsewhere else tmp_path
    forked = _forked(early, folder / "fork")
    own = (early.root / "log", early.root / "data", early.folder / "tables")
    before = root_files.digests(*own)
    _fork(early, "early", forked.root, *SHADOW).check()
    assert forked.job_uuid != early.job_uuid
    forked.finish()
    assert forked.head.position == 120
    _check_shadow(early, since=50)
    assert {p: d for p, d in root_files.digests(*own).items() if "_shadow/" not in p} == before
    early.check()


def _thesis(folder: Path) -> dict[str, object]:
    (folder / "thesis.txt").write_text("years of work")
    return {"found": "thesis.txt"}


def _another_job(folder: Path) -> dict[str, object]:
    AccountsJob(folder.parent / "other", root_folder=folder).run_to(10)
    return {"job": "accounts"}


@pytest.mark.parametrize("fill", [_thesis, _another_job])
def test_a_fork_into_a_folder_that_holds_something_else_is_refused(
    job_at_50: AccountsJob, tmp_path: Path, fill: Callable[[Path], dict[str, object]]
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    facts = {"root": into.as_uri(), **fill(into)}
    before = root_files.digests(into)
    refused = _fork(job_at_50, "latest", into)
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    assert root_files.digests(into) == before
    assert job_at_50.head.doc["pinned"] == []


@pytest.mark.slow(reason="runs jobs many times")
def test_a_fork_of_another_job_s_savepoint_needs_an_option_and_keeps_its_key_groups(
    job_at_50: AccountsJob, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", {"max_parallelism": 64, "name": "ledger"})
    other.run_to(70)
    theirs, into = other.create_savepoint("theirs")["path"], tmp_path / "fork"
    refused = _fork(job_at_50, theirs, into)
    refused.check_error(2, "config", job_uuid=other.job_uuid, this_job=job_at_50.job_uuid)
    assert "--from-other-job" in refused.err and not into.exists()
    _fork(job_at_50, theirs, into, *SHADOW, "--from-other-job").check()
    other.deliver(120)
    forked = _forked(other, into)
    forked.finish()
    # Each key's state was found again: a row of a key that was not would begin to count again.
    _check_shadow(other, since=70)
    _forked(job_at_50, into).run().check_error(2, "wrong-job-root", found="ledger", wanted="accounts")
    status = forked.command("status", "--json").document
    assert status["shadow"] and "ledger" in status["origin"] and "theirs" in status["origin"]


@pytest.mark.slow(reason="runs a job in several processes")
def test_a_fork_never_takes_over_the_tables_of_its_parent(roots: NewRoot, tmp_path: Path) -> None:
    forked = _forked(roots.old, tmp_path / "fork" / "root")
    _fork(roots.old, "latest", forked.root).check()
    forked.deliver(90)
    forked.run().check_error(2, "config", sink="movements")
    forked.finish(job__tables=tmp_path / "own")
    following = _next_root(forked, tmp_path / "next")
    following.run(*CONTINUE, own_tables=False).check_error(4, "sink-diverged")


# -- jobs that continue under other names -----------------------------------------------------------------------------

MAPS = (
    *("--map", "balances=turnovers", "--map", "turnovers=shops"),
    *("--map", "balances.account=turnovers.figures", "--map", "events=orders"),
)
"""From version 1 of the job to version 2; an operator gets the uid of another one."""


def _rename(job: AccountsJob) -> None:
    job.settings = {**job.settings, "job__version": 2}


def _check_results(job: AccountsJob) -> None:
    """Tables and state are those of a job that never had other names."""
    wanted = expected(job.delivered)
    assert multiset(job.rows("movements")) == multiset(wanted.movements)
    assert multiset(job.rows("totals")) == multiset(wanted.totals)
    balances = {("figures", *k[1:]) if k[0] == "account" else k: v for k, v in wanted.balances.items()}
    assert stored_state.read_state(job.root, "turnovers") == balances
    assert stored_state.read_state(job.root, "shops") == wanted.turnovers
    assert [source["uid"] for source in job.head.doc["sources"]] == ["orders"]
    job.check_clean()


@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_restore_with_maps_is_completed_by_the_next_start(early: AccountsJob) -> None:
    _rename(early)
    before = everything(early)
    planned = plan(early, str(early.commit_at(50).seq), *MAPS)
    assert everything(early) == before
    moves = {(m["old"], m["old_state"], m["new"], m["new_state"]) for m in planned["graph"]["moves"]}
    assert {m for m in moves if m[0] == "balances"} == {
        ("balances", "account", "turnovers", "figures"),
        ("balances", "shops", "turnovers", "shops"),
    }
    assert [(s["uid"], s["old"], s["action"]) for s in planned["sources"]] == [("orders", "events", "kept")]
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    early.finish()
    _check_results(early)


def test_a_start_without_a_map_is_refused_and_changes_nothing(early: AccountsJob) -> None:
    _rename(early)
    before = everything(early)
    for refused in (early.run(), ask(early, "latest")):
        refused.check_error(2, "config")
        assert "uids=['balances']" in refused.err and "--map" in refused.err
    # Maps of a start are for a new job root.
    refused = early.command("run", early.job_file, *MAPS, with_job=True)
    refused.check_error(2, "config")
    assert "--from-savepoint" in refused.err and "stateflow restore" in refused.err
    assert everything(early) == before


@pytest.mark.slow(reason="runs jobs many times")
def test_a_new_root_begins_under_other_names_and_survives_a_kill(job: AccountsJob, tmp_path: Path) -> None:
    roots = NewRoot(job, tmp_path)
    _rename(roots.new)
    roots.new.deliver(120)
    before = root_files.digests(roots.savepoint)
    assert roots.run(*MAPS, failpoint="begin.imported").code == KILLED
    roots.run(*MAPS).check()
    wanted = expected(roots.new.delivered)
    assert multiset(folder_tables.rows(roots.tables / "movements")) == multiset(wanted.movements[50:])
    assert stored_state.read_state(roots.new.root, "shops") == wanted.turnovers
    assert root_files.digests(roots.savepoint) == before
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


def test_a_new_root_drops_the_position_of_a_removed_source_only_when_named(job: AccountsJob, tmp_path: Path) -> None:
    roots = NewRoot(job, tmp_path)
    _rename(roots.new)
    roots.new.deliver(60)
    refused = roots.run(*MAPS[:-2])
    refused.check_error(2, "config")
    assert "uids=['events']" in refused.err and "--drop" in refused.err and not roots.new.root.exists()
    roots.run(*MAPS[:-2], "--drop", "events").check()
    assert len(folder_tables.rows(roots.tables / "movements")) == 60


def test_an_edited_plan_is_refused(early: AccountsJob) -> None:
    _rename(early)
    planned = plan(early, "latest", *MAPS)
    before = everything(early)
    for change in _edits(planned):
        plan_file(early).write_text(json.dumps(change))
        ended = execute(early)
        assert ended.error is not None and ended.error.code in ("plan-outdated", "config"), str(ended)
    assert everything(early) == before


def _edits(planned: dict[str, Any]) -> list[dict[str, Any]]:
    """Plans that show something else than what their options lead to."""
    graph, (source,) = planned["graph"], planned["sources"]
    return [
        {**planned, "graph": {**graph, "maps": [m for m in graph["maps"] if "figures" not in m]}},
        {**planned, "graph": {**graph, "moves": []}},
        {**planned, "graph": {**graph, "sources": ["orders=earliest"]}},
        {**planned, "sources": [{**source, "target_offset": {"row": 1}}]},
    ]
