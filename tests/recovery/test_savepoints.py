"""Savepoints: taken during a run and without one, killed at every step, moved, copied, deleted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow import operations
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.requesters import os_user
from stateflow.runtime.driver.request_server import STOPPED
from stateflow.runtime.driver.termination import CAUGHT_UP
from stateflow.storage import PosixStorage
from tests.support import folder_tables, root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import KILLED, ON_REQUEST, AccountsJob
from tests.support.processes import Running, wait_for

MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.copied", "savepoint.complete"]
SERVING = [*MAKING, "request.made"]
QUICK = {"requests__interval": "20ms"}
CREATE = ("savepoint", "create", "--name", "mine")
RETRIED = (*CREATE, "--request-id", "r1", "--timeout", "60", "--json")
LONG_AGO = "2026-01-01T00:10:00+00:00"


def _post(job: AccountsJob, request: str, kind: str, name: str, **more: Any) -> None:
    """Stores a request as a command does that may be dead by now."""
    document = {"id": request, "kind": kind, "savepoint": name, "origin": "manual", "by": "ada", "reason": ""}
    (job.root / "requests").mkdir(exist_ok=True)
    content = root_files.sealed({**document, "drain": False, "at": LONG_AGO, **more})
    (job.root / "requests" / request).write_bytes(content)


def _post_seen(job: AccountsJob) -> None:
    """A request for a savepoint that a run, which is dead by now, has seen."""
    job.reach("batch.begin:2")
    _post(job, "r1", "savepoint", "mine")
    (job.root / "requests" / "r1.seen").write_text("1\n")


def _complete(job: AccountsJob) -> list[str]:
    """Names of what looks complete, swept or not."""
    markers = [p.read_bytes() for p in (job.root / "savepoints").glob("*/_savepoint")]
    return sorted(root_files.unsealed(m)[0]["name"] for m in markers if m != b"given up\n")


def _drop_the_pin(job: AccountsJob) -> None:
    (pin,) = job.head.doc["pinned"]
    assert pin["id"] in job.command("pins").out
    job.command("pins", "--drop", pin["id"]).check()


def _folder(job: AccountsJob, name: str) -> Path:
    (folder,) = (job.root / "savepoints").glob(f"{name}-*")
    return folder


# -- without a run ----------------------------------------------------------------------------------------------------


def test_a_savepoint_without_a_run_copies_the_newest_checkpoint(idle_job: AccountsJob) -> None:
    head = idle_job.head
    made = idle_job.create_savepoint("first", "--reason", "before the upgrade", "--by", "ada")
    assert (made["checkpoint_id"], made["taken_by"]) == (head.checkpoint, "head")
    assert made["offsets"] == {"events": '{"row": 50}'}
    stored = idle_job.savepoints["first"]
    assert (stored["by"], stored["reason"], stored["origin"]) == (os_user("ada"), "before the upgrade", "manual")
    tables = {uid: sink["checkpoint_id"] for uid, sink in stored["sinks"].items()}
    assert tables == dict.fromkeys(["movements", "totals"], head.checkpoint)
    # It publishes nothing, and is not an ancestor of later checkpoints.
    newest = idle_job.head
    assert (newest.doc["kind"], newest.checkpoint, newest.doc["pinned"]) == ("admin", head.checkpoint, [])
    idle_job.check_clean()


@pytest.mark.parametrize("name", MAKING)
def test_a_killed_savepoint_command_leaves_nothing_that_looks_complete(idle_job: AccountsJob, name: str) -> None:
    """Its pin is listed and dropped by command; then collections, the first of them killed, remove the rest."""
    assert idle_job.command(*CREATE, failpoint=name).code == KILLED
    is_complete = name == "savepoint.complete"
    assert _complete(idle_job) == (["mine"] if is_complete else [])
    _drop_the_pin(idle_job)
    if name in ("savepoint.started", "savepoint.copied"):
        assert idle_job.command("gc", failpoint="savepoint.given-up").code == KILLED
    idle_job.check_clean()
    if not is_complete:
        idle_job.create_savepoint("mine")
    assert idle_job.savepoints.keys() == {"mine"}


def test_a_savepoint_that_was_given_up_while_its_maker_was_stopped_fails(idle_job: AccountsJob) -> None:
    slept = idle_job.begin(*CREATE, failpoint="savepoint.copied:1:stop").wait_stopped()
    _drop_the_pin(idle_job)
    idle_job.collect()
    slept.resume().wait().check_error(4, "data", name="mine")
    assert _complete(idle_job) == []
    idle_job.check_clean()


def test_retention_and_gc_keep_savepoints(idle_job: AccountsJob) -> None:
    """In the making, when a run claims the job, commits, and collects what its checkpoint was made of; and later."""
    slept = idle_job.begin(*CREATE, failpoint="savepoint.started:1:stop").wait_stopped()
    rare = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    idle_job.run_to(120, **rare)
    slept.resume().wait().check()
    assert idle_job.savepoints["mine"]["manifest"]["sources"][0]["offset"] == '{"row": 50}'
    before = root_files.digests(idle_job.root / "savepoints")
    idle_job.run_to(150, **rare)
    idle_job.command("gc", "--retain", "1").check()
    assert root_files.digests(idle_job.root / "savepoints") == before
    idle_job.check_clean()


def test_a_savepoint_s_name_is_unique_but_its_request_may_be_repeated(idle_job: AccountsJob) -> None:
    """Also when the folder was renamed. Names that mean something else are refused."""
    made = idle_job.create_savepoint("mine", "--request-id", "task-1")
    assert idle_job.create_savepoint("mine", "--request-id", "task-1") == made
    taken = {"name": "mine", "made_at": made["made_at"]}
    assert idle_job.command(*CREATE).error == ReportedError("config", taken)
    _folder(idle_job, "mine").rename(idle_job.root / "savepoints" / "renamed")
    for name in ("mine", "renamed"):
        shown = idle_job.command("savepoint", "show", name, "--json").document
        assert (shown["name"], shown["id"]) == ("mine", made["id"])
    assert idle_job.command(*CREATE).error == ReportedError("config", taken)
    for name in ("../up", "latest", "17"):
        refused = idle_job.command("savepoint", "create", "--name", name)
        assert (refused.code, refused.error) == (2, ReportedError("config", {"name": name})), str(refused)
    assert idle_job.savepoints.keys() == {"mine"}


def test_the_cost_of_a_savepoint_does_not_depend_on_how_many_are_kept(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is found by its name, also after a user has renamed its folder."""
    names = ["mine", *(f"mine-{n}" for n in range(30))]
    read, get = Counter[int](), PosixStorage.get
    for number, name in enumerate(names):

        def counted(*arguments: Any, number: int = number, **more: Any) -> Any:
            read[number] += 1
            return get(*arguments, **more)

        monkeypatch.setattr(PosixStorage, "get", counted)
        create_savepoint(idle_job.job_root, SavepointRequest(name=name))
    assert max(read.values()) == read[1], read
    monkeypatch.undo()
    for renamed in ("other", "backup-20260101"):
        folder = next(p for p in (idle_job.root / "savepoints").iterdir() if p.name.rpartition("-")[0] == "mine-7")
        folder.rename(folder.with_name(renamed))
        assert idle_job.command("savepoint", "show", "mine-7", "--json").document["name"] == "mine-7"
        folder.with_name(renamed).rename(folder)


def test_a_savepoint_after_a_crash_needs_the_job_to_publish_pending_output(job: AccountsJob) -> None:
    job.deliver(50)
    job.reach("commit.after:3")
    refused = job.command(*CREATE, "--acknowledge-timeout", "0.2")
    facts = {"checkpoint": job.head.checkpoint, "generation": job.head.doc["generation"]}
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    assert "--job JOB.py" in refused.err and "--from-head" in refused.err
    made = job.create_savepoint("mine", "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True)
    assert made["checkpoint_id"] == job.head.checkpoint
    assert job.head.checkpoint in folder_tables.tokens(job.table("movements"))
    job.finish()
    job.check()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("savepoint", "create", "--timeout", "inf"), "--timeout"),
        (("savepoint", "create", "--timeout", "nan"), "--timeout"),
        (("stop", "--name", "mine"), "--savepoint"),
        (("stop", "--drain"), "--savepoint"),
    ],
)
def test_impossible_options_are_refused(idle_job: AccountsJob, arguments: tuple[str, ...], option: str) -> None:
    refused = idle_job.command(*arguments)
    assert refused.code == 2 and option in refused.err, str(refused)


# -- taken by a run ---------------------------------------------------------------------------------------------------


def test_a_savepoint_during_a_run_is_taken_at_the_next_barrier(job: AccountsJob) -> None:
    job.deliver(100)
    made, _ = job.asked_at("batch.begin:3", *CREATE, "--json")
    report = made.check().document
    assert report["taken_by"] == "run" and json.loads(report["offsets"]["events"])["row"] > 20
    assert job.savepoints.keys() == {"mine"}
    job.check()


def test_a_savepoint_from_head_does_not_affect_the_run(job: AccountsJob) -> None:
    job.deliver(100)
    run = job.start("commit.after:4:stop").wait_stopped()
    made = job.create_savepoint("head", "--from-head")
    # The newest checkpoint's output is not published yet: the one before it is.
    assert made["checkpoint_id"] == job.head.doc["retained"][-1]["id"]
    run.resume().wait().check()
    job.check()


@pytest.mark.parametrize("name", SERVING)
def test_a_run_killed_during_a_savepoint_loses_nothing_and_the_next_run_answers(job: AccountsJob, name: str) -> None:
    job.deliver(100)
    job.settings = QUICK
    _post_seen(job)
    requester = job.begin(*RETRIED, "--acknowledge-timeout", "60")
    job.reach(name)
    committed, asked = job.head.position, len(job.requested())
    assert _complete(job) == (["mine"] if name in ("savepoint.complete", "request.made") else [])
    job.finish()
    requester.wait().check()
    # What was committed when it died is not replayed.
    assert [start for start, _ in job.requested()[asked:]] == list(range(committed, 100, 10))
    assert job.savepoints.keys() == {"mine"}
    job.check()


@pytest.mark.parametrize("withdrawn", [True, False], ids=["withdrawn", "open"])
def test_a_reported_savepoint_is_kept_and_an_unreported_one_is_neither_listed_nor_recorded(
    job: AccountsJob, withdrawn: bool
) -> None:
    """A run dies between a savepoint and its answer; the requester gives up, and its next try asks with the same id."""
    job.deliver(100)
    _die_before_the_answer(job)
    assert job.command("savepoint", "list", "--json").document == []
    if withdrawn:
        assert operations.withdraw(str(job.root), "r1")
        assert not operations.withdraw(str(job.root), "a request that was never made")
    made = job.command(*RETRIED, "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True).check()
    job.finish()
    stored = job.savepoints
    job.check_clean()
    assert job.savepoints == stored
    assert stored["mine"]["id"] == made.document["id"]
    # The history has the one that there is, and no other.
    assert [r["facts"]["id"] for r in job.records("savepoint")] == [stored["mine"]["id"]]


def _die_before_the_answer(job: AccountsJob) -> None:
    job.settings = QUICK
    job.reach("batch.begin:2")
    _post(job, "r1", "savepoint", "mine")
    job.reach("request.made")
    assert _complete(job) == ["mine"]


def test_a_savepoint_s_name_is_free_again_after_a_withdrawn_request(job: AccountsJob) -> None:
    job.deliver(100)
    _die_before_the_answer(job)
    assert operations.withdraw(str(job.root), "r1")
    job.create_savepoint("mine", "--from-head")
    job.finish()
    job.check_clean()
    assert job.savepoints["mine"]["generation"] == 0


def test_a_savepoint_request_that_a_dead_run_has_seen_is_served_from_the_head(job: AccountsJob) -> None:
    """Not after the whole timeout, and not never."""
    job.deliver(50)
    _post_seen(job)
    made = job.command(*RETRIED, "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True)
    assert made.check().document["taken_by"] == "head"


def test_an_expired_savepoint_request_is_made_again_by_the_same_command(job: AccountsJob) -> None:
    job.deliver(100)
    job.reach("batch.begin:2")
    _post(job, "r1", "savepoint", "mine", until=LONG_AGO)
    run, requester = _ask_while_stopped(job, *RETRIED)
    wait_for(lambda: (job.root / "requests" / "r1-again2").exists(), lambda: "the new request")
    run.resume().wait().check()
    assert requester.wait().check().document["taken_by"] == "run"


def _ask_while_stopped(job: AccountsJob, *command: str) -> tuple[Running, Running]:
    """A run that is stopped in its third batch, and a request to it that was posted meanwhile."""
    job.settings = QUICK
    run = job.start("batch.begin:3:stop").wait_stopped()
    requester = job.begin(*command, "--timeout", "60", "--acknowledge-timeout", "60")
    wait_for(lambda: any("." not in p.name for p in (job.root / "requests").glob("*")), lambda: "the request")
    return run, requester


# -- stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *SERVING])
def test_stop_ends_the_run_with_a_savepoint(job: AccountsJob, name: str) -> None:
    """Killed on the way, the next run does the rest before any batch."""
    job.deliver(200)
    run, requester = _ask_while_stopped(job, "stop", "--savepoint", "--name", "stopped", "--json")
    if name:
        run.kill()
        run.wait()
        job.reach(name)
        position = job.head.position
        ended = job.finish()
        assert job.head.position == position, "it worked on although it was to stop"
    else:
        ended = run.resume().wait().check()
    requester.wait().check()
    assert ended.result["stopped_because"] == STOPPED
    stored = job.savepoints["stopped"]
    assert (stored["origin"], stored["checkpoint_id"], job.head.pending) == ("stop", job.head.checkpoint, {})
    assert job.head.position < 200
    job.finish()
    job.check()


def test_a_stop_without_a_savepoint_is_in_the_history(job: AccountsJob) -> None:
    job.deliver(200)
    stop, _ = job.asked_at("batch.begin:3", "stop", "--by", "ada", "--reason", "a holiday")
    stop.check()
    (record,) = job.records("stop")
    assert (record["by"], record["reason"]) == (os_user("ada"), "a holiday")
    (line,) = (line for line in job.command("history").out.splitlines() if "a holiday" in line)
    assert "ada" in line


def test_a_stop_without_a_run_takes_a_savepoint_or_is_refused(idle_job: AccountsJob) -> None:
    refused = idle_job.command("stop")
    # Without a generation, since no run is open.
    facts = {"root": str(idle_job.root)}
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    for origin in ("upgrade", "stop"):
        made = idle_job.command("stop", "--savepoint", "--name", f"for-{origin}", "--origin", origin, "--json")
        assert made.check().document["taken_by"] == "head"
        assert idle_job.savepoints[f"for-{origin}"]["origin"] == origin


def test_a_failed_stop_does_not_end_the_run(idle_job: AccountsJob) -> None:
    idle_job.create_savepoint("taken")
    idle_job.deliver(200)
    stop, run = idle_job.asked_at("batch.begin:3", "stop", "--savepoint", "--name", "taken")
    facts = stop.check_error(4, "data").facts
    assert (facts["code"], facts["name"]) == ("config", "taken")
    assert run.result["stopped_because"] == CAUGHT_UP
    idle_job.check()


@pytest.mark.parametrize("savepoint", ["last", ""])
def test_a_withdrawn_stop_does_not_end_the_run(job: AccountsJob, savepoint: str) -> None:
    """Also when the run has done everything but write its answer."""
    job.run_to(30)
    job.deliver(200)
    job.settings = QUICK
    _post(job, "s1", "stop", savepoint)
    run = job.start("request.made:1:stop").wait_stopped()
    assert operations.withdraw(str(job.root), "s1")
    assert run.resume().wait().check().result["stopped_because"] == CAUGHT_UP
    assert (job.savepoints, job.records("savepoint"), job.records("stop")) == ({}, [], [])
    job.check()


def test_an_expired_stop_request_does_not_end_the_next_run(job: AccountsJob) -> None:
    job.run_to(30)
    _post(job, "s1", "stop", "", until=LONG_AGO)
    ended = job.run_to(60)
    assert ended.result["stopped_because"] == CAUGHT_UP and job.head.position == 60
    answer, _ = root_files.unsealed((job.root / "requests" / "s1.done").read_bytes())
    assert answer["status"] == "withdrawn"


# -- folders that are damaged, moved, copied, deleted -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_a_killed_deletion_of_a_savepoint_is_completed_by_the_next_collection(idle_job: AccountsJob, name: str) -> None:
    idle_job.create_savepoint("mine")
    idle_job.create_savepoint("other")
    assert idle_job.command("savepoint", "dispose", "mine", failpoint=name).code == KILLED
    assert _complete(idle_job) == (["mine", "other"] if name == "savepoint.disposing" else ["other"])
    idle_job.check_clean()
    assert idle_job.savepoints.keys() == {"other"}


@pytest.mark.parametrize("damage", ["flipped", "cut", "removed", "document"])
def test_damage_to_a_savepoint_is_reported_with_its_path(idle_job: AccountsJob, damage: str) -> None:
    idle_job.create_savepoint("mine")
    folder = _folder(idle_job, "mine")
    idle_job.command("savepoint", "verify", "mine").check()
    path = folder / "_savepoint" if damage == "document" else next((folder / "files").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # a hard link: the job's own file stays as it is
    if damage != "removed":
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    # Without its document it is not found by its name.
    asked = [("show", str(folder))] if damage == "document" else [("verify", "mine"), ("verify", str(folder))]
    for arguments in asked:
        refused = idle_job.command("savepoint", *arguments)
        assert (refused.code, refused.error.facts["file"]) == (4, path.as_uri()), str(refused)
        if damage in ("flipped", "document"):
            assert refused.error.code == "corrupt-file" and "stateflow savepoint dispose" in refused.err
    idle_job.command("savepoint", "dispose", str(folder)).check()
    idle_job.finish()
    idle_job.check_clean()


def test_a_savepoint_can_be_moved_and_copied_and_deleted_by_its_path(idle_job: AccountsJob, tmp_path: Path) -> None:
    idle_job.create_savepoint("mine")
    away, copied = tmp_path / "away", tmp_path / "copied"
    shutil.copytree(_folder(idle_job, "mine"), copied)
    shutil.move(_folder(idle_job, "mine"), away)
    for place in (away, copied):
        root_files.check_savepoint(place)
        idle_job.command("savepoint", "verify", str(place)).check()
    assert idle_job.savepoints == {}
    assert idle_job.command("savepoint", "dispose", str(tmp_path)).code == 2
    idle_job.command("savepoint", "dispose", f"file://{away}/").check()
    assert not away.exists()
    root_files.check_savepoint(copied)


def test_a_damaged_savepoint_blocks_no_command_and_can_be_deleted(idle_job: AccountsJob) -> None:
    for name in ("broken", "whole"):
        idle_job.create_savepoint(name, "--origin", "periodic")
    folder = _folder(idle_job, "broken")
    (folder / "_savepoint").write_bytes(b"{}")
    listed = idle_job.command("savepoint", "list", "--json")
    assert [s["name"] for s in listed.document] == ["whole"] and folder.name in listed.err, str(listed)
    idle_job.create_savepoint("other", "--origin", "periodic")
    pruned = idle_job.command("savepoint", "prune", "--keep", "1", "--json").check()
    assert pruned.document["deleted"] == ["whole"]
    idle_job.command("restore", idle_job.job_file, "--plan", "before:2999-01-01", with_job=True).check()
    assert idle_job.command("savepoint", "dispose", "broken").code == 2
    idle_job.command("savepoint", "dispose", folder.name).check()
    assert not folder.exists()
    idle_job.check_clean()
    assert idle_job.savepoints.keys() == {"other"}


def test_a_copied_savepoint_in_the_job_root_is_not_deleted_with_the_original(idle_job: AccountsJob) -> None:
    for name in ("p1", "p2", "p3"):
        idle_job.create_savepoint(name, "--origin", "periodic")
    first, copied = _folder(idle_job, "p1"), idle_job.root / "savepoints" / "mycopy"
    shutil.copytree(first, copied)
    planned = idle_job.command("savepoint", "prune", "--keep", "2", "--dry-run", "--json").document
    assert (planned["deleted"], planned["dry_run"]) == (["p1"], True)
    assert str(first) in idle_job.command("savepoint", "show", "p1").out
    idle_job.command("savepoint", "prune", "--keep", "2").check()
    assert not first.exists()
    root_files.check_savepoint(copied)
    assert str(copied) in idle_job.command("savepoint", "show", "p1").out


def test_every_failpoint_of_savepoints_is_covered_by_tests_of_kills() -> None:
    named = {n for n in ON_REQUEST if n.startswith(("savepoint.", "request."))}
    # Others are passed in test_canonical_savepoints.py, test_rekey.py, test_claim_modes.py and test_take_over.py.
    steps = ("share", "rekeyed", "claimed", "released", "collected")
    elsewhere = {"request.posted", *(f"savepoint.{step}" for step in steps)}
    assert named == {*SERVING, *elsewhere, "savepoint.disposing", "savepoint.disposed", "savepoint.given-up"}
