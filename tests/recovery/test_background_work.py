"""Background work survives errors, counts and shows them; it neither ends a run nor loops at full speed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.job_requests import post, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, StateflowError
from stateflow.observability import MemoryRecorder
from stateflow.runtime.driver.background import MAX_PENDING_RECORDS, BackgroundWork, Work
from stateflow.runtime.job import BatchResult
from stateflow.storage import BlobInfo, PosixStorage, PutResult
from stateflow.testing.sinks import FolderSink
from tests.recovery.in_process import run_with
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for

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
        id=name,
        kind=kind,
        savepoint=name if is_savepoint else "",
        origin=Origin.MANUAL,
        by="a test",
        full=not is_savepoint,
        at=at,
    )
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
