"""Timers of one subtask, over stores of bytes: order, slices, what is looked at, and a plain list as the oracle."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import StateError
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.memory import DictBackend
from stateflow.state.handles import EarliestTimers
from stateflow.state.kinds import timers as module
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.state_registry import state_names
from stateflow.state.kinds.timer_index import TimeDomain, TimerIndex
from stateflow.state.kinds.timers import TIMER_IDS, Timer
from stateflow.types.descriptors import ValueStateDescriptor
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import encode_key
from tests.support.errors import raises
from tests.support.stores import CountingStore, DictStoreFixture, RocksStoreFixture, StoreFixture

OWNED = KeyGroupRange(10, 41)
EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
Fired = tuple[int, str, object]


def group_of(key: str) -> bytes:
    return struct.pack(">H", 10 + sum(key.encode()) % 32)


class Desk:
    """A subtask's timers over one store."""

    def __init__(self, store: KeyedStateBackend, index: TimerIndex | None = None) -> None:
        self.state = KeyedState(store)
        self.index = index or TimerIndex()
        self.timers = self.state.timers(OWNED, self.index)

    def enter(self, key: str, namespace: object = None) -> None:
        self.state.set_key(group_of(key), encode_key((key,)))
        self.state.set_namespace(namespace)

    def set(self, time: int, key: str, namespace: object = None, domain: TimeDomain = EVENT) -> None:
        self.enter(key, namespace)
        self.timers.register(domain, time)

    def delete(self, time: int, key: str, namespace: object = None, domain: TimeDomain = EVENT) -> None:
        self.enter(key, namespace)
        self.timers.delete(domain, time)

    def fire(
        self, until: int, call: Callable[[Timer], None] = lambda timer: None, domain: TimeDomain = EVENT
    ) -> list[Fired]:
        self.state.end_key_batch()
        fired: list[Fired] = []
        for keys, due in self.timers.due(domain, until):
            self.state.begin_key_batch(keys)
            for timer in due:
                assert timer.group == group_of(timer.values[0])
                assert timer.key == encode_key(timer.values)
                fired.append((timer.time, timer.values[0], timer.namespace))
                self.enter(timer.values[0], timer.namespace)
                call(timer)
            self.state.end_key_batch()
        return fired


@pytest.fixture(params=["dict", "rocksdb"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFixture:
    return DictStoreFixture() if request.param == "dict" else RocksStoreFixture(tmp_path)


@pytest.fixture
def store(stores: StoreFixture) -> Iterator[KeyedStateBackend]:
    opened = stores.new()
    yield opened
    opened.close()


@pytest.fixture
def desk(store: KeyedStateBackend) -> Desk:
    return Desk(store)


def test_timers_fire_in_order_of_time_over_all_keys_and_those_of_later_times_stay(desk: Desk) -> None:
    for time, key in ((30, "a"), (-5, "z"), (10, "b"), (20, "a"), (20, "c"), (40, "b")):
        desk.set(time, key)
    fired = desk.fire(30)
    assert [time for time, _, _ in fired] == [-5, 10, 20, 20, 30]
    assert {key for time, key, _ in fired if time == 20} == {"a", "c"}
    assert desk.index.earliest == EarliestTimers(40, None)
    assert desk.fire(30) == []
    assert desk.fire(40) == [(40, "b", None)]
    assert desk.index.earliest == EarliestTimers()


class _Bounds(DictBackend):
    """Notes where scans begin."""

    def __init__(self) -> None:
        super().__init__()
        self.lowers: list[bytes] = []

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self.lowers.append(lower)
        return super().scan_range(lower, upper)


def test_a_look_begins_at_the_earliest_timer_that_is_known_and_not_at_deleted_ones_before_it() -> None:
    store = _Bounds()
    desk = Desk(store)
    for time in (10, 20, 30):
        desk.set(time, "a")
    for time in (10, 20, 30):
        store.lowers.clear()
        assert desk.fire(time) == [(time, "a", None)]
        assert {lower[6:] for lower in store.lowers} == {struct.pack(">Q", time + (1 << 63))}


def test_a_timer_that_is_set_twice_fires_once(desk: Desk) -> None:
    desk.set(10, "a")
    desk.set(10, "a")
    desk.state.end_key_batch()
    desk.set(10, "a")
    assert desk.fire(10) == [(10, "a", None)]


def test_a_deleted_timer_does_not_fire_and_others_of_its_time_do(desk: Desk) -> None:
    desk.set(10, "a")
    desk.set(10, "b")
    desk.set(11, "a")
    desk.delete(10, "a")
    desk.delete(99, "a")
    assert desk.fire(20) == [(10, "b", None), (11, "a", None)]


def test_a_key_s_namespaces_have_timers_of_their_own(desk: Desk) -> None:
    for namespace in (None, "w", "w\0x", 7):
        desk.set(10, "a", namespace)
    desk.delete(10, "a", "w")
    assert set(desk.fire(10)) == {(10, "a", None), (10, "a", "w\0x"), (10, "a", 7)}


def test_both_kinds_of_time_are_apart(desk: Desk) -> None:
    desk.set(10, "a")
    desk.set(5, "a", domain=PROCESSING)
    assert desk.index.earliest == EarliestTimers(10, 5)
    assert desk.fire(100, domain=PROCESSING) == [(5, "a", None)]
    assert desk.fire(100) == [(10, "a", None)]


def test_what_is_set_while_firing_fires_in_the_same_pass_in_order(desk: Desk) -> None:
    desk.set(10, "a")
    desk.set(30, "b")

    def call(timer: Timer) -> None:
        if timer.time == 10:
            desk.timers.register(EVENT, 20)
            desk.timers.register(EVENT, 30)
            desk.timers.register(EVENT, 31)
            desk.timers.register(EVENT, 5)

    fired = desk.fire(30, call)
    assert fired[:3] == [(10, "a", None), (5, "a", None), (20, "a", None)]
    assert set(fired[3:]) == {(30, "a", None), (30, "b", None)}
    assert desk.index.earliest.event == 31


def test_a_timer_may_delete_and_set_others_that_are_due(desk: Desk) -> None:
    for time in (1, 2, 3, 4):
        desk.set(time, "a")

    def call(timer: Timer) -> None:
        if timer.time == 1:
            desk.timers.delete(EVENT, 2)
            desk.timers.delete(EVENT, 3)
            desk.timers.register(EVENT, 3)
            # As a scan of a list or a map does in the middle of a key batch.
            desk.state.end_key_batch()

    assert [time for time, _, _ in desk.fire(9, call)] == [1, 3, 4]


@pytest.mark.parametrize("slice_size", [1, 2, 3])
def test_many_fire_in_slices_as_they_would_in_one(
    store: KeyedStateBackend, monkeypatch: pytest.MonkeyPatch, slice_size: int
) -> None:
    monkeypatch.setattr(module, "SLICE", slice_size)
    desk = Desk(store)
    for time in range(0, 40, 2):
        desk.set(time, "abcde"[time % 5])
    deleted = []

    def call(timer: Timer) -> None:
        if timer.time % 4 == 0:
            desk.timers.register(EVENT, timer.time + 1)
        if timer.time % 10 == 6:
            desk.delete(timer.time + 2, "abcde"[(timer.time + 2) % 5])
            deleted.append(timer.time + 2)

    fired = [time for time, _, _ in desk.fire(35, call)]
    even = [time for time in range(0, 36, 2) if time not in deleted]
    assert deleted == [8, 18, 28, 38][: len(deleted)]
    assert len(deleted) >= 3
    assert fired == sorted(even + [time + 1 for time in even if time % 4 == 0])


def test_timers_are_part_of_a_snapshot_and_an_overdue_one_fires_after_the_restore(stores: StoreFixture) -> None:
    store = stores.new()
    desk = Desk(store)
    desk.set(10, "a")
    desk.set(20, "b")
    desk.state.end_key_batch()
    earliest = desk.index.earliest
    restored = stores.reopened(store)
    assert earliest == EarliestTimers(10, None)
    again = Desk(restored, TimerIndex(earliest))
    assert again.fire(15) == [(10, "a", None)]
    assert again.index.earliest.event == 20
    restored.close()


def test_nothing_is_looked_at_while_nothing_is_due_and_then_only_key_groups_that_have_something() -> None:
    store = CountingStore(DictBackend())
    desk = Desk(store)
    assert (desk.fire(1000), store.scans) == ([], 0)
    desk.set(10, "a")
    desk.set(20, "b")
    desk.set(5000, "c")
    assert (desk.fire(9), store.scans) == ([], 0)
    desk.fire(10)
    # The store has never been looked at: what it holds is not known yet, in any key group.
    assert store.scans == len(OWNED)
    desk.fire(20)
    assert store.scans == len(OWNED) + 1
    desk.fire(4999)
    assert store.scans == len(OWNED) + 1


def test_a_timer_needs_a_key_and_a_time(desk: Desk) -> None:
    with raises(StateError):
        desk.timers.register(EVENT, 10)
    desk.enter("a")
    for wrong in (1 << 63, -(1 << 63) - 1, True, 1.5, "10", None):
        with raises(StateError, time=wrong):
            desk.timers.register(EVENT, wrong)  # type: ignore[arg-type]
    desk.timers.register(EVENT, (1 << 63) - 1)
    desk.timers.register(EVENT, -(1 << 63))
    assert [t for t, _, _ in desk.fire((1 << 63) - 1)] == [-(1 << 63), (1 << 63) - 1]


def test_state_of_the_key_is_at_hand_and_readers_of_state_pass_timers_over(desk: Desk) -> None:
    seen = desk.state.value_state(ValueStateDescriptor("seen", int))
    desk.enter("a")
    seen.update(7)
    desk.timers.register(EVENT, 10)
    found: list[object] = []
    desk.fire(10, lambda timer: found.append(seen.value()))
    assert found == [7]
    names = state_names(desk.state.registry.schemas)
    assert all(names[TIMER_IDS[domain]] is None for domain in TimeDomain)


_KEYS = st.sampled_from(["a", "b", "c", "d\0e", ""])
_STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "fire", "key batch"]), st.integers(0, 30), _KEYS), max_size=40
)


@given(_STEPS, st.integers(1, 4), st.integers(0, 3))
def test_whatever_is_set_deleted_and_fired_is_what_a_plain_set_says(
    steps: list[tuple[str, int, str]], slice_size: int, echo: int
) -> None:
    """Each timer of an even time sets another one a little later, and deletes the one at twice its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE", slice_size)
        desk = Desk(DictBackend())
        model: set[tuple[int, bytes, str]] = set()

        def call(timer: Timer) -> None:
            if timer.time % 2 == 0 and echo:
                desk.timers.register(EVENT, timer.time + 2 * echo - 1)
                desk.timers.delete(EVENT, 2 * timer.time + 1)

        for what, time, key in steps:
            if what == "set":
                desk.set(time, key)
                model.add((time, group_of(key), key))
            elif what == "delete":
                desk.delete(time, key)
                model.discard((time, group_of(key), key))
            elif what == "key batch":
                desk.state.end_key_batch()
            else:
                assert [(t, k) for t, k, _ in desk.fire(time, call)] == _oracle(model, time, echo)
                earliest = min(model)[0] if model else None
                known = desk.index.earliest.event
                assert earliest is None or (known is not None and known <= earliest)
                assert known is None or known > time


def _oracle(model: set[tuple[int, bytes, str]], until: int, echo: int) -> list[tuple[int, str]]:
    fired = []
    while model and min(model)[0] <= until:
        time, group, key = first = min(model)
        model.remove(first)
        fired.append((time, key))
        if time % 2 == 0 and echo:
            model.add((time + 2 * echo - 1, group, key))
            model.discard((2 * time + 1, group, key))
    return fired
