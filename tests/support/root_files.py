"""What is on disk below a job root, read as plain JSON: shares nothing with the code under test."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    seq: int
    sha256: str
    doc: Document

    @property
    def is_checkpoint(self) -> bool:
        """A COMMIT is, and a CLAIM that brings in state from elsewhere."""
        adopts = self.doc["kind"] == "claim" and self.doc["checkpoint"] is None and self.doc["manifest"] is not None
        return adopts or self.doc["kind"] == "commit"

    @property
    def checkpoint(self) -> int:
        """The checkpoint that a start from here continues from; 0 when there is none."""
        if self.is_checkpoint:
            return self.seq
        return int((self.doc["checkpoint"] or {"id": 0})["id"])

    @property
    def position(self) -> int:
        """Up to which row a scripted source is read."""
        offsets = [json.loads(s["offset"])["row"] for s in self.doc["sources"]]
        return int(offsets[0]) if offsets else 0

    @property
    def pending(self) -> dict[str, list[str]]:
        result: dict[str, list[str]] = {}
        for output in self.doc["pending"]:
            result.setdefault(output["sink"], []).extend(c["path"] for c in output["committables"])
        return result


# -- documents --------------------------------------------------------------------------------------------------------


def unsealed(data: bytes) -> tuple[Document, str]:
    """A stored document and its hash, after comparing it with the second line."""
    line, digest, nothing = data.split(b"\n")
    found = hashlib.sha256(line).hexdigest()
    assert (digest.decode(), nothing) == (found, b"")
    return json.loads(line), found


def sealed(document: Document) -> bytes:
    """A document as it is stored."""
    line = json.dumps(document).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def handle_of(root: Path, path: Path) -> Document:
    data = path.read_bytes()
    return {"key": str(path.relative_to(root)), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def encoded(data: bytes) -> str:
    """Bytes as a JSON document has them."""
    return base64.b64encode(data).decode()


def entry_path(root: Path, seq: int) -> Path:
    return root / "log" / f"{seq:020d}"


def read_entry(path: Path) -> Entry:
    doc, digest = unsealed(path.read_bytes())
    assert int(path.name) == doc["seq"], path
    return Entry(doc["seq"], digest, doc)


def entries(root: Path) -> list[Entry]:
    found = []
    for path in _entry_paths(root):
        with contextlib.suppress(FileNotFoundError):  # collected meanwhile
            found.append(read_entry(path))
    return found


def _entry_paths(root: Path) -> list[Path]:
    return sorted(filter(_is_object, (root / "log").iterdir())) if (root / "log").is_dir() else []


def newest_seq(root: Path) -> int:
    """The number of the newest entry, whatever is in it."""
    return int(_entry_paths(root)[-1].name)


def head(root: Path) -> Entry:
    return entries(root)[-1]


def read_manifest(root: Path, handle: Document) -> Document:
    return unsealed(_read(root, handle))[0]


def _read(folder: Path, handle: Document) -> bytes:
    """A file, after comparing it with its handle."""
    data: bytes = (folder / handle["key"]).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (handle["size"], handle["sha256"]), handle["key"]
    return data


# -- what is live -----------------------------------------------------------------------------------------------------


def retained(root: Path, doc: Document) -> list[Document]:
    found, link, newest = list(doc["retained"]), doc.get("retained_before"), doc["seq"]
    while link and min(newest, link["newest"]) >= doc["oldest_retained"]:
        newest = min(newest, link["newest"])
        segment = read_manifest(root, link["handle"])
        found = [*(r for r in segment["refs"] if r["id"] <= newest), *found]
        link = segment["before"]
    return [ref for ref in found if ref["id"] >= doc.get("oldest_retained", 0)]


def kept_refs(root: Path) -> list[Document]:
    newest = head(root)
    refs = {r["id"]: r for r in retained(root, newest.doc)}
    refs |= {p["checkpoint"]["id"]: p["checkpoint"] for p in newest.doc["pinned"]}
    if newest.checkpoint and newest.checkpoint != newest.seq:
        refs[newest.checkpoint] = newest.doc["checkpoint"]
    return [refs[number] for number in sorted(refs)]


def kept_entries(root: Path) -> list[Entry]:
    """All checkpoints that the head keeps, as their COMMITs were. Of those of older versions, the entries exist;
    of others the references and the manifests say what they were."""
    newest = head(root)
    found = []
    for ref in kept_refs(root):
        if ref.get("manifest") is None:
            entry = read_entry(entry_path(root, ref["id"]))
            assert (entry.is_checkpoint, entry.sha256) == (True, ref["sha256"])
            found.append(entry)
            continue
        manifest = read_manifest(root, ref["manifest"])
        doc = {name: manifest[name] for name in ("generation", "ordinal", "sources")}
        doc |= {"kind": "claim" if ref["savepoint"] else "commit", "seq": ref["id"], "checkpoint": None, "pending": []}
        found.append(Entry(ref["id"], ref["sha256"], {**doc, "manifest": ref["manifest"], "at": ref["at"]}))
    return [*found, *([newest] if newest.is_checkpoint else [])]


def live_files(root: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every data file that the head or a checkpoint it keeps needs."""
    live: dict[str, tuple[int, str]] = {}
    # A job that was restored from a savepoint begins with state that is not a checkpoint of its own.
    for entry in [*kept_entries(root), *([head(root)] if head(root).doc["manifest"] else [])]:
        manifest = read_manifest(root, entry.doc["manifest"])
        for handle in [entry.doc["manifest"], *handles(manifest)]:
            live[handle["key"]] = (handle["size"], handle["sha256"])
    return live | lists(root)


def lists(root: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every object that the head itself names: segments of checkpoints, and pending output."""
    newest = head(root)
    named = [part for output in newest.doc["pending"] for part in output.get("parts", [])]
    link, lowest = newest.doc.get("retained_before"), newest.doc.get("oldest_retained", 0)
    while link and link["newest"] >= lowest:
        named.append(link["handle"])
        before = read_manifest(root, link["handle"])["before"]
        link = before and {**before, "newest": min(before["newest"], link["newest"])}
    return {handle["key"]: (handle["size"], handle["sha256"]) for handle in named}


def savepoints(root: Path) -> dict[str, Document]:
    """Every savepoint by its name, after comparing all of its files; folders that were given up hold nothing else."""
    found = {}
    for folder in sorted((root / "savepoints").iterdir()) if (root / "savepoints").is_dir() else []:
        data = (folder / "_savepoint").read_bytes()
        if data == b"given up\n":
            assert [p.name for p in folder.iterdir()] == ["_savepoint"]
            continue
        document, _ = unsealed(data)
        check_savepoint(folder)
        assert document["name"] not in found
        found[document["name"]] = document
    return found


def check_savepoint(folder: Path) -> None:
    """A savepoint's folder, wherever it is, holds exactly what its document names, and slots of claims."""
    document, _ = unsealed((folder / "_savepoint").read_bytes())
    wanted = list(handles(document["manifest"]))
    assert {name for name in files_below(folder) if not name.startswith("claims/")} == {
        "_savepoint",
        *(handle["key"] for handle in wanted),
    }
    for handle in wanted:
        _read(folder, handle)


def claims(folder: Path) -> list[tuple[str, str, int]]:
    """State, job uuid and generation of each slot of a savepoint's claims, in order."""
    slots = [unsealed(path.read_bytes())[0] for path in sorted((folder / "claims").glob("*"))]
    return [(slot["state"], slot["job_uuid"], slot["generation"]) for slot in slots]


def handles(manifest: Document) -> Iterator[Document]:
    for operator in manifest["operators"]:
        for subtask in operator["subtasks"]:
            yield from (f["handle"] for f in subtask["files"])
    if manifest["spark"]:
        yield from (f["handle"] for f in manifest["spark"]["source_files"] if f["handle"])


def files_below(folder: Path) -> dict[str, Path]:
    return {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if not p.is_dir() and _is_object(p)}


def _is_object(path: Path) -> bool:
    """An S3 server that keeps objects as files has some that are on their way in."""
    return not path.name.startswith(".localbucket-")


def digests(*folders: Path) -> dict[str, str]:
    """The hash of every file below some folders, without records of failed starts: what must not change."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in files_below(folder).values()
        if "-failed-start-" not in str(path)
    }


def check_hashes(root: Path) -> None:
    for key, (size, digest) in live_files(root).items():
        _read(root, {"key": key, "size": size, "sha256": digest})


def check_no_orphans(root: Path) -> None:
    """At rest and after one collection there is what the head needs, and nothing else."""
    newest = head(root)
    files = {k for k in files_below(root) if not k.startswith(("history/", "launches/", "savepoints/", "requests/"))}
    savepoints(root)
    index = newest.doc.get("history")
    wanted = {"FORMAT", *live_files(root), *([index["key"]] if index else [])}
    logged = {ref["id"] for ref in kept_refs(root) if ref.get("manifest") is None} | {newest.seq}
    if not newest.doc.get("run"):
        logged |= set(range(newest.checkpoint or 1, newest.seq))
    elif f"log/{newest.checkpoint:020d}" in files:
        logged.add(newest.checkpoint)
    wanted |= {f"log/{seq:020d}" for seq in logged}
    if not newest.doc["ended"]:
        # The run's own Spark checkpoint location stays: no process can know that it is dead.
        own = tuple(f"{area}/{newest.doc['generation']:020d}/" for area in ("spark", "history-index", "progress"))
        files -= {key for key in files if key.startswith(own)} - wanted
    # Of the reports of the input that waits, the newest one.
    files -= set(sorted(key for key in files if key.startswith("backlog/"))[-1:])
    # Those of a run that was killed between its record and its files are missing.
    files -= {f"run-files/{digest}" for record in history(root) for digest in _run_files(record)}
    assert files == wanted, f"orphans {sorted(files - wanted)}, missing {sorted(wanted - files)}"
    check_hashes(root)
    check_history_index(root)


def _run_files(record: Document) -> list[str]:
    """The names of the files that the record of a run's start names."""
    facts = record["facts"] if record.get("kind") == "run" else {}
    return [facts[name] for name in ("job_file_sha256", "graph_sha256") if name in facts]


def history_index(root: Path) -> dict[str, str]:
    """Hashes of the objects of the history by their keys, as the newest entry records them."""
    handle = head(root).doc.get("history")
    return dict(unsealed(_read(root, handle))[0]["objects"]) if handle else {}


def check_history_index(root: Path) -> None:
    """Every object that the index contains exists, to the bit; after a normal end, the index contains every object."""
    for key, digest in history_index(root).items():
        assert hashlib.sha256((root / key).read_bytes()).hexdigest() == digest, key


# -- one chain --------------------------------------------------------------------------------------------------------


class Chain:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.seen: dict[int, Entry] = {}
        self._written_ns: dict[int, int] = {}

    def look(self) -> None:
        """Takes in the entries that exist now."""
        for path in _entry_paths(self._root):
            seq = int(path.name)
            if seq not in self.seen:
                with contextlib.suppress(FileNotFoundError):
                    self._written_ns[seq] = path.stat().st_mtime_ns
                    self.seen[seq] = read_entry(path)

    def check(self) -> None:
        """Hashes link, generations and ordinals are what they must be, positions grow."""
        self.look()
        stale = self._stale()
        chain = [entry for seq, entry in sorted(self.seen.items()) if seq not in stale]
        for before, after in pairwise(chain):
            _check_later(before, after)
            if after.seq == before.seq + 1:
                _check_next(before, after)
        for entry in chain:
            refs = [*entry.doc["retained"], entry.doc["checkpoint"]]
            for ref in [r for r in refs if r and r["id"] in self.seen]:
                assert self.seen[ref["id"]].sha256 == ref["sha256"], entry.seq
        self._check_history()

    def _stale(self) -> set[int]:
        """The entries that a late writer put into the slots of deleted ones that were not seen.

        Each was written after an entry of a higher slot, or is a COMMIT that was written again after the newest one.
        """
        found: set[int] = set()
        earliest_ns, committed = float("inf"), set()
        for seq, entry in sorted(self.seen.items(), reverse=True):
            barrier = (entry.doc["generation"], entry.doc["ordinal"]) if entry.doc["kind"] == "commit" else None
            if self._written_ns[seq] > earliest_ns or barrier in committed:
                found.add(seq)
            earliest_ns = min(earliest_ns, self._written_ns[seq])
            if barrier is not None:
                committed.add(barrier)
        return found

    def _check_history(self) -> None:
        records = [r for r in history(self._root) if "rows_in" in r]
        assert [r["checkpoint_id"] for r in records] == sorted({r["checkpoint_id"] for r in records})
        for record in records:
            entry = self.seen.get(record["checkpoint_id"])
            if entry is not None:
                found = (entry.doc["kind"], entry.doc["generation"], entry.doc["ordinal"])
                assert found == ("commit", record["generation"], record["ordinal"])


def _check_later(before: Entry, after: Entry) -> None:
    assert after.doc["job_uuid"] == before.doc["job_uuid"]
    assert after.doc["generation"] >= before.doc["generation"], after.seq
    if after.doc["generation"] == before.doc["generation"]:
        assert after.doc["ordinal"] >= before.doc["ordinal"], after.seq


def _check_next(before: Entry, after: Entry) -> None:
    assert after.doc["parent"] == before.sha256, f"{after.seq} does not follow {before.seq}"
    kind, generation = after.doc["kind"], before.doc["generation"]
    expected = {
        "claim": (after.seq, 0),
        "commit": (generation, max(after.doc["ordinal"], before.doc["ordinal"] + 1)),
        "admin": (generation, before.doc["ordinal"]),
    }[kind]
    assert (after.doc["generation"], after.doc["ordinal"]) == expected, after.seq


def history(root: Path) -> list[Document]:
    """The records of committed checkpoints and of actions, in order of the entries that they are about: of objects, and
    of the newest manifest."""
    found: dict[Any, Document] = {(r["generation"], r["ordinal"]): r for r in _pending_records_at_head(root)}
    folder = root / "history"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        content = json.loads(path.read_bytes())
        for record in content if isinstance(content, list) else [content]:
            found[(record["generation"], record["ordinal"]) if "rows_in" in record else path.name] = record
    known = [r for r in found.values() if r.get("status", "completed") == "completed"]
    return sorted(known, key=lambda r: int(r["checkpoint_id"] if "rows_in" in r else r["seq"]))


def _pending_records_at_head(root: Path) -> list[Document]:
    newest = head(root) if entries(root) else None
    if newest is None or newest.doc["manifest"] is None:
        return []
    manifest = read_manifest(root, newest.doc["manifest"])
    own = manifest.get("record")
    return [*manifest.get("history", []), *([{**own, "checkpoint_id": newest.checkpoint}] if own else [])]


def scratch_generations(local: Path) -> dict[str, int]:
    """Working folders of stores in the scratch space, and the generation that each belongs to."""
    return {str(p.relative_to(local)): int(p.name.split(".")[0]) for p in local.glob("*/*/*/work/*")}


def files_read(entry: Entry) -> int:
    """How many files a file source has read, when one is one batch."""
    offsets = [json.loads(s["offset"]) for s in entry.doc["sources"]]
    return int(offsets[0]["logOffset"]) + 1 if offsets else 0
