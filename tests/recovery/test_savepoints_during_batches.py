"""Batches and savepoints at the same time, in this process, so that a test decides how long a copy or a batch takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from stateflow import operations
from stateflow.errors import RequestTimeout
from stateflow.operations import SavepointReport, SavepointRequest
from stateflow.runtime.job import BatchResult
from stateflow.storage import Storage
from stateflow.storage.posix import PosixStorage
from tests.recovery.in_process import run_with
from tests.support.errors import raises
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for

Submit = Callable[[SavepointRequest], Future[SavepointReport]]


class SlowCopies(PosixStorage):
    """Copies nothing until a test says so."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.began = Event()
        self.go_on = Event()

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        self.began.set()
        assert self.go_on.wait(60), "nothing happened during the copy"
        super().copy_from(source, key, to)


@pytest.fixture
def claimed(job: AccountsJob) -> AccountsJob:
    """A run works on the job, as far as the log knows, and there is more to do."""
    job.run_to(30)
    job.deliver(150)
    job.reach("claim.after")
    return job


@pytest.fixture
def submit(claimed: AccountsJob) -> Iterator[Submit]:
    """Creates a savepoint in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda request: pool.submit(operations.create_savepoint, str(claimed.root), request)


def _request(acknowledge: float, timeout: float = 60) -> SavepointRequest:
    waits, ends = timedelta(seconds=acknowledge), timedelta(seconds=timeout)
    return SavepointRequest(name="mine", request_id="r1", acknowledge_timeout=waits, timeout=ends)


def test_batches_are_committed_while_a_savepoint_is_copied(claimed: AccountsJob, submit: Submit) -> None:
    storage = SlowCopies(claimed.root)
    committed: list[int] = []

    def after(result: BatchResult) -> None:
        if not committed:
            wait_for(lambda: any((claimed.root / "requests").glob("*.seen")), lambda: "the run's sign")
        if storage.began.is_set():
            committed.append(result.checkpoint_id)
        if len(committed) == 6:
            storage.go_on.set()

    made = submit(_request(60))
    wait_for(lambda: (claimed.root / "requests" / "r1").exists() or made.done(), lambda: "the request")
    run_with(claimed, storage, after)
    report = made.result(60)
    # It is of the checkpoint at which it was begun, not of one of the five and more after it.
    later = [each for each in committed if each > report.checkpoint_id]
    assert len(later) >= 5
    assert json.loads(report.offsets["events"])["row"] <= 150 - 10 * len(later)
    assert report.taken_by == "run"
    claimed.check()


def test_a_run_repeats_its_sign_of_life_to_a_request_during_a_long_batch(claimed: AccountsJob, submit: Submit) -> None:
    """Its batch takes longer than the requester would wait for a sign."""
    seen, signs = claimed.root / "requests" / "r1.seen", set[int]()
    made: list[Future[SavepointReport]] = []

    def signed() -> bool:
        assert not made[0].done(), "it took the run for dead"
        with suppress(FileNotFoundError):
            signs.add(seen.stat().st_mtime_ns)
        return len(signs) >= 3

    def after(_: BatchResult) -> None:
        if not made:
            made.append(submit(_request(0.5)))
            wait_for(signed, lambda: "three signs")

    run_with(claimed, PosixStorage(claimed.root), after)
    assert made[0].result(60).taken_by == "run"
    claimed.check()


@pytest.mark.parametrize("ask", [operations.create_savepoint, partial(operations.stop, savepoint=True)])
@pytest.mark.slow(reason="waits for a timeout")
def test_a_savepoint_request_fails_if_the_run_reaches_no_barrier_in_time(
    claimed: AccountsJob, ask: Callable[[str, SavepointRequest], object]
) -> None:
    """It gives signs; its batch takes longer than the requester's timeout. Nothing is made, or stopped."""
    refused: list[RequestTimeout] = []

    def after(_: BatchResult) -> None:
        if not refused:
            with raises(RequestTimeout, seconds=0.3) as error:
                ask(str(claimed.root), _request(60, timeout=0.3))
            refused.append(error.value)

    run_with(claimed, PosixStorage(claimed.root), after)
    # Both commands have the one option, and the other is named with its command.
    assert "--timeout" in refused[0].hint and "stateflow savepoint create --from-head" in refused[0].hint
    assert claimed.savepoints == {}
    claimed.check()
