"""A race of several threads for one object, which shows whether a storage lets exactly one of them create it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stateflow.errors import EnvironmentUnsupported, MissingFile, StorageError
from stateflow.storage.base import PutResult, Storage

_RACERS = 8
_ROUNDS = 3


def check_put_if_absent(storage: Storage, new_key: Callable[[], str]) -> None:
    """Lets several threads create the same object concurrently, several times.

    Args:
        storage: the storage to probe.
        new_key: returns a key that no other process uses.

    Raises:
        EnvironmentUnsupported: not exactly one thread won, or other bytes than the winner's are stored.
        StorageError: the storage did not confirm a result.
    """
    for _ in range(_ROUNDS):
        key = new_key()
        with ThreadPoolExecutor(_RACERS) as pool:
            results = list(pool.map(lambda i: storage.put_new(key, _content(i)), range(_RACERS)))  # noqa: B023
        if PutResult.UNKNOWN in results:
            storage.delete([key])
            raise StorageError("the storage does not confirm whether it created an object", hint="try again", key=key)
        winners = [i for i, r in enumerate(results) if r is PutResult.CREATED]
        stored = _stored(storage, key)
        storage.delete([key])
        if len(winners) != 1 or stored != _content(winners[0]):
            raise EnvironmentUnsupported(
                "the storage does not let exactly one of several writers create an object",
                hint="a checkpoint log, and a table's log, need an atomic put-if-absent; use another storage",
                storage=storage.uri,
                winners=len(winners),
            )


def _stored(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key)
    except MissingFile:
        return None


def _content(racer: int) -> bytes:
    return f"racer {racer}\n".encode() * 64
