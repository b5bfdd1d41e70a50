"""Objects as files: what the file system shows of them, also after the writer died."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateflow.errors import ConfigError, StorageError
from stateflow.storage import PosixStorage, PutResult, Storage, open_storage, posix
from stateflow.testing.conformance.storage import StorageConformance
from tests.recovery.failing_disks import DiskPlan, FaultyDisk, _Calls
from tests.storage.savepoint_copies import SavepointCopies
from tests.support.errors import raises

KEPT_OUT = 7


class TestPosixStorage(SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return PosixStorage(tmp_path / "not made yet" / "root")


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(tmp_path / "root")


def _in_child(work: Callable[[], int]) -> int:
    """Runs `work` in a forked process, which does nothing else; returns its exit code, a signal as a negative one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are no concern of such a child
        child = os.fork()
    if child == 0:
        code = 255
        with contextlib.suppress(BaseException):
            code = work()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# -- races of processes -------------------------------------------------------------------------------------------


def test_of_many_processes_one_gets_a_name(storage: PosixStorage, tmp_path: Path) -> None:
    def bid(racer: int) -> int:
        os.read(gate, 1)
        return [PutResult.CREATED, PutResult.EXISTS].index(storage.put_new("log/1", b"%d" % racer * 5000))

    gate, opener = os.pipe()
    racers = []
    for racer in range(6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 255
            with contextlib.suppress(BaseException):
                os.close(opener)
                code = bid(racer)
            os._exit(code)
        racers.append(child)
    os.close(gate)
    os.close(opener)  # all that wait for it read an end of file, and run
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in racers]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert storage.get("log/1") == b"%d" % codes.index(0) * 5000
    assert _everything(tmp_path) == ["root", "root/log", "root/log/1"]


# -- interrupted puts ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    """Whoever writes past `size` fails, or is killed where that signal is not ignored."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_nothing_is_left_of_a_put_whose_process_was_killed_while_it_wrote(storage: PosixStorage) -> None:
    def die_writing() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with _file_size_limit(5000):
            storage.put_new("data/object", b"x" * 10_000)
        return 0

    assert _in_child(die_writing) == -signal.SIGXFSZ
    assert _everything(storage.root) == ["data"]
    assert storage.put_new("data/object", b"y") is PutResult.CREATED


def test_nothing_is_left_of_a_put_whose_process_was_killed_before_the_name(storage: PosixStorage) -> None:
    def die_linking() -> int:
        os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        storage.put_new("data/object", b"x")
        return 0

    assert _in_child(die_linking) == -signal.SIGKILL
    assert _everything(storage.root) == ["data"]
    assert storage.list("") == []


def test_nothing_is_left_of_a_put_that_failed(storage: PosixStorage) -> None:
    with _file_size_limit(5000), raises(StorageError, errno=errno.EFBIG) as failed:
        storage.put_new("data/object", b"x" * 10_000)
    assert failed.value.retryable
    assert _everything(storage.root) == ["data"]


# -- modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_are_the_owner_s_alone_whatever_the_umask(storage: PosixStorage, tmp_path: Path, umask: int) -> None:
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


def test_a_folder_of_somebody_else_is_a_matter_of_configuration(tmp_path: Path) -> None:
    """Trying again would not help. Permissions do not stop root, who becomes somebody else for this."""
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

    assert _in_child(put) == KEPT_OUT
    assert _everything(locked) == []


# -- files and folders --------------------------------------------------------------------------------------------


def test_a_file_of_the_same_file_system_is_linked(storage: PosixStorage, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x")
    storage.put_file("a/file", source)
    storage.fetch("a/file", target)
    assert os.stat(source).st_ino == os.stat(storage.root / "a/file").st_ino == os.stat(target).st_ino


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


def test_links_are_not_followed(storage: PosixStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    storage.put_new("a/object", b"x")
    (storage.root / "a/link").symlink_to(outside / "secret")
    (storage.root / "folder").symlink_to(outside)
    assert [blob.key for blob in storage.list("")] == ["a/object"]
    assert storage.size("a/link") is None


def test_reading_makes_nothing(storage: PosixStorage, tmp_path: Path) -> None:
    assert storage.list("log/") == [] and storage.size("FORMAT") is None
    storage.delete(["a/b"])
    assert _everything(tmp_path) == []


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "ä#?x", "a:b"])
def test_an_address_leads_back_to_the_same_folder(tmp_path: Path, name: str) -> None:
    storage = PosixStorage(tmp_path / name)
    again = open_storage(storage.uri)
    assert isinstance(again, PosixStorage) and again.root == storage.root
    by_path = open_storage(str(tmp_path / name))
    assert isinstance(by_path, PosixStorage) and by_path.uri == storage.uri


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, wanted in (("root", tmp_path / "root"), ("~/root", tmp_path / "home/root")):
        storage = open_storage(given)
        assert isinstance(storage, PosixStorage) and storage.root == wanted


@pytest.mark.parametrize("address", ["hdfs://host/x", "file://host/x", "http://x", "ftp://host"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with raises(ConfigError, uri=address):
        open_storage(address)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("there", ["log", "data", "data/1"])
def test_a_folder_that_another_process_has_just_made_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, seed: int
) -> None:
    """That process has not synced it yet; what this one acknowledges must be there all the same."""
    root = tmp_path / "root"
    root.mkdir()
    disk = FaultyDisk(DiskPlan((str(root),), str(tmp_path / "image"), seed))
    monkeypatch.setattr(posix, "os", _Calls(disk))
    (root / there).mkdir(parents=True)
    key = f"{there}/object"
    assert PosixStorage(root).put_new(key, b"x") is PutResult.CREATED
    disk.write_image()
    assert (tmp_path / "image" / "0" / key).read_bytes() == b"x"


def test_folders_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root/data/1").mkdir(parents=True)
    synced: list[Path] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    storage = PosixStorage(tmp_path / "root")
    for number in range(3):
        storage.put_new(f"data/1/{number}", b"x")
    folder = tmp_path / "root/data/1"
    assert synced.count(folder) == 3
    assert [synced.count(path) for path in (folder.parent, folder.parent.parent)] == [1, 1]
