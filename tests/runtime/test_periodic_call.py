"""A sign of life is given while something slow is under way, and never after it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from stateflow.runtime.periodic_call import call_periodically


def test_calls_come_until_the_body_ends() -> None:
    calls: list[int] = []
    third = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            third.set()

    with call_periodically(timedelta(milliseconds=1), call):
        assert third.wait(60)
    ended = list(calls)
    assert ended[:3] == [0, 1, 2]
    assert not [t for t in threading.enumerate() if t.name == "stateflow-periodic-call"]
    assert calls == ended


def test_a_body_that_is_fast_or_fails_ends_at_once() -> None:
    calls: list[int] = []
    with pytest.raises(ZeroDivisionError), call_periodically(timedelta(hours=1), lambda: calls.append(1)):
        raise ZeroDivisionError
    assert calls == []
