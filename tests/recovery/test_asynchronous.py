"""Checkpoints beside the batches: a kill at any moment costs a replay, and what somebody asks for is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, SLICE, AccountsJob, mostly_slow, second_time

_POINTS = sorted(NAMES.keys() - ASKED - {"start.seeded"})
_QUICK = {n for n in _POINTS if n.partition(".")[0] in ("upload", "commit", "publish")} | {"batch.end", "gc.deleting"}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", {"checkpoints__asynchronous": "yes"})
    yield made
    made.end_all()


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_kill_costs_a_replay_and_no_row(box: AccountsJob, point: str) -> None:
    box.deliver(10 * SLICE)
    box.kill_at(f"{second_time(point)}:kill", checkpoints__collect_every=1)
    box.deliver_more(3 * SLICE)
    box.finish()
    box.check_results()
    box.check_clean()


@pytest.mark.parametrize("point", ["upload.before", "commit.stored", "commit.after"])
def test_a_kill_in_each_of_many_runs(box: AccountsJob, point: str) -> None:
    box.deliver(30 * SLICE)
    for _ in range(4):
        box.kill_at(f"{point}:3:kill")
        box.marker.unlink()
    box.finish()
    box.check_results()
    box.check_clean()


def test_a_savepoint_is_of_a_checkpoint_that_is_whole(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    made = box.asked_at("batch.begin:2", "savepoint", "create", "--name", "early", "--json")
    assert json.loads(made.out)["taken_by"] == "run"
    assert len(root_files.savepoints(box.root)) == 1
    box.check_results()


def test_a_stop_commits_and_publishes_what_was_worked_off(box: AccountsJob) -> None:
    box.deliver(30 * SLICE)
    box.asked_at("batch.begin:4", "stop")
    head = root_files.head(box.root)
    assert 4 * SLICE <= head.position < 30 * SLICE
    assert len(root_files.folder_rows(box.table("movements"))) == head.position
    box.finish()
    box.check_results()
