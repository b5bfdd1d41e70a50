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

from stateflow import recovery
from stateflow.clock import SystemClock
from stateflow.config import parse_assignments
from stateflow.environment import declare
from stateflow.errors import RequestTimeout
from stateflow.recovery import SavepointAsk
from stateflow.runtime.assembly import assemble, load_job
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local import LocalExecutor
from stateflow.runtime.local_run import run_local
from stateflow.runtime.run import JobRun
from stateflow.storage import Storage
from stateflow.storage.posix import PosixStorage
from tests.recovery import disk
from tests.recovery.harness import AccountsBox
from tests.recovery.process import wait_for


class SlowCopies(PosixStorage):
    """Copies nothing until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.began = Event()
        self.go_on = Event()

    def take(self, source: Storage, key: str, to: str) -> None:
        self.began.set()
        assert self.go_on.wait(60), "nothing happened beside the copy"
        super().take(source, key, to)


def _run(box: AccountsBox, storage: Storage, on_batch: Callable[[BatchResult], None]) -> None:
    file = Path(box.job_file)
    layer = parse_assignments(
        (
            f"job.folder={box.folder}",
            f"local_dir={box.local}",
            "requests.interval=20ms",
            "checkpoints.asynchronous=no",
        )
    )
    env, settings = declare(load_job(file).build, file.stem, (layer,))
    run = JobRun(assemble(env.graph, settings, storage, SystemClock()), LocalExecutor())
    run.start("a test")
    run_local(run, {n.uid: n.source for n in env.graph.sources}, on_batch)  # type: ignore[misc]


def _ask(name: str, patience: float) -> SavepointAsk:
    return SavepointAsk(name=name, request="r1", patience=timedelta(seconds=patience))


def test_batches_are_committed_while_a_savepoint_is_copied(box: AccountsBox) -> None:
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
        made = pool.submit(recovery.create_savepoint, str(box.root), _claimed(box, _ask("slow", 60)))
        wait_for(lambda: (box.root / "requests" / "r1").exists() or made.done(), lambda: "the request")
        _run(box, storage, after)
        report = made.result(60)
    # It is of the checkpoint at which it was begun, not of one of the five and more behind it.
    assert len(committed) > 5 and report.checkpoint_id < committed[0]
    assert json.loads(report.offsets["events"])["row"] <= 150 - 10 * len(committed)
    assert report.taken_by == "run"
    box.check_results()
    box.check_clean()


def _claimed(box: AccountsBox, ask: SavepointAsk) -> SavepointAsk:
    """The same; somebody works on the job, as far as the log knows."""
    assert box.run("claim.after").code == -9
    box.marker.unlink()
    return ask


def test_a_run_says_again_that_it_is_there(box: AccountsBox) -> None:
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
            made = pool.submit(recovery.create_savepoint, str(box.root), ask)
            wait_for(signed, lambda: "three signs")

    made = None
    with ThreadPoolExecutor(1) as pool:
        _run(box, PosixStorage(box.root), after)
        report = made.result(60)
    assert report.taken_by == "run"
    box.check_results()
    box.check_clean()


@pytest.mark.parametrize("ask", [recovery.create_savepoint, partial(recovery.stop, savepoint=True)])
def test_a_run_that_reaches_no_barrier_in_time_is_not_waited_for(
    box: AccountsBox, ask: Callable[[str, SavepointAsk], object]
) -> None:
    """It is there, and says so; its batch takes longer than the asker's timeout. Nothing is made, or stopped."""
    box.deliver(30)
    box.finish()
    box.deliver(100)
    wish = _claimed(box, replace(_ask("late", 60), timeout=timedelta(seconds=0.3)))
    refused: list[RequestTimeout] = []

    def after(_: BatchResult) -> None:
        if not refused:
            with pytest.raises(RequestTimeout, match="did not reach a barrier in time") as error:
                ask(str(box.root), wish)
            refused.append(error.value)

    _run(box, PosixStorage(box.root), after)
    (error,) = refused
    assert (error.code, error.facts) == ("request-timeout", {"seconds": 0.3})
    # Both commands have the one option, and the other is named with its command.
    assert "--timeout" in error.hint and "stateflow savepoint create --from-head" in error.hint
    assert disk.savepoints(box.root) == {}
    box.check_results()
    box.check_clean()
