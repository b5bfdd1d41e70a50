"""What going back in a Delta table does to rows, told from files and from what their writers counted.

Nothing is read but the log. What it does not tell is said to be unknown: a preview must not be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stateflow.api.sink import OtherCommit
from stateflow.connectors.delta_versions import DataFile, Entry, Key, restored

_COPIED = ("numCopiedRows", "num_copied_rows", "numTargetRowsCopied", "num_target_rows_copied")
_COPYING = frozenset({"DELETE", "UPDATE", "MERGE"})

Files = Mapping[Key, DataFile]
_RowsByPath = Mapping[str, int | None]


@dataclass(frozen=True)
class Apart:
    """How the contents of two versions came to differ.

    Attributes:
        files: of the last version that both descend from; None when the log does not tell.
        undone: entries from there to the content of now, in order.
        redone: entries from there to the content that is to come back.
    """

    files: Files | None
    undone: Sequence[Entry]
    redone: Sequence[Entry]

    def rows(self) -> tuple[int | None, int | None]:
        """Rows that go, and rows that come back; None for what is unknown."""
        if self.files is None:
            return None, None
        after, before = _replayed(self.files, self.undone), _replayed(self.files, self.redone)
        if after is None or before is None:
            return None, None
        kept = _kept(after, before, self.undone, self.redone)
        there, then = _sum(f.rows for f in after.values()), _sum(f.rows for f in before.values())
        if kept is None or there is None or then is None:
            return None, None
        return there - kept, then - kept

    def others(self, application: str) -> Iterator[str]:
        """What others than `application` did to rows, and is undone: a sentence for each commit."""
        # What removes a file need not say how many rows it has.
        known = [*(self.files or {}).values(), *(f for e in self.undone for f in e.added)]
        rows = {file.key: file.rows for file in known}
        for entry in self.undone:
            if (entry.added or entry.removed) and application not in entry.tokens:
                brought = _sum(f.rows for f in entry.added)
                took = _sum(rows.get(f.key, f.rows) for f in entry.removed)
                yield _sentence(entry, _difference(brought, took))


def other_commit(entry: Entry) -> OtherCommit:
    """What a commit of another writer did, according to its log entry."""
    rows = _difference(_sum(f.rows for f in entry.added), _sum(f.rows for f in entry.removed))
    paths = sorted({f.path for f in (*entry.added, *entry.removed)})
    return OtherCommit(entry.version, frozenset(entry.tokens), _sentence(entry, rows), tuple(paths))


def _replayed(files: Files, entries: Iterable[Entry]) -> Files | None:
    """`files` after what `entries` did to rows, as if nobody had compacted; None when that cannot be told apart."""
    result = dict(files)
    for entry in entries:
        if restored(entry) is not None:
            continue  # its content is that of the version before it on this way
        for file in entry.removed:
            if result.pop(file.key, None) is None:
                return None  # a compacted file: nobody knows which rows of it went
        result.update((file.key, file) for file in entry.added)
    return result


def _kept(after: Files, before: Files, undone: Iterable[Entry], redone: Iterable[Entry]) -> int | None:
    """Rows that are in both, as far as files and what their writers counted tell."""
    if all(any(_copied_rows(e) != 0 for e in entries) for entries in (undone, redone)):
        return None  # a file that was copied on both ways is in neither, and its rows may be in both
    now = {f.path: f.rows for f in after.values()}
    then = {f.path: f.rows for f in before.values()}
    copied = [*_copied(now, then, undone), *_copied(then, now, redone)]
    # Deletion vectors only grow on the way from one to the other: the smaller one has what is in both.
    return _sum([*(_least(now[p], then[p]) for p in now.keys() & then.keys()), *copied])


def _copied(now: _RowsByPath, then: _RowsByPath, entries: Iterable[Entry]) -> Iterator[int | None]:
    """Rows that a DELETE, UPDATE or MERGE among `entries` took over from files of `then` into files of `now`."""
    old = set(then)
    for entry in entries:
        removed, added = {f.path for f in entry.removed}, {f.path: f.rows for f in entry.added}
        rewritten, new = removed - added.keys(), {p: rows for p, rows in added.items() if p not in removed}
        copied = _copied_rows(entry)
        if copied == 0 or not new or not rewritten & old:
            continue
        if rewritten <= old and new.items() <= now.items():
            yield copied
        elif rewritten <= old and not new.keys() & now.keys() and copied == _sum(new.values()):
            old |= new.keys()  # rewritten once more, or deleted: a later entry tells
        else:
            yield None  # of rows from files of both kinds nobody knows which are left


def _copied_rows(entry: Entry) -> int | None:
    if entry.info.get("operation") not in _COPYING:
        return 0
    metrics = entry.info.get("operationMetrics") or {}
    return next((int(metrics[name]) for name in _COPIED if name in metrics), None)


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _sentence(entry: Entry, rows: str) -> str:
    who = "".join(f" by {application}" for application in sorted(entry.tokens))
    ms = entry.info.get("timestamp")
    when = f" at {datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if ms else ""
    what = entry.info.get("operation", "a commit")
    return f"version {entry.version}: {what}{who}{when}, {rows}"


def _difference(brought: int | None, took: int | None) -> str:
    if brought is None or took is None:
        return "an unknown number of rows"
    if brought == took:
        return "as many rows as before"
    count = abs(brought - took)
    return f"{count} {'row' if count == 1 else 'rows'} {'more' if brought > took else 'fewer'}"
