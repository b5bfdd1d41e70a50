"""Who needs a file of a job root: asked of the command line, answered by deleting."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery import disk
from tests.recovery.harness import SLICE, AccountsBox

_YES, _NO = 0, 6


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsBox]:
    made = AccountsBox(tmp_path / "job", {"checkpoints__retained": 2, "checkpoints__collect_every": 1000})
    yield made
    made.end_all()


def _files(box: AccountsBox) -> dict[str, dict[str, object]]:
    told = json.loads(box.command("gc", "--dry-run", "--files", "--json").out)
    return {each["key"]: each for each in told["each"]}


def test_every_file_is_needed_by_who_names_it_or_goes(box: AccountsBox) -> None:
    box.deliver(8 * SLICE)
    # Killed, so that the run's own collection at its end does not come.
    box.run("batch.begin:7:kill")
    files = _files(box)
    assert files.keys() == disk.files_below(box.root).keys()
    live = {
        str(Path(path).relative_to(box.root)) if path.startswith("/") else path
        for path in disk.live_files(box.root)
    }
    assert {key for key, told in files.items() if told["needed_by"]} == live
    goes = [key for key, told in files.items() if told["may_go"]]
    assert goes and not any(files[key]["needed_by"] for key in goes)
    for key in goes:
        assert box.command("can-delete", key).code == _YES
        (box.root / key).unlink()
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_file_that_is_needed_may_not_go_whatever_it_is_called_by(box: AccountsBox) -> None:
    box.deliver(3 * SLICE)
    box.finish()
    state = next(key for key, told in _files(box).items() if key.startswith("data/") and told["needed_by"])
    for name in (state, str(box.root / state), (box.root / state).as_uri()):
        answer = box.command("can-delete", name)
        assert answer.code == _NO and "needed by checkpoint" in answer.out, str(answer)
    # As a shell completes it, which is not where the job root is.
    relative = os.path.relpath(box.root / state)
    assert "needed by checkpoint" in box.command("can-delete", relative).out
    link = box.folder / "link"
    link.symlink_to(box.root)
    assert "needed by checkpoint" in box.command("can-delete", str(link / state)).out
    for name in ("FORMAT", f"log/{disk.head(box.root).seq:020d}"):
        assert box.command("can-delete", name).code == _NO


def test_a_pin_is_named_with_its_owner(box: AccountsBox) -> None:
    box.deliver(SLICE)
    box.finish()
    assert (
        box.command("savepoint", "create", "--name", "kept", failpoint="savepoint.pinned:1:kill").code == -9
    )
    box.deliver(5 * SLICE)
    box.finish()
    told = [each["needed_by"] for each in _files(box).values()]
    assert any("(pin of " in who for needed_by in told for who in needed_by)  # type: ignore[attr-defined]


@pytest.mark.parametrize("point", ["pinned", "started", "copied", "complete", "disposing", "disposed"])
def test_what_a_collection_takes_of_a_savepoint_is_told_before(box: AccountsBox, point: str) -> None:
    box.deliver(SLICE)
    box.finish()
    makes = not point.startswith("dispos")
    create = ("savepoint", "create", "--name", "mine")
    if makes:
        assert box.command(*create, failpoint=f"savepoint.{point}").code == -9
        # While its pin stands somebody may be making it.
        assert not _unfinished(box)
        (pin,) = disk.head(box.root).doc["pinned"]
        assert box.command("pins", "--drop", pin["id"]).code == 0
    else:
        assert box.command(*create).code == 0
        assert box.command("savepoint", "dispose", "mine", failpoint=f"savepoint.{point}").code == -9
    told, before = _unfinished(box), disk.files_below(box.root).keys()
    assert bool(told) == (point not in ("pinned", "complete"))
    assert box.command("can-delete", *sorted(told)[:1] or ["FORMAT"]).code == _NO
    assert box.command("gc").code == 0
    gone = {key for key in before - disk.files_below(box.root).keys() if key.startswith("savepoints/")}
    # Of a complete one, only that somebody was making it.
    assert gone - {key for key in gone if point == "complete" and key.endswith("/_started")} == told
    assert not _unfinished(box)


def _unfinished(box: AccountsBox) -> set[str]:
    return {key for key, told in _files(box).items() if "nobody completed" in str(told["why"])}


@pytest.mark.parametrize("path", ["nothing", "/etc/passwd", "../outside", "s3://bucket/x"])
def test_what_is_no_file_of_the_job_root_is_told(box: AccountsBox, path: str) -> None:
    box.deliver(SLICE)
    box.finish()
    answer = box.command("can-delete", path)
    assert answer.code in (2, 4) and answer.out == "", str(answer)


def test_files_are_explained_as_they_are_now_only(box: AccountsBox) -> None:
    box.deliver(SLICE)
    box.finish()
    assert box.command("gc", "--files").code == 2
    assert box.command("gc", "--dry-run", "--files", "--retain", "1").code == 2
