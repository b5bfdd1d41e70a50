"""A checkpoint behind several batches: in between output stays unpublished, and a kill costs no more than a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE, SLICE, AccountsJob, mostly_slow, second_time

THIRD = {"checkpoints__interval_batches": 3}
_POINTS = sorted(NAMES.keys() - ASKED - BESIDE - {"start.seeded"})
KILLED = -9


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", THIRD)
    yield made
    made.end_all()


def _positions(box: AccountsJob) -> list[int]:
    return [entry.position for entry in root_files.kept_entries(box.root) if entry.doc["kind"] == "commit"]


def test_each_third_barrier_is_a_checkpoint_and_so_is_the_last(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    box.finish(checkpoints__retained=10)
    assert _positions(box) == [3 * SLICE, 6 * SLICE, 8 * SLICE]
    box.check_results()
    box.check_clean()
    records = [r for r in root_files.history(box.root) if "rows_in" in r]
    assert [r["rows_in"] for r in records] == [3 * SLICE, 3 * SLICE, 2 * SLICE]


def test_between_two_checkpoints_nothing_is_published(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    run = box.start("batch.end:5:stop")
    run.wait_stopped()
    assert len(root_files.folder_rows(box.table("movements"))) == 3 * SLICE
    assert root_files.head(box.root).position == 3 * SLICE
    run.resume()
    assert run.wait().code == 0
    box.check_results()


_QUICK = ("batch.begin", "batch.end", "batch.reported", "commit.manifest", "log.created", "publish.before", "run.end")


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_kill_between_or_at_a_checkpoint_costs_a_replay_and_no_row(box: AccountsJob, point: str) -> None:
    box.deliver(10 * SLICE)
    assert box.run(f"{second_time(point)}:kill", checkpoints__collect_every=1).code == KILLED
    assert box.marker.exists()
    box.deliver(13 * SLICE)
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_savepoint_makes_the_next_barrier_a_checkpoint(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    box.settings = {"checkpoints__interval_batches": 1000}
    made = box.asked_at("batch.begin:2", "savepoint", "create", "--name", "early", "--json")
    assert json.loads(made.out)["taken_by"] == "run"
    box.check_results()
    taken = root_files.savepoints(box.root)
    assert len(taken) == 1


def test_a_stop_commits_what_was_worked_off(box: AccountsJob) -> None:
    box.deliver(30 * SLICE)
    box.asked_at("batch.begin:4", "stop", checkpoints__interval_batches=1000)
    head = root_files.head(box.root)
    assert 4 * SLICE <= head.position < 30 * SLICE
    assert len(root_files.folder_rows(box.table("movements"))) == head.position
    box.finish()
    box.check_results()
