"""``stateflow verify``: what is damaged is found and named, whatever it is; of what is sound, all is counted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.retained import Retention
from stateflow.checkpoint.log.transitions import Commit
from stateflow.clock import SystemClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile
from stateflow.operations.verification import verify
from stateflow.state.backends.rocksdb import RocksDBBackend
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.kinds.key_context import state_id
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer, encode_key
from tests.recovery.damaged_job import DAMAGES
from tests.support import root_files
from tests.support.errors import raises
from tests.support.job_fixture import SLICE, AccountsJob

COUNT = state_id("count")
ONE = ValueSerializer(int).encode(1)
KEY = encode_key((7, None))
UNFINISHED = encode_key(("x",))[:-1]


@pytest.fixture
def ran(box: AccountsJob) -> AccountsJob:
    box.run_to(6 * SLICE, checkpoints__retained=3)
    return box


def test_of_each_kept_checkpoint_all_is_read(ran: AccountsJob) -> None:
    """With ``--deep``, the entries that the oracle has are counted; nothing is left behind: no pin, no file."""
    found = ran.command("verify", "--json").document
    kept = sorted(e.seq for e in root_files.kept_entries(ran.root))
    assert [(f["checkpoint_id"], f["entries"]) for f in found] == [(seq, None) for seq in kept]
    shown = ran.command("verify").check().out
    assert [int(re.findall(r"\d+", line)[0]) for line in shown.splitlines()] == kept
    expected = sum(len(root_files.read_state(ran.root, uid)) for uid in ("balances", "turnovers"))
    (deep,) = ran.command("verify", "--deep", "--checkpoint", str(kept[-1]), "--json").document
    assert deep["entries"] == expected > 0
    assert str(expected) in ran.command("verify", "--deep").check().out.splitlines()[-1]
    assert ran.head.doc["pinned"] == []
    ran.check_clean()


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(ran: AccountsJob) -> None:
    refused = ran.command("verify", "--checkpoint", "2")
    assert (refused.code, refused.error.code, refused.error.facts) == (2, "config", {"wanted": 2})
    assert f"kept={sorted(e.seq for e in root_files.kept_entries(ran.root))}" in refused.err
    assert "stateflow checkpoints list" in refused.err


@pytest.mark.parametrize("damage", ["a bit in the middle", "the last byte missing", "removed"])
def test_each_file_that_is_not_as_recorded_is_found_and_named(ran: AccountsJob, tmp_path: Path, damage: str) -> None:
    live = [key for key in root_files.live_files(ran.root) if key.startswith("data/")]
    assert len(live) > 5
    for key in live:
        path, whole = ran.root / key, tmp_path / "whole"
        # Another file: what is linked elsewhere, as in the host's cache, stays.
        shutil.move(path, whole)
        shutil.copy(whole, path)
        DAMAGES[damage](path)
        found = ran.command("verify")
        assert found.code == 4 and key in found.error.facts.values(), (key, str(found))
        shutil.move(whole, path)
    ran.command("verify").check()


@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        (
            b"\0\3" + COUNT + KEY,
            ONE,
            {"key": (b"\0\3" + COUNT + KEY).hex(), "group": 3, "first_group": 0, "last_group": 2},
        ),
        (b"\0\1" + b"none" + KEY, ONE, {"key": (b"\0\1" + b"none" + KEY).hex()}),
        (b"\0\1" + COUNT + b"\xfe", ONE, {"tag": 0xFE}),
        (b"\0\1" + COUNT + UNFINISHED, ONE, {"key": UNFINISHED.hex()}),
        (b"\0\1" + COUNT + KEY, b"\1\xc1", {"reason": ANY}),
    ],
    ids=["key group of another subtask", "unknown state", "unknown kind of key", "half a key", "no value"],
)
def test_deep_finds_what_is_stored_as_recorded_and_wrong_all_the_same(
    tmp_path: Path, key: bytes, value: bytes, facts: dict[str, Any]
) -> None:
    good = {b"\0\2" + COUNT + KEY: ONE}
    root = str(tmp_path / "root")
    _commit(tmp_path, good)
    assert [v.entries for v in verify(root, deep=True)] == [1]
    _commit(tmp_path, {**good, key: value})
    assert [v.entries for v in verify(root)] == [None, None]
    with raises(CorruptFile) as found:
        verify(root, deep=True)
    assert found.value.facts == {"operator": "op", "subtask": 0, **facts}


def _commit(folder: Path, entries: dict[bytes, bytes]) -> None:
    """A run whose one checkpoint has these entries in a subtask that owns the key groups 0 to 2."""
    storage, clock = PosixStorage(folder / "root"), SystemClock()
    root = JobRoot.create_or_open(storage, clock, NewJob("job", 4, {"op": ["bigint"]}), "a test")
    head = root.claim()
    generation = head.entry.generation
    into = data_folder(generation, 1, "t1")
    cache = HostCache.direct(folder / f"cache-{generation}", storage, clock)
    store = RocksDBBackend(folder / f"store-{generation}", cache, Base(0, KeyGroupRange(0, 2)), RocksDBSettings())
    store.write(entries)
    taken = store.snapshot(f"{into}op-0-")
    store.close()
    files, store_manifest = list(taken.files), taken.store_manifest
    state = SubtaskState(
        subtask=0, first_group=0, last_group=2, snapshot="s", files=files, store_manifest=store_manifest
    )
    states = [StateSchema(name="count", kind="value", value_type="int")]
    operator = OperatorState(uid="op", parallelism=1, key_types=["bigint"], subtasks=[state], states=states)
    manifest = Manifest(job_uuid=root.job.job_uuid, generation=generation, ordinal=1, operators=[operator], sources=[])
    handle = write_manifest(storage, into, manifest)
    assert isinstance(root.commit(head, Commit(1, handle, [], [], {}, frozenset()), Retention(3)), Appended)


def test_a_block_that_cannot_be_read_is_named_with_its_subtask(
    ran: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Iterator[tuple[bytes, bytes]]:
        yield from ()
        raise CorruptFile("a file of a RocksDB store is damaged", file="000017.sst")

    monkeypatch.setattr("stateflow.query.state.read_entries", fails)
    with raises(CorruptFile) as found:
        verify(str(ran.root), deep=True)
    assert found.value.facts == {"operator": "balances", "subtask": 0, "file": "000017.sst"}
