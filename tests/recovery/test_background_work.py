"""Background work survives errors, counts and shows them; it neither ends a run nor loops at full speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stateflow import operations
from stateflow.checkpoint.job_requests import post, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.config.sources import parse_assignments
from stateflow.environment import declare
from stateflow.errors import ConfigError, RequestTimeout, StateflowError
from stateflow.observability import MemoryRecorder
from stateflow.operations import SavepointReport, SavepointRequest
from stateflow.runtime.driver.background import MAX_PENDING_RECORDS, BackgroundWork, Work
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult
from stateflow.runtime.job_loader import create_or_open_job, load_job
from stateflow.runtime.local_run import LocalExecutor, run_local
from stateflow.storage import BlobInfo, PosixStorage, PutResult, Storage
from stateflow.testing.sinks import FolderSink
from tests.support.errors import raises
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for


def run_with(
    job: AccountsJob, storage: Storage, on_batch: Callable[[BatchResult], None] = lambda _: None, **more: object
) -> MemoryRecorder:
    """A run to its end; names of settings have two underscores for each dot."""
    given = {
        "job.folder": job.folder,
        "local_dir": job.local,
        "requests.interval": "10ms",
        "checkpoints.asynchronous": "no",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    layer = parse_assignments(tuple(f"{name}={value}" for name, value in given.items()))
    file = Path(job.job_file)
    env, settings = declare(load_job(file).build, file.stem, (layer,))
    recorder = MemoryRecorder()
    opened = replace(create_or_open_job(env.graph, settings, storage, SystemClock()), recorder=recorder)
    run = JobRun(opened, LocalExecutor())
    run.start("a test")
    sources: Any = {n.uid: n.source for n in env.graph.sources}
    run_local(run, sources, on_batch)
    return recorder


REFUSED = ConfigError("access to the storage was denied", reason="403 Forbidden")


class Refusing(PosixStorage):
    """Refuses one call for some keys, with an error that stateflow's storages raise, or with a bug of theirs."""

    def __init__(self, root: Path, call: str, prefix: str = "", error: Exception = REFUSED) -> None:
        super().__init__(root)
        self.refused = 0
        self.is_healthy = False
        self._call = call
        self._prefix = prefix
        self._error = error

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        self._check("list", prefix)
        return super().list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for key in keys:
            # The probe of a start deletes its own object.
            if not key.startswith("probe/"):
                self._check("delete", key)
        super().delete(keys)

    def put_new(self, key: str, data: bytes) -> PutResult:
        self._check("put", key)
        return super().put_new(key, data)

    def _check(self, call: str, key: str) -> None:
        if call == self._call and key.startswith(self._prefix) and not self.is_healthy:
            self.refused += 1
            raise self._error


class _Clock(SystemClock):
    """Its time passes only when a test says so."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def _open(storage: PosixStorage, clock: SystemClock | None = None) -> JobRoot:
    return JobRoot.open(storage, clock or SystemClock(), "a test")


def _ask(job: AccountsJob, name: str, kind: RequestKind = RequestKind.SAVEPOINT) -> None:
    is_savepoint = kind is RequestKind.SAVEPOINT
    at = SystemClock().now().isoformat()
    request = Request(
        id=name, kind=kind, savepoint=name if is_savepoint else "", origin=Origin.MANUAL, by="a test",
        full=not is_savepoint, at=at,
    )  # fmt: skip
    post(PosixStorage(job.root), request)


def _answer(job: AccountsJob, name: str) -> str:
    given = read_answer(PosixStorage(job.root), name)
    return given.status if given else ""


def _status(job: AccountsJob) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.command("status", "--json").check().document["background"]
    return found


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [REFUSED, KeyError("a bug")])
def test_the_watcher_of_requests_survives_any_error(job: AccountsJob, error: Exception) -> None:
    job.deliver(100)
    storage = Refusing(job.root, "list", "requests/", error)

    def after(result: BatchResult) -> None:
        if result.ordinal == 2:
            wait_for(lambda: storage.refused >= 2, lambda: "a second look")
            storage.is_healthy = True
            _ask(job, "asked")
            wait_for(lambda: (job.root / "requests" / "asked.seen").exists(), lambda: "the run's sign")

    recorder = run_with(job, storage, after)
    assert _answer(job, "asked") == "done"
    assert recorder.counters[Work.REQUESTS.metric] == storage.refused
    (shown,) = _status(job)
    code = error.code if isinstance(error, StateflowError) else "internal"
    assert (shown["work"], shown["failures"], shown["code"]) == ("request_watch", storage.refused, code)
    text = job.command("status").out
    assert "request_watch" in text and f"[{code}]" in text


def test_a_request_whose_checkpoint_is_released_at_the_run_s_end_is_served(job: AccountsJob) -> None:
    """The first one runs a batch of its own; with one checkpoint retained, the one before is gone for the second."""
    job.deliver(40)

    def after(result: BatchResult) -> None:
        if result.ordinal == 4:
            _ask(job, "all", RequestKind.CHECKPOINT)
            _ask(job, "one")

    run_with(job, PosixStorage(job.root), after, checkpoints__retained=1, requests__interval="1h")
    assert [_answer(job, name) for name in ("all", "one")] == ["done", "done"]
    assert _status(job) == []


def test_a_run_with_a_rewind_at_its_start_answers_requests(job: AccountsJob) -> None:
    """Going back claims the job a second time; the run must not count as fenced by itself."""
    job.run_to(40)
    job.deliver(100)
    job.reach("commit.after:3")
    job.lose_output()
    _ask(job, "asked")
    run_with(job, PosixStorage(job.root))
    assert _answer(job, "asked") == "done"
    job.check_results()


# -- deletions and history --------------------------------------------------------------------------------------------


def test_a_run_succeeds_on_a_storage_that_refuses_deletions(job: AccountsJob) -> None:
    job.run_to(200)
    job.deliver(260)
    storage = Refusing(job.root, "delete")
    recorder = run_with(job, storage, checkpoints__collect_every=1)
    assert storage.refused > 0
    job.check_results()
    failed = {work["work"]: work["failures"] for work in _status(job)}
    # Not once per checkpoint: the pause after a failure grows.
    assert 0 < failed["collection"] == recorder.counters[Work.COLLECTION.metric] <= 5
    job.finish()
    job.check_clean()
    assert _status(job) == []


def test_a_run_succeeds_with_a_bounded_manifest_if_the_history_cannot_be_written(job: AccountsJob) -> None:
    job.deliver(1_100)
    refusing = Refusing(job.root, "put", "history/", KeyError("a bug"))
    recorder = run_with(job, refusing, checkpoints__collect_every=1)
    assert recorder.counters[Work.HISTORY.metric] > 0
    assert len(job.manifest["history"]) == MAX_PENDING_RECORDS
    job.check_results()


def test_a_failed_sweep_does_not_fail_the_start(job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(*_: object) -> list[str]:
        raise PermissionError("unlink")

    job.run_to(20)
    job.deliver(40)
    monkeypatch.setattr(FolderSink, "sweep", sweep)
    recorder = run_with(job, PosixStorage(job.root))
    assert recorder.counters[Work.CLEANUP.metric] == 2
    job.check_results()


# -- the mechanism ----------------------------------------------------------------------------------------------------


def test_pauses_of_background_work_grow_with_failures_and_end_with_a_success(job: AccountsJob) -> None:
    job.run_to(10)
    clock = _Clock()
    recorder = MemoryRecorder()
    background = BackgroundWork(_open(PosixStorage(job.root), clock), recorder, 9)
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise REFUSED

    pauses = []
    for _ in range(12):
        assert not background.attempt(Work.COLLECTION, fail)
        assert not background.attempt(Work.COLLECTION, fail)  # too early: it is not tried
        pauses.append(background.pause(Work.COLLECTION, timedelta()).total_seconds())
        clock.seconds += pauses[-1]
    assert len(tried) == 12 == recorder.counters[Work.COLLECTION.metric]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert background.attempt(Work.COLLECTION, lambda: None)
    assert background.pause(Work.COLLECTION, timedelta(seconds=3)) == timedelta(seconds=3)
    background.finish()
    assert sorted(int(r["facts"]["failures"]) for r in job.records("background")) == [1, 2, 4, 8, 12]


# -- batches and savepoints at the same time --------------------------------------------------------------------------

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
    assert report.made_from == "run"
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
    assert made[0].result(60).made_from == "run"
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
            with raises(RequestTimeout, timeout_ms=300) as error:
                ask(str(claimed.root), _request(60, timeout=0.3))
            refused.append(error.value)

    run_with(claimed, PosixStorage(claimed.root), after)
    # Both commands have the one option, and the other is named with its command.
    assert "--timeout" in refused[0].hint and "stateflow savepoint create --from-head" in refused[0].hint
    assert claimed.savepoints == {}
    claimed.check()
