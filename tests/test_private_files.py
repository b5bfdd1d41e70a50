"""Folders and files that only this process's user can access, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateflow.errors import ConfigError
from stateflow.private_files import make_folders, make_own_folder, open_private
from tests.support.cli_fixture import CliFixture
from tests.support.commands import invoke
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


def test_scratch_space_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    make_own_folder(folder)
    make_own_folder(folder)
    folder.chmod(0o770)
    with raises(ConfigError, path=str(folder), owner=os.geteuid(), mode="0o770"):
        make_own_folder(folder)


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
