"""Suggestions in the recovery form: what there is in a job root, cheaply, and never an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stateflow.operations.job_root import open_root
from stateflow.operations.savepoints.job_savepoints import list_all
from stateflow_airflow.dags.restore_targets import suggested_targets
from tests.airflow.jobs import plan_restore
from tests.support.job_fixture import AccountsJob


def test_savepoints_and_kept_checkpoints_are_suggested_and_can_be_restored(job: AccountsJob) -> None:
    job.settings = {"checkpoints__retained": 3}
    job.deliver(50)
    job.finish()
    for name in ("early", "gone"):
        assert job.command("savepoint", "create", "--name", name).code == 0
    assert job.command("savepoint", "dispose", "gone").code == 0
    root = open_root(str(job.root))
    assert len(root.checkpoints.restorable(root.head())) > 1
    kept = [str(ref.id) for ref in reversed(root.checkpoints.restorable(root.head()))]
    (early,) = list_all(str(job.root))
    assert suggested_targets(str(job.root)) == ["latest", early.path.rstrip("/").rpartition("/")[2], *kept]
    assert suggested_targets(job.root.as_uri()) == suggested_targets(str(job.root))
    for target in suggested_targets(str(job.root)):
        assert plan_restore(job, target)["plan"]["target"] == target


@pytest.mark.parametrize("root", ["s3://bucket/job", "webhdfs://host:1/job", "file://other/job"])
def test_no_suggestions_are_read_from_other_storage(root: str) -> None:
    assert suggested_targets(root) == ["latest"]


HOSTILE_ENTRIES = {
    "missing": None,
    "empty": b"",
    "no-entry": b"{}",
    "list": b"[]",
    "bytes": b"\xff",
    "number": b'{"retained": 1}',
    "large": b"x" * (1 << 19),
    "nested": b"[" * (1 << 17),
    "infinite": b'{"retained": [{"id": 1e400}], "kind": "commit", "seq": 1}',
    "digits": b'{"retained": [], "kind": "commit", "seq": ' + b"9" * 4000 + b"}",
}


@pytest.mark.parametrize("content", HOSTILE_ENTRIES.values(), ids=HOSTILE_ENTRIES)
def test_a_job_root_that_cannot_be_read_has_no_suggestions_but_latest(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / f"{7:020}").write_bytes(content)
    (tmp_path / "savepoints").write_text("not a folder")
    assert suggested_targets(str(tmp_path)) == ["latest"]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_an_entry_that_is_no_file_does_not_stop_the_parsing_of_dags(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").mkdir()
    entry = tmp_path / "log" / f"{7:020}"
    if kind == "fifo":
        os.mkfifo(entry)
    else:
        entry.symlink_to("/dev/zero")
    assert suggested_targets(str(tmp_path)) == ["latest"]


def test_a_name_that_no_savepoint_has_is_not_suggested(tmp_path: Path) -> None:
    for name in (b"x\xff-00000000", b"{{ 7 * 7 }}", b"a\nb", b"fine-00000000"):
        folder = os.path.join(os.fsencode(tmp_path), b"savepoints", name)
        os.makedirs(folder)
        Path(os.fsdecode(folder), "_savepoint").write_bytes(b"x" * 500)
    assert suggested_targets(str(tmp_path)) == ["latest", "fine-00000000"]


def test_a_savepoint_that_is_not_complete_is_not_suggested(tmp_path: Path) -> None:
    for name, document in (("a", b"x" * 500), ("b", b"given up\n"), ("c", None)):
        (tmp_path / "savepoints" / name).mkdir(parents=True)
        if document is not None:
            (tmp_path / "savepoints" / name / "_savepoint").write_bytes(document)
    assert suggested_targets(str(tmp_path)) == ["latest", "a"]


def test_a_folder_with_very_many_entries_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    entry = {"kind": "commit", "seq": 7, "retained": [{"id": 3}], "checkpoint": None}
    (tmp_path / "log" / f"{7:020}").write_bytes(json.dumps(entry).encode() + b"\nhash\n")
    assert suggested_targets(str(tmp_path), most_entries=1) == ["latest", "7", "3"]
    (tmp_path / "log" / f"{6:020}").touch()
    assert suggested_targets(str(tmp_path), most_entries=1) == ["latest"]
    assert suggested_targets(str(tmp_path)) == ["latest", "7", "3"]
