"""Timers of many windows at once, with a plain set as the oracle."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.kinds import window_timers as module
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.timers import SliceSize, TimerIndex
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TimeDomain
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange

EVENT = TimeDomain.EVENT_TIME
LENGTH = 10
Timer = tuple[int, int, int]
"""Time, key and start of the window."""

_keys = st.integers(0, 5)
_timers = st.sets(st.tuples(st.integers(-3, 20), _keys, st.integers(-30, 20)), max_size=8)
_steps = st.lists(st.tuples(_timers, _timers, st.dictionaries(_keys, st.integers(-3, 21)), st.integers(-3, 21)))


class _Subtask:
    """The timers of windows of six keys in four key groups."""

    def __init__(self) -> None:
        self._state = KeyedState(DictBackend())
        self._timers = self._state.window_timers(KeyGroupRange(10, 13), TimerIndex())

    def register(self, timers: set[Timer]) -> None:
        self._change(self._timers.register_all, timers)

    def delete(self, timers: set[Timer]) -> None:
        self._change(self._timers.delete_all, timers)

    def fire(self, until: int, at_once: int) -> list[Timer]:
        fired: list[Timer] = []
        number = {address: key for key, address in enumerate(zip(*_addresses(range(6)), strict=True))}
        for due in self._timers.fire(EVENT, until, SliceSize(at_once)):
            keys = [number[address] for address in zip(due.groups, due.keys, strict=True)]
            fired += _as_tuples(due.timers, keys)
            self._state.end_key_batch()
        return fired

    def fire_of_keys(self, until: dict[int, int]) -> list[Timer]:
        due = self._timers.fire_of_keys(*_addresses(list(until)), np.array([*until.values()], np.int64))
        self._state.end_key_batch()
        return _as_tuples(due, list(until))

    def _change(self, change: Any, timers: set[Timer]) -> None:
        rows = np.array(sorted(timers), np.int64).reshape(-1, 3)
        keys, of = np.unique(rows[:, 1], return_inverse=True)
        states = self._state.batch_of(*_addresses(keys.tolist()))
        change(EVENT, states.windows(of, rows[:, 2], rows[:, 2] + LENGTH), rows[:, 0])
        self._state.end_key_batch()


def _addresses(keys: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    return [struct.pack(">H", 10 + key % 4) for key in keys], [encode_key((key,)) for key in keys]


def _as_tuples(due: DueTimers, keys: Sequence[int]) -> list[Timer]:
    assert (due.ends - due.starts == LENGTH).all()
    of = [keys[number] for number in due.of.tolist()]
    return list(zip(due.times.tolist(), of, due.starts.tolist(), strict=True))


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (5, 3), (200_000, 2), (200_000, 200_000)])
@given(steps=_steps)
def test_due_timers_fire_once_in_order_of_time(
    most: int, at_once: int, steps: list[tuple[set[Timer], set[Timer], dict[int, int], int]]
) -> None:
    """All timers of some keys fire, each key's up to a time of its own; then those of all keys."""
    subtask, expected = _Subtask(), set[Timer]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_BY_COLUMNS", most)
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
