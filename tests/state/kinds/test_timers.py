"""Timers of one subtask, of rows and of windows: order, slices, what is scanned; with plain sets as oracles."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, StateError
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import EarliestTimers
from stateflow.state.kinds import timers as module
from stateflow.state.kinds import window_timers
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.timers import MOST, EarliestTimes, SliceSize, Timer, TimerIndex
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TIMER_IDS, TimeDomain
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises
from tests.support.stores import CountingStore, StoreFixture

OWNED = KeyGroupRange(10, 41)
EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
Fired = tuple[int, str, object]


def group_of(key: str) -> bytes:
    return struct.pack(">H", 10 + sum(key.encode()) % 32)


class Subtask:
    """A subtask's timers over one store."""

    def __init__(self, store: KeyedStateBackend, index: TimerIndex | None = None, slice_size: int = MOST) -> None:
        self.slice_size = slice_size
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
        for keys, due in self.timers.due(domain, until, SliceSize(self.slice_size)):
            self.state.begin_key_batch(keys)
            for timer in due:
                key = timer.values[0]
                assert isinstance(key, str) and timer.group == group_of(key)
                assert timer.key == encode_key(timer.values)
                fired.append((timer.time, key, timer.namespace))
                self.enter(key, timer.namespace)
                call(timer)
            self.state.end_key_batch()
        return fired


@pytest.fixture(params=[1, MOST], ids=lambda size: f"slices of {size}")
def subtask(store: CountingStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Subtask:
    monkeypatch.setattr(module, "MOST", request.param)
    monkeypatch.setattr(module, "_SCANNED", request.param)
    return Subtask(store, slice_size=request.param)


def test_timers_fire_once_in_order_of_time_over_all_keys_and_namespaces(subtask: Subtask) -> None:
    for time, key in ((30, "a"), (-5, "z"), (10, "b"), (20, "a"), (20, "c"), (40, "b"), (10, "b")):
        subtask.set(time, key)
    subtask.state.end_key_batch()
    subtask.set(10, "b")
    for namespace in ("w", "w\0x", 7):
        subtask.set(25, "a", namespace)
    subtask.delete(25, "a", "w")
    subtask.delete(20, "a")
    subtask.delete(99, "a")
    subtask.set(5, "a", domain=PROCESSING)
    assert subtask.fire(100, domain=PROCESSING) == [(5, "a", None)]
    fired = subtask.fire(30)
    assert [fired[n] for n in (0, 1, 2, 5)] == [(-5, "z", None), (10, "b", None), (20, "c", None), (30, "a", None)]
    assert set(fired[3:5]) == {(25, "a", "w\0x"), (25, "a", 7)} and len(fired) == 6
    assert subtask.index.earliest == EarliestTimers(40, None)
    assert subtask.fire(30) == []
    assert subtask.fire(40) == [(40, "b", None)]
    assert subtask.index.earliest == EarliestTimers()


def test_a_timer_may_delete_and_set_others_that_are_due(subtask: Subtask) -> None:
    for time in (1, 2, 3, 4):
        subtask.set(time, "a")

    def call(timer: Timer) -> None:
        if timer.time == 1:
            subtask.timers.delete(EVENT, 2)
            subtask.timers.delete(EVENT, 3)
            subtask.timers.register(EVENT, 3)
            # As a scan of a list or a map does in the middle of a key batch.
            subtask.state.end_key_batch()

    assert [time for time, _, _ in subtask.fire(9, call)] == [1, 3, 4]


def test_timers_are_part_of_a_snapshot_and_an_overdue_one_fires_after_the_restore(stores: StoreFixture) -> None:
    store = stores.new()
    subtask = Subtask(store)
    subtask.set(10, "a")
    subtask.set(20, "b")
    subtask.state.end_key_batch()
    earliest = subtask.index.earliest
    restored = stores.reopened(store)
    assert earliest == EarliestTimers(10, None)
    again = Subtask(restored, TimerIndex(earliest))
    assert again.fire(15) == [(10, "a", None)]
    assert again.index.earliest.event == 20
    restored.close()


def test_nothing_is_scanned_while_nothing_is_due_and_then_only_key_groups_with_due_timers() -> None:
    store = CountingStore(DictBackend())
    subtask = Subtask(store)
    assert (subtask.fire(1000), store.scans) == ([], 0)
    subtask.set(10, "a")
    subtask.set(20, "b")
    subtask.set(5000, "c")
    assert (subtask.fire(9), store.scans) == ([], 0)
    subtask.fire(10)
    # The first scan: what the store holds is not known yet, in any key group.
    assert store.scans == len(OWNED)
    subtask.fire(20)
    assert store.scans == len(OWNED) + 1
    subtask.fire(4999)
    assert store.scans == len(OWNED) + 1


def test_a_timer_needs_a_key_and_a_time(subtask: Subtask) -> None:
    with raises(StateError):
        subtask.timers.register(EVENT, 10)
    subtask.enter("a")
    wrong_times: list[Any] = [1 << 63, -(1 << 63) - 1, True, 1.5, "10", None]
    for wrong in wrong_times:
        with raises(StateError, time=wrong):
            subtask.timers.register(EVENT, wrong)
    subtask.timers.register(EVENT, (1 << 63) - 1)
    subtask.timers.register(EVENT, -(1 << 63))
    assert [t for t, _, _ in subtask.fire((1 << 63) - 1)] == [-(1 << 63), (1 << 63) - 1]


@pytest.mark.parametrize("rest", [b"\xff", bytes([255] * 7), bytes(8), bytes(8) + encode_key((None,))])
@pytest.mark.parametrize("domain", TimeDomain)
def test_a_stored_timer_without_time_or_key_is_a_corrupt_file(domain: TimeDomain, rest: bytes) -> None:
    # A timer without a namespace has a key, and a None for the namespace.
    store = DictBackend({group_of("a") + TIMER_IDS[domain] + rest: b""})
    with pytest.raises(CorruptFile):
        Subtask(store, TimerIndex(EarliestTimers(-(1 << 63), -(1 << 63)))).fire((1 << 63) - 1, domain=domain)


_KEYS = st.sampled_from(["a", "b", "c", "d\0e", ""])
_STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "fire", "key batch"]), st.integers(0, 30), _KEYS), max_size=40
)


@given(_STEPS, st.integers(1, 4), st.integers(0, 3))
def test_timers_fire_as_those_of_a_plain_set(steps: list[tuple[str, int, str]], slice_size: int, echo: int) -> None:
    """Each timer of an even time sets another one a little later, and deletes the one at twice its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST", slice_size)
        patch.setattr(module, "_SCANNED", slice_size)
        subtask = Subtask(DictBackend(), slice_size=slice_size)
        model: set[tuple[int, bytes, str]] = set()

        def call(timer: Timer) -> None:
            if timer.time % 2 == 0 and echo:
                subtask.timers.register(EVENT, timer.time + 2 * echo - 1)
                subtask.timers.delete(EVENT, 2 * timer.time + 1)

        for what, time, key in steps:
            if what == "set":
                subtask.set(time, key)
                model.add((time, group_of(key), key))
            elif what == "delete":
                subtask.delete(time, key)
                model.discard((time, group_of(key), key))
            elif what == "key batch":
                subtask.state.end_key_batch()
            else:
                assert [(t, k) for t, k, _ in subtask.fire(time, call)] == _oracle(model, time, echo)
                earliest = min(model)[0] if model else None
                known = subtask.index.earliest.event
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


def test_the_index_has_the_earliest_timer_of_each_key_group() -> None:
    one, other = b"\0\0", b"\0\1"
    times = EarliestTimes(None, groups={})
    for group, time in ((one, 5), (one, 3), (one, 7), (other, 4)):
        times.add(group, time)
    assert (times.get(one), times.get(other), times.earliest) == (3, 4, 3)
    assert times.take_due(2, KeyGroupRange(0, 1)) == {}
    assert times.take_due(3, KeyGroupRange(0, 1)) == {one: 3}
    assert times.groups == {other: 4}


LENGTH = 10
WindowTimer = tuple[int, int, int]
"""Time, key and start of the window."""

_keys = st.integers(0, 5)
_timers = st.sets(st.tuples(st.integers(-3, 20), _keys, st.integers(-30, 20)), max_size=8)
_steps = st.lists(st.tuples(_timers, _timers, st.dictionaries(_keys, st.integers(-3, 21)), st.integers(-3, 21)))


class _WindowSubtask:
    """The timers of windows of six keys in four key groups."""

    def __init__(self) -> None:
        self._state = KeyedState(DictBackend())
        self._timers = self._state.window_timers(KeyGroupRange(10, 13), TimerIndex())

    def register(self, timers: set[WindowTimer]) -> None:
        self._change(self._timers.register_all, timers)

    def delete(self, timers: set[WindowTimer]) -> None:
        self._change(self._timers.delete_all, timers)

    def fire(self, until: int, at_once: int) -> list[WindowTimer]:
        fired: list[WindowTimer] = []
        number = {address: key for key, address in enumerate(zip(*_addresses(range(6)), strict=True))}
        for due in self._timers.fire(EVENT, until, SliceSize(at_once)):
            keys = [number[address] for address in zip(due.groups, due.keys, strict=True)]
            fired += _as_tuples(due.timers, keys)
            self._state.end_key_batch()
        return fired

    def fire_of_keys(self, until: dict[int, int]) -> list[WindowTimer]:
        due = self._timers.fire_of_keys(*_addresses(list(until)), np.array([*until.values()], np.int64))
        self._state.end_key_batch()
        return _as_tuples(due, list(until))

    def _change(self, change: Any, timers: set[WindowTimer]) -> None:
        rows = np.array(sorted(timers), np.int64).reshape(-1, 3)
        keys, of = np.unique(rows[:, 1], return_inverse=True)
        states = self._state.batch_of(*_addresses(keys.tolist()))
        change(EVENT, states.windows(of, rows[:, 2], rows[:, 2] + LENGTH), rows[:, 0])
        self._state.end_key_batch()


def _addresses(keys: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    return [struct.pack(">H", 10 + key % 4) for key in keys], [encode_key((key,)) for key in keys]


def _as_tuples(due: DueTimers, keys: Sequence[int]) -> list[WindowTimer]:
    assert (due.ends - due.starts == LENGTH).all()
    of = [keys[number] for number in due.of.tolist()]
    return list(zip(due.times.tolist(), of, due.starts.tolist(), strict=True))


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (200_000, 2)])
@given(steps=_steps)
def test_due_timers_fire_once_in_order_of_time(
    most: int, at_once: int, steps: list[tuple[set[WindowTimer], set[WindowTimer], dict[int, int], int]]
) -> None:
    """All timers of some keys fire, each key's up to a time of its own; then those of all keys."""
    subtask, expected = _WindowSubtask(), set[WindowTimer]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_timers, "MOST_BY_COLUMNS", most)
        for registered, deleted, of_keys, until in steps:
            subtask.register(registered)
            subtask.delete(deleted)
            expected = (expected | registered) - deleted

            fired = subtask.fire_of_keys(of_keys)
            due = {timer for timer in expected if timer[0] <= of_keys.get(timer[1], -100)}
            assert len(fired) == len(due) and set(fired) == due
            for key in of_keys:
                times = [timer[0] for timer in fired if timer[1] == key]
                assert times == sorted(times)
            expected -= due

            fired = subtask.fire(until, at_once)
            due = {timer for timer in expected if timer[0] <= until}
            assert len(fired) == len(due) and set(fired) == due
            assert [timer[0] for timer in fired] == sorted(timer[0] for timer in fired)
            expected -= due


MIB = 1 << 20
SLICES = 12


@given(value=st.integers(0, 16 * MIB), emitted=st.integers(0, 50))
def test_the_size_becomes_constant_and_its_slices_have_at_most_two_mebibytes(value: int, emitted: int) -> None:
    size = SliceSize()
    for _ in range(SLICES):
        size.adapt(size.keys, size.keys * value, size.keys * emitted)
    assert size.keys == MOST or size.keys * (value + 400 * emitted) > MIB
    assert size.keys == 1 or size.keys * (value + 400 * emitted) <= 2 * MIB
