"""The history against a user who can write to the job root, and against kills: what changed later is reported."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stateflow.requesters import os_account
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob, mostly_slow

CHANGED = 4
"""Exit code of commands that find a changed history."""
_HAS_PROBLEM = 6


@pytest.fixture
def told(job: AccountsJob) -> AccountsJob:
    """A job whose history has checkpoints of three runs and two savepoints, all of which an index covers."""
    job.run_to(30)
    for name in ("one", "two"):
        job.command("savepoint", "create", "--name", name, "--by", "ana").check()
    job.run_to(60)
    job.run_to(90)
    return job


def objects(job: AccountsJob) -> list[Path]:
    return sorted((job.root / "history").iterdir())


def of_savepoint(job: AccountsJob, name: str) -> Path:
    found = [path for path in objects(job) if "-savepoint-" in path.name]
    (path,) = [path for path in found if json.loads(path.read_bytes())["facts"]["savepoint"] == name]
    return path


def shown(job: AccountsJob, code: int = 0) -> list[dict[str, Any]]:
    ended = job.command("history", "--json")
    assert ended.code == code, str(ended)
    return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]


def integrity(records: list[dict[str, Any]]) -> set[str]:
    return {record["integrity"] for record in records}


def edit_author(job: AccountsJob) -> set[str]:
    path = of_savepoint(job, "one")
    record = {**json.loads(path.read_bytes()), "by": "airflow-user:ana"}
    path.write_text(json.dumps(record))
    return {f"history/{path.name}"}


def remove_last(job: AccountsJob) -> set[str]:
    path = objects(job)[-1]
    path.unlink()
    return {f"history/{path.name}"}


def swap(job: AccountsJob) -> set[str]:
    one, two = of_savepoint(job, "one"), of_savepoint(job, "two")
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    return {f"history/{path.name}" for path in (one, two)}


def rename(job: AccountsJob) -> set[str]:
    path = of_savepoint(job, "one")
    path.rename(path.with_name(path.name.replace("savepoint-", "savepoint-0")))
    return {f"history/{path.name}"}


def remove_index(job: AccountsJob) -> set[str]:
    key = root_files.head(job.root).doc["history"]["key"]
    (job.root / key).unlink()
    return {key}


def forge_index(job: AccountsJob) -> set[str]:
    """A record is changed, and its hash in the index as well."""
    edit_author(job)
    key = root_files.head(job.root).doc["history"]["key"]
    path = of_savepoint(job, "one")
    document = root_files.unsealed((job.root / key).read_bytes())[0]
    document["objects"][f"history/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (job.root / key).write_bytes(root_files.sealed(document))
    return {key}


def remove_everything(job: AccountsJob) -> set[str]:
    for path in objects(job):
        path.unlink()
    return remove_index(job)


ATTACKS = {
    attack.__name__: attack
    for attack in (edit_author, remove_last, swap, rename, remove_index, forge_index, remove_everything)
}


@pytest.mark.parametrize("attack", mostly_slow(ATTACKS, ["edit_author"]))
def test_a_changed_history_is_reported_and_the_rest_still_shown(told: AccountsJob, attack: str) -> None:
    before = shown(told)
    assert integrity(before) == {"verified"}
    named = ATTACKS[attack](told)
    for command in (("history",), ("history", "--json"), ("verify",)):
        ended = told.command(*command)
        ended.check_error(CHANGED, "history-changed")
        assert all(key in str(ended) for key in named), str(ended)
    assert told.command("doctor").code == _HAS_PROBLEM
    # One object of checkpoints or one record is at most lost; what was changed is not shown as verified.
    after = shown(told, CHANGED)
    assert len(after) >= len(before) - 4 or attack == "remove_everything"
    if attack in ("remove_index", "forge_index"):
        assert integrity(after) == {"unverified"}
    assert all(r["integrity"] != "verified" for r in after if r.get("by_source") == "airflow-user")

    # The job does not depend on it, and its next runs neither repair nor hide it.
    for until in (100, 110):
        told.run_to(until)
        ended = told.command("verify")
        ended.check_error(CHANGED, "history-changed")
        assert all(key in str(ended) for key in named)
    told.check_results()


@pytest.mark.slow(reason="runs a job in several processes")
def test_a_record_is_unverified_until_a_run_has_recorded_its_hash(told: AccountsJob) -> None:
    told.command("savepoint", "create", "--name", "late", "--by", "ana").check()
    (late,) = [r for r in shown(told) if r["integrity"] != "verified"]
    assert (late["facts"]["savepoint"], late["integrity"]) == ("late", "unverified")
    assert (late["by"], late["by_source"], late["by_account"]) == ("ana", "claim", os_account())
    told.run_to(100)
    assert integrity(shown(told)) == {"verified"}
    assert len(root_files.history_index(told.root)) == len(objects(told))


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize("point", ["history.indexed", "commit.after"])
def test_a_kill_between_record_index_and_log_entry_is_no_false_alarm(told: AccountsJob, point: str) -> None:
    told.command("savepoint", "create", "--name", "three").check()
    told.deliver(130)
    assert told.run(point).code == KILLED
    assert "changed" not in integrity(shown(told))
    told.command("verify").check()
    told.run_to(150)
    assert integrity(shown(told)) == {"verified"}
    told.check()


@pytest.mark.slow(reason="runs jobs many times")
def test_the_history_stays_verified_and_bounded_when_retention_trims_records(job: AccountsJob) -> None:
    job.settings = {"history__retained": 4}
    for until in range(10, 70, 10):
        job.run_to(until)
        job.command("savepoint", "create", "--name", f"s{until}").check()
        job.command("verify").check()
        # Never fewer than the setting; and beyond it what an earlier index still contains.
        assert len(objects(job)) <= 2 * 4
    assert 4 <= len(shown(job)) <= 2 * 4
    # A job whose runs all fail before their first checkpoint commits no index, and its history stays bounded as well.
    for _ in range(8):
        job.deliver(70)
        assert job.run("batch.begin:1:error").code != 0
    assert len(objects(job)) <= 3 * 4
    job.command("verify").check()
