"""Background uploads: submitted files are stored even if the process that submitted them has died."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import BatchFailed, StorageError
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.host_cache import FileTransfer, HostCache
from stateflow.state.uploads import BackgroundUploads, Outbox, own_label
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.processes import wait_for

KEY = "data/00000000000000000007/0000000001-t1/op-0-files"
ID = "0" * 32


class Flaky(MemoryStorage):
    """Fails a number of times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.puts = 0

    def put_file(self, key: str, source: Path) -> None:
        self.puts += 1
        if self.puts <= self.failures:
            raise StorageError("the storage is down", key=key)
        super().put_file(key, source)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / ".uploads", 7, timedelta(minutes=1))


def files(folder: Path, *contents: bytes) -> list[Path]:
    paths = [folder / f"file-{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def wait_until_empty(outbox: Outbox) -> None:
    wait_for(lambda: not list(outbox.folder.glob("*")), lambda: "an empty outbox")


def parcel(outbox: Outbox, name: str, *contents: bytes) -> Path:
    """What a process left that was storing these files as one object."""
    folder = outbox.folder / name
    folder.mkdir(parents=True)
    (folder / "key").write_text(KEY)
    for number, content in enumerate(contents):
        (folder / str(number)).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def dead() -> str:
    """The label of a process that has died, and whose id another process has."""
    return f"{os.getpid()}_1"


@pytest.mark.parametrize("contents", [[b"one"], [b"first", b"", b"third"]])
def test_files_become_one_object_even_if_deleted_at_once(outbox: Outbox, tmp_path: Path, contents: list[bytes]) -> None:
    storage, paths = MemoryStorage(), files(tmp_path, *contents)
    BackgroundUploads(storage, outbox, SystemClock()).put(KEY, paths)
    for path in paths:
        path.unlink()
    wait_until_empty(outbox)
    assert storage.get(KEY) == b"".join(contents)


def test_an_upload_that_fails_is_retried(outbox: Outbox, tmp_path: Path) -> None:
    storage = Flaky(5)
    BackgroundUploads(storage, outbox, ManualClock()).put(KEY, files(tmp_path, b"one"))
    wait_until_empty(outbox)
    assert (storage.get(KEY), storage.puts) == (b"one", 6)


def test_an_upload_that_does_not_succeed_in_time_is_given_up(outbox: Outbox, tmp_path: Path) -> None:
    storage = Flaky(10**9)
    BackgroundUploads(storage, outbox, ManualClock()).put(KEY, files(tmp_path, b"one"))
    wait_until_empty(outbox)
    # Tries come after 0.2 s, 0.4 s, and so on, at most 30 s apart.
    assert storage.size(KEY) is None and 6 <= storage.puts <= 12


@pytest.mark.parametrize("was_stored", [False, True])
def test_files_in_the_outbox_of_a_dead_process_are_stored_unless_already_stored(
    outbox: Outbox, dead: str, was_stored: bool
) -> None:
    storage = Flaky(0)
    if was_stored:
        storage.put_new(KEY, b"firstsecond")
    parcel(outbox, f"7.{dead}.{ID}", b"first", b"second")
    BackgroundUploads(storage, outbox, SystemClock()).adopt_orphans()
    wait_until_empty(outbox)
    assert (storage.get(KEY), storage.puts) == (b"firstsecond", 0 if was_stored else 1)


def test_only_unfinished_files_of_older_runs_and_dead_processes_are_removed(outbox: Outbox, dead: str) -> None:
    storage = MemoryStorage()
    kept = [f"7.{own_label()}.{ID}", f"new-7.{own_label()}.{ID}", f"8.{dead}.{ID}", "notes"]
    for name in (f"6.{own_label()}.{ID}", f"6.{dead}.{ID}", f"new-6.{dead}.{ID}", f"new-7.{dead}.{ID}", *kept):
        parcel(outbox, name, b"data")
    BackgroundUploads(storage, outbox, SystemClock()).adopt_orphans()
    assert sorted(os.listdir(outbox.folder)) == sorted(kept) and storage.list("") == []


def test_adopting_files_creates_no_outbox(outbox: Outbox) -> None:
    BackgroundUploads(MemoryStorage(), outbox, SystemClock()).adopt_orphans()
    assert not outbox.folder.exists()


class Eventful(ManualClock):
    """Calls a function during the third sleep."""

    def __init__(self, event: Callable[[], object]) -> None:
        super().__init__()
        self._event = event
        self._sleeps = 0

    def sleep(self, duration: timedelta) -> None:
        super().sleep(duration)
        self._sleeps += 1
        if self._sleeps == 3:
            self._event()


def cache(folder: Path, storage: MemoryStorage, outbox: Outbox, clock: Clock) -> HostCache:
    traffic = FileTransfer(
        storage, BackgroundUploads(storage, outbox, clock), "data/00000000000000000007/", outbox.retry_timeout
    )
    return HostCache(folder / "cache", traffic, clock)


def test_a_reader_waits_for_a_file_that_another_host_is_storing(outbox: Outbox, tmp_path: Path) -> None:
    storage, handle = MemoryStorage(), FileHandle(key=KEY, size=3, sha256=hashlib.sha256(b"one").hexdigest())
    clock = Eventful(lambda: storage.put_new(KEY, b"one"))
    cache(tmp_path, storage, outbox, clock).link(StateFile(handle=handle, local_name="x"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"one"


def test_a_file_that_is_not_stored_in_time_fails_the_batch_with_a_retryable_error(
    outbox: Outbox, tmp_path: Path
) -> None:
    handle = FileHandle(key=KEY, size=3, sha256="0" * 64)
    with raises(BatchFailed, file=KEY) as caught:
        cache(tmp_path, MemoryStorage(), outbox, ManualClock()).link(
            StateFile(handle=handle, local_name="x"), tmp_path / "x"
        )
    assert caught.value.retryable
