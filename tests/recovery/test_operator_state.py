"""Operator state over batches, runs, kills, rescaling, savepoints, going back and forks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.clock import SystemClock
from stateflow.runtime.task.operator_state import INLINE_BYTES, read_part
from stateflow.state.handles import OperatorContent
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from stateflow.types.key_groups import key_hash, subtask_of
from stateflow.types.serializers import decode_key, decode_untyped
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.jobs.checkpointed import KEY_GROUPS


@pytest.fixture
def job(box: AccountsJob) -> AccountsJob:
    box.job = "checkpointed"
    return box


def _manifest(box: AccountsJob) -> tuple[JobRoot, Manifest]:
    root = JobRoot.open(open_storage(str(box.root)), SystemClock(), "test")
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    return root, manifest


def _operator(box: AccountsJob, uid: str) -> tuple[OperatorState, dict[int, OperatorContent]]:
    root, manifest = _manifest(box)
    (state,) = [o for o in manifest.operators if o.uid == uid]
    return state, {part.subtask: read_part(root.storage, part) for part in state.parts}


def _numbers(elements: list[bytes]) -> list[int]:
    found = [decode_untyped(each) for each in elements]
    return [each["number"] if isinstance(each, dict) else each for each in found]


def _rates(events: list[dict[str, Any]]) -> Counter[str]:
    rates: Counter[str] = Counter()
    for event in events:
        rates[event["shop"]] += event["amount"]
    return rates


def check_collected(box: AccountsJob) -> None:
    """Every number is in each kind of state once, where it belongs; each event had all rules up to its batch."""
    events = box.delivered
    state, contents = _operator(box, "collect")
    wanted = [event["number"] for event in events]
    for kept in (
        [n for c in contents.values() for n in _numbers(c.lists["mine"])],
        [n for c in contents.values() for n in _numbers(c.unions["everybody"])],
        [int(piece) for c in contents.values() for piece in c.raw],
    ):
        assert sorted(kept) == wanted
    groups = {e["number"]: key_hash((e["account"],), ("string",)) % KEY_GROUPS for e in events}
    found = [
        (n, group, subtask)
        for subtask, c in contents.items()
        for group, piece in c.raw_keyed
        for n in json.loads(piece)
    ]
    assert sorted(found) == [(n, g, subtask_of(g, state.parallelism, KEY_GROUPS)) for n, g in sorted(groups.items())]
    rate, copies = _operator(box, "rate")
    assert [part.subtask for part in rate.parts] == [0]
    entries = copies[0].broadcasts["rates"]
    assert {decode_key(k)[0]: decode_untyped(v) for k, v in entries.items()} == _rates(events)


def check_rated(box: AccountsJob, since: int = 0) -> None:
    events = box.delivered
    rated = {row["number"]: row["rate"] for row in FolderSink(box.table("rated")).rows()}
    for event in events[since:]:
        batch_end = (event["number"] // SLICE + 1) * SLICE
        assert rated[event["number"]] == _rates(events[:batch_end])[event["shop"]]


@pytest.mark.parametrize("pad", [0, 1500])
@pytest.mark.parametrize("failpoint", ["", "task.processed:2", "batch.reported", "commit.after"])
def test_over_batches_runs_kills_and_rescaling(job: AccountsJob, failpoint: str, pad: int) -> None:
    job.settings = {"job__pad": pad}
    for parallelism, rows in ((2, 30), (2, 50), (5, 90), (1, 100), (3, 101)):
        job.deliver(rows)
        if failpoint:
            assert job.run(failpoint, parallelism=parallelism).code == -9
            job.marker.unlink()
        job.finish(parallelism=parallelism)
        check_collected(job)
    # The last batch has one row: all other subtasks had none, and were assigned theirs without being called.
    check_rated(job)
    state, contents = _operator(job, "collect")
    assert {s: len(_numbers(c.lists["mine"])) for s, c in contents.items()}.keys() == {0, 1, 2}
    sizes = [part.handle is not None for part in state.parts]
    assert sizes == [pad * 33 > INLINE_BYTES] * 3
    job.collect()


def test_a_subtask_without_rows_keeps_its_state(job: AccountsJob) -> None:
    job.deliver(40)
    job.finish(parallelism=4)
    before, contents = _operator(job, "collect")
    job.deliver(41)
    job.finish(parallelism=4)
    after, _ = _operator(job, "collect")
    assert len(contents) > 1
    changed = [a.subtask for a, b in zip(after.parts, before.parts, strict=True) if a != b]
    assert len(changed) == 1
    check_collected(job)


def test_functions_are_told_what_there_is(job: AccountsJob) -> None:
    """Of the one subtask: restored from the second batch on, over runs; told of the checkpoint before its batch."""
    job.deliver(20)
    job.finish(parallelism=1)
    job.deliver(40)
    job.finish(parallelism=1)
    rows = FolderSink(job.table("told")).rows()
    assert [row["restored"] for row in rows] == [False] * 10 + [True] * 30
    assert [row["mine"] for row in rows] == [row["everybody"] for row in rows] == list(range(1, 41))
    told = [row["told"] for row in rows]
    assert told[:10] == [0] * 10 and told == sorted(told) and len(set(told)) == 4
    root, _ = _manifest(job)
    ids = {ref.id for ref in root.head().entry.retained}
    assert set(told[20:]) <= ids


def test_everybody_sees_the_union_as_of_the_last_checkpoint(job: AccountsJob) -> None:
    job.deliver(50)
    job.finish(parallelism=3)
    subtask = {
        e["number"]: subtask_of(key_hash((e["account"],), ("string",)) % KEY_GROUPS, 3, KEY_GROUPS)
        for e in job.delivered
    }
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in FolderSink(job.table("told")).rows():
        seen[row["number"] // SLICE, subtask[row["number"]]].append(row["everybody"])
    for (batch, _), counts in seen.items():
        # All of the batches before, then its own of this one: what others add meanwhile is not seen.
        assert sorted(counts) == list(range(batch * SLICE + 1, batch * SLICE + 1 + len(counts)))
    assert len(seen) > 5


@pytest.mark.parametrize("pad", [0, 1500])
def test_savepoints_going_back_and_forks_carry_it(job: AccountsJob, tmp_path: Path, pad: int) -> None:
    job.settings = {"checkpoints__retained": 100, "job__pad": pad}
    job.deliver(50)
    job.finish(parallelism=2)
    assert job.command("savepoint", "create", "--name", "early").code == 0
    _, manifest = _manifest(job)
    spilled = [part.handle for o in manifest.operators for part in o.parts if part.handle]
    assert bool(spilled) == bool(pad) and set(spilled) <= set(files_of(manifest))
    inline = sum(len(part.content) for operator in manifest.operators for part in operator.parts)
    assert manifest.full_bytes == sum(f.size for f in files_of(manifest)) + inline
    job.deliver(100)
    job.finish(parallelism=2)
    plan = str(job.folder / "plan.json")
    arguments = ("restore", job.job_file, "--plan", "early", "--out", plan)
    assert job.begin(*arguments, with_job=True).wait().code == 0
    assert job.begin("restore", job.job_file, "--execute", plan, with_job=True).wait().code == 0
    job.deliver(70)
    job.finish(parallelism=3)
    check_collected(job)
    check_rated(job)

    settings = {"local_dir": tmp_path / "local", "job__pad": pad}
    fork = AccountsJob(job.folder, settings, job="checkpointed", root_folder=tmp_path / "fork")
    assert job.command("fork", "early", "--into", str(fork.root), "--shadow").code == 0
    fork.deliver(90)
    fork.finish(parallelism=4)
    check_collected(fork)
    assert fork.command("savepoint", "create", "--name", "late").code == 0
    assert fork.command("gc").code == 0
    check_collected(fork)
    fork.end_all()


def test_a_part_that_was_changed_on_disk_is_named_before_the_run_begins(job: AccountsJob) -> None:
    job.settings = {"job__pad": 1500}
    job.deliver(50)
    job.finish(parallelism=1)
    state, _ = _operator(job, "collect")
    handle = state.parts[0].handle
    assert handle is not None
    path = job.root / handle.key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    job.deliver(60)
    ended = job.run(parallelism=1)
    error = ended.error
    assert (ended.code, error.code, error.facts["file"]) == (4, "corrupt-file", handle.key), str(ended)
