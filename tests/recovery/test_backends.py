"""The whole job on each state backend: killed, rescaled, taken to another backend."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.query.state import state_entries
from stateflow.runtime.task.operator_state import INLINE_BYTES
from stateflow.state.handles import OperatorContent
from stateflow.state.operator_content import read_parts
from stateflow.storage import open_storage
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import key_hash, subtask_of
from stateflow.types.serializers import decode_untyped
from tests.support import root_files, stored_state
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.jobs.checkpointed import KEY_GROUPS

BACKENDS: dict[str, dict[str, Any]] = {
    "memory": {"state__backend": "memory"},
    "filesystem": {"state__backend": "filesystem"},
    "filesystem-files": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "rocksdb-full": {"state__backend": "rocksdb", "state__backend__incremental": "false"},
    "rocksdb": {},
}
# The batch of the last run has a row for one subtask only: the state of all others is laid out anyway.
CHAIN = ((30, 1), (60, 3), (90, 5), (120, 2), (121, 7))
OPERATORS = ("balances", "turnovers")
_POINTS = ["task.restored:3", "task.uploaded:1", "batch.reported:1", "commit.manifest"]
_KILLED_BACKENDS = [
    *product(BACKENDS, _POINTS),
    *((name, "task.snapshot:2") for name in BACKENDS if name.startswith("rocksdb")),
]
"""Only RocksDB has a local snapshot."""


def _backends(job: AccountsJob) -> set[str]:
    return {s["backend"] for o in job.manifest["operators"] for s in o["subtasks"]}


def _kill(job: AccountsJob, failpoint: str, parallelism: int) -> None:
    """What the newest checkpoint needs exists as before."""
    before, live = job.head.doc["manifest"], root_files.live_files(job.root)
    job.reach(failpoint, parallelism=parallelism)
    assert job.head.doc["manifest"] == before
    assert root_files.live_files(job.root)[before["key"]] == live[before["key"]]
    root_files.check_hashes(job.root)


@pytest.mark.parametrize(("backend", "failpoint"), _KILLED_BACKENDS)
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_job_that_is_killed_continues_at_any_parallelism(job: AccountsJob, backend: str, failpoint: str) -> None:
    """State can be read from outside."""
    job.settings = {"checkpoints__retained": 2, **BACKENDS[backend]}
    for rows, parallelism in CHAIN:
        job.deliver(rows)
        if parallelism > 1:
            _kill(job, failpoint, parallelism)
        job.finish(parallelism=parallelism)
        layout = {
            o["uid"]: (o["parallelism"], [s["subtask"] for s in o["subtasks"]]) for o in job.manifest["operators"]
        }
        assert layout == dict.fromkeys(OPERATORS, (parallelism, list(range(parallelism))))
        job.check_results()
    job.check()
    for uid in OPERATORS:
        wanted = stored_state.read_state(job.root, uid)
        assert {(e.state, e.key, e.map_key): e.value for e in state_entries(str(job.root), uid)} == wanted


def test_full_bytes_count_a_shared_file_once(job: AccountsJob) -> None:
    job.run_to(50, parallelism=1)
    job.run_to(60, parallelism=3)
    handles = list(root_files.handles(job.manifest))
    sizes = {h["key"]: h["size"] for h in handles}
    assert len(handles) > len(sizes)
    assert job.manifest["full_bytes"] == sum(sizes.values())
    assert root_files.history(job.root)[-1]["files"] == len(sizes)


def test_a_subtask_without_a_row_keeps_what_the_old_backend_wrote(job: AccountsJob) -> None:
    job.run_to(50, state__backend="memory", parallelism=20)
    job.run_to(60, parallelism=20)
    assert _backends(job) == {"memory", "rocksdb"}
    job.check_results()
    job.run_to(90, state__backend="filesystem", parallelism=2)
    job.check()


def test_a_batch_with_more_state_than_memory_may_hold_leaves_nothing(job: AccountsJob) -> None:
    job.run_to(50, **BACKENDS["memory"])
    before, size = job.head.doc["manifest"], job.manifest["full_bytes"]
    job.deliver(90)
    # No subtask alone has so much: it is the driver that adds them up.
    ended = job.run(**BACKENDS["memory"], state__memory_limit_bytes=size)
    ended.check_error(2, "config")
    assert job.head.doc["manifest"] == before
    for datum in ("turnovers", str(size), "state.backend", "state.memory_limit_bytes"):
        assert datum in ended.err
    # One subtask alone.
    assert job.run(**BACKENDS["memory"], state__memory_limit_bytes=10).code == 2
    # The solutions that the error names.
    job.finish(state__backend="filesystem")
    job.check()


# -- operator state over batches, runs, kills, rescaling, savepoints, going back and forks ----------------------------


@pytest.fixture
def checkpointed_job(job: AccountsJob) -> AccountsJob:
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
def test_operator_state_survives_kills_and_rescaling(checkpointed_job: AccountsJob, failpoint: str, pad: int) -> None:
    checkpointed_job.settings = {"job__pad": pad}
    for parallelism, rows in ((2, 30), (2, 50), (5, 90), (1, 100), (3, 101)):
        checkpointed_job.deliver(rows)
        checkpointed_job.reach(failpoint, parallelism=parallelism)
        checkpointed_job.finish(parallelism=parallelism)
        check_collected(checkpointed_job)
    # The last batch has one row: all other subtasks had none, and were assigned theirs without being called.
    check_rated(checkpointed_job)
    state, contents = _operator(checkpointed_job, "collect")
    assert contents.keys() == {0, 1, 2}
    sizes = [part.handle is not None for part in state.parts]
    assert sizes == [pad * 33 > INLINE_BYTES] * 3
    checkpointed_job.collect()
