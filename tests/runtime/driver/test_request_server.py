"""Which requests a run serves: those that are for it and still valid; a stop ends it only if its answer counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stateflow.checkpoint.job_requests import post, post_answer, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestAnswer, RequestKind
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.config.settings import Settings
from stateflow.observability import MemoryRecorder
from stateflow.runtime.driver.background import BackgroundWork
from stateflow.runtime.driver.request_server import PublishedCheckpoint, RequestServer
from tests.checkpoint.log.memory_job import MemoryJob

GENERATION = 7


class _NoBatches:
    """Of a run that receives no request for a batch."""

    savepoint_workers: SavepointWorkers = LocalWorkers()

    def drain(self) -> PublishedCheckpoint:
        raise AssertionError("a batch")

    take_full_snapshot = drain


@pytest.mark.parametrize(
    ("request_of", "answered", "status", "stopped"),
    [
        ({}, "", "done", "stopped"), ({"takes_over": True}, "", "done", "taken-over"),
        ({"generation": GENERATION}, "", "done", "stopped"), ({"generation": GENERATION - 1}, "", "withdrawn", ""),
        ({"generation": GENERATION + 1}, "", None, ""), ({"until": -1}, "", "withdrawn", ""),
        ({"until": 1}, "", "done", "stopped"), ({}, "withdrawn", "withdrawn", ""),
    ],
    ids=["any", "take-over", "this-run", "older-run", "newer-run", "expired", "not-expired", "withdrawn-meanwhile"],
)  # fmt: skip
def test_a_stop_ends_the_run_that_it_is_for_while_it_is_valid(
    request_of: dict[str, Any], answered: str, status: str | None, stopped: str
) -> None:
    root = MemoryJob().root
    now = root.clock.now()
    until = (now + timedelta(seconds=request_of["until"])).isoformat() if "until" in request_of else ""
    ids = {"id": "stop", "kind": RequestKind.STOP, "savepoint": "", "origin": Origin.STOP, "by": "a test"}
    request = Request(**{**ids, "at": now.isoformat(), **request_of, "until": until})
    post(root.storage, request)
    background = BackgroundWork(root, MemoryRecorder(), GENERATION)
    server = RequestServer(root, GENERATION, Settings(), _NoBatches(), background)
    point = PublishedCheckpoint(None, {})

    def current() -> PublishedCheckpoint:
        # The run knows the request by now, and its requester does not wait any longer.
        if answered:
            post_answer(root.storage, RequestAnswer(id="stop", status=answered, by="its requester", at=now.isoformat()))
        return point

    server.close(current)
    answer = read_answer(root.storage, "stop")
    assert (answer and answer.status, server.stopped) == (status, stopped)
