"""Objects as files: names, modes, links and durability, also after the writer was killed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import hashlib
import os
import resource
import signal
import socket
import stat
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StorageError
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.host_cache import HostCache
from stateflow.storage import PosixStorage, PutResult, Storage, posix
from stateflow.storage.posix import FolderTree
from stateflow.testing.conformance.storage import StorageConformance
from tests.recovery.failing_disks import DiskPlan, FaultyDisk
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.errors import raises
from tests.support.memory import file_size_limit

KEPT_OUT = 7
_HERE, _EXCHANGE = -100, 2
"""Arguments of renameat2."""


class TestPosixStorage(SavepointClaims, SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return PosixStorage(tmp_path / "not made yet" / "root")


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(tmp_path / "root")


def _fork(work: Callable[[], int | None]) -> int:
    """Starts a process that calls `work` and exits with its result; returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about other threads, which the child does not need
        child = os.fork()
    if child == 0:
        code = 255
        with contextlib.suppress(BaseException):
            code = work() or 0
        os._exit(code)
    return child


def _exit_code(child: int) -> int:
    """Waits for a process; a signal is a negative code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_one_of_many_concurrent_processes_creates_an_object(storage: PosixStorage, tmp_path: Path) -> None:
    gate, opener = os.pipe()

    def race(racer: int) -> int:
        os.close(opener)
        os.read(gate, 1)
        return [PutResult.CREATED, PutResult.EXISTS].index(storage.put_new("log/1", b"%d" % racer * 5000))

    racers = [_fork(partial(race, racer)) for racer in range(6)]
    os.close(gate)
    os.close(opener)  # all that wait for it read an end of file, and continue
    codes = [_exit_code(racer) for racer in racers]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert storage.get("log/1") == b"%d" % codes.index(0) * 5000
    assert _everything(tmp_path) == ["root", "root/log", "root/log/1"]


# -- interrupted puts ---------------------------------------------------------------------------------------------


def _die_writing(storage: PosixStorage) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with file_size_limit(5000):
        storage.put_new("data/object", b"x" * 10_000)


def _die_linking(storage: PosixStorage) -> None:
    vars(os)["link"] = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    storage.put_new("data/object", b"x")


@pytest.mark.parametrize(("put", "killed_by"), [(_die_writing, signal.SIGXFSZ), (_die_linking, signal.SIGKILL)])
def test_a_process_that_is_killed_during_a_put_leaves_nothing(
    storage: PosixStorage, put: Callable[[PosixStorage], None], killed_by: int
) -> None:
    assert _exit_code(_fork(lambda: put(storage))) == -killed_by
    assert _everything(storage.root) == ["data"]
    assert storage.list("") == []
    assert storage.put_new("data/object", b"y") is PutResult.CREATED


def test_a_put_that_fails_leaves_nothing(storage: PosixStorage) -> None:
    with file_size_limit(5000), raises(StorageError, errno=errno.EFBIG) as failed:
        storage.put_new("data/object", b"x" * 10_000)
    assert failed.value.retryable
    assert _everything(storage.root) == ["data"]


# -- modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_the_owner_has_access_whatever_the_umask(storage: PosixStorage, tmp_path: Path, umask: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    source.chmod(0o666)
    before = os.umask(umask)
    try:
        storage.put_new("a/b/object", b"x")
        storage.put_file("a/c/file", source)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (storage.root, *storage.root.rglob("*")) if p.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in storage.root.rglob("*") if p.is_file()} == {0o600}


def test_a_folder_of_another_user_is_a_configuration_error(tmp_path: Path) -> None:
    """A retry would not help. Permissions do not stop root, who becomes another user for this."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)

    def put() -> int:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        try:
            PosixStorage(locked / "root").put_new("object", b"x")
        except ConfigError as e:
            facts = str(e.facts["path"]).startswith(str(locked)), e.facts["reason"]
            return KEPT_OUT if facts == (True, os.strerror(errno.EACCES)) else 1
        return 0

    assert _exit_code(_fork(put)) == KEPT_OUT
    assert _everything(locked) == []


# -- files and folders --------------------------------------------------------------------------------------------


def test_a_file_of_another_file_system_is_copied(storage: PosixStorage, elsewhere: Path) -> None:
    source, target = elsewhere / "source", elsewhere / "target"
    source.write_bytes(bytes(range(256)) * 8192)
    source.chmod(0o644)
    storage.put_file("a/file", source)
    assert storage.get("a/file") == source.read_bytes()
    assert stat.S_IMODE((storage.root / "a/file").stat().st_mode) == 0o600
    storage.fetch("a/file", target)
    assert target.read_bytes() == source.read_bytes()
    storage.put_file("a/file", source)
    source.write_bytes(bytes(range(255)) * 8192)
    with pytest.raises(StorageError):
        storage.put_file("a/file", source)


def test_deleting_the_last_object_removes_its_folders_but_not_the_root(storage: PosixStorage) -> None:
    storage.put_new("a/b/1", b"x")
    storage.put_new("a/2", b"x")
    storage.delete(["a/b/1"])
    assert _everything(storage.root) == ["a", "a/2"]
    storage.delete(["a/2"])
    assert storage.root.is_dir() and _everything(storage.root) == []


def test_links_are_not_followed_and_reading_creates_nothing(storage: PosixStorage, tmp_path: Path) -> None:
    assert storage.list("log/") == [] and storage.size("FORMAT") is None
    storage.delete(["a/b"])
    assert _everything(tmp_path) == []
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    storage.put_new("a/object", b"x")
    (storage.root / "a/link").symlink_to(outside / "secret")
    (storage.root / "folder").symlink_to(outside)
    assert [blob.key for blob in storage.list("")] == ["a/object"]
    assert storage.size("a/link") is None
    with raises(CorruptFile, found="symbolic link"):
        storage.get("a/link")
    for act in (
        lambda: storage.get("folder/secret"),
        lambda: storage.put_new("folder/new", b"x"),
        lambda: storage.delete(["folder/secret"]),
        lambda: storage.list("folder/"),
    ):
        with raises(ConfigError, path=str(storage.root / "folder")):
            act()
    assert _everything(outside) == ["secret"]


@pytest.mark.parametrize("act", ["get", "chunks", "fetch", "fetch_part", "copy_from"])
def test_only_regular_files_are_read_and_nothing_is_waited_for(storage: PosixStorage, tmp_path: Path, act: str) -> None:
    storage.put_new("a/object", b"x")
    os.mkfifo(storage.root / "a/fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(storage.root / "a/socket"))
    acts: dict[str, Callable[[str], object]] = {
        "get": storage.get,
        "chunks": lambda key: list(storage.chunks(key)),
        "fetch": lambda key: storage.fetch(key, tmp_path / "target"),
        "fetch_part": lambda key: storage.fetch_part(key, 0, 1, tmp_path / "target"),
        "copy_from": lambda key: PosixStorage(tmp_path / "other").copy_from(storage, key, "copy"),
    }
    for name in ("fifo", "socket"):
        with raises(CorruptFile) as refused:
            acts[act](f"a/{name}")
        assert str(refused.value.facts["found"]).lower() == name
        assert storage.size(f"a/{name}") is None
    assert [blob.key for blob in storage.list("")] == ["a/object"]


def test_a_listing_skips_deeply_nested_folders(storage: PosixStorage, caplog: pytest.LogCaptureFixture) -> None:
    """Another user may make them; the commands of all others must not fail."""
    for key in ("a/object", "x/object"):
        storage.put_new(key, b"x")
    deepest = storage.root.joinpath("d", *"d" * 39)
    deepest.mkdir(parents=True)
    for folder in (deepest, storage.root.joinpath(*"d" * 31)):
        (folder / "file").write_bytes(b"x")
    assert [blob.key for blob in storage.list("")] == ["a/object", "d/" * 31 + "file", "x/object"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    next(iter(FolderTree(storage.root).files(())))
    gc.collect()
    # Only those below the root: other tests of this process may have opened or closed files.
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert not [path for path in opened if path.startswith(os.path.realpath(storage.root))]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_sparse_file_in_place_of_a_small_one_is_not_copied(storage: PosixStorage, tmp_path: Path) -> None:
    storage.put_new("a/object", b"x" * 1264)
    os.truncate(storage.root / "a/object", 64 << 20)
    os.chown(storage.root / "a/object", 65534, 65534)
    cache = HostCache.direct(tmp_path / "cache", storage, SystemClock())
    handle = FileHandle(key="a/object", size=1264, sha256=hashlib.sha256(b"x" * 1264).hexdigest())
    with raises(CorruptFile, file="a/object", expected_bytes=1264) as refused:
        cache.link(StateFile(handle=handle, local_name="1.sst"), tmp_path / "target")
    assert "found" not in refused.value.facts, "it was copied, and compared afterwards"
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("act", ["copy_from", "fetch", "put_file", "of a group that may write"])
def test_a_file_of_another_user_is_copied_not_linked(storage: PosixStorage, tmp_path: Path, act: str) -> None:
    """Its owner could change the linked file after it was verified."""
    theirs = PosixStorage(tmp_path / "theirs")
    theirs.put_new("a/object", b"x")
    original = theirs.root / "a/object"
    target = tmp_path / "target"
    if act == "of a group that may write":
        original.chmod(0o620)
    else:
        os.chown(original, 65534, 65534)
    if act == "fetch":
        theirs.fetch("a/object", target)
    elif act == "put_file":
        storage.put_file("copy", original)
    else:
        storage.copy_from(theirs, "a/object", "copy")
    copy = target if act == "fetch" else storage.root / "copy"
    assert not copy.samefile(original) and copy.stat().st_uid == os.geteuid()
    original.write_bytes(b"y")
    assert copy.read_bytes() == b"x"


def test_links_that_are_swapped_in_while_a_folder_is_used_lead_nowhere(storage: PosixStorage, tmp_path: Path) -> None:
    """An attacker exchanges a folder and a link to one of the user's, as fast as a process can."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "object").write_bytes(b"secret")
    storage.put_new("a/object", b"x")
    (storage.root / "other").symlink_to(outside)

    def swap() -> None:
        exchange, names = ctypes.CDLL(None).renameat2, [os.fsencode(storage.root / name) for name in ("a", "other")]
        while exchange(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
            pass

    attacker = _fork(swap)
    found: set[bytes] = set()
    refused = 0
    try:
        while found <= {b"x"} and (refused < 30 or not found):
            try:
                found.add(storage.get("a/object"))
                storage.list("a/")
                storage.put_new("a/new", b"y")
                storage.delete(["a/new"])
            except (ConfigError, MissingFile):
                refused += 1
    finally:
        os.kill(attacker, signal.SIGKILL)
        assert _exit_code(attacker) == -signal.SIGKILL
    assert found == {b"x"}
    assert _everything(outside) == ["object"] and (outside / "object").read_bytes() == b"secret"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("there", ["log", "data", "data/1"])
def test_a_folder_that_another_process_has_just_made_survives_a_power_cut(
    tmp_path: Path, there: str, seed: int
) -> None:
    """That process has not synced it yet; an acknowledged object must still survive."""
    root = tmp_path / "root"
    root.mkdir()
    disk = FaultyDisk(DiskPlan((str(root),), str(tmp_path / "image"), seed))
    (root / there).mkdir(parents=True)
    key = f"{there}/object"
    with disk.below_storage():
        assert PosixStorage(root).put_new(key, b"x") is PutResult.CREATED
    disk.write_image()
    assert (tmp_path / "image" / "0" / key).read_bytes() == b"x"


def test_a_name_that_may_not_be_durable_is_not_confirmed(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_new("a/first", b"1")

    def fail(folder: int) -> None:
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(posix, "sync_folder", fail)
    assert storage.put_new("a/second", b"2") is PutResult.UNKNOWN
    with raises(StorageError):
        storage.durable_size("a/second")
