"""Replaces `threading` and `ThreadPoolExecutor`: a thread is an actor that dies with the process that started it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from greenlet import getcurrent

from tests.model.simulation.scheduler import Scheduler

T = TypeVar("T")
R = TypeVar("R")
_CHECK_STEPS = (20, 60)
"""How many steps pass between two checks of a wait with a timeout."""


def simulated_threading(scheduler: Scheduler) -> SimpleNamespace:
    return SimpleNamespace(
        Event=partial(_Event, scheduler), Lock=partial(_Lock, scheduler), Thread=partial(_Thread, scheduler)
    )


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[Any] = []

    def set(self) -> None:
        self._is_set = True
        for actor in self._waiting:
            actor.wake = min(actor.wake, self._scheduler.now + 1)

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            self._waiting.append(getcurrent())
            self._scheduler.sleep(self._scheduler.rng.randint(*_CHECK_STEPS))
            self._waiting.remove(getcurrent())
        return self._is_set


class _Lock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def __enter__(self) -> None:
        while self._held and not self._scheduler.is_unscheduled:
            self._scheduler.sleep(2)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class _Thread:
    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._scheduler = scheduler
        self._target = target
        self._alive = False

    def start(self) -> None:
        # Without a scheduler nothing could stop the thread.
        if not self._scheduler.is_unscheduled:
            self._alive = True
            self._scheduler.spawn_thread(self._run)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._alive = False

    def is_alive(self) -> bool:
        return self._alive

    def join(self) -> None:
        while self._alive:
            self._scheduler.sleep(3)


class _Future:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._error: Exception | None = None
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def exception(self) -> Exception | None:
        """The error of a call that is done."""
        assert self._is_done
        return self._error

    def run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as e:
            self._error = e
        self._is_done = True

    def result(self, timeout: float | None = None) -> None:
        while not self._is_done:
            self._scheduler.sleep(3)
        if self._error:
            raise self._error


class Pool:
    """An executor with one worker."""

    def __init__(self, scheduler: Scheduler, workers: int, thread_name_prefix: str = "") -> None:
        self._scheduler = scheduler
        self._queue: list[tuple[_Future, Callable[[], None]]] = []
        self._working = False

    def submit(self, act: Callable[..., None], *arguments: Any) -> _Future:
        future = _Future(self._scheduler)
        self._queue.append((future, partial(act, *arguments)))
        if self._scheduler.is_unscheduled:
            self._work()
        elif not self._working:
            self._working = True
            self._scheduler.spawn_thread(self._work)
        return future

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        self._queue.clear()
        while wait and self._working:
            self._scheduler.sleep(3)

    def _work(self) -> None:
        try:
            while self._queue:
                future, act = self._queue.pop(0)
                future.run(act)
        finally:
            self._working = False


class InlinePool:
    """An executor that runs each task in the calling process, whose steps the scheduler interleaves with others."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, act: Callable[..., None], *arguments: Any) -> SimpleNamespace:
        act(*arguments)
        return SimpleNamespace(result=lambda: None)

    def map(self, act: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
        return map(act, values)


class NoThreads:
    """Replaces `threading`, its events and its threads where no thread must run."""

    def Event(self) -> NoThreads:
        return self

    def Thread(self, target: Callable[[], None], name: str, daemon: bool) -> NoThreads:
        return self

    def start(self) -> None: ...

    def set(self) -> None: ...

    def is_alive(self) -> bool:
        return False
