"""Time to live: when entries of each kind expire, the expiry index and its cleanup, and changes of the declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow.errors import CorruptFile, JobDefinitionError, StateError
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.stored_key import decode_expiry_key, expiry_id
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import decode_untyped, with_timestamp
from stateflow.types.ttl_config import StateTtlConfig, StateTtlConfigBuilder, Time
from tests.support.errors import raises
from tests.support.operators import Mean
from tests.support.stores import CountingStore, DictStoreFixture, RocksStoreFixture, StoreFixture, address, set_key

GROUPS = KeyGroupRange(0, 15)
AHEAD = 1 << 41
"""Milliseconds by which processing time is ahead of the watermark: decades."""


def ttl_builder(milliseconds: int = 100) -> StateTtlConfigBuilder:
    return StateTtlConfig.new_builder(Time.milliseconds(milliseconds))


HUNDRED, EVENT = ttl_builder().build(), ttl_builder().use_event_time().build()
RELAXED = ttl_builder().return_expired_if_not_cleaned_up().build()
ON_READ = ttl_builder().update_ttl_on_read_and_write().build()
TTLS: dict[str, StateTtlConfig | None] = {
    "none": None,
    "30": ttl_builder(30).build(),
    "100": HUNDRED,
    "500": ttl_builder(500).build(),
    "longest": StateTtlConfig.new_builder(timedelta.max).build(),
    "on-read": ON_READ,
    "event": EVENT,
}


@dataclass(frozen=True)
class Kind:
    declare: Callable[[KeyedState, StateTtlConfig | None], Any]
    write: Callable[[Any, int], object]
    read: Callable[[Any], int | None]


def _map(state: KeyedState, ttl: StateTtlConfig | None) -> Any:
    return state.map_state(MapStateDescriptor("s", str, int, ttl=ttl))


KINDS = {
    "value": Kind(
        lambda s, ttl: s.value_state(ValueStateDescriptor("s", int, ttl=ttl)),
        lambda state, n: state.update(n),
        lambda state: state.value(),
    ),
    "list": Kind(
        lambda s, ttl: s.list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda state, n: state.update([n]),
        lambda state: next(iter([*state.get()]), None),
    ),
    "map": Kind(_map, lambda state, n: state.put("k", n), lambda state: state.get("k")),
    "map-entries": Kind(_map, lambda state, n: state.put("k", n), lambda state: dict(state.items()).get("k")),
    "reducing": Kind(
        lambda s, ttl: s.reducing_state(ReducingStateDescriptor("s", lambda a, b: b, int, ttl=ttl)),
        lambda state, n: state.add(n),
        lambda state: state.get(),
    ),
    "aggregating": Kind(
        lambda s, ttl: s.aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int], ttl=ttl)),
        lambda state, n: (state.clear(), state.add(n)),
        lambda state: state.get(),
    ),
}


@dataclass
class Life:
    """An operator's batches at given times, each restored from the one before."""

    kind: Kind
    ttl: StateTtlConfig | None = field(default_factory=lambda: HUNDRED)
    stores: StoreFixture = field(default_factory=DictStoreFixture)
    known: list[StateSchema] = field(default_factory=list)
    epoch: int = 0
    prefetch: bool = True
    ahead: int = AHEAD

    def __post_init__(self) -> None:
        self.store = CountingStore(self.stores.new())

    def at(self, now: int | None, limit: int = 0) -> Batch:
        """The batch at this watermark; processing time is `ahead` of it. `limit` is for the batch's cleanup."""
        self.epoch += 1
        return Batch(self, BatchTime(self.epoch, (now or 0) + self.ahead, now), limit)

    def write(self, now: int | None, number: int = 1, key: str = "a") -> None:
        with self.at(now) as batch:
            set_key(batch.owner, key)
            self.kind.write(batch.state, number)

    def read(self, now: int | None, key: str = "a") -> int | None:
        with self.at(now) as batch:
            set_key(batch.owner, key)
            return self.kind.read(batch.state)

    def clean(self, now: int | None, limit: int = 1000) -> None:
        with self.at(now, limit):
            pass

    def full_snapshot(self, now: int | None) -> None:
        with self.at(now) as batch:
            batch.owner.end_key_batch()
            batch.owner.ttl_cleanup(GROUPS).remove_all()

    @property
    def entries(self) -> list[bytes]:
        return [key for key, _ in self.store.inside.scan(b"")]

    def play(self, script: str, **ttls: StateTtlConfig) -> None:
        """Does the steps of a script. Each batch has its time and one step: write or read a number, of key "a" unless
        the step ends with another one; clean, with a limit; take a full snapshot; nothing. `left` counts entries."""
        for step in script.split(", "):
            match step.split():
                case ["ttl", name]:
                    self.ttl = ttls[name] if name in ttls else TTLS[name]
                case ["left", number]:
                    assert len(self.entries) == int(number), step
                case [time, *action]:
                    self._do(None if time == "unknown" else int(time), action, step)

    def _do(self, now: int | None, action: list[str], step: str) -> None:
        match action:
            case ["write", number, *key]:
                self.write(now, int(number), *key)
            case ["read", wanted, *key]:
                assert self.read(now, *key) == (None if wanted == "none" else int(wanted)), step
            case ["clean", *limit]:
                self.clean(now, *map(int, limit))
            case ["nothing"]:
                self.clean(now, limit=0)
            case ["full", "snapshot"]:
                self.full_snapshot(now)
            case _:
                raise AssertionError(step)


@dataclass
class Batch:
    life: Life
    time: BatchTime
    limit: int

    def __enter__(self) -> Batch:
        life = self.life
        self.owner = KeyedState(life.store, life.known, self.time)
        self.state = life.kind.declare(self.owner, life.ttl)
        self.owner.begin_key_batch([address("a"), address("b")] if life.prefetch else [])
        return self

    def __exit__(self, *failed: object) -> None:
        self.owner.end_key_batch()
        if self.limit:
            self.owner.ttl_cleanup(GROUPS).remove_some(self.limit)
        life = self.life
        life.known = self.owner.registry.schemas
        life.store = CountingStore(life.stores.reopened(life.store.inside))


def scripts(file: str) -> dict[str, str]:
    """The scripts of a file: a name, then the steps, which may continue in an indented line."""
    lines = (Path(__file__).parent / "data" / file).read_text().strip().replace("\n   ", "").splitlines()
    return {name: steps for name, _, steps in (line.partition(" | ") for line in lines)}


every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

LIVES = scripts("lives.txt")


@every_kind
@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetched", "read"])
@pytest.mark.parametrize("script", LIVES.values(), ids=LIVES)
def test_an_entry_of_each_kind_of_state_expires_after_its_time_to_live(kind: Kind, script: str, prefetch: bool) -> None:
    Life(kind, prefetch=prefetch).play(script)


CHANGES = scripts("changes_of_time.txt")


@every_kind
@pytest.mark.parametrize("to", ["event", "processing"])
@pytest.mark.parametrize("script", CHANGES.values(), ids=CHANGES)
def test_an_entry_whose_kind_of_time_changes_expires_by_the_new_kind_of_time(kind: Kind, script: str, to: str) -> None:
    """The two clocks are decades apart and are never compared."""
    before, after = (HUNDRED, EVENT) if to == "event" else (EVENT, HUNDRED)
    Life(kind).play(script, before=before, after=after)


@every_kind
def test_entries_in_rocksdb_expire_after_their_time_to_live(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    life = Life(kind, stores=RocksStoreFixture(tmp_path_factory.mktemp("rocksdb")))
    life.play("0 write 1, 60 write 2 b, 99 read 1, 100 clean, 100 read none, left 2, 160 clean, left 0")
    life.store.close()


@every_kind
def test_relaxed_visibility_returns_a_stale_value_once(kind: Kind) -> None:
    life = Life(kind, RELAXED)
    life.write(0)
    with life.at(120) as batch:
        set_key(batch.owner, "a")
        assert [kind.read(batch.state) for _ in range(2)] == [1, None]
    assert life.read(120) is None
    assert life.entries == []


@pytest.mark.parametrize("ttl", [HUNDRED, RELAXED, ON_READ], ids=["expires", "relaxed", "on-read"])
def test_what_is_written_while_a_map_is_read_is_not_undone_by_reading(ttl: StateTtlConfig) -> None:
    life = Life(KINDS["map"], ttl)
    with life.at(0) as batch:
        set_key(batch.owner, "a")
        batch.state.put_all({"x": 1, "y": 1, "z": 1})
    with life.at(50 if ttl is ON_READ else 100) as batch:
        set_key(batch.owner, "a")
        entries = batch.state.items()
        batch.state.put("x", 2)
        batch.state.remove("y")
        set_key(batch.owner, "b")  # flushes what was put
        list(entries)
        set_key(batch.owner, "a")
        assert dict(batch.state.items()) == ({"x": 2, "z": 1} if ttl is ON_READ else {"x": 2})


def test_an_expired_value_is_read_as_the_default() -> None:
    with_default = ValueStateDescriptor("s", int, ttl=HUNDRED, default=7)
    kind = Kind(lambda s, ttl: s.value_state(with_default), KINDS["value"].write, KINDS["value"].read)
    Life(kind).play("0 write 1, 99 read 1, 100 read 7")


@pytest.mark.parametrize("kind", ["value", "map"])
def test_in_event_time_an_earlier_write_shortens_no_life(kind: str) -> None:
    Life(KINDS[kind], EVENT).play("100 write 1, 50 write 2, 199 read 2, 200 read none")


def test_a_null_in_a_column_removes_a_value_with_a_time_to_live_and_its_index_entry() -> None:
    store = DictStoreFixture().new()
    state = KeyedState(store)
    value = state.value_state(ValueStateDescriptor("s", int, ttl=HUNDRED))
    group, key = address("a")
    batch = state.batch_of([group], [key])
    batch.write(value, pa.array([1]))
    assert batch.read(value).to_pylist() == [1]
    batch.write(value, pa.array([None], pa.int64()))
    assert batch.read(value).to_pylist() == [None]
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def _fill(life: Life, *numbers: int) -> None:
    """Writes so many keys to the first key groups."""
    with life.at(0) as batch:
        for group, number in enumerate(numbers):
            for n in range(number):
                batch.owner.set_key(group.to_bytes(2), address(n)[1])
                life.kind.write(batch.state, n)


def test_a_cleanup_is_bounded_and_cleanups_come_to_everything() -> None:
    life = Life(KINDS["value"])
    _fill(life, *[10] * 16)
    left = [320]
    while left[-1]:
        life.clean(100, limit=7)
        left.append(len(life.entries))
        assert left[-2] - left[-1] <= 14 and len(left) < 200
    assert len(left) > 160 // 7


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_each_key_group_has_its_turn_while_another_one_has_much_to_clean(limit: int) -> None:
    life = Life(KINDS["value"])
    _fill(life, 2000, *[0] * 8, 1)
    for _ in range(len(GROUPS)):
        life.clean(100, limit=limit)
    assert not [key for key in life.entries if key.startswith((9).to_bytes(2))]


def test_a_state_may_be_cleaned_up_more_or_not_at_all() -> None:
    off, more = ttl_builder().disable_cleanup_in_background().build(), ttl_builder().cleanup_incrementally(1000).build()
    Life(KINDS["value"], off).play("0 write 1, 500 clean, left 2, ttl more, 500 clean 1, left 0", more=more)


@every_kind
def test_a_subtask_without_rows_drops_its_expiry_index_after_the_time_to_live_was_removed(kind: Kind) -> None:
    life = Life(kind)
    life.write(0)
    life.ttl = None
    for _ in range(3):  # other subtasks' batches: what they declare goes into the manifest
        owner = KeyedState(DictStoreFixture().new(), life.known, BatchTime(9))
        kind.declare(owner, None)
        life.known = owner.registry.schemas
    life.play("1000 clean, left 1")


def test_the_bytes_are_those_of_the_format() -> None:
    life = Life(KINDS["value"], ahead=0)
    life.write(258, 7)
    group, key = address("a")
    timestamp = bytes.fromhex("8000000000000102")
    state = life.kind.declare(KeyedState(DictStoreFixture().new()), None).id
    stored = dict(life.store.inside.scan(b""))
    assert stored == {
        group + state + key + b"\0": b"\x02" + timestamp + b"\x07",
        group + expiry_id("s", "processing") + timestamp + key + b"\0": b"",
    }
    assert decode_untyped(stored[group + state + key + b"\0"]) == 7


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02" + bytes(7), b"\x03" + bytes(7), b"\x04" + bytes(9)])
def test_bytes_that_are_no_value_are_a_corrupt_file(data: bytes) -> None:
    for read in (decode_untyped, lambda data: with_timestamp(data, 0, "event")):
        with pytest.raises(CorruptFile):
            read(data)


@pytest.mark.parametrize("rest", [b"", b"\0" * 7])
def test_an_expiry_entry_without_a_timestamp_is_a_corrupt_file(rest: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_expiry_key(b"\0\0" + b"size" + rest, b"name")


def test_one_name_has_one_time_to_live(state: KeyedState) -> None:
    state.value_state(ValueStateDescriptor("s", int, ttl=HUNDRED))
    for other in (RELAXED, None):
        with raises(StateError, name="s"):
            state.value_state(ValueStateDescriptor("s", int, ttl=other))


def test_a_disabled_time_to_live_is_none(state: KeyedState) -> None:
    off = ttl_builder().set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    state.value_state(ValueStateDescriptor("count", int, ttl=off))
    (recorded,) = state.registry.schemas
    assert (recorded.ttl_time, recorded.ttl_since, recorded.ttl_index) == ("", None, False)


NO_DURATION: Any = 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: StateTtlConfig.new_builder(timedelta()),
        lambda: StateTtlConfig.new_builder(Time.seconds(-1)),
        lambda: StateTtlConfig.new_builder(timedelta(microseconds=999)),
        lambda: StateTtlConfig.new_builder(NO_DURATION),
        lambda: StateTtlConfig.new_builder(Time.days(1)).cleanup_incrementally(0),
    ],
    ids=["zero", "negative", "below a millisecond", "no duration", "no entries"],
)
def test_a_time_to_live_that_is_not_positive_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(JobDefinitionError):
        make()
