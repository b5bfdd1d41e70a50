"""Savepoints: taken during a run and without one, killed at every step, moved, copied, deleted."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from stateflow import operations
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.requesters import os_user
from stateflow.runtime.driver.request_server import STOPPED
from stateflow.runtime.driver.termination import CAUGHT_UP
from stateflow.storage import PosixStorage
from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support import folder_tables, root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import KILLED, AccountsJob, mostly_slow
from tests.support.processes import Running, wait_for
from tests.support.restores import plan

MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.copied", "savepoint.complete"]
SERVING = [*MAKING, "request.made"]
QUICK = {"requests__interval": "20ms"}
CREATE = ("savepoint", "create", "--name", "mine")
STOP = ("stop", "--savepoint")
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
    assert (made["checkpoint_id"], made["made_from"]) == (head.checkpoint, "head")
    assert made["offsets"] == {"events": {"row": 50}}
    stored = idle_job.savepoints["first"]
    assert (stored["by"], stored["reason"], stored["origin"]) == (os_user("ada"), "before the upgrade", "manual")
    tables = {uid: sink["checkpoint_id"] for uid, sink in stored["sinks"].items()}
    assert tables == dict.fromkeys(["movements", "totals"], head.checkpoint)
    # It publishes nothing, and is not an ancestor of later checkpoints.
    newest = idle_job.head
    assert (newest.doc["kind"], newest.checkpoint, newest.doc["pinned"]) == ("admin", head.checkpoint, [])
    idle_job.check_clean()


@pytest.mark.parametrize("name", ["savepoint.copied", "savepoint.complete"])
def test_a_killed_savepoint_command_leaves_nothing_that_looks_complete(idle_job: AccountsJob, name: str) -> None:
    """Its pin is listed and dropped by command; then collections, the first of them killed, remove the rest."""
    assert idle_job.command(*CREATE, failpoint=name).code == KILLED
    is_complete = name == "savepoint.complete"
    assert _complete(idle_job) == (["mine"] if is_complete else [])
    _drop_the_pin(idle_job)
    if not is_complete:
        assert idle_job.command("gc", failpoint="savepoint.given-up").code == KILLED
    idle_job.check_clean()
    if not is_complete:
        idle_job.create_savepoint("mine")
    assert idle_job.savepoints.keys() == {"mine"}


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
    assert idle_job.command(*CREATE, "--json").error == ReportedError("config", taken)
    _folder(idle_job, "mine").rename(idle_job.root / "savepoints" / "renamed")
    for name in ("mine", "renamed"):
        shown = idle_job.command("savepoint", "show", name, "--json").document
        assert (shown["name"], shown["id"]) == ("mine", made["id"])
    assert idle_job.command(*CREATE, "--json").error == ReportedError("config", taken)
    for name in ("../up", "latest", "17"):
        refused = idle_job.command("savepoint", "create", "--name", name)
        assert (refused.code, refused.error) == (2, ReportedError("config", {"name": name})), str(refused)
    assert idle_job.savepoints.keys() == {"mine"}


@pytest.mark.slow(reason="runs jobs many times")
def test_the_cost_of_a_savepoint_does_not_depend_on_how_many_are_kept(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["mine", *(f"mine-{n}" for n in range(10))]
    read, get = Counter[int](), PosixStorage.get
    for number, name in enumerate(names):

        def counted(*arguments: Any, number: int = number, **more: Any) -> Any:
            read[number] += 1
            return get(*arguments, **more)

        monkeypatch.setattr(PosixStorage, "get", counted)
        create_savepoint(idle_job.job_root, SavepointRequest(name=name))
    assert max(read.values()) == read[1], read


def test_a_savepoint_after_a_crash_needs_the_job_to_publish_pending_output(job: AccountsJob, tmp_path: Path) -> None:
    """Also one after the first, since only runs record what was published."""
    job.deliver(50)
    job.reach("commit.after:3")
    pending = [file["path"] for output in job.head.doc["pending"] for file in output["committables"]]
    facts = {"checkpoint_id": job.head.checkpoint, "generation": job.head.doc["generation"]}
    commands = {"mine": CREATE[:2], "outside": (*CREATE[:2], "--into", str(tmp_path / "kept")), "stopped": STOP}
    for name, words in commands.items():
        command = (*words, "--name", name, "--acknowledge-timeout", "0.2", "--json")
        refused = job.command(*command)
        assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
        assert "--job JOB.py" in refused.err and "--from-head" in refused.err
        made = job.command(*command, "--job", job.job_file, with_job=True).check().document
        made = made.get("savepoint", made)
        assert (made["checkpoint_id"], made["made_from"]) == (job.head.checkpoint, "head")
    assert job.head.checkpoint in folder_tables.tokens(job.table("movements"))
    # A savepoint contains no pending output.
    assert pending and not [path for path in pending if path in str(job.savepoints["mine"])]
    job.finish()
    job.check()


def test_impossible_options_are_refused(idle_job: AccountsJob) -> None:
    for arguments, option in (
        (("savepoint", "create", "--timeout", "inf"), "--timeout"),
        (("savepoint", "create", "--timeout", "nan"), "--timeout"),
        (("stop", "--name", "mine"), "--savepoint"),
        (("stop", "--drain"), "--savepoint"),
    ):
        refused = idle_job.command(*arguments)
        assert refused.code == 2 and option in refused.err, str(refused)


# -- taken by a run ---------------------------------------------------------------------------------------------------


def test_a_savepoint_during_a_run_is_taken_at_the_next_barrier(job: AccountsJob) -> None:
    job.deliver(100)
    made, _ = job.asked_at("batch.begin:3", *CREATE, "--json")
    report = made.check().document
    assert report["made_from"] == "run" and report["offsets"]["events"]["row"] > 20
    assert job.savepoints.keys() == {"mine"}
    job.check()


@pytest.mark.parametrize("name", mostly_slow(SERVING, ["savepoint.copied", "request.made"]))
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
@pytest.mark.slow(reason="starts a process for each kill")
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
    assert [r["facts"]["savepoint_id"] for r in job.records("savepoint")] == [stored["mine"]["id"]]


def _die_before_the_answer(job: AccountsJob) -> None:
    job.settings = QUICK
    job.reach("batch.begin:2")
    _post(job, "r1", "savepoint", "mine")
    job.reach("request.made")
    assert _complete(job) == ["mine"]


def test_a_savepoint_request_that_a_dead_run_has_seen_is_served_from_the_head(job: AccountsJob) -> None:
    """Not after the whole timeout, and not never."""
    job.deliver(50)
    _post_seen(job)
    made = job.command(*RETRIED, "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True)
    assert made.check().document["made_from"] == "head"


@pytest.mark.slow(reason="runs jobs many times")
def test_an_expired_savepoint_request_is_made_again_by_the_same_command(job: AccountsJob) -> None:
    job.deliver(100)
    job.reach("batch.begin:2")
    _post(job, "r1", "savepoint", "mine", until=LONG_AGO)
    run, requester = _ask_while_stopped(job, *RETRIED)
    wait_for(lambda: (job.root / "requests" / "r1-again2").exists(), lambda: "the new request")
    run.resume().wait().check()
    assert requester.wait().check().document["made_from"] == "run"


def _ask_while_stopped(job: AccountsJob, *command: str) -> tuple[Running, Running]:
    """A run that is stopped in its third batch, and a request to it that was posted meanwhile."""
    job.settings = QUICK
    run = job.start("batch.begin:3:stop").wait_stopped()
    requester = job.begin(*command, "--timeout", "60", "--acknowledge-timeout", "60")
    wait_for(lambda: any("." not in p.name for p in (job.root / "requests").glob("*")), lambda: "the request")
    return run, requester


# -- stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", mostly_slow(["", *SERVING], ["", "savepoint.pinned"]))
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
        assert made.check().document["savepoint"]["made_from"] == "head"
        assert idle_job.savepoints[f"for-{origin}"]["origin"] == origin


def test_a_failed_stop_does_not_end_the_run(idle_job: AccountsJob) -> None:
    idle_job.create_savepoint("taken")
    idle_job.deliver(200)
    stop, run = idle_job.asked_at("batch.begin:3", "stop", "--savepoint", "--name", "taken")
    facts = stop.check_error(4, "data").facts
    assert (facts["code"], facts["name"]) == ("config", "taken")
    assert run.result["stopped_because"] == CAUGHT_UP
    idle_job.check()


def test_a_withdrawn_stop_does_not_end_the_run(job: AccountsJob) -> None:
    """Also when the run has done everything but write its answer."""
    job.run_to(30)
    job.deliver(200)
    job.settings = QUICK
    _post(job, "s1", "stop", "last")
    run = job.start("request.made:1:stop").wait_stopped()
    assert operations.withdraw(str(job.root), "s1")
    assert run.resume().wait().check().result["stopped_because"] == CAUGHT_UP
    assert (job.savepoints, job.records("savepoint"), job.records("stop")) == ({}, [], [])
    job.check()


# -- folders that are damaged, moved, copied, deleted -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_a_killed_deletion_of_a_savepoint_is_completed_by_the_next_collection(idle_job: AccountsJob, name: str) -> None:
    idle_job.create_savepoint("mine")
    idle_job.create_savepoint("other")
    dispose = ("savepoint", "dispose", "mine", "--reason", "too old")
    assert idle_job.command(*dispose, failpoint=name).code == KILLED
    assert _complete(idle_job) == (["mine", "other"] if name == "savepoint.disposing" else ["other"])
    if name == "savepoint.disposing":
        idle_job.command(*dispose).check()
    idle_job.check_clean()
    assert idle_job.savepoints.keys() == {"other"}
    # Who deleted it, and why: once, also if no process has repeated the deletion.
    (record,) = idle_job.records("dispose")
    assert (record["facts"]["savepoint"], record["reason"], record["by"]) == ("mine", "too old", os_user())


@pytest.mark.parametrize("damage", ["flipped", "cut", "document"])
def test_damage_to_a_savepoint_is_reported_with_its_path(idle_job: AccountsJob, damage: str) -> None:
    idle_job.create_savepoint("mine")
    folder = _folder(idle_job, "mine")
    idle_job.command("savepoint", "verify", "mine").check()
    path = folder / "_savepoint" if damage == "document" else next((folder / "files").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # a hard link: the job's own file stays as it is
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


@pytest.mark.slow(reason="runs jobs many times")
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


# -- in other folders -------------------------------------------------------------------------------------------------


def _create(job: AccountsJob, into: Path | str, *more: str) -> dict[str, Any]:
    return job.create_savepoint("mine", "--into", str(into), *more)


def _path(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def _complete_in(into: Path) -> list[Path]:
    return [p.parent for p in into.glob("*/_savepoint") if p.read_bytes() != b"given up\n"]


def test_a_savepoint_in_another_folder_needs_nothing_of_its_job_root(idle_job: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept here"
    made = _create(idle_job, into)
    folder = _path(made)
    assert (made["checkpoint_id"], made["made_from"]) == (idle_job.head.checkpoint, "head")
    assert (idle_job.savepoints, idle_job.head.doc["pinned"]) == ({}, [])
    idle_job.check_clean()
    shutil.rmtree(idle_job.root)
    root_files.check_savepoint(folder)
    (listed,) = idle_job.shell(f"stateflow savepoint list --in '{into}' --json").document
    assert listed["path"] == made["path"]
    for path in (made["path"], *(f"'{folder}{end}'" for end in ("", "/", "/_savepoint"))):
        assert idle_job.shell(f"stateflow savepoint show {path} --json").document["id"] == made["id"]
        idle_job.shell(f"stateflow savepoint verify {path}").check()
    (folder / "notes.txt").write_text("mine")
    idle_job.shell(f"stateflow savepoint dispose '{folder}/_savepoint'").check()
    # Files of others stay, and a folder with nothing else is refused.
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    assert idle_job.shell(f"stateflow savepoint dispose '{folder}'").code == 2
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_a_plan_names_the_savepoint_of_a_dropped_checkpoint_while_the_savepoint_exists(
    idle_job: AccountsJob, tmp_path: Path
) -> None:
    earlier = idle_job.head.checkpoint
    idle_job.run_to(70)
    made = _create(idle_job, tmp_path / "kept")
    for remaining in ([made["path"]], []):
        assert [saved["savepoint"] for saved in plan(idle_job, str(earlier))["saved"]] == remaining
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)


@pytest.mark.parametrize("name", mostly_slow(MAKING, ["savepoint.copied"]))
def test_a_killed_savepoint_into_a_folder_is_completed_and_cleaned_up_by_the_same_command(
    idle_job: AccountsJob, tmp_path: Path, name: str
) -> None:
    into = tmp_path / "kept"
    asked = ("--request-id", "r1", "--by", "ada")
    command = ("savepoint", "create", "--name", "mine", "--into", str(into), *asked)
    assert idle_job.command(*command, failpoint=name).code == KILLED
    assert len(_complete_in(into)) == (1 if name == "savepoint.complete" else 0)
    # Another job's maker is at work in the same folder.
    other = into / "theirs-00000000"
    other.mkdir(parents=True)
    (other / "_started").write_text("a pin of another job")
    first, second = _create(idle_job, into, *asked), _create(idle_job, into, *asked)
    assert first["id"] == second["id"]
    (folder,) = _complete_in(into)
    root_files.check_savepoint(folder)
    half_made = [p for p in into.iterdir() if p not in (folder, other)]
    assert all([f.name for f in root_files.files_below(p).values()] == ["_savepoint"] for p in half_made)
    assert idle_job.head.doc["pinned"] == []
    assert [p.name for p in other.iterdir()] == ["_started"]
    idle_job.check_clean()


@pytest.mark.parametrize("name", ["savepoint.share", "savepoint.copied"])
def test_a_failed_savepoint_into_a_folder_leaves_no_file(idle_job: AccountsJob, tmp_path: Path, name: str) -> None:
    """Its pin, by which a later attempt would find them, ends with the command."""
    create = ("savepoint", "create", "--name", "mine", "--format", "canonical", "--into", str(tmp_path / "kept"))
    failed = idle_job.command(*create, failpoint=f"{name}:1:error")
    assert failed.error.code == "internal", str(failed)
    assert (idle_job.head.doc["pinned"], _complete_in(tmp_path / "kept")) == ([], [])
    assert {Path(path).name for path in root_files.files_below(tmp_path / "kept")} == {"_savepoint"}
    idle_job.command(*create).check()


def test_a_savepoint_into_a_folder_during_a_run_is_taken_by_the_run(job: AccountsJob, tmp_path: Path) -> None:
    job.settings = {"checkpoints__interval_batches": 50}
    job.deliver(200)
    create = ("savepoint", "create", "--name", "mine", "--into", str(tmp_path / "kept"), "--json")
    made, _ = job.asked_at("batch.begin:3", *create)
    report = made.check().document
    assert report["made_from"] == "run" and 0 < report["offsets"]["events"]["row"] <= 200
    root_files.check_savepoint(_path(report))
    job.check()


@pytest.mark.slow(reason="starts servers of S3 and HDFS")
def test_a_savepoint_in_a_bucket_or_hdfs_can_be_forked_and_deleted(idle_job: AccountsJob, tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", "bucket") as bucket, hdfs_server(tmp_path / "hdfs") as hdfs:
        variables = idle_job.variables = bucket | hdfs.variables
        made = [_create(idle_job, into) for into in ("s3://bucket/kept", f"{hdfs.address}/kept")]
        idle_job.run_to(80)
        for number, each in enumerate(made):
            again = AccountsJob(tmp_path / f"again-{number}", variables=variables)
            idle_job.command("fork", f"{each['path']}/_savepoint", "--into", str(again.root)).check()
            again.run_to(80)
            assert again.head.position == 80
            idle_job.shell(f"stateflow savepoint dispose {each['path']}").check()
            left = idle_job.shell(f"stateflow savepoint list --in {each['path'].rpartition('/')[0]} --json")
            assert left.document == []


def test_a_killed_deletion_of_a_savepoint_is_completed_by_the_same_command(
    idle_job: AccountsJob, tmp_path: Path
) -> None:
    dispose = ("savepoint", "dispose", str(_path(_create(idle_job, tmp_path / "kept"))))
    for name in ("savepoint.disposing", "savepoint.disposed"):
        assert idle_job.command(*dispose, failpoint=name).code == KILLED
    idle_job.command(*dispose).check()
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_savepoint_into_the_job_root_or_with_a_used_name_is_refused(idle_job: AccountsJob, tmp_path: Path) -> None:
    _create(idle_job, tmp_path / "kept")
    for into in (idle_job.root, idle_job.root / "data", tmp_path / "kept"):
        refused = idle_job.command("savepoint", "create", "--name", "mine", "--into", str(into))
        assert refused.code == 2, str(refused)
