"""Threads that end with the process."""

from __future__ import annotations

import threading

import pytest

from stateflow.helpers import DaemonExecutor


def test_results_are_in_the_order_of_the_calls_and_errors_are_those_of_the_calls() -> None:
    with DaemonExecutor(3) as pool:
        assert list(pool.map(lambda n: n * n, range(50))) == [n * n for n in range(50)]
        failed = pool.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_an_exception_leaves_without_the_calls_that_hang_and_cancels_those_that_wait() -> None:
    release, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait()

    with pytest.raises(KeyboardInterrupt), DaemonExecutor(1) as pool:
        hanging, waiting = pool.submit(hang), pool.submit(lambda: 1)
        begun.wait()
        raise KeyboardInterrupt
    assert (hanging.running(), waiting.cancelled()) == (True, True)
    release.set()
    assert hanging.result() is None


def test_a_call_after_the_end_is_refused() -> None:
    with DaemonExecutor(1) as pool:
        pass
    with pytest.raises(RuntimeError):
        pool.submit(lambda: 1)
