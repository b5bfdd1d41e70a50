"""What stands for threads: each is an actor of its own that dies with its process, the actor that began it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from greenlet import getcurrent

from tests.model.world import World

T, R = TypeVar("T"), TypeVar("R")
_LOOKS = (20, 60)
"""How many steps lie between two looks of somebody who waits with a timeout."""


class Threads:
    """Stands for the module `threading` and for `ThreadPoolExecutor`.

    Args:
        world: whose scheduler decides when which thread goes on.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> _Event:
        """An event."""
        return _Event(self._world)

    def Lock(self) -> _Lock:
        """A lock."""
        return _Lock(self._world)

    def Thread(self, target: Callable[[], None], name: str, daemon: bool) -> _Thread:
        """A thread."""
        return _Thread(self._world, target)

    def pool(self, workers: int, thread_name_prefix: str = "") -> _Pool:
        """An executor with one worker."""
        return _Pool(self._world)


class _Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Any] = []

    def set(self) -> None:
        self._is_set = True
        for actor in self._waiting:
            actor.wake = min(actor.wake, self._world.now + 1)

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            self._waiting.append(getcurrent())
            self._world.sleep(self._world.rng.randint(*_LOOKS))
            self._waiting.remove(getcurrent())
        return self._is_set


class _Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def __enter__(self) -> None:
        while self._held and not self._world.quiet:
            self._world.sleep(2)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class _Thread:
    def __init__(self, world: World, target: Callable[[], None]) -> None:
        self._world = world
        self._target = target
        self._alive = False

    def start(self) -> None:
        # Where nothing is scheduled any more nobody could stop it.
        if not self._world.quiet:
            self._alive = True
            self._world.spawn_thread(self._run)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._alive = False

    def is_alive(self) -> bool:
        return self._alive

    def join(self) -> None:
        while self._alive:
            self._world.sleep(3)


class _Future:
    def __init__(self, world: World) -> None:
        self._world = world
        self.error: Exception | None = None
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def finish(self) -> None:
        self._is_done = True

    def result(self, timeout: float | None = None) -> None:
        while not self._is_done:
            self._world.sleep(3)
        if self.error:
            raise self.error


class _Pool:
    def __init__(self, world: World) -> None:
        self._world = world
        self._queue: list[tuple[_Future, Callable[[], None]]] = []
        self._working = False

    def submit(self, act: Callable[..., None], *arguments: Any) -> _Future:
        future = _Future(self._world)
        self._queue.append((future, lambda: act(*arguments)))
        if self._world.quiet:
            self._work()
        elif not self._working:
            self._working = True
            self._world.spawn_thread(self._work)
        return future

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        self._queue.clear()
        while wait and self._working:
            self._world.sleep(3)

    def _work(self) -> None:
        try:
            while self._queue:
                future, act = self._queue.pop(0)
                try:
                    act()
                except Exception as e:
                    future.error = e
                future.finish()
        finally:
            self._working = False


class InlinePool:
    """An executor that does everything at once; what its tasks do is in the hands of one process anyhow."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, act: Callable[..., None], *arguments: Any) -> _Done:
        """Does it."""
        act(*arguments)
        return _Done()

    def map(self, act: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
        """Does each when its result is asked for."""
        return map(act, values)


class _Done:
    def result(self) -> None:
        pass


class Idle:
    """Stands for the module `threading` where no thread is ever to run."""

    def Event(self) -> _Never:
        """An event."""
        return _Never()

    def Thread(self, target: Callable[[], None], name: str, daemon: bool) -> _Never:
        """A thread that does nothing."""
        return _Never()


class _Never:
    def start(self) -> None: ...

    def set(self) -> None: ...

    def is_alive(self) -> bool:
        return False
