"""Log entries as the invariants read them: plain JSON, decoded without the code under test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from tests.model.invariants.violation import Violation

if TYPE_CHECKING:
    from tests.model.simulation.storage import SimStorage


@dataclass(frozen=True)
class Entry:
    """A log entry with the contents of the objects that it names.

    Attributes:
        objects: hashes, by key, of the objects that the entry names: retained segments, lists of output, the history's
            index and the objects of the history in it.
    """

    seq: int
    sha256: str
    doc: dict[str, Any]
    objects: dict[str, str]

    @cached_property
    def checkpoint(self) -> int:
        """The current checkpoint; 0 when there is none."""
        is_import = self.kind == "claim" and self.manifest and not self.doc.get("checkpoint")
        return self.seq if self.kind == "commit" or is_import else (self.doc.get("checkpoint") or {"id": 0})["id"]

    @cached_property
    def references(self) -> list[dict[str, Any]]:
        present = [self.doc["checkpoint"]] if self.doc.get("checkpoint") else []
        return [*present, *self.doc["retained"], *(pin["checkpoint"] for pin in self.doc["pinned"])]

    @cached_property
    def kept(self) -> frozenset[int]:
        """Every checkpoint that the entry keeps, including `checkpoint`."""
        return frozenset([self.checkpoint, *(ref["id"] for ref in self.references)])

    @property
    def kind(self) -> str:
        return str(self.doc["kind"])

    @property
    def manifest(self) -> str:
        return str((self.doc.get("manifest") or {"key": ""})["key"])

    @property
    def offset(self) -> str:
        """The source position; no two checkpoints of a history have the same."""
        return self.doc["sources"][0]["offset"] if self.doc.get("sources") else ""

    @property
    def rewind(self) -> dict[str, Any]:
        """The intent of a restore, which may be that of an earlier entry."""
        return self.doc.get("rewind") or {"seq": 0, "sinks": {}}

    @property
    def pins(self) -> frozenset[str]:
        return frozenset(pin["id"] for pin in self.doc["pinned"])


_NO_DOCUMENT = {"kind": "", "generation": 0, "ordinal": 0, "retained": [], "pinned": [], "pending": []}
NO_ENTRY = Entry(0, "", _NO_DOCUMENT, {})
"""The parent of the first entry."""


def read_document(data: bytes) -> dict[str, Any]:
    """Decodes a sealed document: one line of JSON, and a line with its hash."""
    document: dict[str, Any] = msgspec.json.decode(data.partition(b"\n")[0])
    return document


def read_entry(storage: SimStorage, seq: int, data: bytes) -> Entry:
    """Reads an entry and the objects that it names. Raises Violation (I1, I3)."""
    line, _, seal = data.partition(b"\n")
    sha256, doc = hashlib.sha256(line).hexdigest(), read_document(data)
    if seal != sha256.encode() + b"\n" or doc["seq"] != seq:
        raise Violation("I1", f"slot {seq} has entry {doc['seq']} with the seal {seal!r}")
    objects: dict[str, str] = {}

    def read(handle: dict[str, Any]) -> dict[str, Any]:
        objects[handle["key"]] = handle["sha256"]
        return read_needed(storage, handle["key"], seq)

    doc["retained"] = _retained(doc, read)
    for pending in doc["pending"]:
        parts = [part for handle in pending["parts"] for part in read(handle)["committables"]]
        pending["committables"] = [*pending["committables"], *parts]
    if doc["history"]:
        objects |= read(doc["history"])["objects"]
    return Entry(seq, sha256, doc, objects)


def read_needed(storage: SimStorage, key: str, seq: int) -> dict[str, Any]:
    """Reads a document that an entry names. Raises Violation (I3)."""
    data = storage.peek(key)
    if data is None:
        raise Violation("I3", f"{key} does not exist when entry {seq} names it")
    return read_document(data)


def _retained(doc: dict[str, Any], read: Any) -> list[dict[str, Any]]:
    refs, link, newest = list(doc["retained"]), doc["retained_before"], doc["seq"]
    while link and min(newest, link["newest"]) >= doc["oldest_retained"]:
        newest = min(newest, link["newest"])
        segment = read(link["handle"])
        refs = [*(r for r in segment["refs"] if r["id"] <= newest), *refs]
        link = segment["before"]
    return [ref for ref in refs if ref["id"] >= doc["oldest_retained"]]
