"""A list keeps its order over batches, runs, kills, rescaling, going back and forks: by the batches' epochs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.query.state import read_state
from stateflow.storage import open_storage
from tests.support.job_fixture import AccountsJob


@pytest.fixture
def lists(box: AccountsJob) -> AccountsJob:
    box.job = "lists"
    return box


def _check(box: AccountsJob) -> None:
    wanted: dict[str, list[int]] = defaultdict(list)
    for event in box.delivered:
        wanted[event["account"]].append(event["number"])
    found: dict[str, list[int]] = defaultdict(list)
    last: dict[str, int] = {}
    for entry in read_state(str(box.root), "collect"):
        assert (entry.map_key, entry.namespace) == (None, None)
        if entry.state == "numbers":
            found[entry.key[0]].append(entry.value)
        else:
            last[entry.key[0]] = entry.value
    assert found == wanted
    assert last == {account: numbers[-1] for account, numbers in wanted.items()}


def _epoch(root: Path) -> int:
    job = JobRoot.open(open_storage(str(root)), SystemClock(), "test")
    manifest = job.checkpoints.manifest_at(job.head())
    assert manifest is not None
    return manifest.epoch


def test_over_batches_runs_kills_and_rescaling(lists: AccountsJob) -> None:
    for turn, (rows, failpoint) in enumerate([(35, ""), (70, "batch.reported"), (120, "commit.after"), (125, "")], 1):
        lists.deliver(rows)
        lists.run(failpoint, parallelism=turn)
        lists.marker.unlink(missing_ok=True)
        lists.finish(parallelism=turn)
        _check(lists)
    assert _epoch(lists.root) == 4 + 4 + 5 + 1


def test_over_going_back_and_forks(lists: AccountsJob, tmp_path: Path) -> None:
    lists.settings = {"checkpoints__retained": 100}
    lists.deliver(50)
    lists.finish()
    assert lists.command("savepoint", "create", "--name", "early").code == 0
    lists.deliver(100)
    lists.finish()
    assert _epoch(lists.root) == 10
    plan = str(lists.folder / "plan.json")
    arguments = ("restore", lists.job_file, "--plan", "early", "--out", plan)
    assert lists.begin(*arguments, with_job=True).wait().code == 0
    assert lists.begin("restore", lists.job_file, "--execute", plan, with_job=True).wait().code == 0
    lists.deliver(70)
    lists.finish()
    _check(lists)
    assert _epoch(lists.root) == 7

    fork = AccountsJob(lists.folder, {"local_dir": tmp_path / "local"}, job="lists", root_folder=tmp_path / "fork")
    assert lists.command("fork", "early", "--into", str(fork.root), "--shadow").code == 0
    fork.deliver(90)
    fork.finish()
    _check(fork)
    assert _epoch(fork.root) == 9
    fork.end_all()
