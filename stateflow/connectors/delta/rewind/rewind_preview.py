"""Previews how a rewind changes the rows of a Delta table, from its log alone.

Counts come from the files and from the metrics of their writers. A count that these do not determine is reported as
unknown: a preview must not be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stateflow.api.sink import OtherCommit
from stateflow.connectors.delta.versions import DataFile, Entry, Key, restored

_COPIED = ("numCopiedRows", "num_copied_rows", "numTargetRowsCopied", "num_target_rows_copied")
_COUNT = re.compile(r"[0-9]{1,18}")
_COPYING = frozenset({"DELETE", "UPDATE", "MERGE"})

Files = Mapping[Key, DataFile]
_RowsByPath = Mapping[str, int | None]


@dataclass(frozen=True)
class Divergence:
    """How the contents of two versions diverged.

    Attributes:
        files: the files of their newest common base; None when it is unknown.
        undone: entries from the base to the newest version, in order.
        redone: entries from the base to the version to restore, in order.
    """

    files: Files | None
    undone: Sequence[Entry]
    redone: Sequence[Entry]

    def rows(self) -> tuple[int | None, int | None]:
        """Returns the number of rows to remove and of rows to restore; None for unknown numbers."""
        if self.files is None:
            return None, None
        newest, older = _replayed(self.files, self.undone), _replayed(self.files, self.redone)
        if newest is None or older is None:
            return None, None
        kept = _kept(newest, older, self.undone, self.redone)
        newest_rows, older_rows = _sum(f.rows for f in newest.values()), _sum(f.rows for f in older.values())
        if kept is None or newest_rows is None or older_rows is None:
            return None, None
        return newest_rows - kept, older_rows - kept

    def other_commits(self, application: str) -> Iterator[OtherCommit]:
        """Yields the undone commits of writers other than `application` that changed rows."""
        # A remove action need not have the number of rows of its file.
        known = [*(self.files or {}).values(), *(f for e in self.undone for f in e.added)]
        rows = {file.key: file.rows for file in known}
        for entry in self.undone:
            if (entry.added or entry.removed) and application not in entry.tokens:
                added = _sum(f.rows for f in entry.added)
                removed = _sum(rows.get(f.key, f.rows) for f in entry.removed)
                yield _commit(entry, _difference(added, removed))


def other_commit(entry: Entry) -> OtherCommit:
    """Describes a commit of another writer from its log entry."""
    return _commit(entry, _difference(_sum(f.rows for f in entry.added), _sum(f.rows for f in entry.removed)))


def _replayed(files: Files, entries: Iterable[Entry]) -> Files | None:
    """Applies the row changes of `entries` to `files`, without compactions; returns None when that is not possible."""
    result = dict(files)
    for entry in entries:
        if restored(entry) is not None:
            continue  # the entries before it on this path lead to the content that it restores
        for file in entry.removed:
            if result.pop(file.key, None) is None:
                return None  # a compacted file: which of its rows were removed is unknown
        result.update((file.key, file) for file in entry.added)
    return result


def _kept(newest: Files, older: Files, undone: Iterable[Entry], redone: Iterable[Entry]) -> int | None:
    """Returns the number of rows in both versions, as far as files and metrics of their writers determine it."""
    if all(any(_copied_rows(e) != 0 for e in entries) for entries in (undone, redone)):
        return None  # a file that was rewritten on both paths is in neither version, but its rows may be in both
    now = {f.path: f.rows for f in newest.values()}
    then = {f.path: f.rows for f in older.values()}
    copied = [*_copied(now, then, undone), *_copied(then, now, redone)]
    # Deletion vectors only grow along a path, so the version with fewer rows of a file has the common ones.
    return _sum([*(_least(now[p], then[p]) for p in now.keys() & then.keys()), *copied])


def _copied(now: _RowsByPath, then: _RowsByPath, entries: Iterable[Entry]) -> Iterator[int | None]:
    """Yields the rows that a DELETE, UPDATE or MERGE of `entries` copied from files of `then` into files of `now`."""
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
            old |= new.keys()  # rewritten or deleted by a later entry, which is handled there
        else:
            yield None  # which rows remain is unknown when they come from files of both kinds


def _copied_rows(entry: Entry) -> int | None:
    commit = entry.commit
    if commit.operation not in _COPYING:
        return 0
    metrics = commit.operation_metrics or {}
    found = next((str(metrics[name]) for name in _COPIED if name in metrics), "")
    return int(found) if _COUNT.fullmatch(found) else None


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _commit(entry: Entry, rows: int | None) -> OtherCommit:
    paths = sorted({f.path for f in (*entry.added, *entry.removed)})
    return OtherCommit(
        entry.version, frozenset(entry.tokens), _sentence(entry, rows), tuple(paths), entry.commit.operation or "", rows
    )


def _sentence(entry: Entry, rows: int | None) -> str:
    who = "".join(f" by {application}" for application in sorted(entry.tokens))
    ms = entry.commit.timestamp
    when = f" at {datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if ms else ""
    what = entry.commit.operation or "a commit"
    return f"version {entry.version}: {what}{who}{when}, {_counted(rows)}"


def _difference(added: int | None, removed: int | None) -> int | None:
    return None if added is None or removed is None else added - removed


def _counted(rows: int | None) -> str:
    if rows is None:
        return "an unknown number of rows"
    if rows == 0:
        # Plans of older versions have this text, and their execution compares it.
        return "as many rows as before"
    return f"{abs(rows)} {'row' if abs(rows) == 1 else 'rows'} {'more' if rows > 0 else 'fewer'}"
