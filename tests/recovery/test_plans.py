"""A restore does exactly what its plan says, once, or nothing; damage bars only the way to what is damaged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.recovery.damaged_job import DAMAGES
from tests.recovery.other_writer import append
from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import JOBS, KILLED, AccountsJob, expected, mostly_slow, multiset
from tests.support.processes import Ended
from tests.support.restores import ask, begin, check_after, everything, execute, go_back, plan, plan_file
from tests.support.screens import normalized


def _check_refused(job: AccountsJob) -> Ended:
    """The plan is not carried out, and nothing at all has changed."""
    before = everything(job)
    ended = execute(job)
    ended.check_error(4, "plan-outdated")
    assert everything(job) == before
    return ended


def _replace_table(folder: Path) -> None:
    """Makes it a table of its own, as a copy that a user created again would be."""
    first = folder / "versions" / "00000000"
    first.write_text(json.dumps({"id": f"{json.loads(first.read_bytes())['id']}-other"}))


def _replace_tables(job: AccountsJob) -> None:
    """The job writes to copies of its tables."""
    others = job.folder / "others"
    shutil.copytree(job.folder / "tables", others)
    for table in others.iterdir():
        _replace_table(table)
    _set(job, job__tables=others)


def _set(job: AccountsJob, **settings: object) -> None:
    job.settings = {**job.settings, **settings}


# -- exactly the plan -------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[AccountsJob], object], set[str], str]] = {
    "the job continued": (lambda b: b.run_to(130), set(), ""),
    "the savepoint is gone": (
        lambda b: b.command("savepoint", "dispose", "early").check(),
        {"target", "savepoint"},
        "early",
    ),
    "a table was replaced": (lambda b: _replace_table(b.table("totals")), {"sink", "planned", "found"}, "'totals'"),
    "other tables": (_replace_tables, {"sink", "planned", "found"}, "'movements'"),
    "others wrote rows": (lambda b: append(b, "movements"), {"sink"}, "'movements'.*another writer"),
    "another parallelism": (lambda b: _set(b, parallelism=3), set(), r" differs=\[.*parallelism\b.*\b3\b.*\b4\b.*\]"),
    "a sink less": (lambda b: _set(b, job__parts="movements"), set(), r" differs=\[.*\bturnovers\b.*\btotals\b.*\]"),
}
"""What may happen after a plan was made; the facts of the refusal, and what is in its text."""
_QUICK = ["a table was replaced", "another parallelism", "others wrote rows"]


@pytest.mark.parametrize("change", mostly_slow(CHANGES, _QUICK))
def test_a_restore_is_refused_if_anything_is_not_as_planned(early: AccountsJob, change: str) -> None:
    """With the settings that it was planned with, it is carried out."""
    _set(early, parallelism=4)
    planned_with, planned = early.settings, plan(early, "early")
    make, names, shown = CHANGES[change]
    make(early)
    refused = _check_refused(early)
    facts = refused.error.facts
    assert names <= facts.keys() and re.search(shown, refused.err), str(refused)
    assert facts.get("savepoint") in (None, planned["savepoint_path"])
    assert "found" not in names or facts["found"] != facts["planned"]
    if early.settings != planned_with:
        early.settings = planned_with
        execute(early).check()
        check_after(early, since=50)


def test_a_plan_over_replaced_tables_is_refused(early: AccountsJob) -> None:
    _replace_tables(early)
    ask(early, "early").check_error(4, "sink-diverged")


def test_tables_that_a_plan_keeps_may_get_rows_of_others_before_the_restore(early: AccountsJob) -> None:
    plan(early, "early", "--sinks", "keep")
    append(early, "movements")
    execute(early).check()
    assert early.head.position == 50


@pytest.mark.slow(reason="runs jobs many times")
def test_publishing_pending_output_does_not_outdate_a_plan(job: AccountsJob) -> None:
    """A savepoint without a run publishes it, and the log's head does not change."""
    job.settings = {"checkpoints__retained": 100}
    job.deliver(100)
    job.reach("commit.after:5")
    plan(job, str(job.commit_at(30).seq))
    job.create_savepoint("between", "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True)
    assert job.savepoints.keys() == {"between"}
    assert multiset(job.rows("movements")) == multiset(expected(job.delivered[:50]).movements)
    execute(job).check()
    check_after(job, since=30)


def test_options_of_a_plan_are_refused_with_execute(early: AccountsJob) -> None:
    plan(early, "early")
    before = everything(early)
    for option, *value in (
        ("--sinks", "keep"),
        ("--drop", "turnovers"),
        ("--map", "balances=turnovers"),
        ("--from-other-job",),
        ("--keep-table", "totals"),
        ("--out", "other.json"),
    ):
        ended = execute(early, option, *value)
        ended.check_error(2, "config")
        assert f"options={[option]}" in ended.err
    assert everything(early) == before


def test_a_plan_for_another_job_is_refused(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other")
    other.run_to(30)
    plan(early, "early")
    shutil.copy(plan_file(early), plan_file(other))
    before = everything(other)
    ended = execute(other)
    facts = {"planned_for": early.job_uuid, "this_job": other.job_uuid, "root": other.root.as_uri()}
    assert (ended.code, ended.error) == (2, ReportedError("config", facts)), str(ended)
    assert "--job-root" in ended.err
    assert everything(other) == before


def test_the_command_that_a_plan_prints_executes_the_plan(tmp_path: Path) -> None:
    """With every setting, and paths with blanks and quotes."""
    job = AccountsJob(tmp_path / "Ada's job", {"checkpoints__retained": 100, "parallelism": 2})
    job.run_to(50)
    job.create_savepoint("early")
    job.run_to(80)
    config = job.folder / "more settings.toml"
    config.write_text("[spark]\n")
    asked = ask(job, "early", "--out", str(plan_file(job)), "--config", str(config), "--reason", "it's wrong").check()
    assert job.job_file in asked.out
    (command,) = (line for line in asked.out.splitlines() if line.strip().startswith("stateflow restore "))
    job.shell(command).check()
    assert job.head.position == 50
    (record,) = job.records("restore")
    assert record["reason"] == "it's wrong"
    check_after(job, since=50)


# -- tables of sinks that are gone ------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs jobs many times")
def test_a_plan_excludes_a_table_without_a_sink_only_when_named(early: AccountsJob) -> None:
    """The job has no sink for it: it keeps its rows, and a later version with the sink would write them again."""
    totals = root_files.digests(early.table("totals"))
    _set(early, job__parts="movements")
    drop = ("--drop", "turnovers")
    refused = ask(early, "early", *drop)
    assert refused.code == 2 and "sinks=['totals']" in refused.err and "--keep-table" in refused.err, str(refused)
    wrong = ask(early, "early", *drop, "--keep-table", "totals", "--keep-table", "moves")
    assert wrong.code == 2 and "uids=['moves']" in wrong.err, str(wrong)
    # It needs no name where all tables are kept, or where it has nothing after the target.
    assert [s["uid"] for s in plan(early, "early", *drop, "--sinks", "keep")["left"]] == ["totals"]
    assert plan(early, "latest", *drop)["left"] == []
    newest = early.commit_at(120).seq
    planned = go_back(early, "early", *drop, "--keep-table", "totals")
    assert [(s["uid"], s["checkpoint_id"]) for s in planned["left"]] == [("totals", newest)]
    assert root_files.digests(early.table("totals")) == totals
    assert len(early.rows("movements")) == 50


def test_output_that_belongs_to_the_target_needs_its_sink(job: AccountsJob) -> None:
    job.deliver(100)
    job.reach("commit.after:5")
    job.settings = {"job__parts": "movements"}
    refused = ask(job, "latest", "--drop", "turnovers", "--keep-table", "totals")
    # With --keep-table nothing else is left to refuse than output of the checkpoint itself.
    assert refused.code == 2 and "sinks=['totals']" in refused.err, str(refused)


# -- once -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs jobs many times")
def test_a_different_plan_to_the_same_target_is_another_request(early: AccountsJob) -> None:
    """Of two plans to one target that differ in what they do with tables, one is carried out, and the other refused."""
    plan(early, "early", "--sinks", "keep")
    keep = plan_file(early).read_bytes()
    go_back(early, "early")
    plan_file(early).write_bytes(keep)
    _check_refused(early)
    check_after(early, since=50)


@pytest.mark.parametrize("request_id", [(), ("--request-id", "mine")], ids=["plan", "own id"])
def test_executing_a_request_again_does_nothing(early: AccountsJob, request_id: tuple[str, ...]) -> None:
    """It reports the job's current checkpoint, not the one that the plan restored."""
    plan(early, "early")
    execute(early, *request_id).check()
    early.replace_events(since=50)
    early.finish()
    if request_id:
        plan(early, "early")
    before = everything(early)
    report = execute(early, *request_id, "--json").check().document
    assert (report["repeated"], report["checkpoint_id"]) == (True, early.commit_at(120).seq)
    assert report["offsets"] == {"events": {"row": 120}}
    assert everything(early) == before


def test_an_execution_does_not_fence_a_concurrent_execution_of_the_same_plan(early: AccountsJob) -> None:
    plan(early, "early")
    first = begin(early, failpoint="restore.begin:1:stop").wait_stopped()
    second = begin(early, failpoint="restore.claimed:1:stop").wait_stopped()
    # Only the request is named: it is the same one.
    assert first.resume().wait().check_error(3, "fenced").facts.keys() == {"request"}
    second.resume().wait().check()
    check_after(early, since=50)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("target", "damage"), [("checkpoint", "a bit in the middle"), ("savepoint", "removed")])
def test_a_damaged_target_is_named_before_the_job_is_claimed(early: AccountsJob, target: str, damage: str) -> None:
    # The job's current checkpoint no longer has a file of the target.
    early.settings = {**early.settings, "rocksdb__compact_at_files": 1}
    early.run_to(140)
    if target == "savepoint":
        (folder,) = (early.root / "savepoints").iterdir()
        path, text = min((folder / "files").iterdir()), "early"
    else:
        older = early.commit_at(80)
        manifest = root_files.read_manifest(early.root, older.doc["manifest"])
        others = {f["key"] for f in root_files.handles(early.manifest)}
        path = early.root / next(h["key"] for h in root_files.handles(manifest) if h["key"] not in others)
        text = str(older.seq)
    _damage(path, damage)
    before = everything(early)
    ended = ask(early, text, "--out", str(plan_file(early)))
    if damage == "a bit in the middle":
        # A plan looks at sizes, the execution reads everything.
        ended = execute(early)
    assert ended.code == 4 and path.name in str(ended.error.facts), str(ended)
    assert everything(early) == before
    # The savepoint has files of its own.
    other, position = ("early", 50) if target == "checkpoint" else (str(early.commit_at(80).seq), 80)
    go_back(early, other)
    early.replace_events(since=position)
    early.finish()
    early.check_results()


def _damage(path: Path, damage: str) -> None:
    """Damages a file of its own: links of it stay as they are."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)
    DAMAGES[damage](path)


def test_a_damaged_head_does_not_prevent_a_restore(early: AccountsJob) -> None:
    checkpoint = early.commit_at(80).seq
    (early.root / early.head.doc["manifest"]["key"]).unlink()
    assert early.run().code == 4
    assert plan(early, str(checkpoint))["target_checkpoint_id"] == checkpoint
    ask(early, "latest").check_error(4, "missing-file")
    (source,) = go_back(early, "early")["sources"]
    assert (source["target_offset"], source["current_offset"]) == ({"row": 50}, {"row": 120})
    check_after(early, since=50)


def test_a_target_condition_skips_a_damaged_checkpoint(early: AccountsJob) -> None:
    """By a condition, with a warning; named by its id it is refused."""
    damaged, older = early.commit_at(80), early.commit_at(70)
    _damage(early.root / damaged.doc["manifest"]["key"], "a bit in the middle")
    planned = ask(early, "before:events=89", "--json").check()
    assert planned.document["target_checkpoint_id"] == older.seq
    assert damaged.doc["manifest"]["key"] in planned.err
    ask(early, str(damaged.seq)).check_error(4, "corrupt-file")


# -- screens ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(job: AccountsJob) -> AccountsJob:
    job.variables = {"COLUMNS": "160"}
    return job


@pytest.fixture
def early(early: AccountsJob) -> AccountsJob:
    early.variables = {"COLUMNS": "160"}
    return early


@pytest.fixture
def half_done(early: AccountsJob) -> AccountsJob:
    """A restore that was killed between its two tables."""
    plan(early, "early")
    assert execute(early, "--by", "ada", "--reason", "wrong rows", failpoint="rewind.table:2").code == KILLED
    return early


def _screen(job: AccountsJob, shown: str) -> str:
    """What was shown, with names for what varies, and single blanks, since columns are as wide as what varies."""
    text = re.sub(r"(?<=[!-~]) +", " ", normalized(shown, folder=job.folder.parent, jobs=JOBS))
    return re.sub(r"<time> <ms> ([\d,]+) <size> <size> \d+$", r"<time> <ms> \1 <size> <size> <files>", text, flags=re.M)


def _status(job: AccountsJob, *more: str) -> dict[str, Any]:
    shown: dict[str, Any] = job.command("status", "--json", *more, with_job=True).check().document
    return shown


def test_status_shows_a_restore_that_is_not_completed(half_done: AccountsJob, golden: SnapshotAssertion) -> None:
    assert _screen(half_done, half_done.command("status").check().out) == golden
    job = ("--job", half_done.job_file)
    looked = half_done.command("status", *job, with_job=True).check()
    assert _screen(half_done, looked.out) == golden(name="tables-back")
    status = _status(half_done, *job)
    assert status["restoring"]["restored_tables"] == ["movements"]
    assert status["restoring"]["tables"] == {"movements": 5, "totals": 5}
    assert status["restored_tables"] == {"movements": True, "totals": False}
    check_after(half_done, since=50)
    assert _status(half_done)["restoring"] is None


def test_a_savepoint_is_refused_until_the_restore_is_completed(half_done: AccountsJob) -> None:
    create = ("savepoint", "create", "--name", "now", "--acknowledge-timeout", "0.2")
    refused = half_done.command(*create)
    refused.check_error(2, "config")
    assert "tables=['movements', 'totals']" in refused.err and "early" in refused.err
    assert "--job JOB.py" in refused.err
    half_done.command(*create, "--job", half_done.job_file, with_job=True).check()
    assert _status(half_done)["restoring"] is None


def test_a_silent_run_is_not_called_dead(job: AccountsJob, golden: SnapshotAssertion) -> None:
    job.deliver(60)
    run = job.start("commit.after:3:stop").wait_stopped()
    for name, command in {"savepoint": ("savepoint", "create"), "stop": ("stop",)}.items():
        refused = job.command(*command, "--acknowledge-timeout", "0.2")
        facts = refused.error.facts
        assert (refused.code, facts["generation"]) == (2, job.head.doc["generation"]), str(refused)
        assert "--acknowledge-timeout" in refused.err
        assert _screen(job, refused.err) == golden(name=name)
    assert job.create_savepoint("head", "--from-head")["made_from"] == "head"
    run.resume().wait().check()


def test_a_plan_shows_each_of_its_warnings(early: AccountsJob, golden: SnapshotAssertion) -> None:
    """Of others' rows, a table that stays, lost input, dropped state, an open run and checkpoints that are lost."""
    append(early, "movements", number=2)
    early.deliver(130)
    early.reach("batch.begin:1")
    early.deliver(80)
    early.settings = {**early.settings, "job__parts": "movements", "parallelism": 3}
    options = ("--drop", "turnovers", "--keep-table", "totals")
    planned = plan(early, "early", *options)
    (movements,) = planned["sinks"]
    assert len(movements["others"]) == 1 and "another writer" in movements["others"][0]
    (source,) = planned["sources"]
    assert (source["current_offset"], source["target_offset"]) == ({"row": 120}, {"row": 50}) and not source[
        "available"
    ]
    assert [s["uid"] for s in planned["left"]] == ["totals"] and planned["run_open"]
    assert _screen(early, ask(early, "early", *options).check().out) == golden
