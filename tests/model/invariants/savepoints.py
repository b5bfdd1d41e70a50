"""What must hold for savepoints and requests.

V1  a complete savepoint stays complete, byte by byte, until it is disposed of
V2  at rest nothing is left of an incomplete savepoint but the tombstone that keeps it incomplete
V3  it has the files and positions of the checkpoint that it names, whose output was published by then
V4  no savepoint is given up while its pin is held
V5  a savepoint that a command returned stays until a user disposes of it, or a job that has claimed it; see `claims.py`
Q1  a request is answered once; an answer names a savepoint that was complete
Q2  at rest no savepoint exists that a run made for a request which got another answer
Q3  a request fails for a reason in the job, not because its run lost its pin
Q4  at rest, after a healthy run, every request is answered
Q5  a run that answered a stop request commits nothing more
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.errors import CorruptFile, DataError, MissingFile
from tests.model.invariants.claims import ClaimChecker
from tests.model.invariants.entries import read_document
from tests.model.invariants.violation import Violation
from tests.support.errors import reported_error

if TYPE_CHECKING:
    from tests.model.invariants.log import Checker
    from tests.model.simulation.storage import SimStorage

_KEY = re.compile(r"savepoints/([^/]+)/(.+)")
_ANSWER = re.compile(r"requests/.+\.done")
_REQUEST = re.compile(r"requests/[^.]+")
_TOMBSTONE = b"given up\n"


@dataclass(frozen=True)
class Savepoint:
    """A complete savepoint: the process that completed it, and hashes of its files by key."""

    doc: dict[str, Any]
    maker: str
    files: dict[str, str]


class SavepointChecker:
    """Follows the savepoints and requests of one history.

    Attributes:
        pins_dropped: whether a user dropped pins; then the process that makes a savepoint may find files deleted.
    """

    def __init__(self, checker: Checker, storage: SimStorage) -> None:
        self.pins_dropped = False
        self._checker = checker
        self._counts = checker.counts
        self._storage = storage
        self._complete: dict[str, Savepoint] = {}
        """By folder."""
        self._ids: set[str] = set()
        """Of all savepoints that were ever complete."""
        self._pins: dict[str, str] = {}
        self._disposed: set[str] = set()
        self._returned: set[str] = set()
        self._removed: dict[str, str] = {}
        """The process that removed a savepoint without a user's command, by the savepoint's id."""
        self.claims = ClaimChecker(checker, storage)
        self._answers: dict[str, dict[str, Any]] = {}
        self._stopping: set[str] = set()

    # -- changes of the storage ---------------------------------------------------------------------------------------

    def created(self, key: str, data: bytes) -> None:
        if _ANSWER.fullmatch(key):
            self._answered(read_document(data))
        elif match := _KEY.fullmatch(key):
            folder, name = match.groups()
            if name == "_started":
                self._pins[folder] = data.decode()
            if name == "_disposed" or (name == "_started" and data.startswith(b"disposed-")):
                self._disposed.add(folder)
                self._remove(folder)
            if name == "_savepoint":
                self._complete_savepoint(folder, data)
            if name.startswith("claims/0"):
                self.claims.slot_created(folder, data, is_deleted=folder in self._disposed)

    def deleted(self, key: str) -> None:
        match = _KEY.fullmatch(key)
        folder, name = match.groups() if match else ("", "")
        made = self._complete.get(folder)
        may_go = name == "_started" or name.startswith("claims/probe-")
        if made and folder not in self._disposed and not may_go:
            raise Violation("V1", f"{key} is deleted, and savepoint {made.doc['name']} is not disposed of")
        if made and name == "_savepoint":
            self._counts["savepoints disposed"] += 1
            del self._complete[folder]

    def returned(self, whom: str, savepoint_id: str) -> None:
        """A command succeeded and returned this savepoint."""
        if savepoint_id not in self._ids:
            raise Violation("V1", f"{whom} received savepoint {savepoint_id}, which was never complete")
        if savepoint_id in self._removed:
            raise Violation("V5", f"{whom} received a savepoint that {self._removed[savepoint_id]} removed")
        self._returned.add(savepoint_id)

    def committed(self, seq: int, writer: str) -> None:
        if writer in self._stopping:
            raise Violation("Q5", f"{writer} commits {seq} after it answered that it stops")

    def _remove(self, folder: str) -> None:
        made, actor = self._complete.get(folder), self._storage.scheduler.actor
        if made is None:
            return
        if self.claims.is_claimed(folder):
            self.claims.deleted(folder, actor)
            return
        # A job may begin to delete what it owns while a user reserves the deletion of the same savepoint.
        if actor.startswith("dispose") or self.claims.is_deleted(folder):
            return
        if made.doc["id"] in self._returned:
            raise Violation("V5", f"{actor} removes {made.doc['name']}, which a command returned")
        self._removed[made.doc["id"]] = actor

    def _complete_savepoint(self, folder: str, data: bytes) -> None:
        if data == _TOMBSTONE:
            self._counts["savepoints given up"] += 1
            if self._pins.get(folder) in self._checker.head.pins:
                raise Violation("V4", f"{folder} is given up, its pin is held")
            return
        doc = read_document(data)
        handles = [f["handle"] for o in doc["manifest"]["operators"] for s in o["subtasks"] for f in s["files"]]
        files = {f"savepoints/{folder}/{handle['key']}": handle["sha256"] for handle in handles}
        states = sorted(files.values())
        files[f"savepoints/{folder}/_savepoint"] = hashlib.sha256(data).hexdigest()
        made = self._complete[folder] = Savepoint(doc, self._storage.scheduler.actor, files)
        self._ids.add(doc["id"])
        self._counts["savepoints complete"] += 1
        self._counts["savepoints made by runs"] += made.maker.startswith("run")
        self._check_files(made)
        self._check_source(doc, states)

    def _check_source(self, doc: dict[str, Any], states: list[str]) -> None:
        checker, checkpoint = self._checker, doc["checkpoint_id"]
        if states != checker.states_of(checkpoint):
            raise Violation("V3", f"savepoint {doc['name']} does not have the files of {checkpoint}")
        if doc["manifest"]["sources"][0]["offset"] != checker.chain[checkpoint].offset:
            raise Violation("V3", f"savepoint {doc['name']} does not have the positions of {checkpoint}")
        for sink, line in checker.lines[checkpoint].items():
            if unseen := {output for output, _ in line} - checker.tables[sink].shown:
                raise Violation("V3", f"savepoint {doc['name']}: {sink} never had the output of {sorted(unseen)}")

    def _check_files(self, made: Savepoint) -> None:
        for key, sha256 in made.files.items():
            data = self._storage.peek(key)
            if data is None or hashlib.sha256(data).hexdigest() != sha256:
                raise Violation("V1", f"{key} of a complete savepoint is gone or changed")

    def _answered(self, answer: dict[str, Any]) -> None:
        request_id, status = answer["id"], answer["status"]
        if request_id in self._answers:
            raise Violation("Q1", f"request {request_id} is answered twice")
        self._answers[request_id] = answer
        self._counts[f"requests {status}"] += 1
        if status == "failed":
            self._counts[f"requests failed ({answer.get('code')})"] += 1
            if _is_avoidable(answer, self.pins_dropped):
                raise Violation("Q3", f"request {request_id} fails: {answer['message']}")
        if status == "done":
            if answer.get("savepoint_id") and answer["savepoint_id"] not in self._ids:
                raise Violation("Q1", f"the answer to request {request_id} names a savepoint that was never complete")
            request = self._storage.peek(f"requests/{request_id}")
            if request is not None and read_document(request)["kind"] == "stop":
                self._counts["stops"] += 1
                self._stopping.add(answer["by"])

    # -- at rest ------------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """V1, V2, Q2 and Q4 after a healthy start, and a collection without pins."""
        for made in self._complete.values():
            self._check_files(made)
            answer = self._answers.get(made.doc["request"])
            if made.maker.startswith("run") and answer and answer.get("savepoint_id") != made.doc["id"]:
                raise Violation("Q2", f"savepoint {made.doc['name']} exists, its request was {answer['status']}")
        self.claims.check_rest(self._complete.keys())
        known = {key for made in self._complete.values() for key in made.files}
        claims = tuple(f"savepoints/{folder}/claims/" for folder in self._complete)
        for key in self._storage.keys():
            is_known = key in known or key.startswith(claims)
            if key.startswith("savepoints/") and not is_known and self._storage.peek(key) != _TOMBSTONE:
                raise Violation("V2", f"{key} is left over")
            if _REQUEST.fullmatch(key) and self._storage.peek(f"{key}.done") is None:
                raise Violation("Q4", f"{key} was never answered")


def _is_avoidable(answer: dict[str, Any], pins_dropped: bool) -> bool:
    error = reported_error(f"error [{answer['code']}]: {answer['message']}")
    if error.code == DataError.code and {"checkpoint_id", "oldest_checkpoint_id"} <= error.facts.keys():
        return True
    is_given_up = error.code == DataError.code and "name" in error.facts
    return (is_given_up or error.code in (MissingFile.code, CorruptFile.code)) and not pins_dropped
