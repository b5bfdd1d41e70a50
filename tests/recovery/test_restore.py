"""Going back: state, source position and tables together, from any target, killed at each step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stateflow.checkpoint.log.checkpoint_log import lineage_ranges
from tests.support import root_files, stored_state
from tests.support.errors import ReportedError
from tests.support.job_fixture import KILLED, AccountsJob, expected, mostly_slow, multiset
from tests.support.restores import ask, begin, check_after, everything, execute, go_back, kill_at_each_step, plan


def _check_movements(job: AccountsJob, number: int) -> None:
    """The table has the output of the first events."""
    assert multiset(job.rows("movements")) == multiset(expected(job.delivered[:number]).movements)


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_states_sources_and_sinks_and_changes_nothing(early: AccountsJob) -> None:
    before = everything(early)
    planned = plan(early, "early")
    assert everything(early) == before
    states = [(s["uid"], s["action"], s["bytes"] > 0) for s in planned["states"]]
    assert states == [("balances", "matched", True), ("turnovers", "matched", True)]
    (source,) = planned["sources"]
    assert (source["now"], source["then"], source["held"]) == ('{"row": 120}', '{"row": 50}', True)
    rows = {s["uid"]: (s["mode"], s["now"], s["then"], s["rows_removed"]) for s in planned["sinks"]}
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
    go_back(early, text)
    assert early.head.position == position
    _check_movements(early, position)
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


@pytest.mark.slow(reason="runs jobs many times")
def test_a_restore_that_is_killed_before_its_intent_has_no_effect(early: AccountsJob) -> None:
    plan(early, "early")
    assert execute(early, failpoint="restore.imported").code == KILLED
    assert not early.head.doc["requests"] and early.head.position == 120
    check_after(early)
    # The run's CLAIM outdates the plan.
    go_back(early, "early")
    assert len(early.records("restore")) == 1
    check_after(early, since=50)


@pytest.mark.slow(reason="runs jobs many times")
def test_the_claim_of_another_request_outdates_a_plan(early: AccountsJob) -> None:
    plan(early, "early")
    assert execute(early, "--request-id", "first", failpoint="restore.claimed").code == KILLED
    execute(early, "--request-id", "second").check_error(4, "plan-outdated")
    execute(early, "--request-id", "first").check()
    check_after(early, since=50)


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


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("name", "position"), [("rewind.table", 50), ("restore.intent", 140)])
def test_an_old_driver_resumed_during_a_restore_adds_no_row(early: AccountsJob, name: str, position: int) -> None:
    """The intent is written, the tables are unchanged: what the old run publishes now is removed again, also
    where nothing was published after the target before."""
    early.deliver(200)
    sleeper = early.start("commit.after:3:stop").wait_stopped()
    plan(early, "early" if position == 50 else str(early.commit_at(position).seq))
    going = begin(early, failpoint=f"{name}:1:stop").wait_stopped()
    sleeper.resume().wait().check_error(3, "fenced")
    going.resume().wait().check()
    check_after(early, since=position)


# -- kills at each step ------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_restore_at_another_parallelism_is_completed_by_the_next_start(early: AccountsJob) -> None:
    before = {o["uid"]: (o["parallelism"], 5) for o in early.manifest["operators"]}
    early.settings = {**early.settings, "parallelism": 5}
    planned = plan(early, "early")
    assert {s["uid"]: (s["from_parallelism"], s["to_parallelism"]) for s in planned["states"]} == before
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    check_after(early)
    assert {o["parallelism"] for o in early.manifest["operators"]} == {5}


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
    assert record["facts"]["kept_tables"] == "totals"
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


@pytest.mark.parametrize(("target", "table", "retained"), [("early", "movements", 2), ("checkpoint", "totals", 100)])
@pytest.mark.slow(reason="runs a job in several processes")
def test_output_lost_after_a_restore_rewinds_the_job_to_the_restored_checkpoint(
    early: AccountsJob, target: str, table: str, retained: int
) -> None:
    """The tables are at the restore; older checkpoints would bring rows in twice. The restored one can be a target."""
    early.settings = {"checkpoints__retained": retained}
    go_back(early, target if target == "early" else str(early.commit_at(50).seq))
    point = early.head.checkpoint
    go_back(early, "latest")
    assert early.head.checkpoint == point
    early.replace_events(since=50)
    early.reach("commit.after:1")
    early.lose_output(table)
    check_after(early)


@pytest.mark.slow(reason="runs jobs many times")
def test_a_fork_can_be_forked_and_kept_as_a_savepoint_before_its_first_run(early: AccountsJob, tmp_path: Path) -> None:
    first, second = (AccountsJob(early.folder, early.settings, root_folder=tmp_path / n) for n in ("first", "second"))
    early.command("fork", "early", "--into", str(first.root), "--shadow").check()
    first.create_savepoint("mine")
    first.command("fork", "latest", "--into", str(second.root), "--shadow").check()
    assert second.head.position == 50


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


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize("wakes", ["before", "between"])
def test_a_kept_table_gets_committed_output_whether_an_old_driver_resumes_or_not(
    early: AccountsJob, wakes: str
) -> None:
    """Rows after the target come again; which ones never depends on a driver that sleeps before publishing."""
    early.deliver(140)
    sleeper = early.start("commit.after:1:stop").wait_stopped()
    committed = early.head.position
    if wakes == "before":
        sleeper.resume().wait().check()
    plan(early, str(early.commit_at(120).seq), "--sinks", "keep")
    going = begin(early, failpoint="rewind.table:1:stop").wait_stopped()
    if wakes == "between":
        sleeper.resume().wait().check_error(3, "fenced")
    going.resume().wait().check()
    shown = 140 if wakes == "before" else committed
    assert multiset(early.rows("movements")) == multiset(expected(early.delivered[:shown]).movements)


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
    return int(json.loads(plan(job, target)["sources"][0]["then"])["row"])


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
        assert (planned["target_checkpoint"], planned["savepoint"]) == (newest, "")
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
