"""Scratch folders: private, removed at their end, and after the process that made them was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.private_files import PREFIX, ScratchFolder

PROGRAM = """
import sys
from stateflow.private_files import ScratchFolder
folder = ScratchFolder()
(folder.path / "state").write_bytes(b"state")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_removed_at_its_end(temporary: Path) -> None:
    with ScratchFolder() as scratch:
        (scratch.path / "a" / "b").mkdir(parents=True)
        assert scratch.path.parent == temporary and scratch.path.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []
    scratch.remove()


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_live_one_stays(temporary: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().decode().strip())
        with ScratchFolder():
            assert (theirs / "state").read_bytes() == b"state"
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert theirs.exists()
        with ScratchFolder() as scratch:
            assert list(temporary.iterdir()) == [scratch.path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_what_is_no_folder_of_this_user_stays(temporary: Path) -> None:
    kept = [temporary / f"{PREFIX}{name}" for name in ("file", "link", "theirs")]
    kept[0].write_bytes(b"")
    kept[1].symlink_to(temporary)
    kept[2].mkdir()
    os.chown(kept[2], 12345, 12345)
    with ScratchFolder():
        pass
    assert sorted(temporary.iterdir()) == kept
