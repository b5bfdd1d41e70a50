"""Savepoints in a storage: their names, who owns one, and which of them retention deletes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import ClaimState, Manifest, Origin, Savepoint
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.checkpoint.savepoints.catalog import (
    TOMBSTONE,
    StoredSavepoint,
    list_savepoints,
    put_marker,
    read_savepoint,
)
from stateflow.checkpoint.savepoints.claim_slots import (
    Disposal,
    check_writable,
    claim_savepoint,
    current_claim,
    is_claimed,
    owner_of,
    release_claim,
    reserve_deletion,
)
from stateflow.checkpoint.savepoints.cleanup import (
    SavepointRule,
    dispose_external,
    find_expired_savepoints,
    find_uncounted_savepoints,
)
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.errors import ConfigError, CorruptFile, Fenced, SavepointClaimed, StateflowError, StorageError
from stateflow.operations import RekeyRequest, rekey_savepoint
from stateflow.storage import MemoryStorage, PosixStorage, PutResult, Storage, register_memory, unregister_memory
from stateflow.storage.paths import CLAIMS, SAVEPOINT, claim_slot, savepoint_folder
from tests.storage.savepoints_over_storages import FOLDER, slot
from tests.support.errors import raises


@pytest.mark.parametrize("name", ["latest", "7", "007"])
def test_a_name_that_means_a_checkpoint_is_refused(name: str) -> None:
    with raises(ConfigError, name=name):
        check_savepoint_name(name)
    assert check_savepoint_name(f"{name}-old") == f"{name}-old"


def test_an_abandoned_savepoint_does_not_exist_and_cannot_be_completed() -> None:
    storage, folder = MemoryStorage(), "savepoints/mine-00000000/"
    assert put_marker(storage, folder, TOMBSTONE)
    assert not put_marker(storage, folder, b"a document")
    assert read_savepoint(storage, folder) is None
    assert list_savepoints(storage) == []


MINE, THEIRS = "a" * 32, "b" * 32
Step = tuple[str, str, int]
"""What is done, by which job, and by which of its generations; "dispose" and "force" are a user's."""


def _stored(storage: MemoryStorage | None = None) -> MemoryStorage:
    storage = storage or MemoryStorage()
    MemoryStorage.put_new(storage, f"{FOLDER}{SAVEPOINT}", b"complete")
    return storage


def _do(storage: Storage, step: Step) -> None:
    action, job, generation = step
    if action == "claim":
        claim_savepoint(storage, FOLDER, slot(job, generation))
    elif action == "release":
        release_claim(storage, FOLDER, slot(job, generation, ClaimState.RELEASED), claimed_by=generation - 1)
    else:
        reserve_deletion(storage, FOLDER, Disposal("a user", "2026-01-01", is_claimed_too=action == "force"))


def _owner(storage: Storage) -> tuple[str, int] | None:
    claim = current_claim(storage, FOLDER)
    return (claim.job_uuid, claim.generation) if claim else None


@dataclass
class _Rules:
    """The rules without slots: one owner, and the newest generation of each job that has written anything."""

    owner: tuple[str, int] | None = None
    is_deleted: bool = False
    newest: dict[str, int] = field(default_factory=dict)

    def do(self, step: Step) -> type[StateflowError] | None:
        action, job, generation = step
        if action == "claim":
            return self._claim(job, generation)
        if action == "release":
            if not self.is_deleted and (self.owner is None or (self.owner[0] == job and self.owner[1] < generation)):
                self._wrote(None, job, generation)
            return None
        if self.owner and action != "force":
            return SavepointClaimed
        self.owner, self.is_deleted = None, True
        return None

    def _claim(self, job: str, generation: int) -> type[StateflowError] | None:
        if self.is_deleted:
            return ConfigError
        if self.owner and self.owner[0] != job:
            return SavepointClaimed
        if self.newest.get(job, 0) > generation:
            return Fenced
        self._wrote((job, generation), job, generation)
        return None

    def _wrote(self, owner: tuple[str, int] | None, job: str, generation: int) -> None:
        self.owner = owner
        self.newest[job] = max(generation, self.newest.get(job, 0))


STEPS = st.one_of(
    st.tuples(st.sampled_from(["claim", "release"]), st.sampled_from([MINE, THEIRS]), st.integers(1, 5)),
    st.sampled_from([("dispose", "", 0), ("force", "", 0)]),
)


@given(st.lists(STEPS, max_size=12))
def test_the_owner_of_a_savepoint_follows_from_the_steps_in_their_order(steps: list[Step]) -> None:
    storage, rules = _stored(), _Rules()
    for step in steps:
        expected, found = rules.do(step), None
        try:
            _do(storage, step)
        except StateflowError as e:
            found = type(e)
        assert (found, _owner(storage)) == (expected, rules.owner), step


class _Racing(MemoryStorage):
    """Storage in which another process acts directly before the first slot of this one is created."""

    other: Callable[[], None] | None = None

    def put_new(self, key: str, data: bytes) -> PutResult:
        other, self.other = self.other, None
        if other:
            other()
        return super().put_new(key, data)


@pytest.mark.parametrize(
    ("slower", "faster", "outcome"),
    [
        (("claim", MINE, 1), ("claim", THEIRS, 1), SavepointClaimed),
        (("claim", MINE, 1), ("dispose", "", 0), ConfigError),
        (("claim", MINE, 1), ("release", MINE, 2), Fenced),
        (("claim", MINE, 1), ("claim", MINE, 2), Fenced),
        (("dispose", "", 0), ("claim", MINE, 1), SavepointClaimed),
        (("release", MINE, 2), ("claim", MINE, 1), None),
        (("release", MINE, 2), ("claim", THEIRS, 1), None),
    ],
    ids=lambda value: f"{value[0]} {value[1][:1]}{value[2]}" if isinstance(value, tuple) else "",
)
def test_a_process_that_is_paused_before_its_slot_meets_the_faster_one(
    slower: Step, faster: Step, outcome: type[StateflowError] | None
) -> None:
    storage, rules = _Racing(), _Rules()
    _stored(storage)
    storage.other = lambda: _do(storage, faster)
    rules.do(faster)
    assert rules.do(slower) is outcome
    if outcome is None:
        _do(storage, slower)
    else:
        with raises(outcome):
            _do(storage, slower)
    assert _owner(storage) == rules.owner


class _Unclear(MemoryStorage):
    """Storage that does not answer whether it has created a slot, and has not in the first `lost` times."""

    lost = 0

    def put_new(self, key: str, data: bytes) -> PutResult:
        self.lost -= 1
        if self.lost < 0:
            super().put_new(key, data)
        return PutResult.UNKNOWN


def test_a_copy_whose_marker_may_arrive_later_is_tried_again(tmp_path: Path) -> None:
    into = _Unclear("memory://unclear-copy")
    register_memory(into)
    manifest = Manifest(job_uuid=MINE, generation=1, ordinal=1, operators=[], sources=[])
    document = Savepoint(
        version=1, id=THEIRS, name="made", origin=Origin.MANUAL, made_at="2026-01-01T00:00:00+00:00",
        committed_at="2026-01-01T00:00:00+00:00", by="b", job="j", job_uuid=MINE, max_parallelism=4, checkpoint_id=1,
        manifest=manifest, sinks={},
    )  # fmt: skip
    PosixStorage(tmp_path).put_new(SAVEPOINT, seal(document)[0])
    request = RekeyRequest(str(tmp_path), 8, into.uri)
    into.lost = 1
    with raises(StorageError):
        rekey_savepoint(request)
    assert rekey_savepoint(request).name == "made"
    unregister_memory(into.uri)


def test_a_claim_whose_answer_was_lost_counts_once() -> None:
    storage = _Unclear()
    _stored(storage)
    _do(storage, ("claim", MINE, 1))
    _do(storage, ("claim", MINE, 1))
    assert (_owner(storage), storage.size(claim_slot(FOLDER, 2))) == ((MINE, 1), None)


class _Unsynced(_Unclear):
    """Storage that stores a slot, and cannot make the slot durable."""

    def durable_size(self, key: str) -> int | None:
        raise StorageError("the folder cannot be synced", key=key)


def test_a_claim_that_a_power_failure_could_undo_is_not_reported() -> None:
    storage = _Unsynced()
    _stored(storage)
    with raises(StorageError, key=claim_slot(FOLDER, 1)):
        _do(storage, ("claim", MINE, 1))


def test_a_claim_that_the_storage_does_not_confirm_fails_and_can_be_repeated() -> None:
    storage = _Unclear()
    _stored(storage)
    storage.lost = 1
    with raises(StorageError, key=claim_slot(FOLDER, 1)):
        _do(storage, ("claim", MINE, 1))
    _do(storage, ("claim", MINE, 1))
    assert _owner(storage) == (MINE, 1)


class _Disposed(PosixStorage):
    """Storage in which a user's command deletes the savepoint just before the first slot is created."""

    is_disposed = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        if CLAIMS in key and not self.is_disposed:
            self.is_disposed = True
            dispose_external(self, FOLDER, None)
        return super().put_new(key, data)


@pytest.mark.parametrize("step", [("claim", MINE, 1), ("release", MINE, 2)])
def test_nothing_is_left_of_a_savepoint_that_is_deleted_during_a_claim(tmp_path: Path, step: Step) -> None:
    storage = _Disposed(tmp_path)
    storage.put_new(f"{FOLDER}{SAVEPOINT}", b"complete")
    # As a process leaves it that was killed before it created its slot.
    (tmp_path / FOLDER / CLAIMS).mkdir()
    with contextlib.suppress(ConfigError):
        _do(storage, step)
    assert storage.is_disposed and not (tmp_path / FOLDER).exists()


class _ReadOnly(MemoryStorage):
    def put_new(self, key: str, data: bytes) -> PutResult:
        raise ConfigError("access to the storage was denied", key=key)


def test_a_savepoint_in_a_read_only_location_cannot_be_claimed() -> None:
    storage = _stored(_ReadOnly("memory://kept"))
    with raises(ConfigError, savepoint="memory://kept/savepoints/mine-00000000"):
        check_writable(storage, FOLDER, "0" * 32)


@pytest.mark.parametrize("data", [b"", b"claimed\n", b"{" * (65 << 10)], ids=["empty", "text", "large"])
def test_a_savepoint_with_a_damaged_slot_is_neither_claimed_nor_deleted(data: bytes) -> None:
    storage = _stored()
    _do(storage, ("claim", MINE, 1))
    storage.put_new(claim_slot(FOLDER, 2), data)
    for step in (("claim", MINE, 2), ("dispose", "", 0), ("release", MINE, 3)):
        with raises(CorruptFile, file=claim_slot(FOLDER, 2)):
            _do(storage, step)
    assert (owner_of(storage, FOLDER), is_claimed(storage, FOLDER)) == (None, True)


def test_a_savepoint_with_more_slots_than_jobs_write_is_refused_before_they_are_read() -> None:
    storage = _stored()
    for number in range(1001):
        storage.put_new(claim_slot(FOLDER, number), b"")
    with raises(CorruptFile, found=1001):
        _do(storage, ("claim", MINE, 1))


NOW = datetime(2026, 6, 1, tzinfo=UTC)
THIS_JOB, DAY = "a" * 32, timedelta(days=1)


def _savepoint(name: str, days: float, origin: Origin = Origin.PERIODIC, job_uuid: str = THIS_JOB) -> StoredSavepoint:
    document = Savepoint(
        version=1,
        id=name,
        name=name,
        origin=origin,
        made_at=(NOW - timedelta(days=days)).isoformat(),
        committed_at=(NOW - timedelta(days=days)).isoformat(),
        by="a test",
        job="flights",
        job_uuid=job_uuid,
        max_parallelism=128,
        checkpoint_id=1,
        manifest=Manifest(job_uuid=THIS_JOB, generation=1, ordinal=1, operators=[], sources=[]),
        sinks={},
    )
    return _in_folder(f"{name}-00000000", document)


def _in_folder(folder: str, document: Savepoint) -> StoredSavepoint:
    return StoredSavepoint(MemoryStorage(), savepoint_folder(folder), document, "")


def _expired(savepoints: list[StoredSavepoint], keep: int | None = None, max_age: timedelta | None = None) -> list[str]:
    return [
        s.document.name
        for s in find_expired_savepoints(savepoints, THIS_JOB, SavepointRule(keep=keep, max_age=max_age), NOW)
    ]


WEEK = [_savepoint(f"d{day}", day) for day in range(7)]
VERY_OLD = [_savepoint("old", 400), _savepoint("older", 500)]


@pytest.mark.parametrize(
    ("savepoints", "keep", "max_age", "expired"),
    [
        (WEEK, None, None, []),
        (WEEK, 3, None, ["d6", "d5", "d4", "d3"]),
        (WEEK[::-1], 7, None, []),
        (WEEK, None, 4 * DAY, ["d6", "d5"]),
        (WEEK, 6, 4 * DAY, ["d6", "d5"]),
        (WEEK, 2, 4 * DAY, ["d6", "d5", "d4", "d3", "d2"]),
        (VERY_OLD, None, DAY, ["older"]),
        ([_savepoint("copied", 100, job_uuid="b" * 32), *WEEK], 7, None, []),
    ],
    ids=["no-limit", "count", "order-of-the-list", "age", "age-is-stricter", "count-is-stricter", "newest", "others"],
)
def test_periodic_savepoints_expire_by_count_or_age(
    savepoints: list[StoredSavepoint], keep: int | None, max_age: timedelta | None, expired: list[str]
) -> None:
    assert _expired(savepoints, keep, max_age) == expired


@pytest.mark.parametrize("origin", [o for o in Origin if o is not Origin.PERIODIC])
def test_other_savepoints_are_neither_deleted_nor_counted(origin: Origin) -> None:
    assert _expired([_savepoint("mine", 100, origin), *WEEK, _savepoint("newest", 0, origin)], keep=6) == ["d6"]


def test_a_rule_that_keeps_none_is_refused() -> None:
    with raises(ConfigError, keep=0):
        _expired(WEEK, keep=0)
    with raises(ConfigError, max_age=str(timedelta())):
        _expired(WEEK, max_age=timedelta())


def test_copies_and_savepoints_from_the_future_are_neither_deleted_nor_counted() -> None:
    renamed = _in_folder("elsewhere", WEEK[0].document)
    copy = _in_folder("d1-11111111", WEEK[1].document)
    future = _savepoint("future", -0.001)
    assert find_uncounted_savepoints([*WEEK, renamed, copy, future], NOW) == [WEEK[1], renamed, copy, future]
