"""`SavepointWriter`: kills at each step, two writers of one folder, and disks that fail or are full."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest

from stateflow.checkpoint.savepoints.canonical import buckets, writer
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, StorageError
from stateflow.query.state import entries_of
from tests.bootstrap.written_totals import write_in_process, write_more, write_totals
from tests.recovery.failing_disks import VARIABLE, DiskPlan
from tests.support import processes, root_files
from tests.support.errors import raises

FIRST, SECOND = {f"shop-{n}": n for n in range(40)}, {f"shop-{n}": n for n in range(20, 70)}
STEPS = ["savepoint.share:1", "write.stored", "write.complete"]


def _check(path: Path, totals: dict[str, int]) -> None:
    """It is the savepoint of these rows, and nothing else is in its folder."""
    found = savepoint_at(str(path))
    found.verify()
    (operator,) = found.document.manifest.operators
    entries = entries_of(operator, found.storage, ManualClock())
    assert {e.key[0]: e.value for e in entries if e.state == "total"} == totals
    used = {file.handle.key for subtask in operator.subtasks for file in subtask.files}
    used |= {part.handle.key for part in operator.parts if part.handle}
    spark = found.document.manifest.spark
    assert spark is not None
    used |= {file.handle.key for file in spark.source_files if file.handle}
    assert {f"files/{file.name}" for file in (path / "files").iterdir()} == used


def _is_complete(path: Path) -> bool:
    try:
        savepoint_at(str(path)).verify()
    except ConfigError:
        return False
    return True


def _begin(path: Path, given: dict[str, int] | Path, failpoint: str) -> ForkServerProcess:
    arguments = (path, given, path.with_suffix(".outcome"), {"STATEFLOW_FAILPOINT": failpoint})
    process = multiprocessing.get_context("forkserver").Process(target=write_in_process, args=arguments, daemon=True)
    process.start()
    return process


def _kill_at(path: Path, given: dict[str, int] | Path, failpoint: str) -> None:
    process = _begin(path, given, failpoint)
    process.join(processes.DEADLINE)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.long(reason="kills a process at each step")
@pytest.mark.parametrize("failpoint", STEPS)
def test_a_killed_writer_leaves_no_savepoint_or_a_complete_one_which_a_repetition_completes(
    tmp_path: Path, failpoint: str
) -> None:
    path = tmp_path / "w"
    # Files of an attempt with other rows.
    _kill_at(path, SECOND, "write.stored")
    _kill_at(path, FIRST, failpoint)
    assert _is_complete(path) == (failpoint == "write.complete")
    write_totals(path, FIRST)
    _check(path, FIRST)
    complete = root_files.digests(path)
    write_totals(path, FIRST)
    assert root_files.digests(path) == complete


def test_a_killed_transformation_is_completed_by_its_repetition(tmp_path: Path) -> None:
    base, path = tmp_path / "base", tmp_path / "w"
    write_totals(base, FIRST)
    before = root_files.digests(base)
    _kill_at(path, base, "write.stored")
    assert not _is_complete(path)
    write_more(path, base)
    _check(path, {shop: total + 1 for shop, total in FIRST.items()})
    complete = root_files.digests(path)
    write_more(path, base)
    assert root_files.digests(path) == complete and root_files.digests(base) == before


@pytest.mark.parametrize(
    ("failpoint", "other"),
    [("savepoint.share:2", FIRST), ("write.stored", SECOND)],
    ids=["the same rows", "other rows"],
)
def test_of_two_writers_of_a_folder_one_writes_the_savepoint(
    tmp_path: Path, failpoint: str, other: dict[str, int]
) -> None:
    """The other one finds it, or is refused if its rows differ; it changes nothing."""
    path = tmp_path / "w"
    process = _begin(path, FIRST, f"{failpoint if ':' in failpoint else f'{failpoint}:1'}:stop")
    pid = process.pid
    assert pid is not None
    processes.wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, lambda: f"a stop at {failpoint}")
    write_totals(path, other)
    before = root_files.digests(path)
    os.kill(pid, signal.SIGCONT)
    process.join(processes.DEADLINE)
    assert path.with_suffix(".outcome").read_text() == ("" if other == FIRST else ConfigError.code)
    assert root_files.digests(path) == before
    _check(path, other)


@pytest.mark.parametrize("seed", range(2))
def test_errors_of_the_storage_are_reported_and_a_repetition_completes_the_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path = tmp_path / "w"
    path.mkdir()
    plan = DiskPlan((str(path),), str(tmp_path / "image"), seed, errors=0.15)
    monkeypatch.setenv(VARIABLE, plan.variable)
    write_in_process(path, FIRST, tmp_path / "outcome", {})
    assert (tmp_path / "outcome").read_text() in ("", StorageError.code)
    assert _is_complete(path) or (tmp_path / "outcome").read_text()
    write_totals(path, FIRST)
    _check(path, FIRST)


@pytest.mark.parametrize(
    ("module", "name", "full"),
    [
        (buckets, "bucket_file", lambda *_: Path("/dev/full")),
        (writer, "open_private", lambda *_, **__: Path("/dev/full").open("wb")),
    ],
    ids=["buckets", "the file"],
)
def test_a_full_local_disk_is_reported_and_leaves_no_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, full: object
) -> None:
    path = tmp_path / "w"
    with monkeypatch.context() as patched, raises(StorageError):
        patched.setattr(module, name, full)
        write_totals(path, FIRST)
    assert not _is_complete(path)
    write_totals(path, FIRST)
    _check(path, FIRST)
