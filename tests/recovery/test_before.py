"""``before:TIME`` and ``before:SOURCE=OFFSET`` stay on the line from which the job's present state came."""

from __future__ import annotations

import json
import shutil

import pytest

from stateflow.checkpoint.log.lineage import lineage_ranges
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.restores import ask, go_back, plan


@pytest.fixture
def undone(box: AccountsJob) -> AccountsJob:
    """A job with savepoints *good* (30 events) and *bad* (50), that went back to *good*."""
    box.settings = {"checkpoints__retained": 100}
    for name, rows in (("good", 30), ("bad", 50)):
        box.run_to(rows)
        box.create_savepoint(name)
    go_back(box, "good")
    return box


def _position(box: AccountsJob, target: str) -> int:
    """Up to which event the source was read there."""
    return int(json.loads(plan(box, target)["sources"][0]["then"])["row"])


@pytest.mark.parametrize(("target", "then"), [("before:2999-01-01", 60), ("before:events=50", 50)])
def test_a_branch_that_was_undone_is_not_before_anything(undone: AccountsJob, target: str, then: int) -> None:
    assert _position(undone, target) == 30
    undone.replace_events(since=30)
    undone.run_to(60)
    assert _position(undone, target) == then


def test_what_was_undone_is_known_without_the_history(undone: AccountsJob) -> None:
    shutil.rmtree(undone.root / "history")
    undone.replace_events(since=30)
    undone.run_to(60, history__retained=1, checkpoints__retained=1)
    assert len(list((undone.root / "history").iterdir())) == 1
    assert _position(undone, "before:events=55") == 30
    shutil.rmtree(undone.root / "history")
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50


def test_what_an_older_version_did_not_record_is_left_out_with_a_warning(undone: AccountsJob) -> None:
    """The log as a version wrote it that knew of restores from the history alone."""
    rare = {"checkpoints__retained": 1}
    undone.replace_events(since=30)
    undone.run_to(40, **rare)
    newest = undone.head
    old = {k: v for k, v in newest.doc.items() if k != "ancestry"}
    root_files.entry_path(undone.root, newest.seq).write_bytes(root_files.sealed(old))
    ended = ask(undone, "before:events=35")
    assert (ended.code, ended.error.facts) == (2, {"before": "events=35"}), str(ended)
    warnings = ended.err.partition("error [")[0].splitlines()
    for name in ("good", "bad"):
        assert sum(f" {name}: " in line for line in warnings) == 1, str(ended)
    # From the next entry on it is recorded.
    undone.run_to(60, **rare)
    undone.create_savepoint("new")
    undone.run_to(70, **rare)
    assert _position(undone, "before:events=65") == 60
    assert _position(undone, "bad") == 50


def test_who_went_back_to_an_undone_branch_is_on_it_again(undone: AccountsJob) -> None:
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50
    # The checkpoints between the two were let go when the job first went back.
    assert _position(undone, "before:events=49") == 30


def test_an_older_checkpoint_that_was_exported_later_is_still_older(box: AccountsJob) -> None:
    box.deliver(100)
    run = box.start("commit.after:4:stop").wait_stopped()
    # The newest checkpoint's output is not published: this is the one before it, and made later.
    box.create_savepoint("older", "--from-head")
    newest, stored = box.head.checkpoint, box.savepoints["older"]
    assert stored["checkpoint_id"] < newest
    committed = {ref["id"]: ref["at"] for ref in root_files.kept_refs(box.root)}
    assert stored["committed_at"] == committed[stored["checkpoint_id"]]
    for time in (stored["made_at"].replace("+00:00", "Z"), "2999-01-01"):
        planned = plan(box, f"before:{time}")
        assert (planned["target_checkpoint"], planned["savepoint"]) == (newest, "")
    run.resume().wait().check()


def test_a_damaged_checkpoint_is_left_out(box: AccountsJob) -> None:
    box.settings = {"checkpoints__retained": 100}
    box.run_to(50)
    first, second, *_ = root_files.kept_entries(box.root)
    (box.root / second.doc["manifest"]["key"]).unlink()
    assert plan(box, f"before:events={second.position}")["target_checkpoint"] == first.seq


def test_the_line_goes_back_through_every_restore() -> None:
    def numbers(restores: dict[int, int], newest: int) -> set[int]:
        return {n for part in lineage_ranges(restores, newest) for n in part}

    assert numbers({}, 5) == {1, 2, 3, 4, 5}
    assert numbers({6: 2}, 9) == {1, 2, 6, 7, 8, 9}
    assert numbers({6: 2, 10: 8}, 12) == {1, 2, 6, 7, 8, 10, 11, 12}
    # Back to where the first restore had gone away from.
    assert numbers({6: 2, 10: 5}, 12) == {1, 2, 3, 4, 5, 10, 11, 12}
    assert numbers({6: 0}, 8) == {6, 7, 8}
