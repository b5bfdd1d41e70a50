"""What savepoints and requests promise.

V1  a complete savepoint is whole, and stays so, byte by byte, until somebody disposes of it
V2  at rest nothing is left of a savepoint that is not complete, but the tombstone that keeps it from being so
V3  it has the files and positions of the checkpoint that it names, whose output was published by then
V4  no savepoint is given up while its pin is held
V5  a savepoint that somebody was told of stays until a person disposes of it
Q1  a request is answered once; an answer names a savepoint that was complete
Q2  at rest no savepoint is there that a run made for a request which got another answer
Q3  a request fails for a reason in the job, not because its run lost its pin
Q4  at rest, with a healthy run behind it, every request is answered
Q5  a run that told somebody that it stops commits nothing more
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.errors import CorruptFile, DataError, MissingFile
from tests.model.rules import Violation
from tests.support.errors import reported_error

if TYPE_CHECKING:
    from tests.model.invariants import Checker
    from tests.model.store import SimStorage

_KEY = re.compile(r"savepoints/([^/]+)/(.+)")
_TOMBSTONE = b"given up\n"


@dataclass(frozen=True)
class Made:
    """A complete savepoint.

    Attributes:
        maker: the process that completed it.
    """

    doc: dict[str, Any]
    maker: str
    files: dict[str, str]
    """By key: its hash."""


class Keeping:
    """Follows the savepoints and requests of one history."""

    def __init__(self, checker: Checker, storage: SimStorage) -> None:
        self.counts: Counter[str] = Counter()
        self.complete: dict[str, Made] = {}
        """By folder."""
        self.ever: set[str] = set()
        """Ids of all that ever were complete."""
        self.pins_dropped = False
        """Whether somebody dropped pins by command: then a maker may find files gone."""
        self._checker = checker
        self._storage = storage
        self._pins: dict[str, str] = {}
        self._disposed: set[str] = set()
        self._told: set[str] = set()
        self._taken: dict[str, str] = {}
        """Who took a savepoint away that nobody had disposed of, by its id."""
        self._answers: dict[str, dict[str, Any]] = {}
        self._stopping: set[str] = set()

    # -- what the storage tells ---------------------------------------------------------------------------------------

    def created(self, key: str, data: bytes) -> None:
        """An object below ``savepoints/`` or ``requests/`` appeared."""
        if match := _KEY.fullmatch(key):
            folder, name = match.groups()
            if name == "_started":
                self._pins[folder] = data.decode()
            if name == "_disposed" or (name == "_started" and data.startswith(b"disposed-")):
                self._disposed.add(folder)
                self._taken_away(folder)
            if name == "_savepoint":
                self._complete(folder, data)
        elif key.endswith(".done"):
            self._answered(_document(data))

    def deleted(self, key: str) -> None:
        """An object is about to be removed."""
        match = _KEY.fullmatch(key)
        if match is None:
            return
        folder = match[1]
        made = self.complete.get(folder)
        if made and folder not in self._disposed and match[2] != "_started":
            raise Violation("V1", f"{key} is deleted, and nobody disposes of savepoint {made.doc['name']}")
        if match[2] == "_savepoint" and made:
            self.counts["savepoints disposed"] += 1
            del self.complete[folder]

    def told(self, whom: str, savepoint_id: str) -> None:
        """A command ended well, with this savepoint as its result."""
        if savepoint_id not in self.ever:
            raise Violation("V1", f"{whom} was told of savepoint {savepoint_id}, which never was complete")
        if savepoint_id in self._taken:
            raise Violation("V5", f"{whom} was told of a savepoint that {self._taken[savepoint_id]} took away")
        self._told.add(savepoint_id)
        self.counts["savepoints told of"] += 1

    def _taken_away(self, folder: str) -> None:
        made = self.complete.get(folder)
        if made is None or self._storage.actor.startswith("disposer"):
            return
        if made.doc["id"] in self._told:
            raise Violation("V5", f"{self._storage.actor} takes {made.doc['name']} away, which was told of")
        self._taken[made.doc["id"]] = self._storage.actor

    def committed(self, seq: int, writer: str) -> None:
        """A run committed."""
        if writer in self._stopping:
            raise Violation("Q5", f"{writer} commits {seq} after it said that it stops")

    def _complete(self, folder: str, data: bytes) -> None:
        if data == _TOMBSTONE:
            self.counts["savepoints given up"] += 1
            if self._pins.get(folder) in {p["id"] for p in self._checker.head.doc["pinned"]}:
                raise Violation("V4", f"{folder} is given up, its pin is held")
            return
        doc = _document(data)
        states = [f for o in doc["manifest"]["operators"] for s in o["subtasks"] for f in s["files"]]
        files = {f"savepoints/{folder}/{f['handle']['key']}": f["handle"]["sha256"] for f in states}
        files[f"savepoints/{folder}/_savepoint"] = hashlib.sha256(data).hexdigest()
        made = self.complete[folder] = Made(doc, self._storage.actor, files)
        self.ever.add(doc["id"])
        self.counts["savepoints complete"] += 1
        if made.maker.startswith("run"):
            self.counts["savepoints made by runs"] += 1
        self._check_whole(made)
        self._check_source(made)

    def _check_whole(self, made: Made) -> None:
        for key, sha256 in made.files.items():
            data = self._storage.peek(key)
            if data is None or hashlib.sha256(data).hexdigest() != sha256:
                raise Violation("V1", f"{key} of a complete savepoint is not there, or another")

    def _check_source(self, made: Made) -> None:
        checker, doc = self._checker, made.doc
        checkpoint = doc["checkpoint_id"]
        states = sorted(sha256 for key, sha256 in made.files.items() if not key.endswith("/_savepoint"))
        if states != checker.contents(checkpoint):
            raise Violation("V3", f"savepoint {doc['name']} has not the files of {checkpoint}")
        if doc["manifest"]["sources"][0]["offset"] != checker.position_of(checkpoint):
            raise Violation("V3", f"savepoint {doc['name']} has not the positions of {checkpoint}")
        for sink, line in checker.lines[checkpoint].items():
            for output, _ in line:
                if output not in checker.shown[sink]:
                    raise Violation("V3", f"savepoint {doc['name']} of {checkpoint}: {sink} has never seen {output}")

    def _answered(self, answer: dict[str, Any]) -> None:
        if answer["id"] in self._answers:
            raise Violation("Q1", f"request {answer['id']} is answered twice")
        self._answers[answer["id"]] = answer
        self.counts[f"requests {answer['status']}"] += 1
        if answer["status"] == "failed" and _is_avoidable(answer, self.pins_dropped):
            raise Violation("Q3", f"request {answer['id']} fails: {answer['message']}")
        if answer["status"] == "failed":
            self.counts[f"requests failed ({answer.get('code')})"] += 1
        if answer["status"] == "done":
            if answer.get("savepoint_id") and answer["savepoint_id"] not in self.ever:
                raise Violation("Q1", f"request {answer['id']} is answered with a savepoint that never was")
            request = self._storage.peek(f"requests/{answer['id']}")
            if request is not None and _document(request)["kind"] == "stop":
                self.counts["stops"] += 1
                self._stopping.add(answer["by"])

    # -- at rest ------------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """V1, V2, Q2 and Q4 after a healthy start, and a collection without pins."""
        for made in self.complete.values():
            self._check_whole(made)
            answer = self._answers.get(made.doc["request"])
            if made.maker.startswith("run") and answer and answer.get("savepoint_id") != made.doc["id"]:
                raise Violation("Q2", f"savepoint {made.doc['name']} is there, its request was {answer['status']}")
        known = {key for made in self.complete.values() for key in made.files}
        for key in self._storage.keys():
            if key.startswith("savepoints/") and key not in known and self._storage.peek(key) != _TOMBSTONE:
                raise Violation("V2", f"{key} is left over")
            if re.fullmatch(r"requests/[^.]+", key) and self._storage.peek(f"{key}.done") is None:
                raise Violation("Q4", f"{key} was never answered")


def _is_avoidable(answer: dict[str, Any], pins_dropped: bool) -> bool:
    error = reported_error(f"error [{answer['code']}]: {answer['message']}")
    if error.code == DataError.code and {"checkpoint", "oldest"} <= error.facts.keys():
        return True
    is_given_up = error.code == DataError.code and "name" in error.facts
    return (is_given_up or error.code in (MissingFile.code, CorruptFile.code)) and not pins_dropped


def _document(data: bytes) -> dict[str, Any]:
    return msgspec.json.decode(data.partition(b"\n")[0])  # type: ignore[no-any-return]
