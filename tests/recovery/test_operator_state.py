"""Operator state over batches, runs, kills, rescaling, savepoints, going back and forks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.runtime.task.operator_state import INLINE_BYTES
from stateflow.state.handles import OperatorContent
from stateflow.state.operator_content import read_parts
from stateflow.storage import open_storage
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import key_hash, subtask_of
from stateflow.types.serializers import decode_untyped
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.jobs.checkpointed import KEY_GROUPS


@pytest.fixture
def job(job: AccountsJob) -> AccountsJob:
    job.job_name = "checkpointed"
    return job


def _manifest(job: AccountsJob) -> tuple[JobRoot, Manifest]:
    root = JobRoot.open(open_storage(str(job.root)), SystemClock(), "test")
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    return root, manifest


def _operator(job: AccountsJob, uid: str) -> tuple[OperatorState, dict[int, OperatorContent]]:
    root, manifest = _manifest(job)
    (state,) = [o for o in manifest.operators if o.uid == uid]
    return state, {part.subtask: content for part, content in read_parts(root.storage, state.parts)}


def _group(event: dict[str, Any]) -> int:
    return key_hash((event["account"],), ("string",)) % KEY_GROUPS


def _numbers(elements: list[bytes]) -> list[int]:
    found = [decode_untyped(each) for each in elements]
    return [each["number"] if isinstance(each, dict) else each for each in found]


def _rates(events: list[dict[str, Any]]) -> Counter[str]:
    rates: Counter[str] = Counter()
    for event in events:
        rates[event["shop"]] += event["amount"]
    return rates


def check_collected(job: AccountsJob) -> None:
    """Every number is in each kind of state once, where it belongs; each event had all rules up to its batch."""
    events = job.delivered
    wanted = [event["number"] for event in events]
    state, contents = _operator(job, "collect")
    for kept in (
        [n for c in contents.values() for n in _numbers(c.lists["numbers"])],
        [n for c in contents.values() for n in _numbers(c.unions["union"])],
        [int(piece) for c in contents.values() for piece in c.raw],
    ):
        assert sorted(kept) == wanted
    places = [(e["number"], g := _group(e), subtask_of(g, state.parallelism, KEY_GROUPS)) for e in events]
    keyed = [(subtask, group, piece) for subtask, c in contents.items() for group, piece in c.raw_keyed]
    assert sorted((n, group, subtask) for subtask, group, piece in keyed for n in json.loads(piece)) == places
    rate, copies = _operator(job, "rate")
    assert [part.subtask for part in rate.parts] == [0]
    entries = copies[0].broadcasts["rates"]
    assert {decode_key(k)[0]: decode_untyped(v) for k, v in entries.items()} == _rates(events)


def check_rated(job: AccountsJob, since: int = 0) -> None:
    events = job.delivered
    rated = {row["number"]: row["rate"] for row in job.rows("rated")}
    for event in events[since:]:
        batch_end = (event["number"] // SLICE + 1) * SLICE
        assert rated[event["number"]] == _rates(events[:batch_end])[event["shop"]]


_KILLS = [("task.processed:2", 1500), ("batch.reported", 0), ("commit.after", 0)]


@pytest.mark.parametrize(("failpoint", "pad"), _KILLS)
@pytest.mark.slow(reason="starts a process for each kill")
def test_operator_state_survives_kills_and_rescaling(job: AccountsJob, failpoint: str, pad: int) -> None:
    job.settings = {"job__pad": pad}
    for parallelism, rows in ((2, 30), (2, 50), (5, 90), (1, 100), (3, 101)):
        job.deliver(rows)
        job.reach(failpoint, parallelism=parallelism)
        job.finish(parallelism=parallelism)
        check_collected(job)
    # The last batch has one row: all other subtasks had none, and were assigned theirs without being called.
    check_rated(job)
    state, contents = _operator(job, "collect")
    assert contents.keys() == {0, 1, 2}
    sizes = [part.handle is not None for part in state.parts]
    assert sizes == [pad * 33 > INLINE_BYTES] * 3
    job.collect()


def test_a_subtask_without_rows_keeps_its_state(job: AccountsJob) -> None:
    job.run_to(40, parallelism=4)
    before, contents = _operator(job, "collect")
    job.run_to(41, parallelism=4)
    after, _ = _operator(job, "collect")
    assert len(contents) > 1
    assert sum(a != b for a, b in zip(after.parts, before.parts, strict=True)) == 1
    check_collected(job)


def test_functions_know_whether_they_were_restored_and_which_checkpoint_was_committed(job: AccountsJob) -> None:
    """Of the one subtask: restored from the second batch on, over runs; notified of the checkpoint before its batch."""
    job.run_to(20, parallelism=1)
    job.run_to(40, parallelism=1)
    rows = job.rows("collected")
    assert [row["restored"] for row in rows] == [False] * 10 + [True] * 30
    assert [row["in_list"] for row in rows] == [row["in_union"] for row in rows] == list(range(1, 41))
    notified = [row["notified"] for row in rows]
    assert notified[:10] == [0] * 10 and notified == sorted(notified) and len(set(notified)) == 4
    assert set(notified[20:]) <= {ref["id"] for ref in job.head.doc["retained"]}


def test_every_subtask_sees_the_union_list_as_of_the_last_checkpoint(job: AccountsJob) -> None:
    job.run_to(50, parallelism=3)
    subtask = {e["number"]: subtask_of(_group(e), 3, KEY_GROUPS) for e in job.delivered}
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in job.rows("collected"):
        seen[row["number"] // SLICE, subtask[row["number"]]].append(row["in_union"])
    for (batch, _), counts in seen.items():
        # All of the batches before, then its own of this one: what others add meanwhile is not seen.
        assert sorted(counts) == list(range(batch * SLICE + 1, batch * SLICE + 1 + len(counts)))
    assert len(seen) > 5
