"""Small functions without a state that all packages use.

Checks of choices and of names that become part of a storage path, suggestions for unknown names, the line of user
code that an exception comes from, calls at an interval or in threads while other code runs, and the installed version.
"""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from difflib import SequenceMatcher
from functools import cache
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue
from traceback import extract_tb
from typing import Any, ParamSpec, TypeVar

from stateflow.errors import ConfigError, StateflowError

P = ParamSpec("P")
T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` if it can be a segment of a path.

    Args:
        kind: what the name identifies, for the error's message.

    Raises:
        ConfigError: `name` is not a valid name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} is not a valid name",
            hint="use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            name=name,
        )
    return name


_CUTOFF = 0.6
"""Smallest similarity ratio of a suggestion; the default of `difflib.get_close_matches`."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError if the value of a setting or an argument is not one of the choices."""
    if value not in choices:
        hint = f"use {' or '.join(map(repr, choices))}"
        raise ConfigError(f"the value of {name} is not supported", hint=hint, name=name, value=value)


def closest_first(unknown: str, known: Iterable[str]) -> list[str]:
    """Returns the known names: first the similar ones, most similar first, then the others in their order."""
    names = list(known)
    ratios = {name: SequenceMatcher(None, unknown.lower(), name.lower()).ratio() for name in names}
    similar = sorted((n for n in names if ratios[n] >= _CUTOFF), key=lambda name: -ratios[name])
    return similar + [name for name in names if name not in similar]


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar name, or with all known names if none is similar."""
    names = closest_first(unknown, known)
    if not names:
        return "there are none"
    is_similar = SequenceMatcher(None, unknown.lower(), names[0].lower()).ratio() >= _CUTOFF
    return f"did you mean {names[0]!r}?" if is_similar else f"known are {', '.join(names)}"


_PACKAGE = str(Path(__file__).parent) + os.sep
_FRAME = re.compile(r'^ *File "([^"\n]+)", line ([0-9]+)', re.MULTILINE)
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def line_of_user(error: BaseException) -> str:
    """Returns file and line of the innermost frame outside of stateflow and the interpreter; empty without one.

    Frames of installed packages count only if there is no other.
    """
    return _innermost([(frame.filename, str(frame.lineno)) for frame in extract_tb(error.__traceback__)])


@contextmanager
def add_job_line() -> Iterator[None]:
    """Adds file and line of the job to a StateflowError that the body raises."""
    try:
        yield
    except StateflowError as e:
        where = line_of_user(e)
        if where:
            e.add_facts(where=where)
        raise


def line_in_traceback(text: str) -> str:
    """Returns what `line_of_user` would, for an exception of another process of which only the text is known.

    Frames of installed packages do not count.
    """
    found = _innermost(_FRAME.findall(text))
    return "" if found.startswith(_INSTALLED) else found


def line_of_class(made: object) -> str:
    """Returns file and line of an object's class; empty if it has no text."""
    try:
        return f"{inspect.getsourcefile(type(made))}:{inspect.getsourcelines(type(made))[1]}"
    except (OSError, TypeError):
        return ""


def _innermost(frames: list[tuple[str, str]]) -> str:
    others = [each for each in reversed(frames) if not each[0].startswith((_PACKAGE, "<"))]
    own = [each for each in others if not each[0].startswith(_INSTALLED)]
    return ":".join(next(iter([*own, *others]), ()))


def import_hint(error: ModuleNotFoundError) -> str:
    """Returns what to do about a module that a job imports and that does not exist."""
    name = (error.name or "").partition(".")[0] or "the module"
    return f"put {name}.py next to the job file and name it in an import statement; or install {name}, on workers too"


@contextmanager
def call_periodically(interval: timedelta, call: Callable[[], object]) -> Iterator[None]:
    """Calls `call` in a thread at this interval until the body ends, and never after that."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(interval.total_seconds()):
            call()

    thread = threading.Thread(target=work, name="stateflow-periodic-call", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class DaemonExecutor(Executor):
    """Runs calls in threads that end with the process: unlike those of a ThreadPoolExecutor, also if a call hangs.

    For calls that only read: one that writes might end halfway. A ``with`` block that ends by an exception, such
    as KeyboardInterrupt, does not wait for the calls.

    Args:
        threads: maximum number of threads.
        name: name of the threads.
    """

    def __init__(self, threads: int, name: str = "stateflow-reads") -> None:
        self._most = threads
        self._name = name
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = SimpleQueue()
        self._pending = 0
        self._has_ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Returns the future result of a call."""
        future = Future[T]()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    try:
                        result = fn(*args, **kwargs)
                    except BaseException as e:
                        future.set_exception(e)
                    else:
                        future.set_result(result)
            finally:
                with self._lock:
                    self._pending -= 1

        with self._lock:
            if self._has_ended:
                raise RuntimeError("the executor was shut down")
            if len(self._threads) < min(self._most, self._pending + 1):
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._pending += 1
        self._calls.put((future, run))
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call[1]()
            # The call of a thread that waits for the next one would keep its result.
            del call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the calls that were submitted; with `cancel_futures`, after those that have begun."""
        with self._lock:
            self._has_ended = True
            threads = tuple(self._threads)
        while cancel_futures and not self._calls.empty():
            with suppress(Empty):
                if (call := self._calls.get_nowait()) is not None:
                    call[0].cancel()
        for _ in threads:
            self._calls.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)


@cache
def installed_version() -> str:
    """Returns the version of stateflow; empty if it is not installed as a package."""
    try:
        return metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        return ""
