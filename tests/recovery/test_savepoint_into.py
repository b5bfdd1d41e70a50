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


def _create(box: AccountsJob, into: Path | str, *more: str) -> dict[str, Any]:
    return box.create_savepoint("mine", "--into", str(into), *more)


def _folder(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def _complete(into: Path) -> list[Path]:
    return [p.parent for p in into.glob("*/_savepoint") if p.read_bytes() != b"given up\n"]


def test_a_savepoint_in_another_folder_needs_nothing_of_its_job_root(resting: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept here"
    made = _create(resting, into)
    folder = _folder(made)
    assert (made["checkpoint_id"], made["taken_by"]) == (resting.head.checkpoint, "head")
    assert (resting.savepoints, resting.head.doc["pinned"]) == ({}, [])
    resting.check_clean()
    shutil.rmtree(resting.root)
    root_files.check_savepoint(folder)
    (listed,) = resting.shell(f"stateflow savepoint list --in '{into}' --json").document
    assert listed["path"] == made["path"]
    for path in (made["path"], *(f"'{folder}{end}'" for end in ("", "/", "/_savepoint"))):
        assert resting.shell(f"stateflow savepoint show {path} --json").document["id"] == made["id"]
        resting.shell(f"stateflow savepoint verify {path}").check()
    (folder / "notes.txt").write_text("mine")
    resting.shell(f"stateflow savepoint dispose '{folder}/_savepoint'").check()
    # Files of others stay, and a folder with nothing else is refused.
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    assert resting.shell(f"stateflow savepoint dispose '{folder}'").code == 2
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_a_plan_names_the_savepoint_of_a_dropped_checkpoint_while_the_savepoint_exists(
    resting: AccountsJob, tmp_path: Path
) -> None:
    earlier = resting.head.checkpoint
    resting.run_to(70)
    made = _create(resting, tmp_path / "kept")
    for remaining in ([made["path"]], []):
        assert [saved["savepoint"] for saved in plan(resting, str(earlier))["saved"]] == remaining
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)


@pytest.mark.parametrize("name", mostly_slow(MAKING, ["savepoint.copied", "savepoint.complete"]))
def test_a_killed_savepoint_into_a_folder_is_completed_and_cleaned_up_by_the_same_command(
    resting: AccountsJob, tmp_path: Path, name: str
) -> None:
    into = tmp_path / "kept"
    asked = ("--request-id", "r1", "--by", "ada")
    command = ("savepoint", "create", "--name", "mine", "--into", str(into), *asked)
    assert resting.command(*command, failpoint=name).code == KILLED
    assert len(_complete(into)) == (1 if name == "savepoint.complete" else 0)
    # Another job's maker is at work in the same folder.
    other = into / "theirs-00000000"
    other.mkdir(parents=True)
    (other / "_started").write_text("a pin of another job")
    first, second = _create(resting, into, *asked), _create(resting, into, *asked)
    assert first["id"] == second["id"]
    (folder,) = _complete(into)
    root_files.check_savepoint(folder)
    half_made = [p for p in into.iterdir() if p not in (folder, other)]
    assert all([f.name for f in root_files.files_below(p).values()] == ["_savepoint"] for p in half_made)
    assert resting.head.doc["pinned"] == []
    assert [p.name for p in other.iterdir()] == ["_started"]
    resting.check_clean()


def test_a_savepoint_into_a_folder_during_a_run_is_taken_by_the_run(box: AccountsJob, tmp_path: Path) -> None:
    box.settings = {"checkpoints__interval_batches": 50}
    box.deliver(200)
    create = ("savepoint", "create", "--name", "mine", "--into", str(tmp_path / "kept"), "--json")
    made, _ = box.asked_at("batch.begin:3", *create)
    report = made.check().document
    assert report["taken_by"] == "run" and 0 < json.loads(report["offsets"]["events"])["row"] <= 200
    root_files.check_savepoint(_folder(report))
    box.check()


@pytest.mark.slow
def test_a_savepoint_in_a_bucket_or_hdfs_can_be_forked_and_deleted(resting: AccountsJob, tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", "bucket") as variables, hdfs_server(tmp_path / "hdfs") as hdfs:
        resting.variables = variables
        made = [_create(resting, into) for into in ("s3://bucket/kept", f"{hdfs.address}/kept")]
        resting.run_to(80)
        for number, each in enumerate(made):
            again = AccountsJob(tmp_path / f"again-{number}", variables=variables)
            resting.command("fork", f"{each['path']}/_savepoint", "--into", str(again.root)).check()
            again.run_to(80)
            assert again.head.position == 80
            resting.shell(f"stateflow savepoint dispose {each['path']}").check()
            left = resting.shell(f"stateflow savepoint list --in {each['path'].rpartition('/')[0]} --json")
            assert left.document == []


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_a_killed_deletion_of_a_savepoint_is_completed_by_the_same_command(
    resting: AccountsJob, tmp_path: Path, name: str
) -> None:
    dispose = ("savepoint", "dispose", str(_folder(_create(resting, tmp_path / "kept"))))
    assert resting.command(*dispose, failpoint=name).code == KILLED
    resting.command(*dispose).check()
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_deletion_of_an_incomplete_savepoint_fails_its_maker(resting: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept"
    create = ("savepoint", "create", "--name", "mine", "--into", str(into))
    maker = resting.begin(*create, failpoint="savepoint.copied:1:stop").wait_stopped()
    (folder,) = into.iterdir()
    resting.command("savepoint", "dispose", str(folder)).check()
    assert maker.resume().wait().code == 4
    assert _complete(into) == []


def test_a_savepoint_into_the_job_root_or_with_a_used_name_is_refused(resting: AccountsJob, tmp_path: Path) -> None:
    _create(resting, tmp_path / "kept")
    for into in (resting.root, resting.root / "data", tmp_path / "kept"):
        refused = resting.command("savepoint", "create", "--name", "mine", "--into", str(into))
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


def test_a_savepoint_contains_no_pending_output(box: AccountsJob) -> None:
    """Also where its checkpoint's output was pending just before."""
    box.deliver(50)
    box.reach("commit.after:3")
    pending = box.head.doc["pending"]
    assert pending and {"pending", "committables"} <= set(_names(box.head.doc))
    box.create_savepoint("mine", "--acknowledge-timeout", "0.2", "--job", box.job_file, with_job=True)
    stored = box.savepoints["mine"]
    assert stored["checkpoint_id"] == box.head.checkpoint
    assert not {"pending", "committables"} & set(_names(stored))
    files = [c["path"] for output in pending for c in output["committables"]]
    assert files and not [path for path in files if path in str(stored)]


def test_making_a_savepoint_changes_no_table(early: AccountsJob) -> None:
    before = root_files.digests(early.folder / "tables")
    early.create_savepoint("more")
    early.create_savepoint("from-head", "--from-head")
    assert root_files.digests(early.folder / "tables") == before


def test_functions_are_notified_of_checkpoints_and_not_of_savepoints(box: AccountsJob) -> None:
    """Functions are notified of checkpoints, each soon after its commit, also of that which a savepoint is made of; of
    nothing else: a savepoint's entries in the log have numbers, too."""
    box.job = "checkpointed"
    box.deliver(60)
    made, _ = box.asked_at("batch.begin:3", "savepoint", "create", "--name", "beside")
    made.check()
    box.create_savepoint("resting")
    box.run_to(90)
    notified = {row["told"] for row in box.rows("told")} - {0}
    others = {e.seq for e in root_files.entries(box.root) if not e.is_checkpoint}
    recorded = {r["checkpoint_id"] for r in root_files.history(box.root) if "checkpoint_id" in r}
    assert notified and notified <= recorded and not notified & others
