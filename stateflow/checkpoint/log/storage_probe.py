"""The race probe: is this storage's put-if-absent one that a log may rest on?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stateflow.checkpoint.files import get_or_none
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import Clock
from stateflow.errors import EnvironmentUnsupported, StorageError
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import FORMAT, probe

_RACERS = 8
_ROUNDS = 3


def next_generation(storage: Storage, clock: Clock) -> int:
    """The generation that the next run will claim, as the log is now; 1 where there is no job yet."""
    if storage.size(FORMAT) is None:
        return 1
    head = JobRoot.open(storage, clock).log.read_head()
    return head.entry.seq + 1 if head else 1


def probe_job_root(storage: Storage, clock: Clock) -> None:
    """As `probe_storage`, of a job root that others may use at the same time."""
    while True:
        generation = next_generation(storage, clock)
        try:
            probe_storage(storage, clock, generation)
        except EnvironmentUnsupported:
            # A run that has claimed this very generation may have ended meanwhile; what we raced for was garbage then,
            # and a collector that took it between two racers let both win.
            if next_generation(storage, clock) == generation:
                raise
        else:
            return


def probe_storage(storage: Storage, clock: Clock, generation: int) -> None:
    """Lets eight threads race for a name, a few times.

    Args:
        generation: the one that the caller is about to claim; a collector removes what an interrupted probe left.

    Raises:
        EnvironmentUnsupported: more or fewer than one racer won, or other bytes than the winner's are stored.
        StorageError: the storage did not say what it did.
    """
    for _ in range(_ROUNDS):
        key = probe(generation, clock.new_id())
        with ThreadPoolExecutor(_RACERS) as pool:
            results = list(pool.map(lambda i: storage.put_new(key, _bid(i)), range(_RACERS)))  # noqa: B023
        if PutResult.UNKNOWN in results:
            storage.delete([key])
            raise StorageError(
                "the storage does not say whether it created an object", hint="try again", key=key
            )
        winners = [i for i, r in enumerate(results) if r is PutResult.CREATED]
        stored = get_or_none(storage, key)
        storage.delete([key])
        if len(winners) != 1 or stored != _bid(winners[0]):
            raise EnvironmentUnsupported(
                "the storage does not let exactly one of several writers create an object",
                hint="a checkpoint log needs an atomic put-if-absent; use another storage",
                storage=storage.uri, winners=len(winners),
            )  # fmt: skip


def _bid(racer: int) -> bytes:
    return f"racer {racer}\n".encode() * 64
