"""Requests that another user has put into a job root: a run serves the others, and reads its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.checkpoint.job_requests import KEEP, find_damaged_requests, open_requests, trim_requests
from stateflow.clock import ManualClock
from stateflow.operations.doctor import Health, examine_storage
from stateflow.storage import PosixStorage
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture

STOP = {"id": "aaa", "kind": "stop", "savepoint": "", "origin": "manual", "by": "x", "at": "2026-01-01T00:00:00+00:00"}
ANSWER = {"id": "aaa", "status": "done", "at": "2026-01-01T00:00:00+00:00"}


def _plant(root: str, name: str, document: dict[str, object]) -> None:
    path = Path(root) / "requests" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(root_files.sealed(document))


def _run_with_more_rows(cli: CliFixture) -> int:
    """Runs the job with 12 more rows; returns how many rows its table has."""
    cli.write(BUILD, JOB.replace("range(12)", "range(24)"))
    cli.run()
    return root_files.head(Path(cli.root)).position


@pytest.mark.parametrize(
    "changes",
    [
        {"until": "x"},
        {"until": "2030-01-01T00:00:00"},
        {"at": "x"},
        {"id": "bbb"},
        {"id": "aaa.done"},
        {"id": "../aaa"},
        {"kind": "x"},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_a_forged_stop_stops_no_run(ran: CliFixture, changes: dict[str, object]) -> None:
    _plant(ran.root, "aaa", {**STOP, **changes})
    assert _run_with_more_rows(ran) == 24
    storage = PosixStorage(ran.root)
    assert (open_requests(storage), find_damaged_requests(storage)) == ([], ["requests/aaa"])
    (found,) = [f for f in examine_storage(storage, ManualClock(1)) if f.what == "requests"]
    assert found.health is Health.WARNING and "requests/aaa" in found.found and found.hint


def test_a_damaged_request_does_not_hide_another_one(ran: CliFixture) -> None:
    _plant(ran.root, "aaa", {**STOP, "until": "x"})
    _plant(ran.root, "bbb", {**STOP, "id": "bbb"})
    assert [r.id for r in open_requests(PosixStorage(ran.root))] == ["bbb"]
    assert _run_with_more_rows(ran) == 12
    assert _run_with_more_rows(ran) == 24


def test_a_forged_answer_deletes_no_other_request(ran: CliFixture) -> None:
    """Old answers are deleted together with their requests: by the id of the file."""
    for number in range(KEEP * 2):
        _plant(ran.root, f"r{number}.done", {**ANSWER, "id": f"r{number}"})
    _plant(ran.root, "open", {**STOP, "id": "open"})
    _plant(ran.root, "forged.done", {**ANSWER, "id": "open", "at": "0001-01-01T00:00:00+00:00"})
    storage = PosixStorage(ran.root)
    trim_requests(storage)
    assert [r.id for r in open_requests(storage)] == ["open"]
    assert len(storage.list("requests/r")) == KEEP
