"""Batches and savepoints side by side, in this process, so that a test decides how long a copy or a batch takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from stateflow import operations
from stateflow.clock import SystemClock
from stateflow.config.sources import parse_assignments
from stateflow.environment import declare
from stateflow.errors import RequestTimeout
from stateflow.operations import SavepointRequest
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job, load_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.storage import Storage
from stateflow.storage.posix import PosixStorage
from tests.support import root_files
from tests.support.errors import raises
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for


class SlowCopies(PosixStorage):
    """Copies nothing until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.began = Event()
        self.go_on = Event()

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        self.began.set()
        assert self.go_on.wait(60), "nothing happened beside the copy"
        super().copy_from(source, key, to)


def _run(box: AccountsJob, storage: Storage, on_batch: Callable[[BatchResult], None]) -> None:
    file = Path(box.job_file)
    layer = parse_assignments(
        (f"job.folder={box.folder}", f"local_dir={box.local}", "requests.interval=20ms", "checkpoints.asynchronous=no")
    )
    env, settings = declare(load_job(file).build, file.stem, (layer,))
    run = JobRun(create_or_open_job(env.graph, settings, storage, SystemClock()), LocalExecutor())
    run.start("a test")
    run_local(run, {n.uid: n.source for n in env.graph.sources}, on_batch)  # type: ignore[misc]


def _ask(name: str, patience: float) -> SavepointRequest:
    return SavepointRequest(name=name, request_id="r1", acknowledge_timeout=timedelta(seconds=patience))


def test_batches_are_committed_while_a_savepoint_is_copied(box: AccountsJob) -> None:
    box.deliver(30)
    box.finish()
    box.deliver(150)
    storage = SlowCopies(box.root)
    committed: list[int] = []

    def after(result: BatchResult) -> None:
        if not committed:
            wait_for(lambda: any((box.root / "requests").glob("*.seen")), lambda: "the run's sign")
        if storage.began.is_set():
            committed.append(result.checkpoint_id)
        if len(committed) == 5:
            storage.go_on.set()

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(operations.create_savepoint, str(box.root), _claimed(box, _ask("slow", 60)))
        wait_for(lambda: (box.root / "requests" / "r1").exists() or made.done(), lambda: "the request")
        _run(box, storage, after)
        report = made.result(60)
    # It is of the checkpoint at which it was begun, not of one of the five and more behind it.
    assert len(committed) > 5 and report.checkpoint_id < committed[0]
    assert json.loads(report.offsets["events"])["row"] <= 150 - 10 * len(committed)
    assert report.taken_by == "run"
    box.check_results()
    box.check_clean()


def _claimed(box: AccountsJob, ask: SavepointRequest) -> SavepointRequest:
    """The same; somebody works on the job, as far as the log knows."""
    assert box.run("claim.after").code == -9
    box.marker.unlink()
    return ask


def test_a_run_repeats_its_sign(box: AccountsJob) -> None:
    """Its batch takes longer than the asker would wait for a sign."""
    box.deliver(30)
    box.finish()
    box.deliver(100)
    ask = _claimed(box, _ask("patient", 0.5))
    seen, signs = box.root / "requests" / "r1.seen", set[int]()

    def signed() -> bool:
        assert not made.done(), "it took the run for dead"
        with suppress(FileNotFoundError):
            signs.add(seen.stat().st_mtime_ns)
        return len(signs) >= 3

    def after(_: BatchResult) -> None:
        nonlocal made
        if made is None:
            made = pool.submit(operations.create_savepoint, str(box.root), ask)
            wait_for(signed, lambda: "three signs")

    made = None
    with ThreadPoolExecutor(1) as pool:
        _run(box, PosixStorage(box.root), after)
        report = made.result(60)
    assert report.taken_by == "run"
    box.check_results()
    box.check_clean()


@pytest.mark.parametrize("ask", [operations.create_savepoint, partial(operations.stop, savepoint=True)])
def test_a_run_that_reaches_no_barrier_in_time_is_not_waited_for(
    box: AccountsJob, ask: Callable[[str, SavepointRequest], object]
) -> None:
    """It gives signs; its batch takes longer than the asker's timeout. Nothing is made, or stopped."""
    box.deliver(30)
    box.finish()
    box.deliver(100)
    wish = _claimed(box, replace(_ask("late", 60), timeout=timedelta(seconds=0.3)))
    refused: list[RequestTimeout] = []

    def after(_: BatchResult) -> None:
        if not refused:
            with raises(RequestTimeout, seconds=0.3) as error:
                ask(str(box.root), wish)
            refused.append(error.value)

    _run(box, PosixStorage(box.root), after)
    (error,) = refused
    # Both commands have the one option, and the other is named with its command.
    assert "--timeout" in error.hint and "stateflow savepoint create --from-head" in error.hint
    assert root_files.savepoints(box.root) == {}
    box.check_results()
    box.check_clean()
