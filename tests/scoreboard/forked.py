"""A storage used by a process and by its fork: ``python -m tests.scoreboard.forked URI WAY``. The exit code is the
result."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable

from stateflow.errors import EnvironmentUnsupported
from stateflow.storage import PutResult, Storage, open_storage
from tests.support.mutants import plant_from_environment

WAYS = ("inherited", "opened anew", "opened anew in a thread", "not used before")
WORKED, REFUSED = 10, 11


def _child(use: Callable[[], None]) -> int:
    """Exit code of a fork that does it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what is tried here
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


def _use(storage: Storage) -> None:
    key = f"data/{os.getpid()}"
    assert storage.put_new(key, b"x" * 1000) is PutResult.CREATED
    assert storage.get(key) == b"x" * 1000
    storage.delete([key])


def _use_in_thread(uri: str) -> None:
    errors: list[BaseException] = []

    def use() -> None:
        try:
            _use(open_storage(uri))
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def main(uri: str, way: str) -> int:
    """What the fork ended with; the parent must be able to go on in any case."""
    inherited = None if way == "not used before" else open_storage(uri)
    if inherited is not None:
        _use(inherited)
    uses: dict[str, Callable[[], None]] = {
        "inherited": lambda: _use(inherited or open_storage(uri)),
        "opened anew": lambda: _use(open_storage(uri)),
        "opened anew in a thread": lambda: _use_in_thread(uri),
        "not used before": lambda: _use(open_storage(uri)),
    }
    code = _child(uses[way])
    _use(inherited or open_storage(uri))
    return code


if __name__ == "__main__":
    plant_from_environment()
    sys.exit(main(*sys.argv[1:]))
