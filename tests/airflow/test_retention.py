"""Retention of checkpoints and of savepoints, over real job roots."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.clock import ManualClock
from stateflow.operations.garbage import RetentionReport
from stateflow.storage import open_storage
from stateflow.storage.paths import data_folder
from stateflow_airflow.failures import PermanentFailure, RetryByErrorCode
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from tests.airflow.fakes import FakeRun, fails
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.json_outputs import check

GARBAGE = b"what a run wrote that did not live to commit it"


@pytest.fixture
def job_root(tmp_path: Path) -> Path:
    """A job whose first run left an uncommitted file, and whose second run has claimed it."""
    path = tmp_path / "flights"
    storage = open_storage(str(path))
    root = JobRoot.create_or_open(storage, ManualClock(), NewJob("flights", 128, {}), "a test")
    first = root.claim()
    storage.put_new(data_folder(first.entry.generation, 1, "a") + "state", GARBAGE)
    root.claim()
    (path / "data" / "notes.txt").write_text("mine")
    return path


def run(job_root: Path, **arguments: Any) -> dict[str, Any]:
    operator = StateflowRetentionOperator(task_id="collect", job_root=str(job_root), **arguments)
    assert isinstance(operator.retry_policy, RetryByErrorCode)
    returned = operator.execute(FakeRun().next_try())
    check(RetentionReport, returned)
    return returned


def garbage(job_root: Path) -> list[Path]:
    return list((job_root / "data").rglob("state"))


@pytest.mark.parametrize("preview", [False, "False", True, "True", "true"])
def test_a_collection_and_its_preview_return_the_same_report(job_root: Path, preview: bool | str) -> None:
    # The uncommitted file of the first run, and its CLAIM.
    freed = len(GARBAGE) + min((job_root / "log").iterdir()).stat().st_size
    is_preview = str(preview).lower() == "true"
    assert run(job_root, preview=preview) == {
        "job": "flights",
        "head_seq": 2,
        "retained_checkpoint_ids": [],
        "deleted_files": 2,
        "freed_bytes": freed,
        "dry_run": is_preview,
        "unknown_keys": ["data/notes.txt"],
        "deleted_savepoints": [],
        "kept_savepoints": [],
        "savepoints_freed_bytes": 0,
    }
    assert len(garbage(job_root)) == is_preview
    assert (job_root / "data" / "notes.txt").exists()


def test_number_of_checkpoints_may_come_from_a_template_and_is_positive(job_root: Path) -> None:
    wrong: list[dict[str, Any]] = [{"retain": number} for number in (0, -3, "0", "many")]
    for arguments in (*wrong, {"preview": "?"}):
        with fails(PermanentFailure, "config", **arguments):
            run(job_root, **arguments)
    assert len(garbage(job_root)) == 1
    for retain in (1, "1", None, "None", ""):
        assert run(job_root, retain=retain)["retained_checkpoint_ids"] == []


def test_a_missing_job_root_is_a_clear_error_and_not_made(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    with fails(PermanentFailure, "config", storage=nothing.as_uri()):
        run(nothing)
    assert not nothing.exists()


# -- savepoints -------------------------------------------------------------------------------------------------------


def kept(job: AccountsJob) -> set[str]:
    return set(root_files.savepoints(job.root))


def test_retention_deletes_periodic_savepoints_only_and_a_preview_none(saved: AccountsJob) -> None:
    seen = run(saved.root, savepoints="2", preview="True")
    assert (seen["deleted_savepoints"], seen["dry_run"]) == (["p1"], True)
    assert kept(saved) == {"p1", "p2", "p3", "mine"}
    done = run(saved.root, savepoints="2", preview="False")
    assert (done["deleted_savepoints"], done["kept_savepoints"]) == (["p1"], ["p2", "p3", "mine"])
    assert kept(saved) == {"p2", "p3", "mine"}
    # Everything is too old now; the last stays.
    assert run(saved.root, savepoints_max_age=timedelta(microseconds=1))["deleted_savepoints"] == ["p2"]
    assert kept(saved) == {"p3", "mine"}
    noted = [r for r in root_files.history(saved.root) if r.get("kind") == "dispose"]
    assert {(r["facts"]["savepoint"], r["reason"]) for r in noted} == {("p1", "retention"), ("p2", "retention")}
    saved.check_clean()


def test_retention_logs_savepoints_before_their_deletion(saved: AccountsJob) -> None:
    there: list[set[str]] = []

    def look(_: object, __: str, event: Any) -> Any:
        if "p1" in str(event).replace(str(saved.folder), ""):
            there.append(kept(saved))
        return event

    with capture_logs([look]):
        run(saved.root, savepoints="2")
    assert there[0] == {"p1", "p2", "p3", "mine"}
    assert kept(saved) == {"p2", "p3", "mine"}


def test_a_wrong_rule_deletes_nothing(saved: AccountsJob) -> None:
    wrong: list[dict[str, Any]] = [{"savepoints": number} for number in ("0", -3, "some")]
    for arguments in (*wrong, {"savepoints_max_age": "long"}):
        with fails(PermanentFailure, "config", **arguments):
            run(saved.root, **arguments)
    assert kept(saved) == {"p1", "p2", "p3", "mine"}
