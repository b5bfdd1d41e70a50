"""Going back: state, source position and tables together, from any target, killed at each step."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files, stored_state
from tests.support.errors import ReportedError
from tests.support.job_fixture import KILLED, AccountsJob, Expected, expected, multiset
from tests.support.restores import (
    BEFORE_THE_INTENT,
    COMPLETING,
    ask,
    begin,
    check_after,
    everything,
    execute,
    go_back,
    kill_at_each_step,
    plan,
)


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


@pytest.mark.parametrize("target", ["early", "latest", "checkpoint", "before:time", "before:offset"])
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


@pytest.mark.parametrize(
    ("target", "facts", "known"),
    [
        ("999", {"target": "999"}, "early"),
        ("nothing", {"target": "nothing"}, "early"),
        ("before:1999-01-01", {"before": "1999-01-01"}, "early"),
        ("before:yesterday", {"time": "yesterday"}, "before:"),
        ("before:nowhere=3", {"uid": "nowhere"}, "known=['events']"),
        ("/nowhere", {"path": "file:///nowhere"}, "_savepoint"),
    ],
)
def test_an_unknown_target_is_refused_with_the_known_targets(
    early: AccountsJob, target: str, facts: dict[str, str], known: str
) -> None:
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
    planned = plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    assert [(s["uid"], s["action"]) for s in planned["states"]] == [("balances", "matched"), ("turnovers", "dropped")]


# -- execution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["restore.begin", "restore.claimed", "restore.imported"])
def test_a_restore_that_is_killed_before_its_intent_has_no_effect(early: AccountsJob, name: str) -> None:
    plan(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    assert not early.head.doc["requests"] and early.head.position == 120
    check_after(early)
    # The run's CLAIM outdates the plan.
    go_back(early, "early")
    assert len(early.records("restore")) == 1
    check_after(early, since=50)


def test_the_claim_of_another_request_outdates_a_plan(early: AccountsJob) -> None:
    plan(early, "early")
    assert execute(early, "--request-id", "first", failpoint="restore.claimed").code == KILLED
    execute(early, "--request-id", "second").check_error(4, "plan-outdated")
    execute(early, "--request-id", "first").check()
    check_after(early, since=50)


def test_a_run_names_its_initial_savepoint(early: AccountsJob) -> None:
    """Also the status does, until the first checkpoint is committed."""
    go_back(early, "early")
    assert " early " in _position(early)
    early.replace_events(since=50)
    assert " early " in early.finish().result["started_at"]
    assert "early" not in _position(early) and str(early.head.checkpoint) in _position(early)


def _position(job: AccountsJob) -> str:
    return str(job.command("status", "--json").document["position"])


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


@pytest.mark.parametrize("place", ["job root", "copied", "moved", "other file system"])
def test_a_restored_savepoint_is_unchanged_and_no_checkpoint_depends_on_that_savepoint(
    early: AccountsJob, tmp_path: Path, request: pytest.FixtureRequest, place: str
) -> None:
    """Wherever it is: going back to it does not change it, and then it may be deleted."""
    (folder,) = (early.root / "savepoints").iterdir()
    if place == "copied":
        folder = shutil.copytree(folder, tmp_path / "copied")
    elif place != "job root":
        to = request.getfixturevalue("elsewhere") if place == "other file system" else tmp_path
        folder = Path(shutil.move(folder, to / "moved"))
    before = root_files.digests(folder)
    go_back(early, "early" if place == "job root" else str(folder))
    assert root_files.digests(folder) == before
    shutil.rmtree(folder)
    check_after(early, since=50)


# -- drivers that wake ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["commit.after:3", "publish.before:5", "publish.before:6", "batch.begin:3", "log.created:4"]
)
def test_an_old_driver_resumed_after_a_restore_adds_no_row(early: AccountsJob, name: str) -> None:
    early.deliver(200)
    sleeper = early.start(f"{name}:stop").wait_stopped()
    go_back(early, "early")
    early.replace_events(since=50)
    sleeper.resume().wait().check_error(3, "fenced")
    _check_movements(early, 50)
    check_after(early)


@pytest.mark.parametrize(("name", "position"), [("rewind.table", 50), ("restore.intent", 50), ("restore.intent", 140)])
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


# -- other jobs -------------------------------------------------------------------------------------------------------


def test_two_jobs_can_restore_one_savepoint_concurrently(early: AccountsJob, tmp_path: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    before = root_files.digests(folder)
    others = [AccountsJob(tmp_path / f"other-{n}", early.settings) for n in range(2)]
    for other in others:
        other.run_to(30)
        other.deliver(120)
        plan(other, str(folder), "--from-other-job")
    going = [begin(other, failpoint="restore.claimed:1:stop").wait_stopped() for other in others]
    for one in going:
        one.resume()
    for one in going:
        one.wait().check()
    assert root_files.digests(folder) == before
    for other in others:
        other.finish()
        assert stored_state.read_state(other.root, "balances") == expected(other.delivered).balances
        other.check_clean()
        other.end_all()


def test_an_operator_that_the_target_does_not_contain_starts_without_state(early: AccountsJob) -> None:
    """The target was made by a version without the second operator; the job that goes back has it."""
    old = AccountsJob(early.folder / "old", {**early.settings, "job__parts": "movements"})
    old.run_to(50)
    old.create_savepoint("before-totals")
    old.settings = dict(early.settings)
    old.run_to(120)
    planned = go_back(old, "before-totals", "--sinks", "keep")
    found = {s["uid"]: (s["action"], s["bytes"], s["from_parallelism"]) for s in planned["states"]}
    assert found["turnovers"] == ("new", 0, 0) and found["balances"][0] == "matched"
    old.finish()
    whole, first = expected(old.delivered), expected(old.delivered[:50])
    turnover = {k: v - first.turnovers.get(k, 0) for k, v in whole.turnovers.items() if k[0] == "turnover"}
    state = stored_state.read_state(old.root, "turnovers")
    assert {k: v for k, v in state.items() if k[0] == "turnover"} == turnover
    assert stored_state.read_state(old.root, "balances") == whole.balances
    old.end_all()


# -- kills at each step ------------------------------------------------------------------------------------------------


TABLES = ("movements", "totals")


def test_every_step_of_a_restore_has_a_kill() -> None:
    steps = {name.partition(":")[0] for name in (*BEFORE_THE_INTENT, *COMPLETING)}
    assert steps == {name for name in NAMES if name.startswith(("restore.", "rewind."))}


@pytest.mark.parametrize("target", ["early", "checkpoint"])
def test_a_killed_restore_at_another_parallelism_is_completed_by_the_next_start(
    early: AccountsJob, target: str
) -> None:
    before = {o["uid"]: (o["parallelism"], 5) for o in early.manifest["operators"]}
    early.settings = {**early.settings, "parallelism": 5}
    planned = plan(early, "early" if target == "early" else str(early.commit_at(50).seq))
    assert {s["uid"]: (s["from_parallelism"], s["to_parallelism"]) for s in planned["states"]} == before
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    check_after(early)
    assert {o["parallelism"] for o in early.manifest["operators"]} == {5}


def test_a_killed_restore_that_keeps_tables_is_completed_by_the_next_start(early: AccountsJob) -> None:
    planned = plan(early, "early", "--sinks", "keep")
    assert [(s["mode"], s["then"]) for s in planned["sinks"]] == [("keep", None)] * 2
    before = {table: multiset(early.rows(table)) for table in TABLES}
    kill_at_each_step(early, planned)
    assert {table: multiset(early.rows(table)) for table in TABLES} == before
    early.finish()
    # The output of the events after the 50th is stored a second time.
    whole, part = expected(early.delivered), expected(early.delivered[:50])
    assert multiset(early.rows("movements")) == before["movements"] + multiset(whole.movements[50:])
    again = multiset(whole.totals) - multiset(part.totals)
    assert multiset(early.rows("totals")) == before["totals"] + again
    assert stored_state.read_state(early.root, "turnovers") == whole.turnovers
    early.check_clean()


@pytest.mark.parametrize("kept", TABLES)
def test_a_killed_restore_that_keeps_one_table_is_completed_by_the_next_start(early: AccountsJob, kept: str) -> None:
    """The kept table gets the output after the target a second time, the other one has each row once."""
    planned = plan(early, "early", "--keep-table", kept)
    assert {s["uid"]: s["mode"] for s in planned["sinks"]} == {t: "keep" if t == kept else "restore" for t in TABLES}
    before = multiset(early.rows(kept))
    early.replace_events(since=50)
    kill_at_each_step(early, planned)
    assert multiset(early.rows(kept)) == before
    (record,) = early.records("restore")
    assert record["facts"]["kept_tables"] == kept
    early.finish()
    whole, part = _outputs(expected(early.delivered)), _outputs(expected(early.delivered[:50]))
    whole[kept] += before - part[kept]
    assert {table: multiset(early.rows(table)) for table in TABLES} == whole
    early.check_clean()
    # The target is still retained: this time the table is restored as well.
    go_back(early, "early")
    check_after(early, since=50)


def test_a_plan_that_keeps_one_table_states_how_many_checkpoints_follow_the_target(early: AccountsJob) -> None:
    planned = plan(early, "early", "--keep-table", "totals")
    after = [commit for commit in early.commits if commit.position > 50]
    assert planned["checkpoints_after"] == len(after) == 7
    shown = ask(early, "early", "--keep-table", "totals").check().out
    (warning,) = [line for line in shown.splitlines() if line.strip().startswith("WARNING table of totals")]
    assert " 7 checkpoints " in warning
    # Nothing is undone twice: a second restore to the same target counts only what the job has done since the first.
    go_back(early, "early", "--keep-table", "totals")
    assert plan(early, "early", "--keep-table", "totals")["checkpoints_after"] == 0


def _outputs(wanted: Expected) -> dict[str, Counter[str]]:
    return {"movements": multiset(wanted.movements), "totals": multiset(wanted.totals)}


def test_a_killed_restore_that_drops_state_is_completed_by_the_next_start(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    planned = plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    left = multiset(early.rows("totals"))
    early.replace_events(since=50)
    kill_at_each_step(early, planned, tables=1)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(early.rows("movements")) == multiset(wanted.movements)
    assert multiset(early.rows("totals")) == left
    assert stored_state.read_state(early.root, "balances") == wanted.balances
    assert [o["uid"] for o in early.manifest["operators"]] == ["balances"]
    early.check_clean()


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
