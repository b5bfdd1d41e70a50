"""Work besides the batches survives errors, counts and shows them; it neither ends a run nor loops at full speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.requests.mailbox import post, read_answer
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.clock import SystemClock
from stateflow.config.sources import parse_assignments
from stateflow.environment import declare
from stateflow.errors import ConfigError, StateflowError, StorageError
from stateflow.observability.metrics import MemoryRecorder
from stateflow.runtime.driver.background import BackgroundWork, Work
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.maintenance import MAX_PENDING_RECORDS
from stateflow.runtime.driver.request_server import CommittedPoint, RequestServer
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job, load_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.storage import BlobInfo, PosixStorage, PutResult, Storage
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for

REFUSED = ConfigError("access to the storage was denied", reason="403 Forbidden")


class Refusing(PosixStorage):
    """Refuses some calls with an error that stateflow's storages raise, or with a bug of theirs."""

    def __init__(self, root: Path, refuses: Callable[[str, str], bool], error: Exception = REFUSED) -> None:
        super().__init__(root)
        self.refused = 0
        self._refuses = refuses
        self._error = error

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        self._check("list", prefix)
        return super().list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for key in keys:
            self._check("delete", key)
        super().delete(keys)

    def put_new(self, key: str, data: bytes) -> PutResult:
        self._check("put", key)
        return super().put_new(key, data)

    def _check(self, call: str, key: str) -> None:
        if self._refuses(call, key):
            self.refused += 1
            raise self._error


def run_with(
    box: AccountsJob, storage: Storage, on_batch: Callable[[BatchResult], None] = lambda _: None, **more: object
) -> MemoryRecorder:
    """A run in this process, to its end."""
    given = {
        "job.folder": box.folder,
        "local_dir": box.local,
        "requests.interval": "10ms",
        "checkpoints.asynchronous": "no",
        "checkpoints.collect_every": 1,
        **more,
    }
    layer = parse_assignments(tuple(f"{name}={value}" for name, value in given.items()))
    file = Path(box.job_file)
    env, settings = declare(load_job(file).build, file.stem, (layer,))
    recorder = MemoryRecorder()
    job = replace(create_or_open_job(env.graph, settings, storage, SystemClock()), recorder=recorder)
    run = JobRun(job, LocalExecutor())
    run.start("a test")
    run_local(run, {n.uid: n.source for n in env.graph.sources}, on_batch)  # type: ignore[misc]
    return recorder


def _ask(box: AccountsJob, name: str, kind: RequestKind, full: bool = False) -> None:
    at = SystemClock().now().isoformat()
    savepoint = name if kind is RequestKind.SAVEPOINT else ""
    post(
        PosixStorage(box.root),
        Request(id=name, kind=kind, savepoint=savepoint, origin=Origin.MANUAL, by="a test", full=full, at=at),
    )


def _status(box: AccountsJob) -> list[dict[str, object]]:
    shown = box.command("status", "--json")
    assert shown.code == 0, str(shown)
    return json.loads(shown.out)["background"]  # type: ignore[no-any-return]


# --- Requests


@pytest.mark.parametrize("error", [REFUSED, StorageError("503"), OSError("a bug"), KeyError("a bug")])
def test_the_watcher_survives_any_error(box: AccountsJob, error: Exception) -> None:
    box.deliver(100)
    healthy: list[int] = []
    storage = Refusing(
        box.root, lambda call, key: call == "list" and key.startswith("requests/") and not healthy, error
    )

    def after(result: BatchResult) -> None:
        if result.ordinal == 2:
            wait_for(lambda: storage.refused >= 2, lambda: "a second look")
            healthy.append(1)
            _ask(box, "asked", RequestKind.SAVEPOINT)
            wait_for(lambda: (box.root / "requests" / "asked.seen").exists(), lambda: "the run's sign")

    recorder = run_with(box, storage, after)
    given = read_answer(storage, "asked")
    assert given is not None and given.status == "done"
    assert recorder.counters[Work.REQUESTS.metric] == storage.refused
    (shown,) = _status(box)
    code = error.code if isinstance(error, StateflowError) else "internal"
    assert (shown["work"], shown["failures"], shown["code"]) == ("request_watch", storage.refused, code)
    text = box.command("status").out
    assert "request_watch" in text and f"[{code}]" in text


def test_looks_come_slower_while_they_fail(box: AccountsJob) -> None:
    box.deliver(30)
    storage = Refusing(box.root, lambda call, key: call == "list" and key.startswith("requests/"))

    def after(result: BatchResult) -> None:
        if result.ordinal == 1:
            wait_for(lambda: storage.refused >= 2, lambda: "a second look")

    run_with(box, storage, after)
    # The first look, one a second later (no look of 10 ms in between), and two at the end.
    assert storage.refused <= 5
    box.check_results()


def test_a_request_whose_checkpoint_is_let_go_at_the_run_s_end(box: AccountsJob) -> None:
    """The first one runs a batch of its own; with one checkpoint retained, the one before is gone for the second."""
    box.deliver(40)
    storage = PosixStorage(box.root)

    def after(result: BatchResult) -> None:
        if result.ordinal == 4:
            _ask(box, "all", RequestKind.CHECKPOINT, full=True)
            _ask(box, "one", RequestKind.SAVEPOINT)

    run_with(box, storage, after, **{"checkpoints.retained": 1, "requests.interval": "1h"})
    answers = [read_answer(storage, name) for name in ("all", "one")]
    assert [a.status if a else "" for a in answers] == ["done", "done"]
    assert _status(box) == []


def test_a_run_that_went_back_at_its_start_answers_requests(box: AccountsJob) -> None:
    """Going back claims the job a second time; the run must not count as fenced by itself."""
    box.deliver(40)
    box.finish()
    box.deliver(100)
    assert box.run("commit.after:3").code == -9
    newest = root_files.head(box.root)
    (box.table("movements") / "data" / newest.pending["movements"][0]).unlink()
    _ask(box, "asked", RequestKind.SAVEPOINT)
    storage = PosixStorage(box.root)
    run_with(box, storage)
    given = read_answer(storage, "asked")
    assert given is not None and given.status == "done"
    box.check_results()


def test_a_request_that_is_outrun_each_time_gets_the_reason(box: AccountsJob) -> None:
    """Nothing stops this at the run's end but the bound."""
    box.deliver(20)
    box.finish()
    root = disk_root(box, SystemClock())
    stale = CommittedPoint(root.head().checkpoint, {})
    box.deliver(40)
    box.finish(checkpoints__retained=1)
    _ask(box, "one", RequestKind.SAVEPOINT)
    generation = root.head().entry.generation
    background = BackgroundWork(root, MemoryRecorder(), generation)
    desk = RequestServer(root, generation, timedelta(hours=1), _NoBatches(), background)
    looks: list[int] = []

    def current() -> CommittedPoint:
        looks.append(1)
        return stale

    desk.close(current)
    assert len(looks) > 1
    given = read_answer(root.storage, "one")
    assert stale.checkpoint is not None and given is not None
    assert (given.status, given.code) == ("failed", "data")
    assert f"checkpoint={stale.checkpoint.id} " in f"{given.message} "


class _NoBatches:
    """Of a run that nobody asks for a batch."""

    def drain(self) -> CommittedPoint:
        raise AssertionError("a batch")

    take_full_snapshot = drain


# --- Deletions


@pytest.mark.parametrize("error", [REFUSED, StorageError("503"), OSError("a bug")])
def test_a_storage_that_deletes_nothing_fails_no_run(box: AccountsJob, error: Exception) -> None:
    box.deliver(200)
    box.finish()
    box.deliver(260)
    storage = Refusing(box.root, lambda call, key: call == "delete" and not key.startswith("probe/"), error)
    recorder = run_with(box, storage)
    assert storage.refused > 0
    box.check_results()
    failed = {work["work"]: work["failures"] for work in _status(box)}
    assert failed["collection"] == recorder.counters[Work.COLLECTION.metric] > 0
    # Not once per checkpoint: the pause after a failure grows.
    assert recorder.counters[Work.COLLECTION.metric] <= 5
    box.finish()
    box.check_clean()
    assert _status(box) == []


@pytest.mark.parametrize("error", [REFUSED, StorageError("503"), OSError("a bug"), KeyError("a bug")])
def test_a_history_that_cannot_be_written_fails_no_run_and_grows_no_manifest(
    box: AccountsJob, error: Exception
) -> None:
    box.deliver(1_100)
    storage = Refusing(box.root, lambda call, key: call == "put" and key.startswith("history/"), error)
    recorder = run_with(box, storage)
    assert recorder.counters[Work.HISTORY.metric] > 0
    assert (
        len(root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])["history"])
        == MAX_PENDING_RECORDS
    )
    box.check_results()


def test_work_beside_a_run_succeeds_where_nothing_may_be_deleted(box: AccountsJob) -> None:
    box.deliver(40)
    box.finish()
    storage = Refusing(box.root, lambda call, key: call == "delete" and not key.startswith("probe/"))
    root = JobRoot.open(storage, SystemClock(), "a test")
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    with root.admin.pinned(checkpoint, "a test", "to read"):
        assert len(root.head().entry.pinned) == 1
    assert root.head().entry.pinned == []
    make_savepoint(root, SavepointSpec("kept", checkpoint, root.head().entry.published)).verify()
    assert storage.refused > 0


def test_a_sweep_that_fails_fails_no_start(box: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateflow.testing.sinks import FolderSink

    box.deliver(20)
    box.finish()
    box.deliver(40)

    def sweep(*_: object) -> list[str]:
        raise PermissionError("unlink")

    monkeypatch.setattr(FolderSink, "sweep", sweep)
    recorder = run_with(box, PosixStorage(box.root))
    assert recorder.counters[Work.CLEANUP.metric] == 2
    box.check_results()


# --- The mechanism


def test_pauses_grow_and_end_with_a_success(box: AccountsJob) -> None:
    box.deliver(10)
    box.finish()
    clock = _Clock()
    root = disk_root(box, clock)
    background = BackgroundWork(root, recorder := MemoryRecorder(), 9)
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise REFUSED

    pauses = []
    for _ in range(12):
        assert not background.attempt(Work.COLLECTION, fail)
        assert not background.attempt(Work.COLLECTION, fail)  # too early: it is not tried
        pause = background.pause(Work.COLLECTION, timedelta())
        pauses.append(pause.total_seconds())
        clock.seconds += pause.total_seconds()
    assert len(tried) == 12 == recorder.counters[Work.COLLECTION.metric]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert background.attempt(Work.COLLECTION, lambda: None)
    assert background.pause(Work.COLLECTION, timedelta(seconds=3)) == timedelta(seconds=3)
    background.finish()
    records = [r for r in root_files.history(box.root) if r.get("kind") == "background"]
    assert sorted(int(r["facts"]["failures"]) for r in records) == [1, 2, 4, 8, 12]


class _Clock(SystemClock):
    """Goes on when it is told to."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def disk_root(box: AccountsJob, clock: SystemClock) -> JobRoot:
    return JobRoot.open(PosixStorage(box.root), clock, "a test")
