"""A savepoint is apart from its job: it may be written anywhere, holds no output, and no system is notified of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob, mostly_slow
from tests.support.restores import plan

MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.copied", "savepoint.complete"]


def _create(job: AccountsJob, into: Path | str, *more: str) -> dict[str, Any]:
    return job.create_savepoint("mine", "--into", str(into), *more)


def _folder(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def _complete(into: Path) -> list[Path]:
    return [p.parent for p in into.glob("*/_savepoint") if p.read_bytes() != b"given up\n"]


def test_a_savepoint_in_another_folder_needs_nothing_of_its_job_root(idle_job: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept here"
    made = _create(idle_job, into)
    folder = _folder(made)
    assert (made["checkpoint_id"], made["taken_by"]) == (idle_job.head.checkpoint, "head")
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


@pytest.mark.parametrize("name", mostly_slow(MAKING, ["savepoint.copied", "savepoint.complete"]))
def test_a_killed_savepoint_into_a_folder_is_completed_and_cleaned_up_by_the_same_command(
    idle_job: AccountsJob, tmp_path: Path, name: str
) -> None:
    into = tmp_path / "kept"
    asked = ("--request-id", "r1", "--by", "ada")
    command = ("savepoint", "create", "--name", "mine", "--into", str(into), *asked)
    assert idle_job.command(*command, failpoint=name).code == KILLED
    assert len(_complete(into)) == (1 if name == "savepoint.complete" else 0)
    # Another job's maker is at work in the same folder.
    other = into / "theirs-00000000"
    other.mkdir(parents=True)
    (other / "_started").write_text("a pin of another job")
    first, second = _create(idle_job, into, *asked), _create(idle_job, into, *asked)
    assert first["id"] == second["id"]
    (folder,) = _complete(into)
    root_files.check_savepoint(folder)
    half_made = [p for p in into.iterdir() if p not in (folder, other)]
    assert all([f.name for f in root_files.files_below(p).values()] == ["_savepoint"] for p in half_made)
    assert idle_job.head.doc["pinned"] == []
    assert [p.name for p in other.iterdir()] == ["_started"]
    idle_job.check_clean()


@pytest.mark.parametrize("name", ["savepoint.started", "savepoint.share", "savepoint.copied"])
def test_a_failed_savepoint_into_a_folder_leaves_no_file(idle_job: AccountsJob, tmp_path: Path, name: str) -> None:
    """Its pin, by which a later attempt would find them, ends with the command."""
    create = ("savepoint", "create", "--name", "mine", "--format", "canonical", "--into", str(tmp_path / "kept"))
    failed = idle_job.command(*create, failpoint=f"{name}:1:error")
    assert failed.error.code == "internal", str(failed)
    assert (idle_job.head.doc["pinned"], _complete(tmp_path / "kept")) == ([], [])
    assert {Path(path).name for path in root_files.files_below(tmp_path / "kept")} == {"_savepoint"}
    idle_job.command(*create).check()


@pytest.mark.parametrize("name", ["savepoint.given-up", "log.created"])
def test_a_killed_cleanup_of_a_savepoint_into_a_folder_is_completed_by_the_same_command(
    idle_job: AccountsJob, tmp_path: Path, name: str
) -> None:
    into = tmp_path / "kept"
    create = ("savepoint", "create", "--name", "mine", "--into", str(into), "--request-id", "r1")
    for failpoint in ("savepoint.copied", name):
        assert idle_job.command(*create, failpoint=failpoint).code == KILLED
    folder = _folder(_create(idle_job, into, "--request-id", "r1"))
    others = [path for path in into.iterdir() if path != folder]
    assert {name for path in others for name in root_files.files_below(path)} == {"_savepoint"}
    assert idle_job.head.doc["pinned"] == []


def test_a_savepoint_into_a_folder_during_a_run_is_taken_by_the_run(job: AccountsJob, tmp_path: Path) -> None:
    job.settings = {"checkpoints__interval_batches": 50}
    job.deliver(200)
    create = ("savepoint", "create", "--name", "mine", "--into", str(tmp_path / "kept"), "--json")
    made, _ = job.asked_at("batch.begin:3", *create)
    report = made.check().document
    assert report["taken_by"] == "run" and 0 < json.loads(report["offsets"]["events"])["row"] <= 200
    root_files.check_savepoint(_folder(report))
    job.check()


@pytest.mark.slow(reason="starts servers of object storage and an HDFS")
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


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_a_killed_deletion_of_a_savepoint_is_completed_by_the_same_command(
    idle_job: AccountsJob, tmp_path: Path, name: str
) -> None:
    dispose = ("savepoint", "dispose", str(_folder(_create(idle_job, tmp_path / "kept"))))
    assert idle_job.command(*dispose, failpoint=name).code == KILLED
    idle_job.command(*dispose).check()
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_deletion_of_an_incomplete_savepoint_fails_its_maker(idle_job: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept"
    create = ("savepoint", "create", "--name", "mine", "--into", str(into))
    maker = idle_job.begin(*create, failpoint="savepoint.copied:1:stop").wait_stopped()
    (folder,) = into.iterdir()
    idle_job.command("savepoint", "dispose", str(folder)).check()
    assert maker.resume().wait().code == 4
    assert _complete(into) == []


def test_a_savepoint_into_the_job_root_or_with_a_used_name_is_refused(idle_job: AccountsJob, tmp_path: Path) -> None:
    _create(idle_job, tmp_path / "kept")
    for into in (idle_job.root, idle_job.root / "data", tmp_path / "kept"):
        refused = idle_job.command("savepoint", "create", "--name", "mine", "--into", str(into))
        assert refused.code == 2, str(refused)


# -- what it does not do -----------------------------------------------------------------------------------------------


def _names(document: Any) -> Iterator[str]:
    """The names of all fields, at any depth."""
    if isinstance(document, dict):
        yield from document
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            yield from _names(value)


def test_a_savepoint_contains_no_pending_output(job: AccountsJob) -> None:
    """Also where its checkpoint's output was pending just before."""
    job.deliver(50)
    job.reach("commit.after:3")
    pending = job.head.doc["pending"]
    assert pending and {"pending", "committables"} <= set(_names(job.head.doc))
    job.create_savepoint("mine", "--acknowledge-timeout", "0.2", "--job", job.job_file, with_job=True)
    stored = job.savepoints["mine"]
    assert stored["checkpoint_id"] == job.head.checkpoint
    assert not {"pending", "committables"} & set(_names(stored))
    files = [c["path"] for output in pending for c in output["committables"]]
    assert files and not [path for path in files if path in str(stored)]


def test_making_a_savepoint_changes_no_table(early: AccountsJob) -> None:
    before = root_files.digests(early.folder / "tables")
    early.create_savepoint("more")
    early.create_savepoint("from-head", "--from-head")
    assert root_files.digests(early.folder / "tables") == before


def test_functions_are_notified_of_checkpoints_and_not_of_savepoints(job: AccountsJob) -> None:
    """Functions are notified of checkpoints, each soon after its commit, also of that which a savepoint is made of; of
    nothing else: a savepoint's entries in the log have numbers, too."""
    job.job_name = "checkpointed"
    job.deliver(60)
    made, _ = job.asked_at("batch.begin:3", "savepoint", "create", "--name", "during")
    made.check()
    job.create_savepoint("resting")
    job.run_to(90)
    notified = {row["notified"] for row in job.rows("collected")} - {0}
    others = {e.seq for e in root_files.entries(job.root) if not e.is_checkpoint}
    recorded = {r["checkpoint_id"] for r in root_files.history(job.root) if "checkpoint_id" in r}
    assert notified and notified <= recorded and not notified & others
