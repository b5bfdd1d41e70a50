"""Damage to anything that a checkpoint consists of is reported by name, at a start and by ``stateflow verify``."""

from __future__ import annotations

import hashlib
import json
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
from stateflow.requesters import os_account
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
from tests.support.job_fixture import KILLED, SLICE, AccountsJob, mostly_slow
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


# -- the history against a user who can write to the job root, and against kills --------------------------------------

CHANGED = 4
"""Exit code of commands that find a changed history."""
_HAS_PROBLEM = 6


@pytest.fixture
def told(job: AccountsJob) -> AccountsJob:
    """A job whose history has checkpoints of three runs and two savepoints, all of which an index covers."""
    job.run_to(30)
    for name in ("one", "two"):
        job.command("savepoint", "create", "--name", name, "--by", "ana").check()
    job.run_to(60)
    job.run_to(90)
    return job


def objects(job: AccountsJob) -> list[Path]:
    return sorted((job.root / "history").iterdir())


def of_savepoint(job: AccountsJob, name: str) -> Path:
    found = [path for path in objects(job) if "-savepoint-" in path.name]
    (path,) = [path for path in found if json.loads(path.read_bytes())["facts"]["savepoint"] == name]
    return path


def shown(job: AccountsJob, code: int = 0) -> list[dict[str, Any]]:
    ended = job.command("history", "--json")
    assert ended.code == code, str(ended)
    return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]


def integrity(records: list[dict[str, Any]]) -> set[str]:
    return {record["integrity"] for record in records}


def edit_author(job: AccountsJob) -> set[str]:
    path = of_savepoint(job, "one")
    record = {**json.loads(path.read_bytes()), "by": "airflow-user:ana"}
    path.write_text(json.dumps(record))
    return {f"history/{path.name}"}


def remove_last(job: AccountsJob) -> set[str]:
    path = objects(job)[-1]
    path.unlink()
    return {f"history/{path.name}"}


def swap(job: AccountsJob) -> set[str]:
    one, two = of_savepoint(job, "one"), of_savepoint(job, "two")
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    return {f"history/{path.name}" for path in (one, two)}


def rename(job: AccountsJob) -> set[str]:
    path = of_savepoint(job, "one")
    path.rename(path.with_name(path.name.replace("savepoint-", "savepoint-0")))
    return {f"history/{path.name}"}


def remove_index(job: AccountsJob) -> set[str]:
    key = root_files.head(job.root).doc["history"]["key"]
    (job.root / key).unlink()
    return {key}


def forge_index(job: AccountsJob) -> set[str]:
    """A record is changed, and its hash in the index as well."""
    edit_author(job)
    key = root_files.head(job.root).doc["history"]["key"]
    path = of_savepoint(job, "one")
    document = root_files.unsealed((job.root / key).read_bytes())[0]
    document["objects"][f"history/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (job.root / key).write_bytes(root_files.sealed(document))
    return {key}


def remove_everything(job: AccountsJob) -> set[str]:
    for path in objects(job):
        path.unlink()
    return remove_index(job)


ATTACKS = {
    attack.__name__: attack
    for attack in (edit_author, remove_last, swap, rename, remove_index, forge_index, remove_everything)
}


@pytest.mark.parametrize("attack", mostly_slow(ATTACKS, ["edit_author"]))
def test_a_changed_history_is_reported_and_the_rest_still_shown(told: AccountsJob, attack: str) -> None:
    before = shown(told)
    assert integrity(before) == {"verified"}
    named = ATTACKS[attack](told)
    for command in (("history",), ("history", "--json"), ("verify",)):
        ended = told.command(*command)
        ended.check_error(CHANGED, "history-changed")
        assert all(key in str(ended) for key in named), str(ended)
    assert told.command("doctor").code == _HAS_PROBLEM
    # One object of checkpoints or one record is at most lost; what was changed is not shown as verified.
    after = shown(told, CHANGED)
    assert len(after) >= len(before) - 4 or attack == "remove_everything"
    if attack in ("remove_index", "forge_index"):
        assert integrity(after) == {"unverified"}
    assert all(r["integrity"] != "verified" for r in after if (r.get("by") or {}).get("source") == "airflow-user")

    # The job does not depend on it, and its next runs neither repair nor hide it.
    for until in (100, 110):
        told.run_to(until)
        ended = told.command("verify")
        ended.check_error(CHANGED, "history-changed")
        assert all(key in str(ended) for key in named)
    told.check_results()


@pytest.mark.slow(reason="runs a job in several processes")
def test_a_record_is_unverified_until_a_run_has_recorded_its_hash(told: AccountsJob) -> None:
    told.command("savepoint", "create", "--name", "late", "--by", "ana").check()
    (late,) = [r for r in shown(told) if r["integrity"] != "verified"]
    assert (late["facts"]["savepoint"], late["integrity"]) == ("late", "unverified")
    assert late["by"] == {"name": "ana", "source": "claim", "account": os_account()}
    told.run_to(100)
    assert integrity(shown(told)) == {"verified"}
    assert len(root_files.history_index(told.root)) == len(objects(told))


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize("point", ["history.indexed", "commit.after"])
def test_a_kill_between_record_index_and_log_entry_is_no_false_alarm(told: AccountsJob, point: str) -> None:
    told.command("savepoint", "create", "--name", "three").check()
    told.deliver(130)
    assert told.run(point).code == KILLED
    assert "changed" not in integrity(shown(told))
    told.command("verify").check()
    told.run_to(150)
    assert integrity(shown(told)) == {"verified"}
    told.check()


@pytest.mark.slow(reason="runs jobs many times")
def test_the_history_stays_verified_and_bounded_when_retention_trims_records(job: AccountsJob) -> None:
    job.settings = {"history__retained": 4}
    for until in range(10, 70, 10):
        job.run_to(until)
        job.command("savepoint", "create", "--name", f"s{until}").check()
        job.command("verify").check()
        # Never fewer than the setting; and beyond it what an earlier index still contains.
        assert len(objects(job)) <= 2 * 4
    assert 4 <= len(shown(job)) <= 2 * 4
    # A job whose runs all fail before their first checkpoint commits no index, and its history stays bounded as well.
    for _ in range(8):
        job.deliver(70)
        assert job.run("batch.begin:1:error").code != 0
    assert len(objects(job)) <= 3 * 4
    job.command("verify").check()
