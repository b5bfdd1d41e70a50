"""State of the current key: what is read and written, iteration, namespaces and rollback, the same over every backend.

What a key finds is compared with dictionaries in `test_state_kinds_model`.
"""

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
    ReduceFunction,
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


def test_a_state_that_is_declared_late_works_without_prefetching(state: KeyedState) -> None:
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    late = state.value_state(COUNT)
    assert late.value() is None
    late.update(1)
    state.end_key_batch()
    set_key(state, "a")
    assert late.value() == 1


def test_an_unchanged_value_is_not_written(state: KeyedState, store: CountingStore) -> None:
    value = state.value_state(COUNT)
    for written in (1, 1):
        set_key(state, "a")
        value.update(1) if value.value() is None else None
        state.end_key_batch()
        assert store.written == written


def test_adding_to_a_list_reads_nothing(state: KeyedState, store: CountingStore) -> None:
    words = state.list_state(WORDS)
    for _ in range(2):
        state.begin_key_batch([address(key) for key in "ab"])
        for key in "ab":
            set_key(state, key)
            words.add("x")
            words.add_all(["y", "z"])
        state.end_key_batch()
    assert (store.reads, store.written) == (0, 12)


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


def test_entries_come_in_order_of_their_keys_wherever_they_are(state: KeyedState) -> None:
    numbers = state.map_state(MapStateDescriptor("numbers", int, str))
    set_key(state, "a")
    numbers.put_all({10: "stored", -1: "stored", 3: "stored"})
    state.end_key_batch()
    set_key(state, "a")
    numbers.put(0, "fresh")
    numbers.put(10, "changed")
    numbers.remove(3)
    assert list(numbers.items()) == [(-1, "stored"), (0, "fresh"), (10, "changed")]
    assert list(numbers.keys()) == [-1, 0, 10]
    assert list(numbers.values()) == ["stored", "fresh", "changed"]


@pytest.mark.parametrize("wrong", [None, 5])
@pytest.mark.parametrize(
    "use",
    [
        lambda words, wrong: words.add(wrong),
        lambda words, wrong: words.add_all(["x", wrong]),
        lambda words, wrong: words.update(["x", wrong]),
    ],
    ids=["add", "add_all", "update"],
)
def test_a_list_takes_all_of_the_given_elements_or_none(
    state: KeyedState, use: Callable[[Any, Any], None], wrong: Any
) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add("kept")
    with raises(StateError, state="words"):
        use(words, wrong)
    assert list(words.get()) == ["kept"]


class Longest(ReduceFunction[str]):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


@pytest.mark.parametrize("function", [Longest(), lambda a, b: max(a, b, key=len)], ids=["object", "function"])
def test_added_values_are_reduced_to_one(state: KeyedState, function: Any) -> None:
    longest = state.reducing_state(ReducingStateDescriptor("longest", function, str))
    for words, expected in ((["aa"], "aa"), (["b", "ccc"], "ccc"), (["dd"], "ccc")):
        set_key(state, "a")
        for word in words:
            longest.add(word)
        assert longest.get() == expected
        state.end_key_batch()


def _to_none(a: int, b: int) -> Any:
    return None


TO_NONE = ReducingStateDescriptor("n", _to_none, int)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("names", lambda state: state.map_state(NAMES).put("x", None)),
        ("sum", lambda state: state.reducing_state(SUM).add(None)),
        ("mean", lambda state: state.aggregating_state(MEAN).add(None)),
        ("n", lambda state: [state.reducing_state(TO_NONE).add(1) for _ in "ab"]),
    ],
    ids=["put", "reduced", "aggregated", "reduced to"],
)
def test_none_is_never_a_value(state: KeyedState, name: str, use: Callable[[KeyedState], object]) -> None:
    set_key(state, "a")
    with raises(StateError, state=name):
        use(state)


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


def test_a_savepoint_costs_the_store_nothing() -> None:
    watched = CountingStore(DictBackend())
    state = KeyedState(watched, undoable=True)
    value = state.value_state(COUNT)
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    for n in range(10):
        state.savepoint()
        value.update((value.value() or 0) + n)
        state.commit()
    state.end_key_batch()
    assert (watched.multi_gets, watched.gets, watched.written) == (1, 0, 1)


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
