"""What must hold for savepoints that jobs claim.

C1  a slot is created only where it may: a claim where no other owner is, nothing where a user is deleting
C2  a job deletes a savepoint only if it owns the savepoint, and keeps no checkpoint that adopted the state; a user only
    after a slot of the deletion, which ends a claim
C3  an entry adopts only a savepoint that the job owns, unless a user has deleted that one since
C4  the log forgets a savepoint only when it is deleted, or when the claim is undone
C5  at rest, after a healthy run and a collection, jobs own exactly the savepoints that the log names, each for a
    checkpoint that is kept
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tests.model.invariants.entries import Entry, read_document
from tests.model.invariants.violation import Violation

if TYPE_CHECKING:
    from tests.model.invariants.log import Checker
    from tests.model.simulation.storage import SimStorage

_FOLDER = re.compile(r"savepoints/([^/]+)/")


class ClaimChecker:
    """Follows the claims of the savepoints in one job root."""

    def __init__(self, checker: Checker, storage: SimStorage) -> None:
        self._checker = checker
        self._storage = storage
        self._slots: dict[str, list[dict[str, Any]]] = {}
        """By folder, in order."""

    def slot_created(self, folder: str, data: bytes, *, is_deleted: bool) -> None:
        slot, slots = read_document(data), self._slots.setdefault(folder, [])
        last = slots[-1] if slots else {"state": "released", "generation": 0}
        self._checker.counts[f"savepoints {slot['state']}"] += 1
        if slot["state"] != "deleted" and self._named(folder, self._owner(folder)).get("checkpoint"):
            raise Violation("C1", f"{folder} gets the slot {slot['state']}, and an entry has adopted its state")
        is_old = any(s["generation"] > slot["generation"] for s in slots if s["state"] != "deleted")
        is_gone = last["state"] == "deleted" or is_deleted
        # A process may be late: then the savepoint no longer exists, and the slot means nothing.
        if slot["state"] == "claimed" and (is_old or is_gone) and self._exists(folder):
            raise Violation("C1", f"{folder} gets a claim of {slot['generation']} after {slots}")
        slots.append(slot)

    def is_claimed(self, folder: str) -> bool:
        return bool(self._owner(folder))

    def is_deleted(self, folder: str) -> bool:
        """Whether a user has reserved the deletion of the savepoint."""
        slots = self._slots.get(folder)
        return bool(slots and slots[-1]["state"] == "deleted")

    def deleted(self, folder: str, actor: str) -> None:
        """A process begins to delete a savepoint that is claimed."""
        if actor.startswith("dispose"):
            raise Violation("C2", f"{actor} deletes {folder}, and a job has claimed it")
        named = self._named(folder, self._owner(folder))
        if not named or not named["checkpoint"] or named["checkpoint"] in self._checker.head.kept:
            raise Violation("C2", f"{folder} is deleted at head {self._checker.head.seq}: {named}")
        self._checker.counts["claimed savepoints deleted"] += 1

    def extended(self, parent: Entry, entry: Entry) -> None:
        """An entry was appended."""
        before, after = _claims(parent), _claims(entry)
        for folder, claimed in after.items():
            is_new = claimed["checkpoint"] == entry.seq
            states = [s["state"] for s in self._slots.get(folder, [])]
            if is_new and self._owner(folder) != claimed["generation"] and "deleted" not in states:
                raise Violation("C3", f"entry {entry.seq} adopts {folder}, of which {self._slots.get(folder)} is known")
        for folder in before.keys() - after.keys():
            if self._exists(folder) and self._owner(folder) == before[folder]["generation"]:
                raise Violation("C4", f"entry {entry.seq} forgets {folder}, which the job owns")

    def check_rest(self, complete: Collection[str]) -> None:
        """C5."""
        named = _claims(self._checker.head)
        for folder in complete:
            if bool(self._owner(folder)) != (folder in named):
                raise Violation("C5", f"{folder} has the owner {self._owner(folder)}, the log says {named.get(folder)}")
        for folder, claimed in named.items():
            if claimed["checkpoint"] not in self._checker.head.kept:
                raise Violation("C5", f"{folder} is still claimed for checkpoint {claimed['checkpoint']}")

    def _owner(self, folder: str) -> int:
        """The generation that owns the savepoint; 0 for the user."""
        slots = self._slots.get(folder)
        return int(slots[-1]["generation"]) if slots and slots[-1]["state"] == "claimed" else 0

    def _named(self, folder: str, generation: int) -> dict[str, Any]:
        named = _claims(self._checker.head).get(folder, {})
        return named if named.get("generation") == generation else {}

    def _exists(self, folder: str) -> bool:
        return self._storage.peek(f"savepoints/{folder}/_savepoint") is not None


def _claims(entry: Entry) -> dict[str, dict[str, Any]]:
    """The savepoints that an entry names as claimed, by folder."""
    found = {}
    for claimed in entry.doc.get("claimed_savepoints", []):
        match = _FOLDER.fullmatch(claimed["folder"])
        assert match is not None, claimed
        found[match[1]] = claimed
    return found
