"""Time to live: Flink's cases by name, each kind of entry, the expiry index, and changes of the declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from stateflow.errors import CorruptFile, JobDefinitionError, StateError
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.ttl.entry_ttl import expiry_id
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import decode_untyped, timestamp_of, with_timestamp
from stateflow.types.ttl_config import StateTtlConfig, Time
from tests.state.test_state_kinds import Mean
from tests.support.errors import raises
from tests.support.stores import CountingStore, DictStoreFixture, RocksStoreFixture, StoreFixture, address, set_key

TTL = 100
GROUPS = KeyGroupRange(0, 15)
HUNDRED = StateTtlConfig.new_builder(Time.milliseconds(TTL)).build()
RELAXED = StateTtlConfig.new_builder(Time.milliseconds(TTL)).return_expired_if_not_cleaned_up().build()
ON_READ = StateTtlConfig.new_builder(Time.milliseconds(TTL)).update_ttl_on_read_and_write().build()
EVENT = StateTtlConfig.new_builder(Time.milliseconds(TTL)).use_event_time().build()


@dataclass(frozen=True)
class Kind:
    """One entry of a kind of state, seen as a number."""

    declare: Callable[[KeyedState, StateTtlConfig | None], Any]
    write: Callable[[Any, int], None]
    read: Callable[[Any], int | None]


KINDS = {
    "value": Kind(
        lambda s, ttl: s.value_state(ValueStateDescriptor("s", int, ttl=ttl)),
        lambda h, n: h.update(n),
        lambda h: h.value(),
    ),
    "list": Kind(
        lambda s, ttl: s.list_state(ListStateDescriptor("s", int, ttl=ttl)),
        lambda h, n: h.update([n]),
        lambda h: next(iter([*h.get()]), None),
    ),
    "map": Kind(
        lambda s, ttl: s.map_state(MapStateDescriptor("s", str, int, ttl=ttl)),
        lambda h, n: h.put("k", n),
        lambda h: h.get("k"),
    ),
    "map-entries": Kind(
        lambda s, ttl: s.map_state(MapStateDescriptor("s", str, int, ttl=ttl)),
        lambda h, n: h.put("k", n),
        lambda h: dict(h.items()).get("k"),
    ),
    "reducing": Kind(
        lambda s, ttl: s.reducing_state(ReducingStateDescriptor("s", lambda a, b: b, int, ttl=ttl)),
        lambda h, n: h.add(n),
        lambda h: h.get(),
    ),
    "aggregating": Kind(
        lambda s, ttl: s.aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int], ttl=ttl)),
        lambda h, n: (h.clear(), h.add(n))[0],
        lambda h: h.get(),
    ),
}


@dataclass
class Life:
    """An operator's batches at given times, each restored from the one before."""

    kind: Kind
    ttl: StateTtlConfig | None = HUNDRED
    stores: StoreFixture = field(default_factory=DictStoreFixture)
    known: list[StateSchema] = field(default_factory=list)
    epoch: int = 0
    prefetch: bool = True
    ahead: int = 0

    def __post_init__(self) -> None:
        self.store = CountingStore(self.stores.new())

    def at(self, now: int | None, limit: int = 0) -> Batch:
        """The batch at that time, processing time, which is `ahead`, and watermark; `limit` is for its clean-up."""
        self.epoch += 1
        return Batch(self, BatchTime(self.epoch, (now or 0) + self.ahead, now), limit)

    def write(self, now: int | None, number: int = 1, key: str = "a") -> None:
        with self.at(now) as handle:
            set_key(handle.owner, key)
            self.kind.write(handle.state, number)

    def read(self, now: int | None, key: str = "a") -> int | None:
        with self.at(now) as handle:
            set_key(handle.owner, key)
            return self.kind.read(handle.state)

    def clean(self, now: int | None, limit: int = 1000) -> None:
        with self.at(now, limit):
            pass

    @property
    def entries(self) -> list[bytes]:
        """Stored keys."""
        return [key for key, _ in self.store.inside.scan(b"")]


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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=[True, False], ids=["prefetched", "read"])
def life(kind: Kind, request: pytest.FixtureRequest) -> Life:
    return Life(kind, prefetch=request.param)


# -- Flink's cases --------------------------------------------------------------------------------------------------


def test_expired_is_what_has_lived_for_the_whole_time_to_live(life: Life) -> None:
    life.write(0)
    assert life.read(99) == 1
    assert life.read(100) is None


def test_on_create_and_write_never_return_expired_over_restores(life: Life) -> None:
    life.write(0, 1)
    assert life.read(20) == 1
    life.write(50, 2)
    assert life.read(120) == 2
    life.write(170, 3)
    assert life.read(220) == 3
    assert life.read(300) is None
    life.clean(300)
    assert life.entries == []


def test_reading_an_expired_entry_clears_it(life: Life) -> None:
    life.write(0)
    assert life.read(100) is None
    assert life.entries == []
    assert life.read(0) is None, "it is gone, whatever the clock says"


def test_relaxed_visibility_returns_a_stale_value_once(life: Life) -> None:
    life.ttl = RELAXED
    life.write(0)
    with life.at(120) as batch:
        set_key(batch.owner, "a")
        assert life.kind.read(batch.state) == 1
        assert life.kind.read(batch.state) is None
    assert life.read(120) is None
    assert life.entries == []


def test_on_read_and_write_a_read_begins_the_life_anew(life: Life) -> None:
    life.ttl = ON_READ
    life.write(0)
    assert life.read(50) == 1
    assert life.read(120) == 1
    assert life.read(250) is None
    assert life.entries == []


def test_the_longest_time_to_live_does_not_overflow(life: Life) -> None:
    life.ttl = StateTtlConfig.new_builder(timedelta.max).build()
    life.write(0)
    year_9999 = 253_402_300_799_999
    life.clean(year_9999)
    assert life.read(year_9999) == 1


def test_after_a_restore_entries_expire_by_their_original_times(kind: Kind) -> None:
    life = Life(kind)
    life.write(0, 1)
    snapshot, known = dict(life.store.inside.scan(b"")), life.known
    life.write(90, 2)
    assert life.read(150) == 2
    life.store.write(dict.fromkeys(life.entries))
    life.store.write(snapshot)
    life.known = known
    assert life.read(99) == 1, "the later update is gone"
    assert life.read(100) is None


def test_full_snapshot_cleanup_leaves_nothing_expired_even_if_the_clock_is_set_back(kind: Kind) -> None:
    life = Life(kind)
    life.write(0, key="a")
    life.write(60, key="b")
    with life.at(120) as batch:
        batch.owner.end_key_batch()
        batch.owner.ttl_cleanup(GROUPS).remove_all()
    assert life.read(0, key="a") is None
    assert life.read(0, key="b") == 1
    assert len(life.entries) == 2, "the value and its expiry entry"


# -- entries by themselves --------------------------------------------------------------------------------------------


def _list(ttl: StateTtlConfig | None = HUNDRED) -> Life:
    return Life(KINDS["list"], ttl)


def test_each_element_of_a_list_has_its_own_time() -> None:
    life = _list()
    for now in (0, 40, 80):
        with life.at(now) as batch:
            set_key(batch.owner, "a")
            batch.state.add(now)
    for now, left in ((99, [0, 40, 80]), (100, [40, 80]), (140, [80]), (180, [])):
        with life.at(now) as batch:
            set_key(batch.owner, "a")
            assert list(batch.state.get()) == left
    assert life.entries == []


def test_each_entry_of_a_map_has_its_own_time() -> None:
    life = Life(KINDS["map"])
    for now in (0, 40, 80):
        with life.at(now) as batch:
            set_key(batch.owner, "a")
            batch.state.put(f"{now:02}", now)
    with life.at(140) as batch:
        set_key(batch.owner, "a")
        assert list(batch.state.items()) == [("80", 80)]
        assert batch.state.contains("80") and not batch.state.contains("40")
        assert not batch.state.is_empty()
    with life.at(180) as batch:
        set_key(batch.owner, "a")
        assert batch.state.is_empty()
    assert life.entries == []


def test_adding_to_a_list_with_a_time_to_live_reads_nothing() -> None:
    life = _list()
    with life.at(5) as batch:
        set_key(batch.owner, "a")
        batch.state.add_all([1, 2, 3])
        batch.owner.end_key_batch()
        assert life.store.reads == 0


@pytest.mark.parametrize("ttl", [HUNDRED, RELAXED, ON_READ])
def test_what_is_written_while_a_map_is_read_is_not_undone_by_reading(ttl: StateTtlConfig) -> None:
    life = Life(KINDS["map"], ttl)
    with life.at(0) as batch:
        set_key(batch.owner, "a")
        batch.state.put_all({"x": 1, "y": 1, "z": 1})
    with life.at(100 if ttl is not ON_READ else 50) as batch:
        set_key(batch.owner, "a")
        entries = batch.state.items()
        batch.state.put("x", 2)
        batch.state.remove("y")
        batch.owner.set_key(*address("b"))  # what was put is handed over
        list(entries)
        set_key(batch.owner, "a")
        assert dict(batch.state.items()) == ({"x": 2, "z": 1} if ttl is ON_READ else {"x": 2})


def test_a_reduced_value_that_has_expired_counts_no_more() -> None:
    life = Life(
        Kind(
            lambda s, ttl: s.reducing_state(ReducingStateDescriptor("s", lambda a, b: a + b, int, ttl=ttl)),
            lambda h, n: h.add(n),
            lambda h: h.get(),
        )
    )
    life.write(0, 1)
    life.write(50, 10)
    assert life.read(149) == 11
    life.write(150, 5)
    assert life.read(150) == 5


def test_an_expired_value_gives_way_to_the_default() -> None:
    life = Life(
        Kind(
            lambda s, ttl: s.value_state(ValueStateDescriptor("s", int, ttl=ttl, default=7)),
            lambda h, n: h.update(n),
            lambda h: h.value(),
        )
    )
    life.write(0, 1)
    assert (life.read(99), life.read(100)) == (1, 7)


# -- event time -----------------------------------------------------------------------------------------------------


def test_in_event_time_the_watermark_decides(life: Life) -> None:
    life.ttl = EVENT
    life.write(-50)
    life.clean(49)
    assert life.read(49) == 1
    assert life.read(50) is None
    assert life.entries == []


def test_what_was_written_before_any_watermark_counts_from_the_first_one(kind: Kind) -> None:
    life = Life(kind, EVENT)
    life.write(None)
    assert life.read(None) == 1
    life.clean(None)
    assert life.read(1000) == 1
    assert life.known[0].ttl_since == 1000
    assert life.read(1099) == 1
    assert life.read(1100) is None
    assert life.entries == []


# -- the index and cleaning up --------------------------------------------------------------------------------------


def test_expired_entries_are_removed_without_being_read(kind: Kind) -> None:
    life = Life(kind)
    life.write(0, key="a")
    life.write(60, key="b")
    life.clean(100)
    assert len(life.entries) == 2
    assert life.read(100, key="b") == 1
    life.clean(160)
    assert life.entries == []


def test_an_entry_that_was_written_again_is_not_removed_for_its_first_moment(life: Life) -> None:
    life.write(0)
    life.write(50)
    life.clean(100)
    assert life.read(149) == 1
    life.clean(150)
    assert life.entries == []


def test_a_value_that_was_written_without_looking_leaves_no_index_entry_for_good() -> None:
    """Without having been read, its old moment is not known; the clean-up that comes to it finds out."""
    life = Life(KINDS["map"])
    life.write(0)
    life.write(50)
    assert len(life.entries) == 3
    life.clean(100)
    assert len(life.entries) == 2
    assert life.read(149) == 1


def test_rewriting_a_value_moves_its_index_entry() -> None:
    life = Life(KINDS["value"])
    for now in range(50):
        life.write(now, now)
        assert len(life.entries) == 2


def _many(life: Life, keys: int) -> None:
    """A key in each key group, in turn."""
    with life.at(0) as batch:
        for n in range(keys):
            batch.owner.set_key((n % len(GROUPS)).to_bytes(2), address(n)[1])
            life.kind.write(batch.state, n)


def test_a_slice_is_bounded_and_slices_come_to_everything() -> None:
    life = Life(KINDS["value"])
    _many(life, 160)
    before, batches = 320, 0
    while life.entries:
        life.store.scanned = life.store.written = life.store.scans = life.store.multi_gets = 0
        life.clean(100, limit=7)
        after = len(life.entries)
        assert before - after <= 14
        before, batches = after, batches + 1
        assert batches < 200
    assert batches >= 160 // 7


@pytest.mark.parametrize("limit", [1, 2, 7, 16, 48, 1000])
def test_each_key_group_has_its_turn_while_another_one_has_much_to_clean(limit: int) -> None:
    life = Life(KINDS["value"])
    with life.at(0) as batch:
        for n in range(2000):
            batch.owner.set_key((0).to_bytes(2), address(n)[1])
            life.kind.write(batch.state, n)
        batch.owner.set_key((9).to_bytes(2), address("few")[1])
        life.kind.write(batch.state, 1)
    for _ in range(len(GROUPS)):
        life.clean(100, limit=limit)
    assert not [key for key in life.entries if key.startswith((9).to_bytes(2))]


def test_looking_for_expired_entries_does_not_scan_state() -> None:
    life = Life(KINDS["value"])
    _many(life, 1600)
    with life.at(50) as batch:
        batch.owner.end_key_batch()
        before = life.store.scanned
        batch.owner.ttl_cleanup(GROUPS).remove_some(1000)
        assert life.store.scanned - before == len(GROUPS), "the first expiry entry of each key group"


def test_a_state_may_clean_up_more_or_not_at_all() -> None:
    off = StateTtlConfig.new_builder(Time.milliseconds(TTL)).disable_cleanup_in_background().build()
    life = Life(KINDS["value"], off)
    life.write(0)
    life.clean(500)
    assert len(life.entries) == 2
    life.ttl = StateTtlConfig.new_builder(Time.milliseconds(TTL)).cleanup_incrementally(1000).build()
    life.clean(500, limit=1)
    assert life.entries == []


# -- another declaration --------------------------------------------------------------------------------------------


def test_a_time_to_live_that_is_added_counts_from_then_on(life: Life) -> None:
    life.ttl = None
    life.write(0)
    assert timestamp_of(_value(life), "processing") is None
    life.ttl = HUNDRED
    life.clean(1000)
    assert life.known[0].ttl_since == 1000
    assert life.read(1099) == 1
    assert life.read(1100) is None
    assert life.entries == []


def test_what_was_there_before_a_time_to_live_is_removed_for_a_full_snapshot(kind: Kind) -> None:
    life = Life(kind, None)
    life.write(0)
    life.ttl = HUNDRED
    life.clean(1000)
    with life.at(1100) as batch:
        batch.owner.end_key_batch()
        batch.owner.ttl_cleanup(GROUPS).remove_all()
    assert life.entries == []


def test_a_full_snapshot_has_no_index_of_a_time_to_live_that_was_removed(kind: Kind) -> None:
    life = Life(kind)
    for key in "abc":
        life.write(0, key=key)
    life.ttl = None
    with life.at(10) as batch:
        batch.owner.end_key_batch()
        batch.owner.ttl_cleanup(GROUPS).remove_all()
    assert len(life.entries) == 3, "the values alone"


@pytest.mark.parametrize(("other", "last"), [(30, 29), (100, 99), (500, 499)])
def test_a_time_to_live_that_is_changed_counts_from_when_the_entry_was_written(
    kind: Kind, other: int, last: int
) -> None:
    life = Life(kind)
    life.write(0)
    life.ttl = StateTtlConfig.new_builder(Time.milliseconds(other)).build()
    assert life.read(last) == 1
    life.clean(other)
    assert life.entries == []


def test_without_a_time_to_live_old_moments_are_ignored_and_the_index_goes(life: Life) -> None:
    life.write(0, key="a")
    life.write(0, key="b")
    life.ttl = None
    assert life.read(1000) == 1
    life.clean(1000)
    assert len(life.entries) == 2
    assert life.read(1000, key="b") == 1
    assert (life.known[0].ttl_time, life.known[0].ttl_since) == ("", None)
    life.write(1000, 5)
    assert life.read(2000) == 5


def test_a_subtask_that_sleeps_while_the_time_to_live_goes_drops_its_index_later(kind: Kind) -> None:
    life = Life(kind)
    life.write(0)
    life.ttl = None
    for _ in range(3):  # other subtasks' batches: what they declare goes into the manifest
        owner = KeyedState(DictStoreFixture().new(), life.known, BatchTime(9))
        life.kind.declare(owner, None)
        life.known = owner.registry.schemas
    life.clean(1000)
    assert len(life.entries) == 1


def test_a_time_to_live_that_comes_back_counts_from_its_return(life: Life) -> None:
    life.write(0)
    life.ttl = None
    life.clean(500, limit=1)
    life.ttl = HUNDRED
    life.clean(1000)
    assert life.read(1099) == 1
    life.clean(1100)
    assert life.read(1100) is None
    assert life.entries == []


def test_what_is_in_the_index_from_an_earlier_time_to_live_goes_when_the_new_one_is_over(kind: Kind) -> None:
    life = Life(kind)
    life.write(0)
    life.ttl = None
    with life.at(500):
        pass
    life.ttl = HUNDRED
    life.clean(1000)
    assert len(life.entries) == 2
    life.clean(1100)
    assert life.entries == []


def test_another_kind_of_time_counts_from_its_beginning(kind: Kind) -> None:
    """The moments of the old one mean nothing in the new one."""
    life = Life(kind, EVENT)
    life.write(5)
    life.ttl = HUNDRED
    life.clean(1000)
    assert life.read(1099) == 1
    assert life.read(1100) is None


def test_a_clock_that_goes_back_shortens_no_life(life: Life) -> None:
    life.write(1000)
    life.write(950, 2)
    life.clean(1050)
    assert life.read(1099) == 2
    life.clean(1100)
    assert life.entries == []


def test_a_read_by_a_clock_that_went_back_shortens_no_life(life: Life) -> None:
    life.ttl = ON_READ
    life.write(1000)
    life.write(1050, 2)
    assert life.read(1020) == 2
    assert life.read(1149) == 2


def test_one_name_has_one_time_to_live() -> None:
    owner = KeyedState(DictStoreFixture().new())
    owner.value_state(ValueStateDescriptor("s", int, ttl=HUNDRED))
    with raises(StateError, name="s"):
        owner.value_state(ValueStateDescriptor("s", int, ttl=RELAXED))
    with raises(StateError, name="s"):
        owner.value_state(ValueStateDescriptor("s", int))


# -- stored bytes, RocksDB, configuration ---------------------------------------------------------------------------


def _value(life: Life) -> bytes:
    state = life.kind.declare(KeyedState(DictStoreFixture().new()), None).id
    (data,) = (data for key, data in life.store.inside.scan(b"") if key[2:6] == state)
    return data


def test_the_bytes_are_those_of_the_format() -> None:
    life = Life(KINDS["value"])
    life.write(258, 7)
    group, key = address("a")
    moment = bytes.fromhex("8000000000000102")
    state = life.kind.declare(KeyedState(DictStoreFixture().new()), None).id
    assert dict(life.store.inside.scan(b"")) == {
        group + state + key + b"\0": b"\x02" + moment + b"\x07",
        group + expiry_id("s", "processing") + moment + key + b"\0": b"",
    }
    assert decode_untyped(_value(life)) == 7


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02" + bytes(7), b"\x03" + bytes(7), b"\x04" + bytes(9)])
def test_a_value_that_is_no_value_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_untyped(data)
    with pytest.raises(CorruptFile):
        with_timestamp(data, 0, "event")


@pytest.fixture(scope="module")
def rocks(tmp_path_factory: pytest.TempPathFactory) -> StoreFixture:
    return RocksStoreFixture(tmp_path_factory.mktemp("rocksdb"))


@pytest.mark.parametrize("name", KINDS)
def test_in_rocksdb_it_is_the_same(rocks: StoreFixture, name: str) -> None:
    life = Life(KINDS[name], stores=rocks)
    life.write(0, key="a")
    life.write(60, key="b")
    assert life.read(99) == 1
    life.clean(100)
    assert life.read(100) is None
    assert len(life.entries) == 2
    life.clean(160)
    assert life.entries == []
    life.store.close()


def test_the_builder_says_what_flink_s_does() -> None:
    config = (
        StateTtlConfig.new_builder(Time.hours(1))
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)
        .cleanup_incrementally(10)
        .build()
    )
    assert config == StateTtlConfig(
        timedelta(hours=1),
        StateTtlConfig.UpdateType.OnReadAndWrite,
        StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp,
        StateTtlConfig.TtlTimeCharacteristic.EventTime,
        cleanup_entries=10,
    )
    shortest = StateTtlConfig.new_builder(Time.milliseconds(1))
    again = shortest.update_ttl_on_create_and_write().never_return_expired().use_processing_time().build()
    assert again == shortest.build() == StateTtlConfig(timedelta(milliseconds=1))


def test_a_disabled_time_to_live_is_none(state: KeyedState) -> None:
    off = StateTtlConfig.new_builder(Time.hours(1)).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    state.value_state(ValueStateDescriptor("count", int, ttl=off))
    (recorded,) = state.registry.schemas
    assert (recorded.ttl_time, recorded.ttl_since, recorded.ttl_index) == ("", None, False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StateTtlConfig.new_builder(timedelta()),
        lambda: StateTtlConfig.new_builder(Time.seconds(-1)),
        lambda: StateTtlConfig.new_builder(5),
        lambda: StateTtlConfig.new_builder(Time.days(1)).cleanup_incrementally(0),  # type: ignore[arg-type]
    ],
)
def test_a_time_to_live_that_is_none_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(JobDefinitionError):
        make()
