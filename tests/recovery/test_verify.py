"""``stateflow verify``: what is damaged is found and named, whatever it is; what is sound is said to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.checkpoint.documents import Manifest, OperatorState
from stateflow.checkpoint.entries import Commit
from stateflow.checkpoint.files import write_manifest
from stateflow.checkpoint.job_format import NewJob
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Appended
from stateflow.checkpoint.retained import Retention
from stateflow.clock import SystemClock
from stateflow.errors import CorruptFile
from stateflow.keygroups import KeyGroupRange
from stateflow.serializers import ValueSerializer, encode_key
from stateflow.settings import RocksDBSettings
from stateflow.state.current import state_id
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.rocksdb import RocksDBBackend
from stateflow.state.transfer import HostCache
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder
from stateflow.verification import verify
from tests.recovery import disk
from tests.recovery.harness import SLICE, AccountsBox

DAMAGED = 4
COUNT = state_id("count")
ONE = ValueSerializer(int).encode(1)


@pytest.fixture
def ran(box: AccountsBox) -> AccountsBox:
    box.deliver(6 * SLICE)
    box.finish(checkpoints__retained=3)
    return box


def test_of_each_kept_checkpoint_all_is_read(ran: AccountsBox) -> None:
    told = json.loads(ran.command("verify", "--json").out)
    assert [t["checkpoint_id"] for t in told] == sorted(e.seq for e in disk.kept_entries(ran.root))
    assert [t["entries"] for t in told] == [None] * 3
    shown = ran.command("verify")
    assert shown.code == 0 and shown.out.count("all as recorded") == 3
    # Nothing is left behind: no pin, no file.
    assert disk.head(ran.root).doc["pinned"] == []
    ran.check_clean()


def test_deep_counts_the_entries_that_the_oracle_has(ran: AccountsBox) -> None:
    newest = disk.head(ran.root).checkpoint
    (told,) = json.loads(ran.command("verify", "--deep", "--checkpoint", str(newest), "--json").out)
    expected = sum(len(disk.read_state(ran.root, uid)) for uid in ("balances", "turnovers"))
    assert told["entries"] == expected > 0
    shown = ran.command("verify", "--deep")
    assert shown.code == 0 and "entries decode, each in its key group" in shown.out


def test_a_checkpoint_that_is_not_kept_is_told_with_those_that_are(ran: AccountsBox) -> None:
    refused = ran.command("verify", "--checkpoint", "2")
    assert refused.code == 2 and "kept=" in refused.err and "checkpoints list" in refused.err


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_each_file_that_is_not_as_recorded_is_found_and_named(ran: AccountsBox, damage: str) -> None:
    live = [key for key in disk.live_files(ran.root) if key.startswith("data/")]
    assert len(live) > 5
    for key in live:
        path = ran.root / key
        before = path.read_bytes()
        _damage(path, damage)
        found = ran.command("verify")
        assert found.code == DAMAGED and key in found.err, (key, str(found))
        path.unlink(missing_ok=True)
        path.write_bytes(before)
    assert ran.command("verify").code == 0


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    # Another file: what is linked elsewhere, as in the host's cache, stays.
    path.unlink()
    if how == "flip":
        path.write_bytes(
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
    elif how == "cut":
        path.write_bytes(data[:-1])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (b"\0\3" + COUNT + encode_key((7, None)), ONE, "key group of another subtask"),
        (b"\0\1" + b"none" + encode_key((7, None)), ONE, "belongs to no declared state"),
        (b"\0\1" + COUNT + b"\xfe", ONE, "part of an unknown kind"),
        (b"\0\1" + COUNT + encode_key(("x",))[:-1], ONE, "stored key does not decode"),
        (b"\0\1" + COUNT + encode_key((7, None)), b"\1\xc1", "stored value does not decode"),
    ],
)
def test_deep_finds_what_is_stored_as_recorded_and_wrong_all_the_same(
    tmp_path: Path, key: bytes, value: bytes, said: str
) -> None:
    good = {b"\0\2" + COUNT + encode_key((7, None)): ONE}
    _commit(tmp_path, good)
    assert [v.entries for v in verify(str(tmp_path / "root"), deep=True)] == [1]
    _commit(tmp_path, {**good, key: value})
    assert [v.entries for v in verify(str(tmp_path / "root"))] == [None, None]
    with pytest.raises(CorruptFile, match=said) as found:
        verify(str(tmp_path / "root"), deep=True)
    assert (found.value.facts["operator"], found.value.facts["subtask"]) == ("op", 0)


def _commit(folder: Path, entries: dict[bytes, bytes]) -> None:
    """A run whose one checkpoint has these entries in a subtask that owns the key groups 0 to 2."""
    storage, clock = PosixStorage(folder / "root"), SystemClock()
    root = JobRoot.create_or_open(storage, clock, NewJob("job", 4, {"op": ["bigint"]}), "a test")
    head = root.claim()
    into = data_folder(head.entry.generation, 1, "t1")
    cache = HostCache.direct(folder / f"cache-{head.entry.seq}", storage, clock)
    store = RocksDBBackend(
        folder / f"store-{head.entry.seq}", cache, Base(0, KeyGroupRange(0, 2)), RocksDBSettings()
    )
    store.write(entries)
    taken = store.snapshot(f"{into}op-0-")
    store.close()
    state = SubtaskState(subtask=0, first_group=0, last_group=2, snapshot="s", files=list(taken.files),
                         store_manifest=taken.store_manifest)  # fmt: skip
    operator = OperatorState(
        uid="op", parallelism=1, key_types=["bigint"], subtasks=[state],
        states=[StateSchema(name="count", kind="value", value_type="int")],
    )  # fmt: skip
    manifest = Manifest(job_uuid=root.job.job_uuid, generation=head.entry.generation, ordinal=1, operators=[operator],
                        sources=[])  # fmt: skip
    handle = write_manifest(storage, into, manifest)
    assert isinstance(root.commit(head, Commit(1, handle, [], [], {}, frozenset()), Retention(3)), Appended)


def test_a_block_that_cannot_be_read_is_told_with_its_subtask(
    ran: AccountsBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Iterator[tuple[bytes, bytes]]:
        yield from ()
        raise CorruptFile("a file of a RocksDB store is damaged", file="000017.sst")

    monkeypatch.setattr("stateflow.query.state.read_entries", fails)
    with pytest.raises(CorruptFile) as found:
        verify(str(ran.root), deep=True)
    assert found.value.facts == {"operator": "balances", "subtask": 0, "file": "000017.sst"}
