"""List, reducing, aggregating and folding state, defaults and namespaces, the same over every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stateflow.errors import IncompatibleState, JobDefinitionError, StateError
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.types.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.support.errors import raises
from tests.support.stores import CountingStore, StoreFixture, address, set_key

WORDS = ListStateDescriptor("words", str)
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, int)


class Mean(AggregateFunction[int, list[int], float]):
    """The accumulator is changed in place, as it may be."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += 1
        accumulator[1] += value
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])


# -- lists --------------------------------------------------------------------------------------------------------


def test_a_list_keeps_the_order_in_which_its_elements_were_added(state: KeyedState) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    assert list(words.get()) == []
    words.add("z")
    words.add_all(["a", "z"])
    assert list(words.get()) == ["z", "a", "z"]
    state.end_key_batch()
    set_key(state, "a")
    words.add("b")
    assert list(words.get()) == ["z", "a", "z", "b"]


def test_each_key_has_its_own_list(state: KeyedState) -> None:
    words = state.list_state(WORDS)
    for turn in (1, 2):
        for key in ("a", "a\0", "ab", ""):
            set_key(state, key)
            words.add(f"{key} {turn}")
    for key in ("a", "a\0", "ab", ""):
        set_key(state, key)
        assert list(words.get()) == [f"{key} 1", f"{key} 2"]


def test_adding_to_a_list_reads_nothing(state: KeyedState, store: CountingStore) -> None:
    words = state.list_state(WORDS)
    for _ in range(2):
        state.begin_key_batch([address(key) for key in "ab"])
        for key in "ab":
            set_key(state, key)
            words.add("x")
            words.add_all(["y", "z"])
        state.end_key_batch()
    assert store.reads == 0
    assert store.written == 12


def test_elements_keep_their_order_over_batches_and_restores(stores: StoreFixture) -> None:
    """A batch that is tried again, or another one after going back, has the epoch of what it replaces."""
    store = stores.new()
    for epoch in (1, 2, 255, 256, 1 << 32):
        state = KeyedState(store, time=BatchTime(epoch=epoch))
        set_key(state, "a")
        state.list_state(WORDS).add_all([f"{epoch} first", f"{epoch} second"])
        state.end_key_batch()
        store = stores.reopened(store)
    state = KeyedState(store, time=BatchTime(epoch=(1 << 32) + 1))
    set_key(state, "a")
    assert list(state.list_state(WORDS).get()) == [
        f"{epoch} {which}" for epoch in (1, 2, 255, 256, 1 << 32) for which in ("first", "second")
    ]
    store.close()


def test_updating_a_list_replaces_it(state: KeyedState) -> None:
    words = state.list_state(WORDS)
    set_key(state, "b")
    words.add("other key")
    set_key(state, "a")
    words.add_all(["x", "y"])
    state.end_key_batch()
    set_key(state, "a")
    words.add("z")
    words.update(word * 2 for word in words.get())
    words.add("w")
    assert list(words.get()) == ["xx", "yy", "zz", "w"]
    words.update([])
    assert list(words.get()) == []
    state.end_key_batch()
    set_key(state, "b")
    assert list(words.get()) == ["other key"]


def test_a_cleared_list_is_empty_and_leaves_nothing(state: KeyedState, store: CountingStore) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add_all(str(n) for n in range(2500))
    state.end_key_batch()
    set_key(state, "a")
    words.add("fresh")
    words.clear()
    assert list(words.get()) == []
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_reading_a_list_sees_it_as_it_was_when_it_was_asked_for(state: KeyedState) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add_all(["x", "y"])
    seen = words.get()
    words.add("late")
    assert list(seen) == ["x", "y"]
    assert list(words.get()) == ["x", "y", "late"]


def test_a_large_list_is_not_read_as_a_whole(state: KeyedState, store: CountingStore) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add_all(str(n) for n in range(1000))
    assert next(words.get()) == "0"
    assert store.scanned == 1


@pytest.mark.parametrize("wrong", [None, 5])
@pytest.mark.parametrize(
    "use",
    [
        lambda words, wrong: words.add(wrong),
        lambda words, wrong: words.add_all(["x", wrong]),
        lambda words, wrong: words.update(["x", wrong]),
    ],
)
def test_a_list_takes_all_of_the_given_elements_or_none(
    state: KeyedState, use: Callable[[ListState[Any], Any], None], wrong: Any
) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add("kept")
    with raises(StateError, state="words"):
        use(words, wrong)
    assert list(words.get()) == ["kept"]


# -- reducing and aggregating ---------------------------------------------------------------------------------------


class Longest(ReduceFunction[str]):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


@pytest.mark.parametrize("function", [Longest(), lambda a, b: max(a, b, key=len)])
def test_added_values_are_reduced_to_one(state: KeyedState, function: Any) -> None:
    longest = state.reducing_state(ReducingStateDescriptor("longest", function, str))
    for words, expected in ((["aa"], "aa"), (["b", "ccc"], "ccc"), (["dd"], "ccc")):
        set_key(state, "a")
        for word in words:
            longest.add(word)
        assert longest.get() == expected
        state.end_key_batch()
    set_key(state, "b")
    assert longest.get() is None
    set_key(state, "a")
    longest.clear()
    assert longest.get() is None


def test_added_values_are_aggregated_and_the_accumulator_is_stored(store: CountingStore) -> None:
    for values, expected in (((1, 2), 1.5), ((6,), 3.0)):
        state = KeyedState(store)
        mean = state.aggregating_state(MEAN)
        set_key(state, "a")
        for value in values:
            mean.add(value)
        set_key(state, "b")
        assert mean.get() is None
        set_key(state, "a")
        assert mean.get() == expected
        state.end_key_batch()
    set_key(state, "a")
    mean.clear()
    assert mean.get() is None
    mean.add(4)
    assert mean.get() == 4.0


def test_one_read_answers_all_keys_for_every_kind_that_keeps_one_value(state: KeyedState, store: CountingStore) -> None:
    count, total, mean = (
        state.value_state(ValueStateDescriptor("count", int)),
        state.reducing_state(SUM),
        state.aggregating_state(MEAN),
    )
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


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("sum", lambda state: state.reducing_state(SUM).add(None)),
        ("mean", lambda state: state.aggregating_state(MEAN).add(None)),
        (
            "n",
            lambda state: [
                state.reducing_state(ReducingStateDescriptor("n", lambda a, b: None, int)).add(1) for _ in "ab"
            ],
        ),
    ],
)
def test_none_is_neither_added_nor_reduced_to(
    state: KeyedState, name: str, use: Callable[[KeyedState], object]
) -> None:
    set_key(state, "a")
    with raises(StateError, state=name):
        use(state)


def test_a_fold_warns_and_is_the_aggregating_state_of_that_name(store: CountingStore) -> None:
    with pytest.warns(DeprecationWarning, match="AggregatingStateDescriptor"):
        descriptor: FoldingStateDescriptor[str, list[str]] = FoldingStateDescriptor(
            "seen", [], lambda seen, word: [*seen, word], list[str]
        )
    state = KeyedState(store)
    seen = state.folding_state(descriptor)
    for key in "aba":
        set_key(state, key)
        seen.add(key)
    assert seen.get() == ["a", "a"]
    state.end_key_batch()
    again = KeyedState(store, state.registry.schemas).aggregating_state(descriptor.aggregating)
    assert again.schema.kind == "aggregating"


# -- defaults -------------------------------------------------------------------------------------------------------


def test_a_key_without_a_value_has_a_copy_of_the_default(state: KeyedState, store: CountingStore) -> None:
    numbers = state.value_state(ValueStateDescriptor("numbers", list[int], default=[1]))
    state.begin_key_batch([address("a")])
    for key in "ab":
        set_key(state, key)
        assert numbers.value() == [1]
        (numbers.value() or []).append(2)
    set_key(state, "a")
    assert numbers.value() == [1]
    numbers.update([5])
    assert numbers.value() == [5]
    numbers.update(None)
    assert numbers.value() == [1]
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_a_default_must_be_of_the_declared_type(state: KeyedState) -> None:
    with raises(StateError, state="count", value="'none'"):
        state.value_state(ValueStateDescriptor("count", int, default="none"))


# -- namespaces -----------------------------------------------------------------------------------------------------


def test_a_namespace_is_a_state_of_its_own_for_every_kind(store: CountingStore) -> None:
    state = KeyedState(store)
    count = state.value_state(ValueStateDescriptor("count", int))
    words, names = state.list_state(WORDS), state.map_state(MapStateDescriptor("names", str, int))
    total, mean = state.reducing_state(SUM), state.aggregating_state(MEAN)
    namespaces = (None, 0, 1, -1, "", "a", b"", b"\0")

    def contents() -> tuple[Any, ...]:
        return count.value(), list(words.get()), dict(names.items()), total.get(), mean.get()

    state.begin_key_batch([address("a"), address("b")])
    for key in "ab":
        set_key(state, key)
        for n, namespace in enumerate(namespaces):
            state.set_namespace(namespace)
            assert contents() == (None, [], {}, None, None)
            count.update(n)
            words.add(f"{n}")
            names.put("n", n)
            total.add(n)
            mean.add(n)
    state.end_key_batch()
    for n, namespace in enumerate(namespaces):
        set_key(state, "a")
        state.set_namespace(namespace)
        assert contents() == (n, [f"{n}"], {"n": n}, n, float(n))
        for each in (count, words, names, total, mean):
            each.clear()
        assert contents() == (None, [], {}, None, None)
    set_key(state, "b")
    state.set_namespace("a")
    assert contents() == (5, ["5"], {"n": 5}, 5, 5.0)


def test_another_key_begins_in_the_void_namespace(state: KeyedState) -> None:
    count = state.value_state(ValueStateDescriptor("count", int))
    set_key(state, "a")
    count.update(1)
    state.set_namespace("w")
    count.update(2)
    set_key(state, "a")
    assert count.value() == 1


def test_a_namespace_lies_behind_the_key_as_one_more_part_of_it(state: KeyedState, store: CountingStore) -> None:
    group, key = address("a")
    count = state.value_state(ValueStateDescriptor("count", int))
    for namespace in (None, 7):
        set_key(state, "a")
        state.set_namespace(namespace)
        count.update(1)
    state.end_key_batch()
    assert [k for k, _ in store.scan(b"")] == [
        group + count.id + key + b"\0",
        group + count.id + key + bytes.fromhex("158000000000000007"),
    ]


# -- declarations and misuse ------------------------------------------------------------------------------------------


def _all() -> list[Any]:
    return [
        ValueStateDescriptor("s", int),
        ListStateDescriptor("s", int),
        MapStateDescriptor("s", str, int),
        ReducingStateDescriptor("s", max, int),
        AggregatingStateDescriptor("s", Mean(), int),
    ]


def _declared(state: KeyedState, descriptor: Any) -> Any:
    kind = type(descriptor).__name__.removesuffix("StateDescriptor").lower()
    return getattr(state, f"{kind}_state")(descriptor)


@pytest.mark.parametrize("one", range(5))
@pytest.mark.parametrize("other", range(5))
def test_a_name_stands_for_one_kind_of_state(state: KeyedState, store: CountingStore, one: int, other: int) -> None:
    found = _declared(state, _all()[one])
    later = KeyedState(store, state.registry.schemas)
    if one == other:
        assert _declared(state, _all()[other]) is found
        _declared(later, _all()[other])
        return
    with raises(StateError, name="s"):
        _declared(state, _all()[other])
    with raises(IncompatibleState, name="s"):
        _declared(later, _all()[other])


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.list_state(WORDS).add("x"),
        lambda s: s.list_state(WORDS).get(),
        lambda s: s.list_state(WORDS).clear(),
        lambda s: s.list_state(WORDS).update([]),
        lambda s: s.reducing_state(SUM).add(1),
        lambda s: s.reducing_state(SUM).get(),
        lambda s: s.reducing_state(SUM).clear(),
        lambda s: s.aggregating_state(MEAN).add(1),
        lambda s: s.aggregating_state(MEAN).get(),
        lambda s: s.aggregating_state(MEAN).clear(),
    ],
)
def test_state_without_a_key_is_refused(state: KeyedState, use: Callable[[KeyedState], object]) -> None:
    with raises(StateError):
        use(state)


def test_a_queryable_name_is_recorded_and_belongs_to_one_state(state: KeyedState) -> None:
    state.list_state(ListStateDescriptor("words", str, queryable="all-words"))
    assert state.registry.schemas[0].queryable == "all-words"
    with raises(StateError, queryable="all-words", first="words", second="other"):
        state.value_state(ValueStateDescriptor("other", int, queryable="all-words"))
    with raises(JobDefinitionError, name="other", queryable="x" * 101):
        ValueStateDescriptor("other", int, queryable="x" * 101)


def test_elements_and_accumulators_may_be_structs(state: KeyedState) -> None:
    class Point(msgspec.Struct):
        x: int

    points = state.list_state(ListStateDescriptor("points", Point))
    set_key(state, "a")
    points.add(Point(1))
    assert list(points.get()) == [Point(1)]
    with raises(StateError, state="points", value="'no point'"):
        points.add("no point")  # type: ignore[arg-type]
