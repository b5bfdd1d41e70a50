"""Log entries as the invariants read them: plain JSON, decoded without the code under test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tests.model.rules import Violation

if TYPE_CHECKING:
    from tests.model.store import SimStorage


@dataclass(frozen=True)
class Entry:
    """A log entry with the contents of the objects that it names.

    Attributes:
        checkpoint: the checkpoint that the entry stands for; 0 when there is none.
        kept: every checkpoint that the entry keeps, including `checkpoint`.
        objects: hashes, by key, of the objects that the entry names: retained segments and lists of output.
    """

    seq: int
    sha256: str
    doc: dict[str, Any]
    checkpoint: int
    kept: frozenset[int]
    objects: dict[str, str]

    @property
    def kind(self) -> str:
        return self.doc["kind"]

    @property
    def manifest(self) -> str:
        return (self.doc.get("manifest") or {"key": ""})["key"]

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

    @property
    def references(self) -> list[dict[str, Any]]:
        """References to earlier checkpoints."""
        return _references(self.doc)


_NO_DOCUMENT = {"kind": "", "generation": 0, "ordinal": 0, "retained": [], "pinned": [], "pending": []}
NO_ENTRY = Entry(0, "", _NO_DOCUMENT, 0, frozenset(), {})
"""Stands for the parent of the first entry."""


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
        pending["committables"] = [*(pending["committables"] or []), *parts]
    is_own = doc["kind"] == "commit" or (doc["kind"] == "claim" and doc.get("manifest") and not doc.get("checkpoint"))
    checkpoint = seq if is_own else (doc.get("checkpoint") or {"id": 0})["id"]
    return Entry(seq, sha256, doc, checkpoint, frozenset([checkpoint, *(r["id"] for r in _references(doc))]), objects)


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


def _references(doc: dict[str, Any]) -> list[dict[str, Any]]:
    present = [doc["checkpoint"]] if doc.get("checkpoint") else []
    return [*present, *doc["retained"], *(pin["checkpoint"] for pin in doc["pinned"])]
