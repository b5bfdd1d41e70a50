"""What must hold after every step, checked by code that shares nothing with the code under test.

It reads the stored bytes as plain JSON, follows the log as it grows, and knows what each kept checkpoint needs. The
rules are:

    I1  one hash chain                        I6  what was acknowledged is in the chain
    I2  an entry's generation is its CLAIM's  I7  the head is never deleted, the log never shrinks or has a gap
    I3  everything kept exists, unchanged     I8  at rest, one start and one collection leave exactly what is live
    I4  a commit adds only what it may        I9  a run is fenced only by a newer CLAIM
    S1  output becomes visible in order, exactly once, and only that of checkpoints on the job's line
    S2  output that is not visible is pending in the head
    S3  a sweep of a sink removes only what no checkpoint on the job's line has, and at rest all of that
    S4  what another application appended disappears only if an approved plan has named it
    R1  every entry repeats the ids of all restore requests   R2  no restore request is executed twice
    R3  an intent is true: the target's state, and its output was published
    R4  an intent replaces an incomplete one only if it covers each table of that one
    R5  nothing is committed or published before the tables were rewound
    R6  every entry has all restores that led to it, with their targets

The rules of tables are in `tables.py`, those of savepoints and requests in `savepoints.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING

from tests.model.invariants.entries import NO_ENTRY, Entry, read_entry, read_needed
from tests.model.invariants.savepoints import SavepointChecker
from tests.model.invariants.tables import Output, TableChecker
from tests.model.invariants.violation import Violation

if TYPE_CHECKING:
    from tests.model.simulation.storage import SimStorage

_LOG = re.compile(r"log/(\d{20})")
_DATA = re.compile(r"data/(\d{20})/(\d{10})-[^/]+/[^/]+")
_OWNED = re.compile(r"(?:spark|probe|history-index)/(\d{20})/.+")


class Checker:
    """Follows one history.

    Args:
        retain: the maximum number of checkpoints that a COMMIT may keep without pins.
        origin: of the job that this one is a fork of.

    Attributes:
        pins: ids of pins that were acknowledged and not removed.
        approved: files of other applications that may disappear, because an approved plan has named them.
        lines: for each checkpoint and sink, what the table held, or was to hold, with the checkpoint's output.
    """

    def __init__(self, storage: SimStorage, retain: int, origin: Checker | None = None) -> None:
        storage.observer = self
        self.chain = [NO_ENTRY]
        self.generation = 0
        self.pins: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.savepoints = SavepointChecker(self, storage)
        self.tables: dict[str, TableChecker] = {}
        self.lines: dict[int, dict[str, list[Output]]] = {}
        self.approved: set[str] = set()
        self._storage = storage
        self._retain = retain
        self._origin = origin
        self._needs: dict[str, dict[str, str]] = {"": {}}
        """For each manifest: hashes, by key, of itself and of the state files."""
        self._requests: set[str] = set()
        self._restores: list[tuple[int, int]] = []
        self._protected: dict[str, str] = {}
        self._data_files: dict[str, bytes] = {}

    def table(self, uid: str) -> TableChecker:
        return self.tables.setdefault(uid, TableChecker(uid, self.counts, self.approved))

    @property
    def head(self) -> Entry:
        return self.chain[-1]

    def states_of(self, checkpoint: int) -> list[str]:
        manifest = self.chain[checkpoint].manifest
        return sorted(sha256 for key, sha256 in self._needs[manifest].items() if key != manifest)

    # -- changes of the storage ---------------------------------------------------------------------------------------

    def created(self, key: str, data: bytes) -> None:
        if match := _LOG.fullmatch(key):
            seq = int(match[1])
            if seq > len(self.chain):
                raise Violation("I7", f"entry {seq} leaves a gap after {self.head.seq}")
            if seq == len(self.chain):
                self._extend(read_entry(self._storage, seq, data))
            else:
                self.counts["entries in stale slots"] += 1
        elif key.startswith("data/") and self._data_files.setdefault(key, data) != data:
            raise Violation("I3", f"the name {key} was used for two contents")
        self.savepoints.created(key, data)

    def deleted(self, key: str) -> None:
        """An object is about to be deleted."""
        self.savepoints.deleted(key)
        if key in self._protected:
            raise Violation("I3", f"{key} is needed by head {self.head.seq}, and deleted")
        if (match := _LOG.fullmatch(key)) and int(match[1]) >= self.head.seq:
            raise Violation("I7", f"{key} is deleted, the head is {self.head.seq}")

    # -- what processes report ----------------------------------------------------------------------------------------

    def acknowledged(self, seq: int, sha256: str) -> None:
        """A caller received the result that its entry is part of the history."""
        if seq >= len(self.chain) or self.chain[seq].sha256 != sha256:
            raise Violation("I6", f"entry {seq} was acknowledged and is not in the chain")

    def pinned(self, pin_id: str) -> None:
        self.pins.add(pin_id)
        self._check_pins(self.head)

    def fenced(self, generation: int) -> None:
        if generation == self.generation:
            raise Violation("I9", f"generation {generation} was fenced, and no CLAIM came after it")

    def adoptable_since(self, checkpoint: int, seq: int) -> bool:
        """Whether the checkpoint is current in every entry from `seq` on, or retained other than by a pin."""
        return all(
            checkpoint == entry.checkpoint or any(r["id"] == checkpoint for r in entry.doc["retained"])
            for entry in self.chain[seq:]
        )

    # -- the chain ----------------------------------------------------------------------------------------------------

    def _extend(self, entry: Entry) -> None:
        parent = self.head
        if entry.doc["parent"] != parent.sha256:
            raise Violation("I1", f"entry {entry.seq} is not linked to {parent.seq}")
        self._check_numbers(parent, entry)
        self.chain.append(entry)
        self.counts["lists in objects"] += sum(key.startswith("data/") for key in entry.objects)
        if self._origin and not entry.manifest:
            raise Violation("R3", "a fork begins without state")
        self._check_intents(parent, entry)
        if entry.kind == "claim":
            self.generation = entry.seq
            if entry.manifest != parent.manifest or entry.rewind["seq"] == entry.seq:
                self._adopt(parent, entry)
        self._check_ancestry(parent, entry)
        if entry.kind == "commit":
            self._check_commit(parent, entry)
        self._check_kept(parent, entry)
        self.savepoints.claims.extended(parent, entry)
        self._check_pins(entry)
        self._protect(entry)
        for sink, table in self.tables.items():
            own = [pending for pending in entry.doc["pending"] if pending["sink"] == sink]
            table.check_pending({pending["checkpoint_id"] or entry.seq for pending in own})

    def _check_numbers(self, parent: Entry, entry: Entry) -> None:
        ordinal, before = entry.doc["ordinal"], parent.doc["ordinal"]
        generation = entry.seq if entry.kind == "claim" else self.generation
        right = {"claim": ordinal == 0, "commit": ordinal > before, "admin": ordinal == before}
        if entry.doc["generation"] != generation or not right[entry.kind]:
            raise Violation("I2", f"entry {entry.seq} has generation {entry.doc['generation']}, ordinal {ordinal}")

    def _check_intents(self, parent: Entry, entry: Entry) -> None:
        """Restores happen once, one after the other, and before anything else."""
        before, after = parent.doc.get("requests", []), entry.doc.get("requests", [])
        if after[: len(before)] != before:
            raise Violation("R1", f"entry {entry.seq} lacks a restore request of its parent")
        for request in after[len(before) :]:
            if request in self._requests:
                raise Violation("R2", f"entry {entry.seq} executes {request} a second time")
            self._requests.add(request)
        old, new = parent.rewind, entry.rewind
        if old["seq"] and new["seq"] not in (0, old["seq"]):
            if not old["sinks"].keys() <= new["sinks"].keys() or entry.seq != new["seq"]:
                raise Violation("R4", f"entry {entry.seq} has an intent, {old['seq']} is not complete")
            self.counts["intents replaced"] += 1
        if old["seq"] and not new["seq"] and any(table.intent for table in self.tables.values()):
            raise Violation("R5", f"entry {entry.seq} completes the intent {old['seq']} before all tables are rewound")
        if new["seq"] and entry.kind == "commit":
            raise Violation("R5", f"commit {entry.seq} comes before the tables are rewound for {new['seq']}")

    def _check_ancestry(self, parent: Entry, entry: Entry) -> None:
        listed = [(r["seq"], r["base"]) for r in entry.doc["ancestry"]["restores"]]
        stays = (entry.seq, parent.checkpoint)
        if entry.kind == "claim" and stays in listed and stays not in self._restores:
            self._restores.append(stays)  # to the present checkpoint: nothing is undone
        if listed != self._restores:
            raise Violation("R6", f"entry {entry.seq} lists the restores {listed}, they were {self._restores}")

    def _adopt(self, parent: Entry, entry: Entry) -> None:
        """A CLAIM that continues from another state than the entry before it."""
        rewind, is_import = entry.rewind, entry.checkpoint == entry.seq
        target = self._import(entry) if is_import else entry.checkpoint
        if entry.seq > 1:
            self._restores.append((entry.seq, target))
        if rewind["seq"] == entry.seq:
            for sink, intent in rewind["sinks"].items():
                self.tables[sink].intend(entry.seq, intent["mode"], self.lines[target].get(sink, []))
            self._storage.scheduler.wake_before_tables()
            self.counts["intents"] += 1
            self.counts["intents to an older checkpoint"] += target < max(self.lines, default=0)
        elif target <= parent.checkpoint:
            for table in self.tables.values():
                table.adopt(entry.checkpoint)
        if is_import:
            self._add_checkpoint(entry)
        elif any(ref["id"] > target for ref in entry.doc["retained"]):
            raise Violation("R3", f"claim {entry.seq} goes back to {target}, and keeps later checkpoints")

    def _import(self, entry: Entry) -> int:
        """State from a savepoint or another job: the very files of the checkpoint with these source positions."""
        source = self._origin if self._origin and not self.lines else self
        same = [c for c in source.lines if source.chain[c].offset == entry.offset]
        rewind = entry.doc.get("rewind")
        target = rewind["restore"]["base"] if rewind else max(same, default=0)
        self._needs[entry.manifest] = self._read_needs(entry)
        if target not in same:
            raise Violation("R3", f"claim {entry.seq} has the positions of no checkpoint")
        if source.states_of(target) != self.states_of(entry.seq):
            raise Violation("R3", f"claim {entry.seq} has the state of no checkpoint")
        self.counts["states imported"] += 1
        return target

    def _add_checkpoint(self, entry: Entry) -> None:
        self.lines[entry.seq] = {sink: list(table.line) for sink, table in self.tables.items()}

    def _check_commit(self, parent: Entry, entry: Entry) -> None:
        """I4, and the checkpoint is added with its files and output."""
        needs = self._read_needs(entry)
        for key in needs.keys() - self._needs[parent.manifest].keys():
            match = _DATA.fullmatch(key)
            if (
                match is None
                or int(match[1]) != entry.doc["generation"]
                or not parent.doc["ordinal"] < int(match[2]) <= entry.doc["ordinal"]
            ):
                raise Violation("I4", f"commit {entry.seq} adds {key}")
        self._needs[entry.manifest] = needs
        if len(entry.doc["retained"]) >= self._retain:
            raise Violation("I8", f"commit {entry.seq} retains more than {self._retain}")
        for output in entry.doc["pending"]:
            if output["checkpoint_id"] == 0:
                self.tables[output["sink"]].line.append((entry.seq, [c["path"] for c in output["committables"]]))
        self._add_checkpoint(entry)
        self.savepoints.committed(entry.seq, entry.doc["writer"])

    def _read_needs(self, entry: Entry) -> dict[str, str]:
        handle = entry.doc["manifest"]
        manifest = read_needed(self._storage, handle["key"], entry.seq)
        files = [f["handle"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]]
        return {h["key"]: h["sha256"] for h in [handle, *files]}

    def _check_kept(self, parent: Entry, entry: Entry) -> None:
        """An entry keeps only what its parent keeps; what it repeats of a checkpoint is true."""
        seq, kind = entry.seq, entry.kind
        for ref in entry.references:
            if ref["id"] not in parent.kept or self.chain[ref["id"]].sha256 != ref["sha256"]:
                raise Violation("I3", f"entry {seq} keeps {ref['id']}, which its parent does not keep")
            if ref["manifest"] != self.chain[ref["id"]].doc["manifest"]:
                raise Violation("I6", f"entry {seq} has another manifest of {ref['id']}: {ref['manifest']}")
        # Each entry drops the pins whose lease is over by its own time. Simulated times are whole seconds, and compare
        # as texts.
        leased = [p for p in parent.doc["pinned"] if not p.get("until") or p["until"] > entry.doc["at"]]
        before = frozenset(p["id"] for p in leased if kind != "claim" or not p.get("generation"))
        self.counts["pins dropped at the end of their lease"] += len(parent.doc["pinned"]) - len(leased)
        if len(entry.pins ^ before) > (1 if kind == "admin" else 0):
            raise Violation("I3", f"entry {seq} drops or adds pins")
        if kind == "admin" and entry.manifest != parent.manifest:
            raise Violation("I6", f"admin {seq} changes the state")
        if entry.checkpoint in (0, seq):
            return
        if kind == "admin" and entry.checkpoint != parent.checkpoint:
            raise Violation("I6", f"admin {seq} changes the checkpoint")
        commit = self.chain[entry.checkpoint].doc
        if any(entry.doc.get(name) != commit.get(name) for name in ("manifest", "sources")):
            raise Violation("I6", f"entry {seq} differs from the commit of checkpoint {entry.checkpoint}")

    def _check_pins(self, entry: Entry) -> None:
        if not self.pins <= entry.pins:
            raise Violation("I6", f"entry {entry.seq} lost a pin that was acknowledged")

    def _protect(self, entry: Entry) -> None:
        """I3: everything that the new head keeps exists, and must not be deleted from now on."""
        now = dict(self._needs[entry.manifest])
        for checkpoint in entry.kept:
            now.update(self._needs[self.chain[checkpoint].manifest])
        now.update(entry.objects)
        self._check_contents({key: now[key] for key in now.keys() - self._protected.keys()})
        self._protected = now

    def _check_contents(self, hashes: dict[str, str]) -> None:
        for key, sha256 in hashes.items():
            data = self._storage.peek(key)
            if data is None or hashlib.sha256(data).hexdigest() != sha256:
                raise Violation("I3", f"{key} is needed by head {self.head.seq}, and gone or changed")

    # -- at rest ------------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """I8, S1 and R5, after a healthy start and a collection."""
        self._check_contents(self._protected)
        keys = self._storage.keys()
        # Of the reports of the input that waits, the newest one.
        reports = sorted(key for key in keys if key.startswith("backlog/"))[-1:]
        for key in keys:
            if key not in self._protected and key not in reports and not self._may_stay(key):
                raise Violation("I8", f"{key} is left over at head {self.head.seq}")
        for table in self.tables.values():
            table.check_rest()
        self.savepoints.check_rest()

    def _may_stay(self, key: str) -> bool:
        if match := _LOG.fullmatch(key):
            return int(match[1]) in (self.head.seq, self.head.checkpoint)
        if match := _OWNED.fullmatch(key):
            return int(match[1]) == self.generation and not self.head.doc["ended"]
        if key.startswith("backlog/") and self.head.doc["ended"]:
            # A run that ends replaces the report of the run before.
            return key == max(each for each in self._storage.keys() if each.startswith("backlog/"))
        return key == "FORMAT" or key.startswith(("history/", "savepoints/", "requests/", "backlog/"))
