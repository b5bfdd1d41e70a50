"""State of the current key: every kind against plain dictionaries, iteration, namespaces, failed rows, restores."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from stateflow.errors import StateError
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.support.errors import raises
from tests.support.operators import Mean
from tests.support.stores import CountingStore, StoreFixture, address, set_key

COUNT = ValueStateDescriptor("count", int)
NAMES = MapStateDescriptor("names", str, int)
WORDS = ListStateDescriptor("words", str)
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])


def test_one_read_answers_all_keys_for_every_kind_that_keeps_one_value(state: KeyedState, store: CountingStore) -> None:
    count, total, mean = state.value_state(COUNT), state.reducing_state(SUM), state.aggregating_state(MEAN)
    state.begin_key_batch([address(key) for key in "abc"])
    for key in "abcab":
        set_key(state, key)
        count.update((count.value() or 0) + 1)
        total.add(5)
        mean.add(5)
    assert (store.multi_gets, store.gets) == (3, 0)
    state.end_key_batch()
    set_key(state, "a")
    assert (count.value(), total.get(), mean.get()) == (2, 10, 5.0)


def test_a_key_that_comes_back_sees_its_change_and_not_what_was_prefetched(state: KeyedState) -> None:
    value = state.value_state(COUNT)
    for key in "ab":
        set_key(state, key)
        value.update(1)
    state.end_key_batch()
    state.begin_key_batch([address("a"), address("b")])
    for key, expected, change in (("a", 1, 5), ("b", 1, None), ("a", 5, 6), ("b", None, 7)):
        set_key(state, key)
        assert value.value() == expected
        value.update(change)


def test_a_large_map_or_list_is_not_read_as_a_whole_and_a_cleared_one_leaves_nothing(
    state: KeyedState, store: CountingStore
) -> None:
    numbers, words = state.map_state(MapStateDescriptor("numbers", int, int)), state.list_state(WORDS)
    set_key(state, "a")
    numbers.put_all({n: n for n in range(2500)})
    words.add_all(str(n) for n in range(2500))
    state.end_key_batch()
    store.scanned = store.gets = 0
    set_key(state, "a")
    assert numbers.get(500) == 500
    assert (store.gets, store.scanned) == (1, 0)
    assert next(numbers.items()) == (0, 0) and not numbers.is_empty() and next(words.get()) == "0"
    assert store.scanned == 3
    words.add("fresh")
    numbers.clear()
    words.clear()
    assert (list(words.get()), numbers.is_empty()) == ([], True)
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_elements_keep_their_order_over_batches_and_restores(stores: StoreFixture) -> None:
    """A batch that is tried again, or another one after a rewind, has the epoch of what it replaces."""
    store, epochs = stores.new(), (1, 2, 255, 256, 1 << 32)
    for epoch in epochs:
        state = KeyedState(store, time=BatchTime(epoch=epoch))
        set_key(state, "a")
        state.list_state(WORDS).add_all([f"{epoch} first", f"{epoch} second"])
        state.end_key_batch()
        store = stores.reopened(store)
    state = KeyedState(store, time=BatchTime(epoch=(1 << 32) + 1))
    set_key(state, "a")
    expected = [f"{epoch} {which}" for epoch in epochs for which in ("first", "second")]
    assert list(state.list_state(WORDS).get()) == expected
    store.close()


def test_an_iteration_sees_the_state_of_the_time_at_which_the_iterator_was_created(state: KeyedState) -> None:
    names, words = state.map_state(NAMES), state.list_state(WORDS)
    set_key(state, "a")
    names.put_all({"x": 1, "y": 2})
    words.add_all(["x", "y"])
    entries, seen = names.items(), words.get()
    names.put("w", 0)
    words.add("late")
    for key, _ in entries:
        names.remove(key)
        names.put(f"{key}{key}", 9)
        assert not names.is_empty()
    assert dict(names.items()) == {"w": 0, "xx": 9, "yy": 9}
    assert list(seen) == ["x", "y"]
    words.update(word * 2 for word in words.get())
    assert list(words.get()) == ["xx", "yy", "latelate"]


@pytest.mark.parametrize("wrong", [None, 5])
def test_a_list_takes_all_of_the_given_elements_or_none(state: KeyedState, wrong: Any) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add("kept")
    uses: list[Callable[[], None]] = [
        lambda: words.add(wrong),
        lambda: words.add_all(["x", wrong]),
        lambda: words.update(["x", wrong]),
    ]
    for use in uses:
        with raises(StateError, state="words"):
            use()
    assert list(words.get()) == ["kept"]


def test_none_is_never_a_value(state: KeyedState) -> None:
    none: Any = None

    def to_none(a: int, b: int) -> Any:
        return None

    reduced = state.reducing_state(ReducingStateDescriptor("n", to_none, int))
    set_key(state, "a")
    reduced.add(1)
    uses: dict[str, Callable[[], object]] = {
        "names": lambda: state.map_state(NAMES).put("x", none),
        "sum": lambda: state.reducing_state(SUM).add(none),
        "mean": lambda: state.aggregating_state(MEAN).add(none),
        "n": lambda: reduced.add(1),
    }
    for name, use in uses.items():
        with raises(StateError, state=name):
            use()


def _appended(words: list[str], word: str) -> list[str]:
    words.append(word)
    return words


def test_a_fold_warns_and_is_the_aggregating_state_of_that_name(store: CountingStore) -> None:
    with pytest.warns(DeprecationWarning, match="AggregatingStateDescriptor"):
        descriptor: FoldingStateDescriptor[str, list[str]] = FoldingStateDescriptor("seen", [], _appended, list[str])
    state = KeyedState(store)
    seen = state.folding_state(descriptor)
    for key in "aba":
        set_key(state, key)
        seen.add(key)
    assert seen.get() == ["a", "a"]
    set_key(state, "b")
    assert seen.get() == ["b"]
    state.end_key_batch()
    again = KeyedState(store, state.registry.schemas).aggregating_state(descriptor.aggregating)
    assert again.schema.kind == "aggregating"


def test_a_key_without_a_value_has_a_copy_of_the_default(state: KeyedState, store: CountingStore) -> None:
    numbers = state.value_state(ValueStateDescriptor("numbers", list[int], default=[1]))
    state.begin_key_batch([address("a")])
    for key in "aba":
        set_key(state, key)
        assert numbers.value() == [1]
        (numbers.value() or []).append(2)
    numbers.update([5])
    assert numbers.value() == [5]
    numbers.update(None)
    assert numbers.value() == [1]
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_a_namespace_is_one_more_part_of_the_stored_key_and_another_key_begins_in_the_void_one(
    state: KeyedState, store: CountingStore
) -> None:
    group, key = address("a")
    count = state.value_state(COUNT)
    set_key(state, "a")
    state.set_namespace(7)
    count.update(2)
    set_key(state, "a")
    count.update(1)
    state.end_key_batch()
    assert [k for k, _ in store.scan(b"")] == [
        group + count.id + key + b"\0",
        group + count.id + key + bytes.fromhex("158000000000000007"),
    ]


def test_a_scan_has_the_entries_of_its_namespace_and_not_of_longer_ones(state: KeyedState) -> None:
    names, words = state.map_state(NAMES), state.list_state(WORDS)
    namespaces = ("", "n", "n\0", b"\0", None)
    for namespace in namespaces:
        set_key(state, "a")
        state.set_namespace(namespace)
        names.put(repr(namespace), 1)
        words.add(repr(namespace))
    state.end_key_batch()
    for namespace in namespaces:
        set_key(state, "a")
        state.set_namespace(namespace)
        assert (list(names.keys()), list(words.get())) == ([repr(namespace)], [repr(namespace)])


def test_a_rollback_undoes_what_a_scan_wrote_through_and_what_was_changed_in_place() -> None:
    store = DictBackend()
    state = KeyedState(store, undoable=True)
    value = state.value_state(ValueStateDescriptor("value", list[int]))
    names, words = state.map_state(NAMES), state.list_state(WORDS)
    set_key(state, "a")
    value.update([1])
    names.put("x", 1)
    state.end_key_batch()
    before = dict(store.entries)
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    state.savepoint()
    (value.value() or []).append(2)
    names.put_all({"x": 2, "y": 2})
    words.add("new")
    assert (len(list(names.items())), len(list(words.get()))) == (2, 1)
    names.clear()
    assert names.is_empty()
    assert store.entries != before
    state.rollback()
    assert value.value() == [1]
    state.end_key_batch()
    assert store.entries == before


def test_a_value_that_cannot_be_stored_fails_its_own_row() -> None:
    state = KeyedState(DictBackend(), undoable=True)
    value: Any = state.value_state(COUNT)
    names = state.map_state(NAMES)
    set_key(state, "a")
    value.update(1)
    names.put("x", 1)
    state.savepoint()
    value.update(datetime.UTC)
    names.put("x", 2)
    with raises(StateError, state="count", value=repr(datetime.UTC)):
        state.commit()
    state.rollback()
    assert (value.value(), names.get("x")) == (1, 1)


def test_a_removed_key_of_a_map_is_gone_before_the_change_is_written(state: KeyedState) -> None:
    entries = state.map_state(MapStateDescriptor("m", str, int))
    set_key(state, "a")
    entries.put("x", 1)
    state.end_key_batch()
    set_key(state, "a")
    entries.remove("x")
    assert (entries.get("x"), entries.contains("x"), list(entries.items())) == (None, False, [])


def test_a_merge_moves_the_content_of_namespaces_to_the_current_one(state: KeyedState) -> None:
    total = state.reducing_state(ReducingStateDescriptor("t", lambda a, b: a + b, int))
    elements = state.list_state(ListStateDescriptor("l", int))
    set_key(state, "a")
    for namespace in (1, 2, 3):
        state.set_namespace(namespace)
        total.add(namespace)
        elements.add(namespace)
    state.merge_namespaces(total, [1, 2])
    state.merge_namespaces(elements, [1, 2])
    assert (state.namespace, total.get(), sorted(elements.get())) == (3, 6, [1, 2, 3])
    for namespace in (1, 2):
        state.set_namespace(namespace)
        assert (total.get(), list(elements.get())) == (None, [])
