"""Savepoints that are written outside of their job root: on any storage, killed at every step, found and deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.servers.hdfs import hdfs_server
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, mostly_slow
from tests.support.processes import wait_for

MAKING = ["savepoint.pinned", "savepoint.started", "savepoint.copied", "savepoint.complete"]


@pytest.fixture
def resting(box: AccountsJob) -> AccountsJob:
    box.deliver(50)
    box.finish()
    return box


def _create(box: AccountsJob, into: Path | str, *more: str) -> dict[str, Any]:
    ended = box.command("savepoint", "create", "--name", "mine", "--into", str(into), "--json", *more)
    assert ended.code == 0, str(ended)
    return json.loads(ended.out)  # type: ignore[no-any-return]


def _folder(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def _complete(into: Path) -> list[Path]:
    return [p.parent for p in into.glob("*/_savepoint") if p.read_bytes() != b"given up\n"]


def test_it_needs_nothing_of_its_job_root(resting: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept here"
    made = _create(resting, into)
    assert (made["checkpoint_id"], made["taken_by"]) == (root_files.head(resting.root).checkpoint, "head")
    assert root_files.savepoints(resting.root) == {} and root_files.head(resting.root).doc["pinned"] == []
    resting.check_clean()
    shutil.rmtree(resting.root)
    root_files.check_savepoint(_folder(made))
    (listed,) = json.loads(resting.shell(f"stateflow savepoint list --in '{into}' --json").out)
    assert listed["path"] == made["path"]
    for path in (made["path"], *(f"'{_folder(made)}{end}'" for end in ("", "/", "/_savepoint"))):
        assert json.loads(resting.shell(f"stateflow savepoint show {path} --json").out)["id"] == made["id"]
        assert resting.shell(f"stateflow savepoint verify {path}").code == 0
    (_folder(made) / "notes.txt").write_text("mine")
    assert resting.shell(f"stateflow savepoint dispose '{_folder(made)}/_savepoint'").code == 0
    assert [p.name for p in _folder(made).iterdir()] == ["notes.txt"]
    assert resting.shell(f"stateflow savepoint dispose '{_folder(made)}'").code == 2


def test_a_plan_names_it_as_what_remains_of_a_checkpoint_while_it_is_there(
    resting: AccountsJob, tmp_path: Path
) -> None:
    earlier = root_files.head(resting.root).checkpoint
    resting.deliver_more(20)
    resting.finish()
    into = tmp_path / "kept"
    made = _create(resting, into)
    for remaining in ([made["path"]], []):
        command = ("restore", resting.job_file, "--plan", str(earlier), "--json")
        planned = resting.begin(*command, with_job=True).wait()
        assert planned.code == 0, str(planned)
        assert [saved["savepoint"] for saved in json.loads(planned.out)["saved"]] == remaining
        shutil.rmtree(into, ignore_errors=True)


@pytest.mark.parametrize("name", mostly_slow(MAKING, ["savepoint.copied", "savepoint.complete"]))
def test_the_same_command_completes_it_and_clears_up_after_one_that_was_killed(
    resting: AccountsJob, tmp_path: Path, name: str
) -> None:
    into = tmp_path / "kept"
    asked = ("--request-id", "r1", "--by", "ada")
    command = ("savepoint", "create", "--name", "mine", "--into", str(into), *asked)
    assert resting.command(*command, failpoint=name).code == -9
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
    assert root_files.head(resting.root).doc["pinned"] == []
    assert (other / "_started").exists() and not (other / "_savepoint").exists()
    resting.check_clean()


def test_a_run_makes_the_checkpoint_that_is_copied(box: AccountsJob, tmp_path: Path) -> None:
    box.settings = {"checkpoints__interval_batches": 50, "requests__interval": "20ms"}
    box.deliver(200)
    into = tmp_path / "kept"
    run = box.start("batch.begin:3:stop")
    run.wait_stopped()
    asker = box.begin(
        "savepoint", "create", "--name", "mine", "--into", str(into), "--json", "--timeout", "60", "--patience", "60"
    )
    wait_for(lambda: (box.root / "requests").is_dir(), lambda: "the request")
    run.resume()
    made, ended = asker.wait(), run.wait()
    assert (made.code, ended.code) == (0, 0), f"{made}\n{ended}"
    report = json.loads(made.out)
    assert report["taken_by"] == "run" and 0 < json.loads(report["offsets"]["events"])["row"] <= 200
    root_files.check_savepoint(_folder(report))
    box.check_results()
    box.check_clean()


@pytest.mark.slow
def test_a_bucket_and_hdfs_take_it_and_a_job_goes_back_to_it(resting: AccountsJob, tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", "bucket") as variables, hdfs_server(tmp_path / "hdfs") as hdfs:
        resting.variables = variables
        made = [_create(resting, into) for into in ("s3://bucket/kept", f"{hdfs.address}/kept")]
        resting.deliver(80)
        resting.finish()
        for number, each in enumerate(made):
            again = AccountsJob(tmp_path / f"again-{number}", variables=variables)
            again.deliver(80)
            forked = resting.command("fork", f"{each['path']}/_savepoint", "--into", str(again.root))
            assert forked.code == 0, str(forked)
            again.finish()
            assert root_files.head(again.root).position == 80
            assert resting.shell(f"stateflow savepoint dispose {each['path']}").code == 0
            left = resting.shell(f"stateflow savepoint list --in {each['path'].rpartition('/')[0]} --json")
            assert json.loads(left.out) == []


@pytest.mark.parametrize("name", ["savepoint.disposing", "savepoint.disposed"])
def test_a_deletion_that_was_killed_is_completed_by_the_same_command(
    resting: AccountsJob, tmp_path: Path, name: str
) -> None:
    folder = _folder(_create(resting, tmp_path / "kept"))
    assert resting.command("savepoint", "dispose", str(folder), failpoint=name).code == -9
    assert resting.command("savepoint", "dispose", str(folder)).code == 0
    assert list((tmp_path / "kept").iterdir()) == []


def test_one_that_is_being_made_is_given_up_when_it_is_deleted(resting: AccountsJob, tmp_path: Path) -> None:
    into = tmp_path / "kept"
    maker = resting.begin(
        "savepoint", "create", "--name", "mine", "--into", str(into), failpoint="savepoint.copied:1:stop"
    )
    maker.wait_stopped()
    (folder,) = into.iterdir()
    assert resting.command("savepoint", "dispose", str(folder)).code == 0
    maker.resume()
    assert maker.wait().code == 4
    assert _complete(into) == []


def test_what_cannot_be_is_refused(resting: AccountsJob, tmp_path: Path) -> None:
    _create(resting, tmp_path / "kept")
    for into in (resting.root, resting.root / "data", tmp_path / "kept"):
        refused = resting.command("savepoint", "create", "--name", "mine", "--into", str(into))
        assert refused.code == 2, str(refused)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    assert resting.command("savepoint", "dispose", str(tmp_path / "thesis")).code == 2
    assert (tmp_path / "thesis" / "thesis.txt").exists()
