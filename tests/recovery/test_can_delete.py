"""Who needs a file of a job root: asked of the command line, answered by deleting."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import root_files
from tests.support.job_fixture import SLICE, AccountsJob

_YES, _NO = 0, 6


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", {"checkpoints__retained": 2, "checkpoints__collect_every": 1000})
    yield made
    made.end_all()


def _files(box: AccountsJob) -> dict[str, dict[str, Any]]:
    report = json.loads(box.command("gc", "--dry-run", "--files", "--json").out)
    return {file["key"]: file for file in report["each"]}


def test_every_file_is_needed_by_who_names_it_or_goes(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    # Killed, so that the run's own collection at its end does not come.
    box.run("batch.begin:7:kill")
    files = _files(box)
    assert files.keys() == root_files.files_below(box.root).keys()
    live = {
        str(Path(path).relative_to(box.root)) if path.startswith("/") else path
        for path in root_files.live_files(box.root)
    }
    assert {key for key, file in files.items() if file["needed_by"]} == live
    goes = [key for key, file in files.items() if file["may_go"]]
    assert goes and not any(files[key]["needed_by"] for key in goes)
    for key in goes:
        assert box.command("can-delete", key).code == _YES
        (box.root / key).unlink()
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_file_that_is_needed_may_not_go_whatever_it_is_called_by(box: AccountsJob) -> None:
    box.deliver(3 * SLICE)
    box.finish()
    state = next(key for key, file in _files(box).items() if key.startswith("data/") and file["needed_by"])
    for name in (state, str(box.root / state), (box.root / state).as_uri()):
        _check_needed(box, name)
    # As a shell completes it, which is not where the job root is.
    _check_needed(box, os.path.relpath(box.root / state))
    link = box.folder / "link"
    link.symlink_to(box.root)
    _check_needed(box, str(link / state))
    for name in ("FORMAT", f"log/{root_files.head(box.root).seq:020d}"):
        assert box.command("can-delete", name).code == _NO


def _check_needed(box: AccountsJob, name: str) -> None:
    """The file must stay, and a checkpoint that needs it is named."""
    answer = box.command("can-delete", name)
    kept = {str(entry.seq) for entry in root_files.kept_entries(box.root)}
    assert answer.code == _NO and kept & set(re.findall(r"\d+", answer.out)), str(answer)


def test_a_pin_is_named_with_its_owner(box: AccountsJob) -> None:
    box.deliver(SLICE)
    box.finish()
    assert box.command("savepoint", "create", "--name", "kept", failpoint="savepoint.pinned:1:kill").code == -9
    box.deliver(5 * SLICE)
    box.finish()
    (pin,) = root_files.head(box.root).doc["pinned"]
    needs = [who for file in _files(box).values() for who in file["needed_by"]]
    assert any(pin["owner"] in who and pin["reason"] in who for who in needs)


@pytest.mark.parametrize("point", ["pinned", "started", "copied", "complete", "disposing", "disposed"])
def test_a_dry_run_lists_what_a_collection_takes_of_a_savepoint(box: AccountsJob, point: str) -> None:
    box.deliver(SLICE)
    box.finish()
    makes = not point.startswith("dispos")
    create = ("savepoint", "create", "--name", "mine")
    if makes:
        assert box.command(*create, failpoint=f"savepoint.{point}").code == -9
        # While its pin stands somebody may be making it.
        assert not _unfinished(box)
        (pin,) = root_files.head(box.root).doc["pinned"]
        assert box.command("pins", "--drop", pin["id"]).code == 0
    else:
        assert box.command(*create).code == 0
        assert box.command("savepoint", "dispose", "mine", failpoint=f"savepoint.{point}").code == -9
    listed, before = _unfinished(box), root_files.files_below(box.root).keys()
    assert bool(listed) == (point not in ("pinned", "complete"))
    assert box.command("can-delete", *sorted(listed)[:1] or ["FORMAT"]).code == _NO
    assert box.command("gc").code == 0
    gone = {key for key in before - root_files.files_below(box.root).keys() if key.startswith("savepoints/")}
    # Of a complete one, only that somebody was making it.
    assert gone - {key for key in gone if point == "complete" and key.endswith("/_started")} == listed
    assert not _unfinished(box)


def _unfinished(box: AccountsJob) -> set[str]:
    return {key for key, file in _files(box).items() if file["fate"] == "unfinished"}


@pytest.mark.parametrize("path", ["nothing", "/etc/passwd", "../outside", "s3://bucket/x"])
def test_a_path_outside_of_the_job_root_is_refused(box: AccountsJob, path: str) -> None:
    box.deliver(SLICE)
    box.finish()
    answer = box.command("can-delete", path)
    assert answer.code in (2, 4) and answer.out == "", str(answer)


def test_files_are_explained_as_they_are_now_only(box: AccountsJob) -> None:
    box.deliver(SLICE)
    box.finish()
    assert box.command("gc", "--files").code == 2
    assert box.command("gc", "--dry-run", "--files", "--retain", "1").code == 2
