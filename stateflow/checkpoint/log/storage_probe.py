"""Probes whether a storage's put-if-absent is atomic, as the checkpoint log requires."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import get_or_none
from stateflow.clock import Clock
from stateflow.errors import EnvironmentUnsupported, StorageError
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import FORMAT, probe_key

_RACERS = 8
_ROUNDS = 3


def next_generation(storage: Storage, clock: Clock) -> int:
    """Returns the generation that the next run will claim, according to the log; 1 when the job does not exist."""
    if storage.size(FORMAT) is None:
        return 1
    head = JobRoot.open(storage, clock).log.read_head()
    return head.entry.seq + 1 if head else 1


def probe_job_root(storage: Storage, clock: Clock) -> None:
    """Probes the storage of a job root that other processes may use concurrently. Raises as `probe_storage`."""
    while True:
        generation = next_generation(storage, clock)
        try:
            probe_storage(storage, clock, generation)
        except EnvironmentUnsupported:
            # A run with this generation may have ended meanwhile: then the probe's object was garbage, and a collector
            # that deleted it between two racers let both win.
            if next_generation(storage, clock) == generation:
                raise
        else:
            return


def probe_storage(storage: Storage, clock: Clock, generation: int) -> None:
    """Lets several threads create the same object concurrently, several times.

    Args:
        storage: the storage to probe.
        clock: gives unique names.
        generation: the generation that the caller is about to claim, so that a collector deletes the objects of an
            interrupted probe.

    Raises:
        EnvironmentUnsupported: not exactly one thread won, or other bytes than the winner's are stored.
        StorageError: the storage did not confirm a result.
    """
    for _ in range(_ROUNDS):
        key = probe_key(generation, clock.new_id())
        with ThreadPoolExecutor(_RACERS) as pool:
            results = list(pool.map(lambda i: storage.put_new(key, _content(i)), range(_RACERS)))  # noqa: B023
        if PutResult.UNKNOWN in results:
            storage.delete([key])
            raise StorageError("the storage does not confirm whether it created an object", hint="try again", key=key)
        winners = [i for i, r in enumerate(results) if r is PutResult.CREATED]
        stored = get_or_none(storage, key)
        storage.delete([key])
        if len(winners) != 1 or stored != _content(winners[0]):
            raise EnvironmentUnsupported(
                "the storage does not let exactly one of several writers create an object",
                hint="a checkpoint log needs an atomic put-if-absent; use another storage",
                storage=storage.uri,
                winners=len(winners),
            )


def _content(racer: int) -> bytes:
    return f"racer {racer}\n".encode() * 64
