"""A race of several threads for one object, which shows whether a storage lets exactly one of them create it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stateflow.errors import EnvironmentUnsupported, MissingFile, StorageError
from stateflow.storage.base import PutResult, Storage

_RACERS = 8
_ROUNDS = 3
_MOST_UNCLEAR = 5
"""Rounds whose winner is not known, as with a network that loses answers."""


def check_put_if_absent(storage: Storage, new_key: Callable[[], str]) -> None:
    """Lets several threads create the same object concurrently, several times.

    Args:
        storage: the storage to probe.
        new_key: returns a key that no other process uses.

    Raises:
        EnvironmentUnsupported: several threads have won, other bytes than the winner's are stored, or none ever wins.
        StorageError: the storage repeatedly did not confirm a result.
    """
    clear = unclear = 0
    while clear < _ROUNDS:
        key = new_key()
        with ThreadPoolExecutor(_RACERS) as pool:
            results = list(pool.map(lambda i: storage.put_new(key, _content(i)), range(_RACERS)))  # noqa: B023
        winners = [i for i, r in enumerate(results) if r is PutResult.CREATED]
        stored = _stored(storage, key)
        storage.delete([key])
        is_unknown = PutResult.UNKNOWN in results
        if len(winners) > 1 or (winners and stored != _content(winners[0])):
            raise _refusal(storage, len(winners))
        if winners and not is_unknown:
            clear += 1
            continue
        # An answer was lost: the client does not know who has won, or its second request found its own object.
        unclear += 1
        if unclear > _MOST_UNCLEAR and is_unknown:
            raise StorageError("the storage does not confirm whether it created an object", hint="try again", key=key)
        if unclear > _MOST_UNCLEAR:
            raise _refusal(storage, 0)


def _refusal(storage: Storage, winners: int) -> EnvironmentUnsupported:
    return EnvironmentUnsupported(
        "the storage does not let exactly one of several writers create an object",
        hint="a checkpoint log, and a table's log, need an atomic put-if-absent; use another storage",
        storage=storage.uri,
        winners=winners,
    )


def _stored(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key)
    except MissingFile:
        return None


def _content(racer: int) -> bytes:
    return f"racer {racer}\n".encode() * 64
