"""A storage used by a process and by its fork: ``python -m tests.scoreboard.forked URI WAY``. The exit code is the
result."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stateflow.errors import EnvironmentUnsupported
from stateflow.storage import PutResult, Storage, open_storage
from tests.support.mutants import plant_from_environment

WAYS = ("inherited", "opened again", "opened again in a thread", "not used before")
WORKED, REFUSED = 10, 11


def main(uri: str, way: str) -> int:
    """Returns the exit code of the fork; the parent must be able to continue in any case."""
    first = None if way == "not used before" else open_storage(uri)
    if first:
        _use(first)
    code = _fork(lambda: _use_in_fork(uri, first if way == "inherited" else None, "thread" in way))
    _use(first or open_storage(uri))
    return code


def _use(storage: Storage) -> None:
    key = f"data/{os.getpid()}"
    assert storage.put_new(key, b"x" * 1000) is PutResult.CREATED
    assert storage.get(key) == b"x" * 1000
    storage.delete([key])


def _use_in_fork(uri: str, inherited: Storage | None, in_thread: bool) -> None:
    if in_thread:
        ThreadPoolExecutor(1).submit(lambda: _use(open_storage(uri))).result()
    else:
        _use(inherited or open_storage(uri))


def _fork(use: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while there are threads, which is the test
        child = os.fork()
    if child == 0:
        code = 1
        try:
            use()
            code = WORKED
        except EnvironmentUnsupported:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    plant_from_environment()
    sys.exit(main(*sys.argv[1:]))
