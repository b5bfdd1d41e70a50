"""Savepoints: taken beside a run and without one, killed at every step, moved, copied, deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateflow import operations
from stateflow.runtime.driver.termination import CAUGHT_UP, STOPPED
from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import ASKED, AccountsJob
from tests.support.processes import Ended, Running, wait_for

MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.copied", "savepoint.complete"]
SERVING = [*MAKING, "request.made"]
QUICK = {"requests__interval": "20ms"}
RETRIED = ("savepoint", "create", "--name", "beside", "--request-id", "r1", "--timeout", "60", "--json")


@pytest.fixture
def resting(box: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints and nothing to do."""
    box.deliver(50)
    box.finish()
    return box


def _create(box: AccountsJob, name: str, *more: str, failpoint: str = "") -> dict[str, Any]:
    ended = box.command("savepoint", "create", "--name", name, "--json", *more, failpoint=failpoint)
    assert ended.code == 0, str(ended)
    return json.loads(ended.out)  # type: ignore[no-any-return]


def _asked(box: AccountsJob) -> bool:
    folder = box.root / "requests"
    return folder.is_dir() and any("." not in p.name for p in folder.iterdir())


def _beside(box: AccountsJob, *more: str) -> tuple[Running, Running]:
    """A run that stands still in its third batch, and a request to it that was posted meanwhile."""
    box.settings = {**box.settings, **QUICK}
    run = box.start("batch.begin:3:stop")
    run.wait_stopped()
    asker = box.begin(
        *(more or ("savepoint", "create", "--name", "beside", "--json")), "--timeout", "60", "--patience", "60"
    )
    wait_for(lambda: _asked(box), lambda: "the request")
    return run, asker


def test_without_a_run_it_is_the_head(resting: AccountsJob) -> None:
    head = root_files.head(resting.root)
    made = _create(resting, "first", "--reason", "before the upgrade", "--by", "ada")
    assert (made["checkpoint_id"], made["taken_by"]) == (head.checkpoint, "head")
    assert made["offsets"] == {"events": '{"row": 50}'}
    stored = root_files.savepoints(resting.root)["first"]
    assert (stored["by"], stored["reason"], stored["origin"]) == ("ada", "before the upgrade", "manual")
    assert {uid: s["checkpoint_id"] for uid, s in stored["sinks"].items()} == dict.fromkeys(
        ["movements", "totals"], head.checkpoint
    )
    # It publishes nothing, and stands outside the job's line.
    newest = root_files.head(resting.root)
    assert (newest.doc["kind"], newest.checkpoint, newest.doc["pinned"]) == ("admin", head.checkpoint, [])
    resting.check_clean()


def test_beside_a_run_it_is_taken_at_the_next_barrier(box: AccountsJob) -> None:
    box.deliver(100)
    run, asker = _beside(box)
    committed = root_files.head(box.root).position
    run.resume()
    made, ended = asker.wait(), run.wait()
    assert (made.code, ended.code) == (0, 0), f"{made}\n{ended}"
    report = json.loads(made.out)
    assert report["taken_by"] == "run" and json.loads(report["offsets"]["events"])["row"] > committed
    assert set(root_files.savepoints(box.root)) == {"beside"}
    box.check_results()
    box.check_clean()


@pytest.mark.parametrize("name", SERVING)
def test_a_run_that_dies_over_it_loses_nothing_and_the_next_one_answers(box: AccountsJob, name: str) -> None:
    box.deliver(100)
    box.settings = QUICK
    asker = _wait_for_a_run(box)
    run = box.start(name)
    assert run.wait().code == -9
    committed, asked = root_files.head(box.root).position, len(box.requested())
    assert set(_complete(box)) == ({"beside"} if name in ("savepoint.complete", "request.made") else set())
    box.finish(failpoint="")
    made = asker.wait()
    assert made.code == 0, str(made)
    # What was committed when it died is not replayed.
    assert [start for start, _ in box.requested()[asked:]] == list(range(committed, 100, 10))
    assert set(root_files.savepoints(box.root)) == {"beside"}
    box.check_results()
    box.check_clean()


def _wait_for_a_run(box: AccountsJob) -> Running:
    """Somebody asks for a savepoint of a job that was killed, and is patient."""
    assert box.run("batch.begin:2").code == -9
    box.marker.unlink()
    box.marker.with_name("asked").touch()
    _post(box, "r1", "savepoint", "beside")
    (box.root / "requests" / "r1.seen").write_text("1\n")
    return box.begin(*RETRIED, "--patience", "60")


def _post(box: AccountsJob, request: str, kind: str, name: str, **more: Any) -> None:
    """What an asker has asked, who may be dead by now."""
    document = {
        "id": request,
        "kind": kind,
        "savepoint": name,
        "origin": "manual",
        "by": "ada",
        "reason": "",
        "drain": False,
        "at": "2026-01-01",
        **more,
    }
    (box.root / "requests").mkdir(exist_ok=True)
    (box.root / "requests" / request).write_bytes(root_files.sealed(document))


def _complete(box: AccountsJob) -> list[str]:
    """Names of what looks complete, swept or not."""
    markers = [p.read_bytes() for p in (box.root / "savepoints").glob("*/_savepoint")]
    return [root_files.unsealed(m)[0]["name"] for m in markers if m != b"given up\n"]


@pytest.mark.parametrize("name", MAKING)
def test_a_maker_without_a_run_that_dies_leaves_nothing_that_looks_complete(resting: AccountsJob, name: str) -> None:
    killed = resting.command("savepoint", "create", "--name", "mine", failpoint=name)
    assert killed.code == -9
    assert _complete(resting) == (["mine"] if name == "savepoint.complete" else [])
    (pin,) = root_files.head(resting.root).doc["pinned"]
    # Its pin is listed and dropped by command; then a collection removes the rest.
    assert pin["id"] in resting.command("pins").out
    assert resting.command("pins", "--drop", pin["id"]).code == 0
    resting.check_clean()
    if name != "savepoint.complete":
        _create(resting, "mine")
    assert set(root_files.savepoints(resting.root)) == {"mine"}


def test_a_maker_that_slept_while_its_savepoint_was_given_up_fails(resting: AccountsJob) -> None:
    slept = resting.begin("savepoint", "create", "--name", "mine", failpoint="savepoint.copied:1:stop")
    slept.wait_stopped()
    (pin,) = root_files.head(resting.root).doc["pinned"]
    assert resting.command("pins", "--drop", pin["id"]).code == 0
    resting.collect()
    slept.resume()
    ended = slept.wait()
    assert (ended.code, ended.error) == (4, ReportedError("data", {"name": "mine"})), str(ended)
    assert _complete(resting) == []
    resting.check_clean()


def test_a_collection_leaves_one_in_the_making_alone(resting: AccountsJob) -> None:
    """Also when a run claims the job meanwhile, commits, and collects what its checkpoint was made of."""
    slept = resting.begin("savepoint", "create", "--name", "mine", failpoint="savepoint.started:1:stop")
    slept.wait_stopped()
    resting.deliver(120)
    resting.finish(checkpoints__retained=1, checkpoints__collect_every=1)
    slept.resume()
    assert slept.wait().code == 0
    assert root_files.savepoints(resting.root)["mine"]["manifest"]["sources"][0]["offset"] == '{"row": 50}'
    resting.check_clean()


def test_a_name_is_given_once_but_a_request_may_be_repeated(resting: AccountsJob) -> None:
    made = _create(resting, "mine", "--request-id", "task-1")
    assert _create(resting, "mine", "--request-id", "task-1") == made
    _check_taken(resting, "mine", made)
    bad = resting.command("savepoint", "create", "--name", "../up")
    assert (bad.code, bad.error) == (2, ReportedError("config", {"name": "../up"})), str(bad)


def _check_taken(box: AccountsJob, name: str, by: dict[str, Any]) -> None:
    """No other savepoint gets the name."""
    again = box.command("savepoint", "create", "--name", name)
    facts = {"name": name, "made_at": by["made_at"]}
    assert (again.code, again.error) == (2, ReportedError("config", facts)), str(again)


def test_from_head_works_beside_a_run_without_touching_it(box: AccountsJob) -> None:
    box.deliver(100)
    run = box.start("commit.after:4:stop")
    run.wait_stopped()
    made = _create(box, "head", "--from-head")
    # The newest checkpoint's output is not published yet: the one before it is.
    assert made["checkpoint_id"] == root_files.head(box.root).doc["retained"][-1]["id"]
    run.resume()
    assert run.wait().code == 0
    box.check_results()
    box.check_clean()


def test_after_a_crash_it_needs_the_job_to_publish_what_is_pending(box: AccountsJob) -> None:
    box.deliver(50)
    assert box.run("commit.after:3").code == -9
    refused = box.command("savepoint", "create", "--name", "mine")
    claimed = root_files.head(box.root)
    facts = {"checkpoint": claimed.checkpoint, "generation": claimed.doc["generation"]}
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    assert "--job JOB.py" in refused.err and "--from-head" in refused.err
    made = box.begin("savepoint", "create", "--name", "mine", "--job", box.job_file, "--json", with_job=True).wait()
    assert made.code == 0, str(made)
    head = root_files.head(box.root)
    assert json.loads(made.out)["checkpoint_id"] == head.checkpoint
    assert head.checkpoint in root_files.folder_tokens(box.table("movements"))
    box.finish()
    box.check_results()
    box.check_clean()


def test_retention_and_collection_never_touch_it(resting: AccountsJob) -> None:
    _create(resting, "mine")
    before = root_files.digests(resting.root / "savepoints")
    resting.deliver(150)
    resting.finish(checkpoints__retained=1, checkpoints__collect_every=1)
    assert resting.command("gc", "--retain", "1").code == 0
    assert root_files.digests(resting.root / "savepoints") == before
    resting.check_clean()


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_deleting_one_is_completed_by_the_next_collection(resting: AccountsJob, name: str) -> None:
    _create(resting, "mine")
    _create(resting, "other")
    assert resting.command("savepoint", "dispose", "mine", failpoint=name).code == -9
    assert sorted(_complete(resting)) == (["mine", "other"] if name == "savepoint.disposing" else ["other"])
    resting.check_clean()
    assert set(root_files.savepoints(resting.root)) == {"other"}


@pytest.mark.parametrize("damage", ["flipped", "cut", "removed"])
def test_verify_names_a_damaged_file(resting: AccountsJob, damage: str) -> None:
    made = _create(resting, "mine")
    folder = Path(made["path"].removeprefix("file://"))
    assert resting.command("savepoint", "verify", "mine").code == 0
    path = next((folder / "files").iterdir())
    data = bytearray(path.read_bytes())
    path.unlink()  # a hard link: the job's own file stays as it is
    if damage != "removed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    broken = resting.command("savepoint", "verify", "mine")
    assert (broken.code, broken.error.facts["file"]) == (4, path.as_uri()), str(broken)
    shutil.rmtree(folder)
    resting.finish()
    resting.check_clean()


def test_it_can_be_moved_and_copied(resting: AccountsJob, tmp_path: Path) -> None:
    made = _create(resting, "mine")
    folder = Path(made["path"].removeprefix("file://"))
    away, copied = tmp_path / "away", tmp_path / "copied"
    shutil.copytree(folder, copied)
    shutil.move(folder, away)
    for place in (away, copied):
        root_files.check_savepoint(place)
        verified = resting.command("savepoint", "verify", str(place))
        assert verified.code == 0, str(verified)
    assert root_files.savepoints(resting.root) == {}


@pytest.mark.parametrize("name", ["", *SERVING])
def test_stop_ends_the_run_with_a_savepoint(box: AccountsJob, name: str) -> None:
    """Killed on the way, the next run does the rest before any batch."""
    box.deliver(200)
    box.settings = QUICK
    run, asker = _beside(box, "stop", "--savepoint", "--name", "stopped", "--json")
    if name:
        box.settings = {**QUICK}
        run.kill()
        run.wait()
        box.marker.unlink(missing_ok=True)
        assert box.run(name).code == -9
        position = root_files.head(box.root).position
        run = box.start()
    else:
        run.resume()
    ended, made = run.wait(), asker.wait()
    assert (ended.code, made.code) == (0, 0), f"{ended}\n{made}"
    assert ended.result["stopped_because"] == STOPPED
    head = root_files.head(box.root)
    stored = root_files.savepoints(box.root)["stopped"]
    assert (stored["origin"], stored["checkpoint_id"], head.pending) == ("stop", head.checkpoint, {})
    if name:
        assert head.position == position, "it worked on although it was to stop"
    assert head.position < 200
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_stop_without_a_savepoint_is_in_the_history(box: AccountsJob) -> None:
    box.deliver(200)
    box.settings = QUICK
    run, asker = _beside(box, "stop", "--by", "ada", "--reason", "a holiday")
    run.resume()
    assert (run.wait().code, asker.wait().code) == (0, 0)
    (record,) = [r for r in root_files.history(box.root) if r.get("kind") == "stop"]
    assert (record["by"], record["reason"]) == ("ada", "a holiday")
    (line,) = (line for line in box.command("history").out.splitlines() if "a holiday" in line)
    assert "ada" in line


def test_stop_without_a_run(resting: AccountsJob) -> None:
    refused = resting.command("stop")
    # Without a generation, since no run is open.
    facts = {"root": str(resting.root)}
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    made = resting.command("stop", "--savepoint", "--json")
    assert json.loads(made.out)["taken_by"] == "head"


def test_the_failpoints_of_savepoints_all_have_a_place_here() -> None:
    named = {n for n in ASKED if n.startswith(("savepoint.", "request."))}
    assert named == {*SERVING, "savepoint.disposing", "savepoint.disposed", "savepoint.given-up"}


def test_a_sweep_that_dies_is_repeated(resting: AccountsJob) -> None:
    assert resting.command("savepoint", "create", "--name", "mine", failpoint="savepoint.copied").code == -9
    (pin,) = root_files.head(resting.root).doc["pinned"]
    assert resting.command("pins", "--drop", pin["id"]).code == 0
    resting.marker.unlink()
    assert resting.command("gc", failpoint="savepoint.given-up").code == -9
    resting.check_clean()


# -- savepoints without an answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("withdrawn", [True, False], ids=["withdrawn", "open"])
def test_what_was_reported_stays_and_what_was_not_is_not_reported(box: AccountsJob, withdrawn: bool) -> None:
    """A run dies between a savepoint and its answer; the asker gives up, and its next try asks with the same id."""
    box.deliver(100)
    box.settings = QUICK
    _killed_before_the_answer(box)
    assert json.loads(box.command("savepoint", "list", "--json").out) == []
    if withdrawn:
        assert operations.withdraw(str(box.root), "r1")
    made = box.begin(*RETRIED, "--patience", "0.2", "--job", box.job_file, with_job=True).wait()
    assert made.code == 0, str(made)
    box.finish()
    stored = root_files.savepoints(box.root)
    box.check_clean()
    assert root_files.savepoints(box.root) == stored
    assert stored["beside"]["id"] == json.loads(made.out)["id"]
    # The history has the one that there is, and no other.
    assert _noted(box) == [stored["beside"]["id"]]


def _killed_before_the_answer(box: AccountsJob) -> None:
    assert box.run("batch.begin:2").code == -9
    box.marker.unlink()
    _post(box, "r1", "savepoint", "beside")
    assert box.run("request.made").code == -9
    assert _complete(box) == ["beside"]


def _noted(box: AccountsJob) -> list[str]:
    return [r["facts"]["id"] for r in root_files.history(box.root) if r.get("kind") == "savepoint"]


def test_a_name_is_free_again_when_its_savepoint_was_refused(box: AccountsJob) -> None:
    box.deliver(100)
    box.settings = QUICK
    _killed_before_the_answer(box)
    assert operations.withdraw(str(box.root), "r1")
    made = box.command("savepoint", "create", "--name", "beside", "--from-head")
    assert made.code == 0, str(made)
    box.finish()
    box.check_clean()
    assert root_files.savepoints(box.root)["beside"]["generation"] == 0


def test_a_request_that_a_dead_run_has_seen_is_served_from_the_head(box: AccountsJob) -> None:
    """Not after the whole timeout, and not never."""
    box.deliver(50)
    assert box.run("batch.begin:3").code == -9
    _post(box, "r1", "savepoint", "beside")
    (box.root / "requests" / "r1.seen").write_text("1\n")
    made = box.begin(
        "savepoint",
        "create",
        "--name",
        "beside",
        "--request-id",
        "r1",
        "--patience",
        "0.2",
        "--json",
        "--job",
        box.job_file,
        with_job=True,
    ).wait()
    assert made.code == 0, str(made)
    assert json.loads(made.out)["taken_by"] == "head"


# -- stops that do not happen -----------------------------------------------------------------------------------------


def test_a_stop_that_fails_does_not_stop(box: AccountsJob) -> None:
    box.deliver(50)
    box.finish()
    _create(box, "taken")
    box.deliver(200)
    run, asker = _beside(box, "stop", "--savepoint", "--name", "taken")
    run.resume()
    refused, ended = asker.wait(), run.wait()
    facts = refused.error.facts
    assert (refused.code, refused.error.code) == (4, "data"), str(refused)
    assert (facts["code"], facts["name"]) == ("config", "taken")
    assert (ended.code, ended.result["stopped_because"]) == (0, CAUGHT_UP), str(ended)
    assert root_files.head(box.root).position == 200
    box.check_results()
    box.check_clean()


@pytest.mark.parametrize("savepoint", ["last", ""])
def test_a_stop_that_was_withdrawn_does_not_stop(box: AccountsJob, savepoint: str) -> None:
    """Even when the run had done all of it but answer."""
    box.deliver(30)
    box.finish()
    box.deliver(200)
    box.settings = QUICK
    _post(box, "s1", "stop", savepoint)
    run = box.start("request.made:1:stop")
    run.wait_stopped()
    assert operations.withdraw(str(box.root), "s1")
    run.resume()
    ended = run.wait()
    assert (ended.code, ended.result["stopped_because"]) == (0, CAUGHT_UP), str(ended)
    assert root_files.head(box.root).position == 200
    assert (root_files.savepoints(box.root), _noted(box)) == ({}, [])
    assert [r for r in root_files.history(box.root) if r.get("kind") == "stop"] == []
    box.check_results()
    box.check_clean()


def test_a_stop_whose_asker_died_long_ago_does_not_end_the_next_run(box: AccountsJob) -> None:
    box.deliver(30)
    box.finish()
    box.deliver(60)
    _post(box, "s1", "stop", "", until="2026-01-01T00:10:00+00:00")
    ended = box.finish()
    assert ended.result["stopped_because"] == CAUGHT_UP and root_files.head(box.root).position == 60
    answer, _ = root_files.unsealed((box.root / "requests" / "s1.done").read_bytes())
    assert answer["status"] == "withdrawn"


def test_what_an_asker_who_died_long_ago_has_asked_is_asked_anew(box: AccountsJob) -> None:
    box.deliver(100)
    assert box.run("batch.begin:2").code == -9
    box.marker.unlink()
    _post(box, "r1", "savepoint", "beside", until="2026-01-01T00:10:00+00:00")
    run, asker = _beside(box, *RETRIED)
    wait_for(lambda: (box.root / "requests" / "r1-again2").exists(), lambda: "the new request")
    run.resume()
    made = asker.wait()
    assert (made.code, run.wait().code) == (0, 0), str(made)
    assert json.loads(made.out)["taken_by"] == "run"


def test_a_stop_keeps_the_origin_that_it_was_given(resting: AccountsJob) -> None:
    for origin in ("upgrade", "stop"):
        made = resting.command("stop", "--savepoint", "--name", f"for-{origin}", "--origin", origin)
        assert made.code == 0, str(made)
        assert root_files.savepoints(resting.root)[f"for-{origin}"]["origin"] == origin


# -- folders that somebody touched ------------------------------------------------------------------------------------


def _folder(box: AccountsJob, name: str) -> Path:
    (folder,) = (box.root / "savepoints").glob(f"{name}-*")
    return folder


def test_a_damaged_one_is_in_nobody_s_way_and_can_be_deleted(resting: AccountsJob) -> None:
    for name in ("broken", "whole"):
        _create(resting, name, "--origin", "periodic")
    folder = _folder(resting, "broken")
    (folder / "_savepoint").write_bytes(b"{}")
    listed = resting.command("savepoint", "list", "--json")
    assert [s["name"] for s in json.loads(listed.out)] == ["whole"] and folder.name in listed.err, str(listed)
    _create(resting, "other", "--origin", "periodic")
    pruned = resting.command("savepoint", "prune", "--keep", "1", "--json")
    assert pruned.code == 0 and json.loads(pruned.out)["deleted"] == ["whole"], str(pruned)
    planned = resting.begin("restore", resting.job_file, "--plan", "before:2999-01-01", with_job=True).wait()
    assert planned.code == 0, str(planned)
    assert resting.command("savepoint", "dispose", "broken").code == 2
    gone = resting.command("savepoint", "dispose", folder.name)
    assert gone.code == 0 and not folder.exists(), str(gone)
    resting.check_clean()
    assert set(root_files.savepoints(resting.root)) == {"other"}


def test_a_renamed_one_keeps_its_name(resting: AccountsJob) -> None:
    made = _create(resting, "mine")
    _folder(resting, "mine").rename(resting.root / "savepoints" / "renamed")
    for name in ("mine", "renamed"):
        shown = json.loads(resting.command("savepoint", "show", name, "--json").out)
        assert (shown["name"], shown["id"]) == ("mine", made["id"])
    _check_taken(resting, "mine", made)


def test_a_copy_is_the_one_s_who_made_it(resting: AccountsJob) -> None:
    for name in ("p1", "p2", "p3"):
        _create(resting, name, "--origin", "periodic")
    first, copied = _folder(resting, "p1"), resting.root / "savepoints" / "mycopy"
    shutil.copytree(first, copied)
    planned = json.loads(resting.command("savepoint", "prune", "--keep", "2", "--dry-run", "--json").out)
    assert (planned["deleted"], planned["dry_run"]) == (["p1"], True)
    assert str(first) in resting.command("savepoint", "show", "p1").out
    assert resting.command("savepoint", "prune", "--keep", "2").code == 0
    assert not first.exists()
    root_files.check_savepoint(copied)
    assert str(copied) in resting.command("savepoint", "show", "p1").out


def test_one_can_be_deleted_by_its_path(early: AccountsJob, tmp_path: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    refused = early.command("savepoint", "dispose", str(tmp_path))
    assert refused.code == 2
    assert early.command("savepoint", "dispose", f"file://{folder}/").code == 0
    assert root_files.savepoints(early.root) == {}


def test_a_damaged_one_is_named_with_its_whole_path(early: AccountsJob) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    some = next((folder / "files").iterdir())
    content = some.read_bytes()
    some.chmod(0o600)
    some.write_bytes(b"x" * len(content))
    for name in ("early", str(folder)):
        _check_damaged(early.command("savepoint", "verify", name), some)
    some.write_bytes(content)
    (folder / "_savepoint").chmod(0o600)
    (folder / "_savepoint").write_bytes(b"nothing\n")
    _check_damaged(early.command("savepoint", "show", str(folder)), folder / "_savepoint")
    assert early.command("savepoint", "dispose", str(folder)).code == 0


def _check_damaged(ended: Ended, file: Path) -> None:
    error = ended.error
    assert (ended.code, error.code, error.facts["file"]) == (4, "corrupt-file", file.as_uri()), str(ended)
    assert "stateflow savepoint dispose" in ended.err


@pytest.mark.parametrize("name", ["latest", "17"])
def test_a_name_that_means_a_checkpoint_is_refused(resting: AccountsJob, name: str) -> None:
    refused = resting.command("savepoint", "create", "--name", name)
    assert (refused.code, refused.error) == (2, ReportedError("config", {"name": name})), str(refused)
    assert root_files.savepoints(resting.root) == {}


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("savepoint", "create", "--timeout", "inf"), "--timeout"),
        (("savepoint", "create", "--timeout", "nan"), "--timeout"),
        (("stop", "--name", "mine"), "--savepoint"),
        (("stop", "--drain"), "--savepoint"),
    ],
)
def test_impossible_options_are_refused(resting: AccountsJob, arguments: tuple[str, ...], option: str) -> None:
    refused = resting.command(*arguments)
    assert refused.code == 2 and option in refused.err, str(refused)
