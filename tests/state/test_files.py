"""Files of a host: caches below their limit, owners of files, and uploads in the background."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import BatchFailed, StorageError
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.host_cache import FileTransfer, HostCache, mark_used, trim
from stateflow.state.uploads import BackgroundUploads, Outbox, is_running, own_label
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.processes import wait_for


def _cache(folder: Path, subtask: int, used: int, *sizes: int) -> Path:
    cache = folder / "job" / "op" / str(subtask) / "cache"
    cache.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (cache / f"{number:064x}").write_bytes(bytes(size))
    os.utime(cache, (used, used))
    return cache


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*/*/cache/*"))


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    old, new, newest = (_cache(tmp_path, n, 100 + n, 50, 50) for n in range(3))
    assert trim(tmp_path, 200) == 100
    assert [len(list(cache.iterdir())) for cache in (old, new, newest)] == [0, 2, 2]
    mark_used(new)
    assert trim(tmp_path, 150) == 100
    assert [len(list(cache.iterdir())) for cache in (old, new, newest)] == [0, 2, 0]


def test_a_file_that_a_store_has_as_well_counts_for_nothing_and_stays(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 0, 100, 70, 30)
    (tmp_path / "store").mkdir()
    os.link(cache / f"{0:064x}", tmp_path / "store" / "000001.sst")
    assert trim(tmp_path, 30) == 0
    assert trim(tmp_path, 29) == 30
    assert [path.stat().st_size for path in cache.iterdir()] == [70]


def test_what_is_being_fetched_stays(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 0, 100, 70)
    (cache / "incoming-1-abc").write_bytes(bytes(1000))
    assert trim(tmp_path, 0) == 70
    assert [path.name for path in cache.iterdir()] == ["incoming-1-abc"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 50), max_size=4)), max_size=6), st.integers(0, 200)
)
def test_never_more_than_the_limit_is_left(caches: list[tuple[int, list[int]]], limit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for subtask, (used, sizes) in enumerate(caches):
            _cache(folder, subtask, used, *sizes)
        before = _size(folder)
        assert trim(folder, limit) == before - _size(folder)
        assert _size(folder) <= limit
        assert before > limit or _size(folder) == before


@pytest.mark.parametrize("label", ["", "_", "{pid}", "{pid}_1", f"{2**31}_1", "notes", "../1_1"])
def test_a_reused_id_or_no_label_is_no_running_process(label: str) -> None:
    assert not is_running(label.format(pid=os.getpid()))


def test_a_label_is_of_one_process_until_that_process_is_a_zombie() -> None:
    child = subprocess.Popen(["sleep", "60"])
    with open(f"/proc/{child.pid}/stat") as file:
        label = f"{child.pid}_{file.read().rpartition(')')[2].split()[19]}"
    assert is_running(own_label()) and is_running(label)
    assert not is_running(f"{child.pid}_{own_label().partition('_')[2]}")
    child.kill()
    # Its entry below /proc exists until `wait`.
    wait_for(lambda: not is_running(label), lambda: "a zombie")
    assert os.path.exists(f"/proc/{child.pid}")
    child.wait()


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
