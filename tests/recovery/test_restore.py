"""Going back: state, source position and tables together, from any target, killed at each step."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from stateflow.checkpoint.log.checkpoint_log import lineage_ranges
from stateflow.checkpoint.restore.plan_document import RESTORE_OPEN
from stateflow.operations.checkpoints import history
from tests.recovery.other_writer import TABLES, append, newest_version
from tests.support import folder_tables, root_files, stored_state
from tests.support.errors import ReportedError
from tests.support.job_fixture import KILLED, AccountsJob, expected, mostly_slow, multiset
from tests.support.processes import Ended
from tests.support.restores import ask, begin, check_after, everything, execute, go_back, kill_at_each_step, plan


def _check_movements(job: AccountsJob, number: int) -> None:
    """The table has the output of the first events."""
    assert multiset(job.rows("movements")) == multiset(expected(job.delivered[:number]).movements)


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_states_sources_and_sinks_and_changes_nothing(early: AccountsJob) -> None:
    before = everything(early)
    planned = plan(early, "early")
    assert everything(early) == before
    states = [(s["uid"], s["action"], s["target_bytes"] > 0) for s in planned["states"]]
    assert states == [("balances", "matched", True), ("turnovers", "matched", True)]
    (source,) = planned["sources"]
    assert (source["current_offset"], source["target_offset"]) == ({"row": 120}, {"row": 50}) and source["available"]
    rows = {
        s["uid"]: (s["mode"], s["current_version"], s["target_version"], s["rows_removed"]) for s in planned["sinks"]
    }
    totals = len(early.rows("totals")) - len(expected(early.delivered[:50]).totals)
    assert rows == {"movements": ("restore", 12, 5, 70), "totals": ("restore", 12, 5, totals)}


TARGETS = ["early", "latest", "checkpoint", "before:time", "before:offset"]


@pytest.mark.parametrize("target", mostly_slow(TARGETS, ["checkpoint", "before:offset"]))
def test_every_kind_of_target_can_be_restored(early: AccountsJob, target: str) -> None:
    position, text = {
        "early": (50, target),
        "latest": (120, target),
        "checkpoint": (80, str(early.commit_at(80).seq)),
        "before:time": (80, f"before:{early.commit_at(90).doc['at']}"),
        "before:offset": (70, "before:events=79"),
    }[target]
    removed = sum(sink["rows_removed"] for sink in plan(early, text)["sinks"])
    go_back(early, text)
    assert early.head.position == position
    _check_movements(early, position)
    (restored,) = (each for each in root_files.history(early.root) if each.get("kind") == "restore")
    assert restored["facts"]["rows_removed"] == removed and (removed > 0) is (position < 120)
    check_after(early, since=position)


_UNKNOWN: list[tuple[str, dict[str, object], str]] = [
    ("999", {"target": "999"}, "early"),
    ("nothing", {"target": "nothing"}, "early"),
    ("before:1999-01-01", {"before": "1999-01-01"}, "early"),
    ("before:yesterday", {"time": "yesterday"}, "before:"),
    ("before:nowhere=3", {"uid": "nowhere"}, "known=['events']"),
    ("/nowhere", {"path": "file:///nowhere"}, "_savepoint"),
]


def test_an_unknown_target_is_refused_with_the_known_targets(early: AccountsJob) -> None:
    for target, facts, known in _UNKNOWN:
        ended = ask(early, target)
        assert (ended.code, ended.error) == (2, ReportedError("config", facts)), str(ended)
        assert known in ended.err


def test_state_without_an_operator_is_dropped_only_when_named(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    refused = early.run()
    assert refused.code == 2 and "['turnovers']" in refused.err, str(refused)
    for options in ((), ("--drop", "turnover")):
        refused = ask(early, "early", *options)
        assert refused.code == 2 and "uids=['turnovers']" in refused.err and "--drop" in refused.err, str(refused)
    left = multiset(early.rows("totals"))
    planned = go_back(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    assert [(s["uid"], s["action"]) for s in planned["states"]] == [("balances", "matched"), ("turnovers", "dropped")]
    early.replace_events(since=50)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(early.rows("movements")) == multiset(wanted.movements)
    assert multiset(early.rows("totals")) == left
    assert stored_state.read_state(early.root, "balances") == wanted.balances
    assert [o["uid"] for o in early.manifest["operators"]] == ["balances"]
    early.check_clean()


# -- execution --------------------------------------------------------------------------------------------------------


def test_the_record_of_a_checkpoint_names_the_one_before_it_and_its_branch(early: AccountsJob) -> None:
    before = history(str(early.root))
    go_back(early, "early")
    early.finish()
    records = history(str(early.root))
    (restore,) = early.records("restore")
    after = records[len(before) :]
    assert [record.branch for record in records] == [0] * len(before) + [restore["seq"]] * len(after)
    point = restore["facts"]["checkpoint_id"]
    ids = [0, *(record.checkpoint_id for record in before[:-1]), point, *(r.checkpoint_id for r in after[:-1])]
    assert [record.base_checkpoint_id for record in records] == ids and len(after) > 1


@pytest.mark.slow(reason="runs jobs many times")
def test_a_job_can_be_restored_to_an_undone_branch(early: AccountsJob) -> None:
    """To a savepoint of the branch that was given up, too."""
    early.create_savepoint("late")
    given_up = early.delivered
    go_back(early, "early")
    early.replace_events(since=50)
    early.finish()
    early.check_results()
    go_back(early, "late")
    (early.folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in given_up))
    assert early.head.position == 120
    early.check_tables()
    early.deliver(150)
    check_after(early)


def test_a_restore_publishes_the_pending_output_of_its_target_first(job: AccountsJob) -> None:
    job.deliver(100)
    job.reach("commit.after:5")
    go_back(job, "latest")
    assert job.head.position == 50
    _check_movements(job, 50)
    check_after(job)


@pytest.mark.parametrize("place", ["job root", "copied", "other file system"])
@pytest.mark.slow(reason="runs a job in several processes")
def test_a_restored_savepoint_is_unchanged_and_no_checkpoint_depends_on_that_savepoint(
    early: AccountsJob, tmp_path: Path, request: pytest.FixtureRequest, place: str
) -> None:
    """Wherever it is: going back to it does not change it, and then it may be deleted."""
    (folder,) = (early.root / "savepoints").iterdir()
    if place == "copied":
        folder = shutil.copytree(folder, tmp_path / "copied")
    elif place != "job root":
        folder = Path(shutil.move(folder, request.getfixturevalue("elsewhere") / "moved"))
    before = root_files.digests(folder)
    go_back(early, "early" if place == "job root" else str(folder))
    assert root_files.digests(folder) == before
    shutil.rmtree(folder)
    check_after(early, since=50)


# -- drivers that wake ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", mostly_slow(["publish.before:6", "log.created:4"], ["publish.before:6"]))
def test_an_old_driver_resumed_after_a_restore_adds_no_row(early: AccountsJob, name: str) -> None:
    early.deliver(200)
    sleeper = early.start(f"{name}:stop").wait_stopped()
    go_back(early, "early")
    early.replace_events(since=50)
    sleeper.resume().wait().check_error(3, "fenced")
    _check_movements(early, 50)
    check_after(early)


# -- kills at each step ------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs jobs many times")
def test_a_killed_restore_that_keeps_one_table_is_completed_by_the_next_start(early: AccountsJob) -> None:
    """The kept table gets the output after the target a second time, the other one has each row once."""
    planned = plan(early, "early", "--keep-table", "totals")
    assert {s["uid"]: s["mode"] for s in planned["sinks"]} == {"movements": "restore", "totals": "keep"}
    before = multiset(early.rows("totals"))
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    assert multiset(early.rows("totals")) == before
    (record,) = early.records("restore")
    assert record["facts"]["kept_tables"] == ["totals"]
    early.finish()
    whole, part = expected(early.delivered), expected(early.delivered[:50])
    assert multiset(early.rows("movements")) == multiset(whole.movements)
    assert multiset(early.rows("totals")) == multiset(whole.totals) + (before - multiset(part.totals))
    early.check_clean()
    # The target is still retained: this time the table is restored as well.
    go_back(early, "early")
    check_after(early, since=50)


@pytest.mark.slow(reason="runs jobs many times")
def test_a_restore_of_another_job_s_savepoint_needs_an_option_and_survives_kills(
    early: AccountsJob, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", early.settings)
    other.run_to(30)
    (folder,) = (early.root / "savepoints").iterdir()
    refused = ask(other, str(folder))
    facts = refused.check_error(2, "config").facts
    assert facts.keys() == {"savepoint", "job_uuid", "this_job"} and "--from-other-job" in refused.err
    before = root_files.digests(folder)
    other.deliver(120)
    planned = plan(other, str(folder), "--from-other-job")
    assert [s["mode"] for s in planned["sinks"]] == ["keep", "keep"]
    own = other.head.checkpoint
    kill_at_each_step(other, planned)
    assert root_files.digests(folder) == before
    # What the job had itself can still be gone back to.
    assert own in {ref["id"] for ref in other.head.doc["retained"]}
    other.finish()
    wanted = expected(other.delivered)
    # The table has its own first rows, and those after the 50th.
    assert multiset(other.rows("movements")) == multiset(wanted.movements[:30] + wanted.movements[50:])
    assert stored_state.read_state(other.root, "balances") == wanted.balances
    other.check_clean()
    other.end_all()


# -- restored checkpoints, and targets by time and position ----------------------------------------------------------


def test_a_savepoint_of_the_head_is_never_of_an_undone_branch(early: AccountsJob, tmp_path: Path) -> None:
    """A reader may still pin a checkpoint of that branch, with a higher id."""
    early.command("fork", "latest", "--into", str(tmp_path / "fork"), failpoint="savepoint.pinned")
    go_back(early, str(early.commit_at(50).seq))
    made = early.create_savepoint("head", "--from-head")
    assert made["checkpoint_id"] == early.head.checkpoint


@pytest.mark.slow(reason="runs jobs many times")
def test_a_checkpoint_whose_state_was_dropped_can_still_be_restored(early: AccountsJob) -> None:
    """Dropped is only what the job continues with."""
    target = early.commit_at(120).seq
    early.settings = {**early.settings, "job__parts": "movements"}
    go_back(early, str(target), "--drop", "turnovers", "--sinks", "keep")
    early.collect()
    early.settings = {"checkpoints__retained": 100}
    assert target in {r["id"] for r in early.head.doc["retained"]}
    go_back(early, str(target))
    early.deliver(140)
    check_after(early)


# -- before:TIME and before:SOURCE=OFFSET ------------------------------------------------------------------------------


@pytest.fixture
def undone(job: AccountsJob) -> AccountsJob:
    """A job with savepoints *good* (30 events) and *bad* (50), that went back to *good*."""
    job.settings = {"checkpoints__retained": 100}
    for name, rows in (("good", 30), ("bad", 50)):
        job.run_to(rows)
        job.create_savepoint(name)
    go_back(job, "good")
    return job


def _position(job: AccountsJob, target: str) -> int:
    """Up to which event the source was read there."""
    return int(plan(job, target)["sources"][0]["target_offset"]["row"])


@pytest.mark.parametrize(("target", "then"), [("before:2999-01-01", 60), ("before:events=50", 50)])
@pytest.mark.slow(reason="runs a job in several processes")
def test_a_target_condition_ignores_an_undone_branch(undone: AccountsJob, target: str, then: int) -> None:
    assert _position(undone, target) == 30
    undone.replace_events(since=30)
    undone.run_to(60)
    assert _position(undone, target) == then


@pytest.mark.slow(reason="runs jobs many times")
def test_undone_branches_are_known_without_the_history(undone: AccountsJob) -> None:
    shutil.rmtree(undone.root / "history")
    undone.replace_events(since=30)
    undone.run_to(60, history__retained=1, checkpoints__retained=1)
    assert len(list((undone.root / "history").iterdir())) == 1
    assert _position(undone, "before:events=55") == 30
    shutil.rmtree(undone.root / "history")
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50


def test_a_restore_to_an_undone_branch_makes_that_branch_current(undone: AccountsJob) -> None:
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50
    # The checkpoints between the two were released when the job first went back.
    assert _position(undone, "before:events=49") == 30


def test_a_later_savepoint_of_an_older_checkpoint_counts_as_older(job: AccountsJob) -> None:
    job.deliver(100)
    run = job.start("commit.after:4:stop").wait_stopped()
    # The newest checkpoint's output is not published: this is the one before it, and made later.
    job.create_savepoint("older", "--from-head")
    newest, stored = job.head.checkpoint, job.savepoints["older"]
    assert stored["checkpoint_id"] < newest
    committed = {ref["id"]: ref["at"] for ref in root_files.kept_refs(job.root)}
    assert stored["committed_at"] == committed[stored["checkpoint_id"]]
    for time in (stored["made_at"].replace("+00:00", "Z"), "2999-01-01"):
        planned = plan(job, f"before:{time}")
        assert (planned["target_checkpoint_id"], planned["savepoint_path"]) == (newest, None)
    run.resume().wait().check()


def test_the_lineage_of_a_checkpoint_follows_every_restore() -> None:
    def numbers(restores: dict[int, int], newest: int) -> set[int]:
        return {n for part in lineage_ranges(restores, newest) for n in part}

    assert numbers({}, 5) == {1, 2, 3, 4, 5}
    assert numbers({6: 2}, 9) == {1, 2, 6, 7, 8, 9}
    assert numbers({6: 2, 10: 8}, 12) == {1, 2, 6, 7, 8, 10, 11, 12}
    # Back to where the first restore had gone away from.
    assert numbers({6: 2, 10: 5}, 12) == {1, 2, 3, 4, 5, 10, 11, 12}
    assert numbers({6: 0}, 8) == {6, 7, 8}


# -- tables that others touch: rows of another writer, and output that is deleted too early ---------------------------


@pytest.fixture
def approved(early: AccountsJob) -> AccountsJob:
    """A restore to the 50th event was approved, and killed after its intent."""
    plan(early, "early")
    assert execute(early, failpoint="restore.intent").code == KILLED
    return early


def _check_refused(job: AccountsJob, ended: Ended, table: str) -> None:
    version = newest_version(job, table)
    ended.check_error(4, "foreign-rows", sink=table, table=str(job.table(table)))
    assert f"versions={[version]}" in ended.err and f"other-{version}.json" in ended.err, ended.err


def _tables(job: AccountsJob) -> dict[str, Counter[str]]:
    return {table: multiset(job.rows(table)) for table in TABLES}


def test_an_approved_restore_does_not_undo_rows_that_its_plan_did_not_show(approved: AccountsJob) -> None:
    table = "totals"
    append(approved, table)
    before = approved.rows(table)
    for ended in (execute(approved), approved.run(), execute(approved)):
        _check_refused(approved, ended, table)
        assert approved.rows(table) == before


def test_a_restore_that_was_killed_before_it_has_changed_the_job_is_named_as_such(early: AccountsJob) -> None:
    plan(early, "early")
    before = early.command("status").check().out
    assert execute(early, failpoint="restore.claimed").code == KILLED
    found = early.command("status", "--json").check().document
    assert (found["restore_open"], found["run_open"], found["health"]["word"]) == (True, False, "restoring")
    shown = early.command("status").check().out
    assert RESTORE_OPEN in shown and RESTORE_OPEN not in before
    again = plan(early, "early")
    assert (again["restore_open"], again["run_open"]) == (True, False)
    # A run that starts meanwhile goes on from where the job was.
    early.finish()
    found = early.command("status", "--json").check().document
    assert (found["restore_open"], early.head.position) == (False, len(early.delivered))


@pytest.mark.parametrize(
    ("failpoint", "code"), [("restore.claimed", "plan-outdated"), ("restore.imported", "foreign-rows")]
)
def test_rows_that_another_writer_adds_during_a_restore_stop_the_restore(
    early: AccountsJob, failpoint: str, code: str
) -> None:
    """Before its last look, and between that and the intent."""
    plan(early, "early")
    restore = begin(early, failpoint=f"{failpoint}:1:stop").wait_stopped()
    append(early, "movements")
    before = _tables(early)
    ended = restore.resume().wait()
    ended.check_error(4, code, sink="movements")
    assert _tables(early) == before
    if code == "plan-outdated":
        assert early.head.position == 120
    else:
        _check_refused(early, ended, "movements")


# -- lost output -------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(job: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints, and more to do."""
    job.run_to(40)
    job.deliver(100)
    return job


@pytest.mark.parametrize("table", TABLES)
def test_a_run_whose_output_was_lost_is_rewound_by_one_checkpoint_and_replayed(
    running: AccountsJob, table: str
) -> None:
    running.reach("commit.after:3")
    lost = running.lose_output(table)
    asked = len(running.requested())
    running.finish()
    again = [start for start, _ in running.requested()[asked:]]
    # From the checkpoint before, and no further back.
    assert again == list(range(lost.position - 10, 100, 10))
    tokens = folder_tables.tokens(running.table(table))
    assert lost.seq not in tokens and tokens == sorted(set(tokens))
    running.check()


def test_a_rewind_that_was_killed_or_failed_is_completed_by_the_next_run(running: AccountsJob) -> None:
    """The CLAIM that adopts the older checkpoint is written, and nothing else happens. It is the run's own: a run that
    fails then does not take it for that of a newer run."""
    running.reach("commit.after:3")
    running.lose_output()
    assert running.run("log.created:2").code == KILLED
    assert running.run("rewind.table:1:error").error.code == "internal"
    running.finish()
    running.check()


def test_a_rewind_of_a_checkpoint_that_another_sink_has_published_is_refused(running: AccountsJob) -> None:
    """The run names that sink, and changes no table."""
    running.reach("publish.after:5")
    newest = running.head
    (published,) = [t for t in TABLES if newest.seq in folder_tables.tokens(running.table(t))]
    (unpublished,) = set(TABLES) - {published}
    running.lose_output(unpublished)
    before = root_files.digests(running.folder / "tables")
    ended = running.run()
    ended.check_error(4, "missing-file")
    facts = ended.failure["facts"]
    assert (facts["checkpoint_id"], facts["published_in"]) == (newest.seq, [published])
    assert root_files.digests(running.folder / "tables") == before


def test_a_run_that_detects_its_own_lost_output_fails_with_a_retryable_error(running: AccountsJob) -> None:
    stopped = running.start("commit.after:3:stop").wait_stopped()
    running.lose_output("totals")
    stopped.resume().wait().check_error(5, "batch-failed")
    running.finish()
    running.check()
