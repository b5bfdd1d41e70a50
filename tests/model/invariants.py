"""What must hold after every step, checked by code that shares nothing with the code under test.

It reads the stored bytes as plain JSON, follows the log as it grows, and knows what each kept checkpoint needs. The
rules have the names that `reference/reliability.md` gives them, and:

    I1  one hash chain                        I6  what was acknowledged is in the chain
    I2  an entry's generation is its CLAIM's  I7  the head is never deleted, the log never shrinks or has a gap
    I3  everything kept is there, unharmed    I8  at rest, one start and one collection leave exactly what is live
    I4  a commit brings in only what it may   I9  nobody is fenced without a newer CLAIM
    S1  output becomes visible in order, exactly once, and only that of checkpoints on the job's line
    S2  output that is not visible is pending in the head
    S3  a sweep of a sink removes only what no checkpoint on the job's line has, and at rest all of that
    S4  what another application appended disappears only if a plan that a person approved has named it
    R1  ids of restore requests are carried on for ever        R2  no restore request is carried out twice
    R3  an intent says what is true: the target's state, and its output is in the tables or was
    R4  no intent before the last one is complete, unless it says what happens to each table of that one
    R5  nothing is committed or published before the tables went back
    R6  every entry tells all restores that led to it, and where to

What savepoints and requests promise is in `keeping.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.model.plan import FOREIGN
from tests.model.rules import Violation
from tests.model.savepoint_invariants import Keeping
from tests.model.store import SimStorage

_LOG = re.compile(r"log/(\d{20})")
_DATA = re.compile(r"data/(\d{20})/(\d{10})-[^/]+/[^/]+")
_OWNED = re.compile(r"(?:spark|probe)/(\d{20})/.+")


@dataclass(frozen=True)
class Fact:
    """A log entry of the chain, as the invariants see it."""

    seq: int
    sha256: str
    data: bytes
    doc: dict[str, Any]
    checkpoint: int
    """The checkpoint that it stands for, 0 when none."""
    kept: frozenset[int]
    """Every checkpoint that it keeps, the present one included."""
    objects: dict[str, str]
    """Objects that the entry itself names, by key, with their hashes: lists of checkpoints and of output."""

    @property
    def kind(self) -> str:
        return self.doc["kind"]

    @property
    def manifest(self) -> str:
        return (self.doc.get("manifest") or {"key": ""})["key"]

    @property
    def offset(self) -> str:
        """Each checkpoint of the model has source positions of its own."""
        return self.doc["sources"][0]["offset"] if self.doc.get("sources") else ""


_START = Fact(
    0,
    "",
    b"",
    {"kind": "", "generation": 0, "ordinal": 0, "retained": [], "pinned": [], "pending": []},
    0,
    frozenset(),
    {},
)

Output = tuple[int, list[str]]
"""Checkpoint id and files."""


class Checker:
    """Follows one history.

    Args:
        retain: the most checkpoints that a COMMIT may keep, pins apart.
        origin: of the job that this one is a fork of.
    """

    def __init__(self, storage: SimStorage, retain: int, origin: Checker | None = None) -> None:
        self.chain: list[Fact] = [_START]
        self.generation = 0
        self.stale_slots = 0
        self.publications = 0
        self.pins: set[str] = set()
        """Ids of pins that were acknowledged and not yet removed."""
        self.counts: Counter[str] = Counter()
        self.keeping = Keeping(self, storage)
        self.lines: dict[int, dict[str, list[Output]]] = {}
        """For each checkpoint and sink, what the table held, or was to hold, with the checkpoint's output."""
        self.shown: dict[str, dict[int, list[str]]] = defaultdict(dict)
        """For each sink, everything that ever was published."""
        self.limbo: dict[str, tuple[int, str]] = {}
        """Sinks whose table has yet to go back: the intent's number, and what is to happen."""
        self._replaced: dict[int, dict[str, tuple[str, list[Output]]]] = {}
        """Intents that another one has replaced: for each table that had not gone back, its mode and content."""
        self.line: dict[str, list[Output]] = defaultdict(list)
        """For each sink, what the table must hold: (checkpoint id, files)."""
        self.visible: dict[str, int] = defaultdict(int)
        """For each sink, how much of `line` its table holds."""
        self._storage = storage
        self._retain = retain
        self._origin = origin
        self.approved: set[str] = set()
        """Files of other applications that may disappear: an approved plan has named them."""
        self._table: dict[str, list[Output]] = defaultdict(list)
        self._floor: dict[str, int] = defaultdict(int)
        self._needs: dict[int, dict[str, str]] = {0: {}}
        self._state: dict[str, dict[str, str]] = {"": {}}
        self._at: dict[str, int] = {}
        self._restored: set[str] = set()
        self._went_back: list[tuple[int, int]] = []
        self._contents: dict[int, list[str]] = {}
        self._offsets: dict[int, str] = {}
        self.newest = 0
        self._protected: dict[str, str] = {}
        self._names: dict[str, bytes] = {}

    @property
    def head(self) -> Fact:
        """The newest entry of the chain."""
        return self.chain[-1]

    # -- what the storage tells ---------------------------------------------------------------------------------------

    def created(self, key: str, data: bytes) -> None:
        """An object appeared."""
        if match := _LOG.fullmatch(key):
            seq = int(match[1])
            if seq == len(self.chain):
                self._extend(self._parse(seq, data))
            elif seq > len(self.chain):
                raise Violation("I7", f"entry {seq} leaves a gap above {self.head.seq}")
            else:
                self.stale_slots += 1
        elif key.startswith("data/") and self._names.setdefault(key, data) != data:
            raise Violation("I3", f"the name {key} was used for two contents")
        elif key.startswith(("savepoints/", "requests/")):
            self.keeping.created(key, data)

    def deleted(self, key: str) -> None:
        """An object is about to be removed."""
        self.keeping.deleted(key)
        if key in self._protected:
            raise Violation("I3", f"{key} is needed by head {self.head.seq}, and deleted")
        if (match := _LOG.fullmatch(key)) and int(match[1]) >= self.head.seq:
            raise Violation("I7", f"{key} is deleted, the head is {self.head.seq}")

    def published(self, sink: str, token: int, paths: list[str]) -> None:
        """A sink's table took a commit."""
        self._table[sink].append((token, paths))
        self.shown[sink][token] = paths
        if sink in self.limbo:
            intent, mode = self.limbo[sink]
            if token > intent:
                raise Violation("R5", f"{sink}: {token} is published before the table went back for {intent}")
            if mode == "keep":
                raise Violation("S1", f"{sink}: a table that is kept gets {token} behind the intent {intent}")
            self.counts[f"rewinds ({mode}) with a late publication before them"] += 1
            return
        position, line = self.visible[sink], self.line[sink]
        if position < len(line) and line[position] == (token, paths):
            self.visible[sink] = position + 1
            self.publications += 1
            return
        ids = [c for c, _ in line]
        if token not in ids:
            raise Violation("S1", f"{sink}: {token} is not on the job's line")
        how = "twice" if ids.index(token) < position else f"before {ids[position]}, or in part"
        raise Violation("S1", f"{sink}: {token} is published {how}")

    def rewound(self, sink: str, token: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """A sink's table got the token of a restore, and perhaps older content."""
        if self._is_late(sink, token):
            self._rewound_late(sink, token, before, after)
            return
        intent, mode = self.limbo.pop(sink, (0, ""))
        if intent != token:
            raise Violation("S1", f"{sink}: the table goes back for {token}, the intent is {intent}")
        if mode == "keep":
            if before != after:
                raise Violation("S1", f"{sink}: a table that is kept has other content behind {token}")
        elif ours(after) != _flat(self.line[sink]):
            raise Violation("S1", f"{sink}: behind {token} the table has {_odd(ours(after), _flat(self.line[sink]))}")
        else:
            self._table[sink] = list(self.line[sink])
        self._check_foreign(sink, token, set(before) - set(after))
        self.visible[sink] = len(self.line[sink])
        self._floor[sink] = token
        self.counts[f"tables rewound ({mode})" + (" with rows undone" if before != after else "")] += 1

    def _is_late(self, sink: str, token: int) -> bool:
        """Whether a restore that was paused goes on with a table although another plan has replaced it."""
        return token < self.limbo.get(sink, (0, ""))[0] and sink in self._replaced.get(token, {})

    def _rewound_late(self, sink: str, token: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """It does what its own plan said; the one that replaced it has yet to come, and sets this right."""
        mode, line = self._replaced[token][sink]
        wanted = ours(before) if mode == "keep" else _flat(line)
        if ours(after) != wanted:
            raise Violation("S1", f"{sink}: behind the replaced {token} it has {_odd(ours(after), wanted)}")
        self._check_foreign(sink, token, set(before) - set(after))
        if mode == "restore":
            self._table[sink] = list(line)
            if self.limbo[sink][1] == "keep":
                self.line[sink] = list(line)
        self.counts["tables rewound late for a replaced plan"] += 1

    def appended(self, sink: str, path: str) -> None:
        """Another application appended to a sink's table."""
        self.counts["appended by others"] += 1
        if sink in self.limbo:
            self.counts["appended by others to a table in limbo"] += 1

    def _check_foreign(self, sink: str, token: int, gone: set[str]) -> None:
        foreign = {path for path in gone if path.startswith(FOREIGN)}
        self.counts["commits of others undone"] += len(foreign)
        if unseen := sorted(foreign - self.approved):
            raise Violation("S4", f"{sink}: {unseen[0]} is undone for {token}, and nobody approved that")

    def swept(self, sink: str, path: str) -> None:
        """A sink's file is about to be removed as a leftover."""
        if any(path in paths for _, paths in [*self.line[sink], *self._table[sink]]):
            raise Violation("S3", f"{sink}: {path} belongs to a checkpoint on the job's line, and is swept")

    # -- what actors tell ---------------------------------------------------------------------------------------------

    def acknowledged(self, seq: int, sha256: str) -> None:
        """A caller was told that its entry is part of the history."""
        if seq >= len(self.chain) or self.chain[seq].sha256 != sha256:
            raise Violation("I6", f"entry {seq} was acknowledged and is not in the chain")

    def pinned(self, pin_id: str) -> None:
        """A caller was told that its pin holds."""
        self.pins.add(pin_id)
        self._check_pins(self.head)

    def fenced(self, generation: int) -> None:
        """A run was told that a newer one owns the job."""
        if generation == self.generation:
            raise Violation("I9", f"generation {generation} was fenced, and nobody claimed the job after it")

    def adoptable_since(self, checkpoint: int, seq: int) -> bool:
        """Whether every entry from `seq` on stands for the checkpoint, or retains it other than by a pin."""
        return all(
            checkpoint == fact.checkpoint or any(r["id"] == checkpoint for r in fact.doc["retained"])
            for fact in self.chain[seq:]
        )

    def is_newest(self, generation: int) -> bool:
        """Whether nobody claimed the job after this run."""
        return generation == self.generation

    def _parse(self, seq: int, data: bytes) -> Fact:
        """An entry with everything in it that is elsewhere: retained checkpoints in segments, output in parts."""
        line, _, rest = data.partition(b"\n")
        sha256 = hashlib.sha256(line).hexdigest()
        if rest != sha256.encode() + b"\n":
            raise Violation("I1", f"entry {seq} is not sealed")
        doc = msgspec.json.decode(line)
        if doc["seq"] != seq:
            raise Violation("I1", f"entry {doc['seq']} lies in slot {seq}")
        objects: dict[str, str] = {}
        doc["retained"] = self._retained(doc, objects)
        for pending in doc["pending"]:
            parts = [self._object(handle, objects)["committables"] for handle in pending["parts"]]
            pending["committables"] = [*(pending["committables"] or []), *(c for part in parts for c in part)]
        own = doc["kind"] == "commit" or (doc["kind"] == "claim" and doc.get("manifest") and not doc.get("checkpoint"))
        checkpoint = seq if own else (doc.get("checkpoint") or {"id": 0})["id"]
        kept = frozenset([checkpoint, *(r["id"] for r in _refs(doc))])
        self.counts["lists in objects"] += len(objects)
        return Fact(seq, sha256, data, doc, checkpoint, kept, objects)

    def _retained(self, doc: dict[str, Any], objects: dict[str, str]) -> list[dict[str, Any]]:
        refs, link, newest = list(doc["retained"]), doc["retained_before"], doc["seq"]
        while link and min(newest, link["newest"]) >= doc["oldest_retained"]:
            newest = min(newest, link["newest"])
            segment = self._object(link["handle"], objects)
            refs = [*(r for r in segment["refs"] if r["id"] <= newest), *refs]
            link = segment["before"]
        return [ref for ref in refs if ref["id"] >= doc["oldest_retained"]]

    def _object(self, handle: dict[str, Any], objects: dict[str, str]) -> Any:
        data = self._storage.peek(handle["key"])
        if data is None:
            raise Violation("I3", f"{handle['key']} is gone when an entry names it")
        objects[handle["key"]] = handle["sha256"]
        return msgspec.json.decode(data.partition(b"\n")[0])

    # -- the chain ----------------------------------------------------------------------------------------------------

    def _extend(self, fact: Fact) -> None:
        parent = self.head
        if fact.doc["parent"] != parent.sha256:
            raise Violation("I1", f"entry {fact.seq} is not linked to {parent.seq}")
        self._check_numbers(parent, fact)
        self.chain.append(fact)
        if self._origin and not fact.manifest:
            raise Violation("R3", "a fork begins with nothing")
        self._check_intents(parent, fact)
        if fact.kind == "claim":
            self.generation = fact.seq
            rewind = fact.doc.get("rewind")
            if fact.manifest != parent.manifest or (rewind and rewind["seq"] == fact.seq):
                self._adopt(parent, fact)
        self._check_ancestry(parent, fact)
        if fact.kind == "commit":
            self._check_commit(parent, fact)
        self._check_kept(parent, fact)
        self._check_pins(fact)
        self._protect(fact)
        self._check_pending(fact)

    def _check_numbers(self, parent: Fact, fact: Fact) -> None:
        doc, before = fact.doc, parent.doc
        generation = fact.seq if fact.kind == "claim" else self.generation
        right = {
            "claim": doc["ordinal"] == 0,
            "commit": doc["ordinal"] > before["ordinal"],
            "admin": doc["ordinal"] == before["ordinal"],
        }
        if doc["generation"] != generation or not right[fact.kind]:
            raise Violation("I2", f"entry {fact.seq} has generation {doc['generation']}, ordinal {doc['ordinal']}")

    def _check_intents(self, parent: Fact, fact: Fact) -> None:
        """Restores happen once, one after the other, and before anything else."""
        before, after = parent.doc.get("requests", []), fact.doc.get("requests", [])
        if after[: len(before)] != before:
            raise Violation("R1", f"entry {fact.seq} has forgotten a restore request")
        for request in after[len(before) :]:
            if request in self._restored:
                raise Violation("R2", f"entry {fact.seq} carries out {request} a second time")
            self._restored.add(request)
        old, new = parent.doc.get("rewind"), fact.doc.get("rewind")
        if old and new and old["seq"] != new["seq"]:
            if not old["sinks"].keys() <= new["sinks"].keys() or fact.seq != new["seq"]:
                raise Violation("R4", f"entry {fact.seq} has an intent, {old['seq']} is not complete")
            self.counts["intents replaced"] += 1
            waiting = [sink for sink, (seq, _) in self.limbo.items() if seq == old["seq"]]
            self._replaced[old["seq"]] = {s: (old["sinks"][s]["mode"], list(self.line[s])) for s in waiting}
        if old and not new and self.limbo:
            raise Violation("R5", f"entry {fact.seq} says that {sorted(self.limbo)} went back")
        if new and fact.kind == "commit":
            raise Violation("R5", f"commit {fact.seq} comes before the tables went back for {new['seq']}")

    def _check_ancestry(self, parent: Fact, fact: Fact) -> None:
        told = [(r["seq"], r["base"]) for r in fact.doc["ancestry"]["restores"]]
        stays = (fact.seq, parent.checkpoint)
        if fact.kind == "claim" and stays in told and stays not in self._went_back:
            self._went_back.append(stays)  # back to where the job stood: nothing is left behind
        if told != self._went_back:
            raise Violation("R6", f"entry {fact.seq} tells the restores {told}, they were {self._went_back}")

    def _adopt(self, parent: Fact, fact: Fact) -> None:
        """A CLAIM that continues from another state than the entry before it."""
        rewind = fact.doc.get("rewind")
        target = self._import(fact) if fact.checkpoint == fact.seq else fact.checkpoint
        if fact.seq > 1:
            self._went_back.append((fact.seq, target))
        if rewind and rewind["seq"] == fact.seq:
            self._intend(fact, target, rewind["sinks"])
        elif target <= parent.checkpoint:
            self._go_back(fact)
        if any(ref["id"] > target for ref in fact.doc["retained"] if fact.checkpoint != fact.seq):
            raise Violation("R3", f"claim {fact.seq} goes back to {target}, and keeps what came after it")
        if fact.checkpoint == fact.seq:
            self._note_checkpoint(fact, self._state[fact.manifest])

    def _import(self, fact: Fact) -> int:
        """State from a savepoint or another job: the very files of the checkpoint with these source positions."""
        source = self._origin if self._origin and not self.lines else self
        rewind = fact.doc.get("rewind")
        target = rewind["restore"]["base"] if rewind else source._at.get(fact.offset, 0)
        needs = self._read_needs(fact)
        if target not in source.lines or source.position_of(target) != fact.offset:
            raise Violation("R3", f"claim {fact.seq} has the positions of no checkpoint")
        if source.contents(target) != _states(needs, fact.manifest):
            raise Violation("R3", f"claim {fact.seq} has the state of no checkpoint")
        self._state[fact.manifest] = needs
        self.counts["states imported"] += 1
        return target

    def contents(self, checkpoint: int) -> list[str]:
        """Hashes of a checkpoint's state files."""
        return self._contents[checkpoint]

    def position_of(self, checkpoint: int) -> str:
        """Source positions of a checkpoint."""
        return self._offsets[checkpoint]

    def _intend(self, fact: Fact, target: int, sinks: dict[str, Any]) -> None:
        for sink, intent in sinks.items():
            wanted = self.lines[target].get(sink, [])
            unseen = [c for c, _ in wanted if c not in self.shown[sink]]
            if unseen:
                raise Violation("R3", f"claim {fact.seq} goes back to {target}, {sink} has never seen {unseen[0]}")
            if intent["mode"] == "keep" and self.limbo.get(sink, (0, ""))[1] == "restore":
                # The restore that this intent replaces has not reached the table: what it holds now is kept.
                self.line[sink] = list(self._table[sink])
            self.limbo[sink] = (fact.seq, intent["mode"])
            if intent["mode"] == "restore":
                self.line[sink] = list(wanted)
        self._storage.intent()
        self.counts["intents"] += 1
        if target < self.newest:
            self.counts["intents to an older checkpoint"] += 1

    def _go_back(self, fact: Fact) -> None:
        """A CLAIM that adopts an older checkpoint takes what came after it off the line."""
        for sink, line in self.line.items():
            self.line[sink] = line = [o for o in line if o[0] <= max(fact.checkpoint, self._floor[sink])]
            if self.visible[sink] > len(line):
                raise Violation("S1", f"claim {fact.seq} adopts {fact.checkpoint}, {sink} has published later output")

    def _note_checkpoint(self, fact: Fact, needs: dict[str, str]) -> None:
        self._contents[fact.seq] = _states(needs, fact.manifest)
        self._offsets[fact.seq] = fact.offset
        self._at[fact.offset] = fact.seq
        self._needs[fact.seq] = needs
        self.lines[fact.seq] = {sink: list(line) for sink, line in self.line.items()}
        self.newest = fact.seq

    def _check_commit(self, parent: Fact, fact: Fact) -> None:
        """I4, and the checkpoint's files and output are noted."""
        needs = self._read_needs(fact)
        for key in needs.keys() - self._state[parent.manifest].keys():
            match = _DATA.fullmatch(key)
            brought = match and int(match[1]) == fact.doc["generation"]
            if not brought or not parent.doc["ordinal"] < int(match[2]) <= fact.doc["ordinal"]:
                raise Violation("I4", f"commit {fact.seq} brings in {key}")
        self._state[fact.manifest] = needs
        if len(fact.doc.get("retained", [])) >= self._retain:
            raise Violation("I8", f"commit {fact.seq} retains more than {self._retain}")
        for output in fact.doc.get("pending", []):
            if output["checkpoint_id"] == 0:
                self.line[output["sink"]].append((fact.seq, [c["path"] for c in output["committables"]]))
        self._note_checkpoint(fact, needs)
        self.keeping.committed(fact.seq, fact.doc["writer"])

    def _read_needs(self, fact: Fact) -> dict[str, str]:
        handle = fact.doc["manifest"]
        data = self._storage.peek(handle["key"])
        if data is None:
            raise Violation("I3", f"{handle['key']} is gone when {fact.seq} is committed")
        manifest = msgspec.json.decode(data.partition(b"\n")[0])
        files = [f["handle"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]]
        return {h["key"]: h["sha256"] for h in [handle, *files]}

    def _check_kept(self, parent: Fact, fact: Fact) -> None:
        """What an entry keeps, it has from its parent; what it repeats of a checkpoint is true."""
        for ref in _refs(fact.doc):
            if ref["id"] not in parent.kept or self.chain[ref["id"]].sha256 != ref["sha256"]:
                raise Violation("I3", f"entry {fact.seq} keeps {ref['id']}, which its parent does not keep")
            told, true = ref["manifest"], self.chain[ref["id"]].doc["manifest"]
            if told != true:
                raise Violation("I6", f"entry {fact.seq} says that {ref['id']} is {told}, it is {true}")
        pins, before = _pins(fact.doc), _pins(parent.doc)
        if fact.kind == "claim":
            before = frozenset(p["id"] for p in parent.doc["pinned"] if not p.get("generation"))
        if len(pins ^ before) > (1 if fact.kind == "admin" else 0):
            raise Violation("I3", f"entry {fact.seq} drops or brings pins")
        if fact.kind == "admin" and fact.manifest != parent.manifest:
            raise Violation("I6", f"admin {fact.seq} changes the state")
        if fact.checkpoint in (0, fact.seq):
            return
        if fact.kind == "admin" and fact.checkpoint != parent.checkpoint:
            raise Violation("I6", f"admin {fact.seq} changes the checkpoint")
        origin = self.chain[fact.checkpoint].doc
        if any(fact.doc.get(name) != origin.get(name) for name in ("manifest", "sources")):
            raise Violation("I6", f"entry {fact.seq} tells checkpoint {fact.checkpoint} otherwise than its commit")

    def _check_pins(self, fact: Fact) -> None:
        if self.pins and not self.pins <= _pins(fact.doc):
            raise Violation("I6", f"entry {fact.seq} lost a pin that was acknowledged")

    def _check_pending(self, fact: Fact) -> None:
        for sink, line in self.line.items():
            if sink in self.limbo:
                continue
            pending = {p["checkpoint_id"] or fact.seq for p in fact.doc.get("pending", []) if p["sink"] == sink}
            for checkpoint, _ in line[self.visible[sink] :]:
                if checkpoint not in pending:
                    raise Violation("S2", f"{sink}: output of {checkpoint} is neither visible nor pending")

    def _protect(self, fact: Fact) -> None:
        """I3: everything that the new head keeps is there, and from now on may not go."""
        now: dict[str, str] = dict(self._state[fact.manifest])
        for checkpoint in fact.kept:
            now.update(self._needs[checkpoint])
        now.update(fact.objects)
        for key in now.keys() - self._protected.keys():
            self._check_content(key, now[key])
        self._protected = now

    def _check_content(self, key: str, sha256: str) -> None:
        data = self._storage.peek(key)
        if data is None:
            raise Violation("I3", f"{key} is needed by head {self.head.seq}, and gone")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise Violation("I3", f"{key} is needed by head {self.head.seq}, and has other content")

    # -- at rest ------------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """I8 and S1, after a healthy start and a collection."""
        for key in self._protected:
            self._check_content(key, self._protected[key])
        for key in self._storage.keys():
            if key not in self._protected and not self._may_stay(key):
                raise Violation("I8", f"{key} is left over at head {self.head.seq}")
        for sink, line in self.line.items():
            if self.visible[sink] != len(line):
                raise Violation("S1", f"{sink}: {line[self.visible[sink]][0]} was never published")
            if self._table[sink] != line:
                raise Violation("S1", f"{sink}: the table is not what the job's line says")
        if self.limbo:
            raise Violation("R5", f"{sorted(self.limbo)} never went back")
        self.keeping.check_rest()

    def _may_stay(self, key: str) -> bool:
        if match := _LOG.fullmatch(key):
            return int(match[1]) in (self.head.seq, self.head.checkpoint)
        if match := _OWNED.fullmatch(key):
            return int(match[1]) == self.generation and not self.head.doc["ended"]
        return key == "FORMAT" or key.startswith(("history/", "savepoints/", "requests/"))


def _refs(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """References to earlier checkpoints in an entry."""
    present = [doc["checkpoint"]] if doc.get("checkpoint") else []
    return [*present, *doc["retained"], *(p["checkpoint"] for p in doc["pinned"])]


def _pins(doc: dict[str, Any]) -> frozenset[str]:
    return frozenset(p["id"] for p in doc["pinned"])


def _states(needs: dict[str, str], manifest: str) -> list[str]:
    return sorted(sha256 for key, sha256 in needs.items() if key != manifest)


def ours(content: tuple[str, ...]) -> list[str]:
    """What the job published of a table's content."""
    return [path for path in content if not path.startswith(FOREIGN)]


def _flat(outputs: list[Output]) -> list[str]:
    return [path for _, paths in outputs for path in paths]


def _odd(found: list[str], wanted: list[str]) -> str:
    extra, missing = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
    return f"too much {extra[:2]}, too little {missing[:2]}"
