"""Readers and comparisons that are killed or suspended at each of their steps, while a run continues and collects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import stateflow
from stateflow import operations
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.job_root import LEASE, JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import MissingFile
from stateflow.failpoints import NAMES
from stateflow.private_files import PREFIX, ScratchFolder
from tests.query.summed_job import SummedJob, totals
from tests.support.processes import Launch, Running, fork

_KILLED = -9
_COPIED = "read.entries"
_READ = [*(point for point in NAMES if point.startswith("read.") and point != _COPIED), _COPIED]
"""The last one leaves a copy of files: each command deletes what the killed one before it has left."""
_DIFF = [point for point in NAMES if point.startswith("diff.")]


def _export(job: SummedJob, checkpoint: int) -> list[str]:
    return ["state", "export", job.uri, "--operator", "sum", "--state", "total", "--snapshot", str(checkpoint)]


def _diff(job: SummedJob, checkpoints: Sequence[int], *options: str) -> list[str]:
    return ["diff", "--job-root", job.uri, "--keys", "--json", *options, *map(str, checkpoints)]


def _start(job: SummedJob, command: Sequence[str], failpoint: str) -> Running:
    """Starts a command whose temporary files are in a folder of their own."""
    folder = _temporary(job)
    folder.mkdir(exist_ok=True)
    output = job.folder / f"output-{failpoint.replace(':', '-')}"
    return fork(Launch(command, output, {"STATEFLOW_FAILPOINT": failpoint, "TMPDIR": str(folder)}))


def _temporary(job: SummedJob) -> Path:
    return job.folder / "temporary"


def _left(job: SummedJob) -> list[str]:
    return [path.name for path in _temporary(job).iterdir()]


def _later(job: SummedJob) -> JobRoot:
    """The job root as a process sees it when the leases of now are over."""
    return JobRoot.open(job.storage, ManualClock(start=SystemClock().now() + LEASE), "later")


def _pinned(job: SummedJob) -> list[int]:
    return [pin.checkpoint.id for pin in job.root.head().entry.pinned]


def _check_nothing_stays(job: SummedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the leases are over, a collection deletes what killed readers kept; the next reader deletes their copies."""
    root = _later(job)
    root.admin.end_leases()
    Collector(root).collect()
    assert _pinned(job) == [] and Collector(root).preview().files == 0
    monkeypatch.setattr("tempfile.tempdir", str(_temporary(job)))
    with ScratchFolder():
        pass
    assert _left(job) == []


def test_killed_readers_keep_their_checkpoint_until_their_leases_end(
    job: SummedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(4)
    (read,) = job.kept
    for point in _READ:
        assert _start(job, _export(job, read), point).wait().code == _KILLED
    assert _pinned(job) == [read] * (len(_READ) - 1), "read.unpinned"
    assert [name.startswith(PREFIX) for name in _left(job)] == [True]
    with stateflow.read_state(job.uri, "sum", "total", read) as reader:
        job.run(24)
        operations.collect_garbage(job.uri)
        rows = reader.read_all().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == totals(4)
    _check_nothing_stays(job, monkeypatch)
    assert read not in Collector(job.root).preview().retained


def test_killed_comparisons_keep_both_checkpoints_until_their_leases_end(
    job: SummedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(8)
    both = job.kept
    for point in (*_DIFF, "read.pinned", "read.pinned:2"):
        # A count of all keys merges all entries.
        options = ["--count-all"] if point == "diff.entries" else []
        assert _start(job, _diff(job, both, *options), point).wait().code == _KILLED
    pinned = _pinned(job)
    assert [pinned.count(each) for each in both] == [len(_DIFF) + 2, len(_DIFF) + 1]
    job.run(24)
    operations.collect_garbage(job.uri)
    wanted = {key: (totals(4).get(key), totals(8)[key]) for key in totals(8) if totals(4).get(key) != totals(8)[key]}
    found = stateflow.diff(f"{job.uri}@{both[0]}", f"{job.uri}@{both[1]}").changes
    assert found is not None
    rows = found.read_all().to_pylist()
    assert {json.loads(row["key"])[0]: (_number(row["old"]), _number(row["new"])) for row in rows} == wanted
    _check_nothing_stays(job, monkeypatch)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


@pytest.mark.parametrize("point", ["read.pinned:2", "diff.opened:1"])
def test_a_comparison_that_is_suspended_for_longer_than_its_lease_is_right_or_an_error(
    job: SummedJob, point: str
) -> None:
    # Later checkpoints share no file with earlier ones.
    job.settings["state__incremental"] = point == "diff.opened:1"
    job.run(8)
    both = job.kept
    suspended = _start(job, _diff(job, both), f"{point}:stop").wait_stopped()
    job.run(32)
    root = _later(job)
    root.admin.end_leases()
    Collector(root).collect()
    ended = suspended.resume().wait()
    if ended.code == 0:
        # All its files were open.
        assert ended.document["keys"] == 4
    else:
        error = ended.check_error(MissingFile.exit_code, MissingFile.code)
        assert "clocks" in ended.err and error.facts["checkpoint"] in both
    assert _pinned(job) == [] and _left(job) == []


def test_a_reader_that_is_suspended_returns_what_was_committed(job: SummedJob) -> None:
    job.run(4)
    (read,) = job.kept
    suspended = _start(job, _export(job, read), "read.entries:1:stop").wait_stopped()
    job.run(24)
    operations.collect_garbage(job.uri)
    assert _pinned(job) == [read]
    lines = suspended.resume().wait().check().out.splitlines()
    assert {row["key"]: row["value"] for row in map(json.loads, lines)} == totals(4)
    assert _pinned(job) == [] and _left(job) == []
