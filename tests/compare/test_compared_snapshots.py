"""Two snapshots are compared: what is found is the difference of plain dictionaries, whatever the files look like."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from stateflow.storage import MemoryStorage
from tests.support.compared_state import Address, History, Taken, canonical, check_diff, compared

KEYS = st.sampled_from([f"key {number}" for number in range(30)])
ADDRESSES = st.one_of(
    st.tuples(st.just("count"), KEYS, st.none()),
    st.tuples(st.just("seen"), KEYS, st.sampled_from(["", "a", "b\0c"])),
    st.tuples(st.just("items"), KEYS, st.none()),
)
CHANGES = st.dictionaries(ADDRESSES, st.none() | st.integers(0, 3), max_size=12)


class Life(RuleBasedStateMachine):
    """Writes, snapshots, compactions and restores in any order; any two of the snapshots are compared."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self.storage = MemoryStorage()
        self.history = History(Path(self._scratch.name), self.storage)
        self.taken: list[Taken] = [self.history.take()]

    def teardown(self) -> None:
        self.taken.append(self.history.take())
        for old, new in ((0, -1), (-1, 0), (-2, -1)):
            self._compare(self.taken[old], self.taken[new])
        self.history.close()
        self._scratch.cleanup()

    def _compare(self, old: Taken, new: Taken, counts_all: bool = False) -> None:
        check_diff(compared(self.storage, old, new, counts_all), old.values, new.values)

    @rule(changes=CHANGES)
    def write(self, changes: Mapping[Address, int | None]) -> None:
        self.history.put(changes)

    @rule(value=st.none() | st.integers(0, 3), state=st.sampled_from(["count", "items"]))
    def write_all(self, value: int | None, state: str) -> None:
        self.history.put({(state, f"key {number}", None): value for number in range(100)})

    @rule()
    def snapshot(self) -> None:
        self.taken.append(self.history.take())

    @rule()
    def compact(self) -> None:
        self.history.compact()

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.taken.append(self.history.rescale(parallelism))

    @rule(old=st.integers(0, 100), new=st.integers(0, 100), counts_all=st.booleans())
    def compare(self, old: int, new: int, counts_all: bool) -> None:
        self._compare(self.taken[old % len(self.taken)], self.taken[new % len(self.taken)], counts_all)


def test_after_any_history_the_difference_of_two_snapshots_is_that_of_their_values() -> None:
    few = settings(max_examples=max(1, settings().max_examples // 5), stateful_step_count=14)
    run_state_machine_as_test(Life, settings=few)


@settings(max_examples=max(1, settings().max_examples // 3))
@given(CHANGES, CHANGES, st.sampled_from(["filesystem", "canonical", "rekeyed"]))
def test_the_format_of_a_snapshot_makes_no_difference(
    first: Mapping[Address, int | None], second: Mapping[Address, int | None], form: str
) -> None:
    storage = MemoryStorage()
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), storage, backend="filesystem")
        history.put(first)
        old = history.take()
        history.put(second)
        new = (
            history.take()
            if form == "filesystem"
            else canonical(storage, history.values, 64 if form == "canonical" else 7)
        )
        check_diff(compared(storage, old, new), old.values, new.values)
        check_diff(compared(storage, new, old), new.values, old.values)
        history.close()
