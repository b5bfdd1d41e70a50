"""Damage to anything that a checkpoint consists of is reported by name, at a start and by ``stateflow verify``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import CorruptFile
from stateflow.operations.verification import verify
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import state_id
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer
from tests.recovery.damaged_job import DAMAGES, DamagedJob, check_refused, make_damaged_job
from tests.support import root_files, stored_state
from tests.support.errors import raises
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.restores import everything

KINDS = ["FORMAT", "log entry", "manifest", "sst"]


@pytest.fixture(scope="module")
def idle_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DamagedJob]:
    damaged = make_damaged_job(tmp_path_factory.mktemp("corruption"))
    yield damaged
    damaged.job.end_all()


@pytest.fixture
def damaged(idle_job: DamagedJob) -> Iterator[DamagedJob]:
    yield idle_job
    idle_job.reset()


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_any_kind_of_file_is_reported_with_its_name(damaged: DamagedJob, kind: str) -> None:
    """Other damages: the rows *torn-files*, *flipped-bits* and *misplaced-files* of the scoreboard."""
    for damage in ("a bit of the last byte", "a byte more"):
        path = damaged.files(kind)[0]
        DAMAGES[damage](path)
        check_refused(damaged, path)
        damaged.reset()


def test_the_format_file_of_another_job_with_the_same_name_is_refused(damaged: DamagedJob) -> None:
    path = damaged.files("FORMAT")[0]
    path.write_bytes(damaged.files("FORMAT", damaged.other.root)[0].read_bytes())
    check_refused(damaged, damaged.files("log entry")[0])


def test_the_log_entry_that_ends_a_run_may_be_missing(damaged: DamagedJob) -> None:
    """Without it everything is as if the run had been killed at its end."""
    assert damaged.job.head.doc["kind"] == "admin"
    damaged.files("log entry")[0].unlink()
    damaged.job.finish()
    damaged.job.check()


def test_a_job_root_without_its_log_is_refused_and_unchanged(damaged: DamagedJob) -> None:
    """A start would process everything again, and its collections would take what an operator may yet save."""
    for entry in root_files.entries(damaged.root):
        root_files.entry_path(damaged.root, entry.seq).unlink()
    before = everything(damaged.job)
    damaged.job.run().check_error(4, "data")
    assert everything(damaged.job) == before


def test_damage_to_a_large_source_log_is_reported_with_its_name(damaged: DamagedJob) -> None:
    """Spark's source logs, where they are too large for the manifest, are files of their own."""
    path = _add_source_log(damaged)
    DAMAGES["half"](path)
    check_refused(damaged, path)


def _add_source_log(damaged: DamagedJob) -> Path:
    """Rewrites the newest checkpoint as one of a job whose source has a large log."""
    # Without the entry that ends the run, the checkpoint's own one is the newest, and no other has its hash.
    damaged.files("log entry")[0].unlink()
    newest, manifest, stored = damaged.job.head, damaged.job.manifest, damaged.files("manifest")[0]
    path = stored.with_name("sources-0-9.compact")
    path.write_bytes(b"a line of a log\n" * 1000)
    log = {"path": "0/9.compact", "content": None, "handle": root_files.handle_of(damaged.root, path)}
    text = root_files.encoded(b"v1\n{}\n{}")
    spark = {"batch_id": 9, "offsets": text, "previous_offsets": None, "commit": text, "source_files": [log]}
    stored.write_bytes(root_files.sealed({**manifest, "spark": spark}))
    entry = {**newest.doc, "manifest": root_files.handle_of(damaged.root, stored)}
    root_files.entry_path(damaged.root, newest.seq).write_bytes(root_files.sealed(entry))
    assert damaged.job.manifest["spark"]["source_files"] == [log]
    return path


def test_damage_to_a_retained_manifest_is_reported_at_its_adoption(damaged: DamagedJob) -> None:
    damaged.job.reach("commit.after:2")
    newest = damaged.job.lose_output()
    path = damaged.root / newest.doc["retained"][-1]["manifest"]["key"]
    path.unlink()
    # Only who owns the job may go back, so that the run has claimed it by then.
    check_refused(damaged, path, claims=True)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_collection_reports_damage_before_any_deletion(damaged: DamagedJob, kind: str) -> None:
    path = damaged.files(kind)[0]
    DAMAGES["a bit in the middle"](path)
    before = root_files.digests(damaged.root)
    ended = damaged.job.command("gc")
    assert (ended.code, root_files.digests(damaged.root)) == (4, before), str(ended)
    assert str(path.relative_to(damaged.root)) in ended.error.facts.values(), str(ended)


# -- stateflow verify --------------------------------------------------------------------------------------------------


COUNT = state_id("count")
_INTEGERS: ValueSerializer[int] = ValueSerializer(int)
ONE = _INTEGERS.encode(1)
KEY = encode_key((7, None))
UNFINISHED = encode_key(("x",))[:-1]


@pytest.fixture
def ran(job: AccountsJob) -> AccountsJob:
    job.run_to(6 * SLICE, checkpoints__retained=3)
    return job


@pytest.mark.slow(reason="damages each file of a job in turn")
def test_verify_reads_all_of_each_retained_checkpoint(ran: AccountsJob) -> None:
    """With ``--deep``, the entries that the oracle has are counted; nothing is left over: no pin, no file."""
    found = ran.command("verify", "--json").document
    kept = sorted(e.seq for e in root_files.kept_entries(ran.root))
    assert [(f["checkpoint_id"], f["entries"]) for f in found] == [(seq, None) for seq in kept]
    shown = ran.command("verify").check().out.splitlines()
    assert [int(re.findall(r"\d+", line)[0]) for line in shown] == [*kept, len(root_files.history_index(ran.root))]
    expected = sum(len(stored_state.read_state(ran.root, uid)) for uid in ("balances", "turnovers"))
    (deep,) = ran.command("verify", "--deep", "--checkpoint", str(kept[-1]), "--json").document
    assert deep["entries"] == expected > 0
    assert str(expected) in ran.command("verify", "--deep").check().out.splitlines()[-2]
    assert ran.head.doc["pinned"] == []
    ran.check_clean()


def test_verify_refuses_a_checkpoint_that_is_not_retained_with_those_that_are(ran: AccountsJob) -> None:
    refused = ran.command("verify", "--checkpoint", "2")
    assert (refused.code, refused.error.code, refused.error.facts) == (2, "config", {"wanted": 2})
    assert f"kept={sorted(e.seq for e in root_files.kept_entries(ran.root))}" in refused.err
    assert "stateflow checkpoints list" in refused.err


@pytest.mark.slow(reason="damages each kind of file of a job in turn")
def test_verify_reports_each_file_that_is_not_as_recorded_with_its_name(ran: AccountsJob, tmp_path: Path) -> None:
    damages = [DAMAGES[name] for name in ("a bit in the middle", "the last byte missing", "removed")]
    live = [key for key in root_files.live_files(ran.root) if key.startswith("data/")]
    assert len(live) > 5
    for number, key in enumerate(live):
        path, whole = ran.root / key, tmp_path / "whole"
        # Another file: what is linked elsewhere, as in the host's cache, stays.
        shutil.move(path, whole)
        shutil.copy(whole, path)
        damages[number % len(damages)](path)
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
def test_verify_deep_reports_wrong_entries_in_files_that_are_as_recorded(
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
    states = [StateSchema(name="count", kind="value", value_type="int", type=type_schema(int))]
    operator = OperatorState(
        uid="op", parallelism=1, key_types=["bigint"], key_names=["key"], subtasks=[state], states=states
    )
    manifest = Manifest(job_uuid=root.job.job_uuid, generation=generation, ordinal=1, operators=[operator], sources=[])
    handle = write_manifest(storage, into, manifest)
    assert isinstance(root.commit(head, Commit(1, handle, [], [], {}, frozenset()), RetentionLimits(3)), Appended)
