"""Bugs of savepoints and of requests for them."""

from __future__ import annotations

from contextlib import suppress

from stateflow.checkpoint import garbage_collector as garbage
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Answer, ClaimedSavepoint, SavepointClaim
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import get_or_none
from stateflow.checkpoint.savepoints import catalog, claim_slots, claimed_savepoints, cleanup, create
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.claim_slots import Disposal
from stateflow.checkpoint.savepoints.create import SavepointSpec
from stateflow.errors import SavepointClaimed, StorageError
from stateflow.operations import job_savepoints as savepoints
from stateflow.runtime.driver import request_server
from stateflow.runtime.driver.request_server import RequestServer
from stateflow.runtime.restore import plan_execution
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT, SAVEPOINTS, STARTED, savepoint_file, savepoint_folder
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()
LOCAL = LocalWorkers()
_settle = claimed_savepoints._settle


@MUTANTS.plant(
    "no-savepoint-pin",
    *((module, "make_savepoint") for module in (create, savepoints, request_server)),
    rules="I3 Q3",
    plan="keeping",
)
def _make_without_pin(root: JobRoot, order: SavepointSpec, workers: SavepointWorkers = LOCAL) -> StoredSavepoint:
    """A savepoint is made without a pin."""
    pin = root.admin.pin(order.checkpoint, root.writer, f"savepoint {order.name}", order.generation)
    root.admin.unpin(pin.id)
    return create._make_pinned(root, order, workers, pin.id)


@MUTANTS.plant("no-slot", (cleanup, "_sweep"), rules="V1", plan="given-up")
def _sweep_without_slot(root: JobRoot, folder: str, pins: set[str]) -> bool:
    """An unfinished savepoint is deleted without creating its `_savepoint` slot first."""
    storage = root.storage
    pin = get_or_none(storage, f"{folder}{STARTED}")
    if pin is None or pin.decode() in pins:
        return False
    if get_or_none(storage, f"{folder}{SAVEPOINT}") is not None:
        cleanup._sweep_complete(root, folder)
        return False
    storage.delete(b.key for b in storage.list(folder))
    return True


@MUTANTS.plant("pins-first", (garbage, "sweep_savepoints"), rules="V4", plan="keeping")
def _sweep_pins_first(root: JobRoot) -> list[str]:
    """A sweep reads the pins before it lists the savepoints."""
    pins = {p.id for p in root.head().entry.pinned}
    places = [savepoint_file(b.key) for b in root.storage.list(SAVEPOINTS)]
    started = [place[0] for place in places if place and place[1] == STARTED]
    return [f for f in started if cleanup._sweep(root, savepoint_folder(f), pins)]


@MUTANTS.plant("unannounced-claim", (plan_execution, "announced_claim"), rules="C5", plan="claims")
def _announce_nothing(*_: object) -> None:
    """A restore claims its savepoint before the log says so: no start finds the claim of a killed process."""


_release_claim = claim_slots.release_claim


@MUTANTS.plant("unslotted-undo", (claim_slots, "release_claim"), rules="C5", plan="claims")
def _release_existing_claim(storage: Storage, folder: str, release: SavepointClaim, claimed_by: int) -> None:
    """A start undoes a claim only where it finds one: a process that was paused before its slot creates it later."""
    if claim_slots.current_claim(storage, folder):
        _release_claim(storage, folder, release, claimed_by)


@MUTANTS.plant("unreserved-deletion", (cleanup, "reserve_deletion"), rules="C1 C2", plan="claims")
def _reserve_nothing(storage: Storage, folder: str, disposal: Disposal) -> None:
    """A user's command deletes a savepoint without a slot of its own: a job claims it meanwhile."""
    if not disposal.is_claimed_too and claim_slots.is_claimed(storage, folder):
        raise SavepointClaimed("a job has claimed the savepoint")


@MUTANTS.plant(
    "impatient-owner", (claimed_savepoints, "settle_claims"), (garbage, "settle_claims"), rules="C2 C3", plan="claims"
)
def _settle_at_once(root: JobRoot, head: Head) -> None:
    """A claimed savepoint is deleted while the checkpoint that adopted its state is retained."""
    for claimed in head.entry.claimed_savepoints:
        if claimed.checkpoint or claimed.generation < head.entry.generation:
            with suppress(StorageError):
                claimed_savepoints._settle(root, head, claimed)


@MUTANTS.plant("forgotten-first", (claimed_savepoints, "_settle"), rules="C4", plan="claims")
def _settle_log_first(root: JobRoot, head: Head, claimed: ClaimedSavepoint) -> None:
    """The log forgets a claimed savepoint before the savepoint is deleted, or its claim undone."""
    root.admin.end_claim(claimed)
    _settle(root, head, claimed)


# Mistakes that the simulator found in the code itself.


@MUTANTS.plant(
    "unasked-savepoint",
    *((module, "finish_savepoint") for module in (create, cleanup, request_server)),
    rules="Q2",
    plan="keeping",
)
def _keep_whatever_was_answered(root: JobRoot, made: StoredSavepoint, given: Answer, took_ms: float = 0) -> None:
    """A savepoint is kept although its request was withdrawn, or answered by another run."""
    root.storage.delete([f"{made.folder}{STARTED}"])


@MUTANTS.plant("unconfirmed-savepoint", (create, "is_confirmed"), (catalog, "is_confirmed"), rules="V5", plan="keeping")
def _is_always_confirmed(*_: object) -> bool:
    """A repeated request returns the savepoint that a run made, although the request was withdrawn."""
    return True


@MUTANTS.plant("late-copies", (cleanup, "_sweep_leftovers"), rules="V2", plan="keeping")
def _sweep_no_leftovers(*_: object) -> bool:
    """Copies of a run whose savepoint was abandoned, and leftovers of a killed disposal, are never deleted."""
    return False


@MUTANTS.plant("outrun-request", (RequestServer, "_is_retried"), rules="Q3", plan="keeping")
def _never_retried(*_: object) -> bool:
    """A request fails because the checkpoint was released, or its run fenced, before the savepoint had its pin."""
    return False
