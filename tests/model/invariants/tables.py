"""What must hold for the table of one sink: S1, S2 and S4, S3 of a sweep, and R3 and R5 of a restore."""

from __future__ import annotations

from collections import Counter

from tests.model.invariants.violation import Violation

FOREIGN = "foreign/"
"""Prefix of the files of other applications in a table."""
Output = tuple[int, list[str]]
"""A checkpoint's id, and its files."""


class TableChecker:
    """Follows one table.

    Args:
        counts: statistics of the history.
        approved: files of other applications that may disappear; shared by all tables of a job.

    Attributes:
        line: the output that the table must hold, in order.
        visible: how much of `line` the table holds.
        shown: every checkpoint whose output was ever published.
        intent: the sequence number of a restore's intent until the table has its token; then 0.
    """

    def __init__(self, uid: str, counts: Counter[str], approved: set[str]) -> None:
        self.uid = uid
        self.line: list[Output] = []
        self.visible = 0
        self.shown: set[int] = set()
        self.intent = 0
        self._mode = ""
        self._floor = 0
        self._content: list[Output] = []
        self._replaced: dict[int, tuple[str, list[Output]]] = {}
        """For each intent that another one replaced before it reached the table: its mode, and the line then."""
        self._counts = counts
        self._approved = approved

    def published(self, token: int, paths: list[str]) -> None:
        self._content.append((token, paths))
        self.shown.add(token)
        if self.intent:
            if token > self.intent:
                raise Violation("R5", f"{self.uid}: {token} is published before the rewind of {self.intent}")
            if self._mode == "keep":
                raise Violation("S1", f"{self.uid}: a kept table gets {token} after the intent {self.intent}")
            self._counts[f"rewinds ({self._mode}) with a late publication before them"] += 1
            return
        due = self.line[self.visible : self.visible + 1]
        if due != [(token, paths)]:
            raise Violation("S1", f"{self.uid}: {token} is published with {paths}, due is {due}")
        self.visible += 1
        self._counts["publications seen"] += 1

    def rewound(self, token: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """The table got the token of a restore, and for the mode `restore` older content."""
        is_late = token < self.intent and token in self._replaced
        if token != self.intent and not is_late:
            raise Violation("S1", f"{self.uid}: the table is rewound for {token}, the intent is {self.intent}")
        mode, line = self._replaced[token] if is_late else (self._mode, self.line)
        wanted = _ours(before) if mode == "keep" else [path for _, paths in line for path in paths]
        if _ours(after) != wanted or (mode == "keep" and not is_late and before != after):
            raise Violation("S1", f"{self.uid}: after the rewind {token} ({mode}) it has {after}, not {wanted}")
        if mode == "restore":
            self._content = list(line)
        undone = {path for path in set(before) - set(after) if path.startswith(FOREIGN)}
        self._counts["commits of others undone"] += len(undone)
        if not undone <= self._approved:
            raise Violation("S4", f"{self.uid}: {sorted(undone)} are undone for {token} without approval")
        if is_late:
            # A restore that was paused does what its own plan says. The one that replaced it comes later.
            if (mode, self._mode) == ("restore", "keep"):
                self.line = list(line)
            self._counts["tables rewound late for a replaced plan"] += 1
            return
        self.intent, self._floor, self.visible = 0, token, len(line)
        self._counts[f"tables rewound ({mode})" + (" with rows undone" if before != after else "")] += 1

    def appended(self) -> None:
        self._counts["appended by others"] += 1
        self._counts["appended by others before a rewind"] += bool(self.intent)

    def swept(self, path: str) -> None:
        if any(path in paths for _, paths in [*self.line, *self._content]):
            raise Violation("S3", f"{self.uid}: {path} belongs to a checkpoint on the job's line, and is swept")

    def intend(self, seq: int, mode: str, wanted: list[Output]) -> None:
        """A CLAIM has an intent for this table; `wanted` is the target's line."""
        if unseen := {checkpoint for checkpoint, _ in wanted} - self.shown:
            raise Violation("R3", f"{self.uid}: claim {seq} restores the output of {sorted(unseen)}, never published")
        if self.intent:
            self._replaced[self.intent] = (self._mode, list(self.line))
            if (mode, self._mode) == ("keep", "restore"):
                # The restore that this one replaces has not reached the table: its present content is kept.
                self.line = list(self._content)
        self.intent, self._mode = seq, mode
        if mode == "restore":
            self.line = list(wanted)

    def adopt(self, checkpoint: int) -> None:
        """A CLAIM continues from an older checkpoint without an intent."""
        self.line = [output for output in self.line if output[0] <= max(checkpoint, self._floor)]
        if self.visible > len(self.line):
            raise Violation("S1", f"{self.uid}: {checkpoint} is adopted, later output was published")

    def check_pending(self, pending: set[int]) -> None:
        """S2, for the checkpoints whose output is pending in the head."""
        hidden = {checkpoint for checkpoint, _ in self.line[self.visible :]}
        if not self.intent and not hidden <= pending:
            raise Violation("S2", f"{self.uid}: output of {sorted(hidden - pending)} is neither visible nor pending")

    def check_rest(self) -> None:
        """S1 and R5 at rest."""
        if self.intent:
            raise Violation("R5", f"{self.uid} was never rewound for {self.intent}")
        if self.visible != len(self.line) or self._content != self.line:
            raise Violation("S1", f"{self.uid} has {self._content}, the job's line is {self.line}")


def _ours(content: tuple[str, ...]) -> list[str]:
    return [path for path in content if not path.startswith(FOREIGN)]
