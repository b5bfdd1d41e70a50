"""A list keeps its order over batches, runs, kills, rescaling, going back and forks: by the batches' epochs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from stateflow.query.state import state_entries
from tests.support.job_fixture import AccountsJob
from tests.support.restores import go_back


@pytest.fixture
def lists(job: AccountsJob) -> AccountsJob:
    job.job_name = "lists"
    return job


def _check(job: AccountsJob, epoch: int) -> None:
    """Each list has the account's numbers in order, after so many batches."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for event in job.delivered:
        wanted[event["account"]].append(event["number"])
    found: dict[str, list[int]] = defaultdict(list)
    last: dict[str, int] = {}
    for entry in state_entries(str(job.root), "collect"):
        assert (entry.map_key, entry.namespace) == (None, None)
        account = entry.key[0]
        assert isinstance(account, str)
        if entry.state == "numbers":
            found[account].append(entry.value)
        else:
            last[account] = entry.value
    assert found == wanted
    assert last == {account: numbers[-1] for account, numbers in wanted.items()}
    assert job.manifest["epoch"] == epoch


def test_list_order_survives_kills_and_rescaling(lists: AccountsJob) -> None:
    epochs = (4, 4 + 4, 4 + 4 + 5, 4 + 4 + 5 + 1)
    for turn, (rows, failpoint) in enumerate([(35, ""), (70, "batch.reported"), (120, "commit.after"), (125, "")]):
        lists.deliver(rows)
        lists.run(failpoint, parallelism=turn + 1)
        lists.finish(parallelism=turn + 1)
        _check(lists, epochs[turn])


def test_list_order_survives_restores_and_forks(lists: AccountsJob, tmp_path: Path) -> None:
    lists.settings = {"checkpoints__retained": 100}
    lists.run_to(50)
    lists.create_savepoint("early")
    lists.run_to(100)
    _check(lists, 10)
    go_back(lists, "early")
    lists.run_to(70)
    _check(lists, 7)

    fork = AccountsJob(lists.folder, {"local_dir": tmp_path / "local"}, job_name="lists", root_folder=tmp_path / "fork")
    lists.command("fork", "early", "--into", str(fork.root), "--shadow").check()
    fork.run_to(90)
    _check(fork, 9)
    fork.end_all()
