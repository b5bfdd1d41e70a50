"""Folders and files that only this process's user can access, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow.checkpoint.log.documents import SparkPosition
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError
from stateflow.private_files import make_folders, make_own_folder, open_private, write_private
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.state.backends.rocksdb.manifest import StoreManifest, write_manifest
from stateflow.state.uploads import BackgroundUploads, Outbox, SynchronousUploads, Uploads
from stateflow.storage import MemoryStorage, PosixStorage
from stateflow.storage.base import write_chunks
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.errors import raises

_STRANGER = 65534


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(folder: Path, *, of_folders: bool) -> set[str]:
    paths = [path for path in (folder, *folder.rglob("*")) if path.is_dir() == of_folders]
    return {oct(stat.S_IMODE(path.lstat().st_mode)) for path in paths}


def test_every_missing_folder_is_private(tmp_path: Path, umask: int) -> None:
    make_folders(tmp_path / "a" / "b" / "c")
    assert _modes(tmp_path / "a", of_folders=True) == {"0o700"}
    with open_private(tmp_path / "file") as file:
        file.write(b"x")
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_what_a_run_writes_is_private(tmp_path: Path, umask: int, backend: str) -> None:
    job = CliFixture(tmp_path)
    job.settings |= {"state.backend": backend, "state.inline_below_bytes": "1", "checkpoints.asynchronous": "no"}
    result = tmp_path / "result.json"
    assert invoke(*job.command("--result-file", str(result))).exit_code == 0
    root, scratch = Path(job.root), tmp_path / "scratch"
    assert _modes(root, of_folders=True) == _modes(scratch, of_folders=True) == {"0o700"}
    assert _modes(root, of_folders=False) == {"0o600"} == _modes(result, of_folders=False)
    if backend != "rocksdb":
        # RocksDB creates the files of a store itself.
        assert _modes(scratch, of_folders=False) == {"0o600"}


def _fetch_part(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        storage = PosixStorage(Path(root))
        storage.put_new("data/a", b"abc")
        storage.fetch_part("data/a", 1, 1, folder / "part")


def _fetch_from_memory(folder: Path) -> None:
    storage = MemoryStorage("private")
    storage.put_new("data/a", b"abc")
    storage.fetch("data/a", folder / "whole")
    storage.fetch_part("data/a", 1, 1, folder / "part")


def _create_location(folder: Path) -> None:
    offsets = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    position = SparkPosition(batch_id=0, offsets=offsets, previous_offsets=None, commit=b"", source_files=[])
    SparkLocation(folder / "location", MemoryStorage("private")).create(position, "id", [])


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_private(folder / "file", b"x"),
        lambda folder: write_chunks(iter([b"a", b"b"]), folder / "fetched"),
        _fetch_part,
        _fetch_from_memory,
        lambda folder: write_manifest(folder, StoreManifest((), 1)),
        _create_location,
    ],
    ids=["file", "fetch", "part", "memory", "rocksdb-manifest", "spark-location"],
)
def test_a_working_file_is_private(tmp_path: Path, umask: int, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    assert _modes(tmp_path, of_folders=False) == {"0o600"}


class _SeenStorage(MemoryStorage):
    """Looks at the modes of the files in a folder, while one is stored."""

    def __init__(self, folder: Path) -> None:
        super().__init__("seen")
        self.folder = folder
        self.modes: set[str] = set()

    def put_file(self, key: str, source: Path) -> None:
        self.modes |= _modes(self.folder, of_folders=False)
        super().put_file(key, source)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_file_for_an_upload_is_private(tmp_path: Path, umask: int, in_background: bool) -> None:
    scratch, sources = tmp_path / "scratch", [tmp_path / "a", tmp_path / "b"]
    make_folders(scratch)
    for source in sources:
        write_private(source, b"x")
    storage, clock = _SeenStorage(scratch), SystemClock()
    if in_background:
        uploads: Uploads = BackgroundUploads(storage, Outbox(scratch, 1, timedelta(minutes=1)), clock)
    else:
        uploads = SynchronousUploads(storage, scratch, clock)
    uploads.put("data/ab", sources)
    until = clock.monotonic() + 60
    while storage.size("data/ab") is None and clock.monotonic() < until:
        clock.sleep(timedelta(milliseconds=10))
    assert storage.modes == {"0o600"}


@pytest.mark.parametrize("trap", ["file", "link"])
def test_a_file_that_must_be_created_is_not_one_that_exists(tmp_path: Path, trap: str) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    path.write_bytes(b"x") if trap == "file" else path.symlink_to(other)
    with pytest.raises(FileExistsError):
        open_private(path, must_create=True)
    assert not other.exists()


def test_scratch_space_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    make_own_folder(folder)
    make_own_folder(folder)
    folder.chmod(0o770)
    with raises(ConfigError, path=str(folder), owner=os.geteuid(), mode="0o770") as refused:
        make_own_folder(folder)
    assert "another user" not in refused.value.message


def test_scratch_space_is_not_reached_through_a_link(tmp_path: Path) -> None:
    """Another user could make the link in /tmp, to a folder of this user."""
    own, link = tmp_path / "own", tmp_path / "scratch"
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    with raises(ConfigError, path=str(link), owner=os.geteuid()):
        make_own_folder(link)
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    with raises(ConfigError, path=str(link)):
        make_own_folder(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another user")
def test_scratch_space_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with raises(ConfigError, path=str(folder), owner=65534):
        make_own_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("trap", ["folder", "link"])
def test_a_run_uses_no_scratch_space_that_another_user_has_made(tmp_path: Path, trap: str) -> None:
    """In a folder such as /tmp, where all users may write, another user can create the folder first."""
    job = CliFixture(tmp_path)
    # The temporary folder of the tests may be closed to others.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shared = Path(folder)
        shared.chmod(0o1777)
        scratch, theirs = shared / "scratch", shared / "theirs"

        def prepare() -> None:
            os.umask(0)
            theirs.mkdir()
            scratch.symlink_to(theirs) if trap == "link" else scratch.mkdir()

        _as_another_user(prepare)
        job.settings["local_dir"] = str(scratch)
        with raises(ConfigError, path=str(scratch), owner=str(_STRANGER)):
            job.run()
        assert list(theirs.iterdir()) == list(scratch.iterdir()) == []


def _as_another_user(act: Callable[[], object]) -> None:
    """Calls it in a child process that has become another user."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setresgid(_STRANGER, _STRANGER, _STRANGER)
            os.setresuid(_STRANGER, _STRANGER, _STRANGER)
            act()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
