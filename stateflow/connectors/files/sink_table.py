"""Handles of a folder of files at one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stateflow.api.sink import OtherCommit, SinkContext, SinkRewind, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.delta.data_files import disk_error
from stateflow.connectors.files.data_writer import parse_path
from stateflow.connectors.files.metadata_log import (
    Entry,
    FileFacts,
    LoggedFile,
    Marker,
    append,
    content,
    file_line,
    is_compact,
    read_entry,
    remove_old_entries,
    versions,
)
from stateflow.errors import DataError, InternalError, SinkDiverged
from stateflow.state.handles import Committable

_clock = SystemClock()
_HINT = "choose a newer checkpoint, or keep the table as it is and correct its rows yourself"


def now_ms() -> int:
    """Returns the time in milliseconds since 1970."""
    return int(_clock.now().timestamp() * 1000)


class FileSinkTable:
    """The files of a folder at one version; a commit creates the next version, or fails.

    Args:
        root: the folder.
        context: the sink.
        head: the newest entry of the log.
    """

    def __init__(self, root: Path, context: SinkContext, head: Entry) -> None:
        self.table_id = head.marker.table_id
        self.version = head.version
        self.token: int | None = head.marker.tokens.get(context.application, 0)
        successor = head.marker.taken_over.get(context.application)
        self.successor = Successor.parse(successor) if successor else None
        self._root = root
        self._application = context.application
        self._marker = head.marker

    def missing(self, committables: list[Committable]) -> list[str]:
        """As `SinkTable.missing`."""
        return [c.path for c in committables if self._size(c.path) != c.size]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """As `SinkTable.commit`."""
        if len({c.path for c in committables}) < len(committables):
            raise InternalError("a checkpoint has a file twice", application=self._application, token=token)
        version, now = self.version + 1, now_ms()
        facts = ((c, FileFacts(version=version, rows=c.rows)) for c in committables)
        lines = [file_line(self._root, c.path, c.size, fact, now) for c, fact in facts]
        return self._append(version, self._next_marker(token), lines)

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """As `SinkTable.plan_rewind`."""
        if (self.token or 0) <= checkpoint_id:
            return SinkRewind(self.version, None, 0, 0, ())
        entries = self._entries(0)
        later = (v for v, e in entries.items() if self._is_ours(e) and self._token(e) > checkpoint_id)
        to_version = next(later) - 1
        now, then = self._contents(to_version)
        removed, returned = now.keys() - then.keys(), then.keys() - now.keys()
        return SinkRewind(
            self.version,
            to_version,
            _rows(now[path] for path in removed),
            _rows(then[path] for path in returned),
            tuple(self._others(entries, {path: now[path] for path in removed})),
        )

    def changes_since(self, version: int) -> TableChanges:
        """As `SinkTable.changes_since`."""
        entries = self._entries(version + 1)
        others = [
            self._commit_of(e, e.added) for e in entries.values() if e.marker.application and not self._is_ours(e)
        ]
        if version + 1 <= self.version and version + 1 not in entries:
            text = f"version {version + 1}: its log entry no longer exists"
            others.insert(0, OtherCommit(version + 1, frozenset(), text))
        published = any(self._is_ours(e) for e in entries.values())
        return TableChanges(
            str(self._root), published, tuple(o for o in others if o.files or o.operation or o.rows is None)
        )

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """As `SinkTable.rewind`.

        An entry can only remove files by listing all others, which Spark expects in each tenth one. The versions up to
        there are filled with entries that change nothing; if the driver dies in between, nothing has changed.
        """
        if to_version is None:
            return self._append(self.version + 1, self._next_marker(token), [])
        if not self._is_newest():
            return None
        _, then = self._contents(to_version)
        version = self.version + 1
        unchanged = msgspec.structs.replace(self._marker, application="", back_to=None)
        while not is_compact(version):
            if not append(self._root, version, unchanged, [], now_ms()):
                return None
            version += 1
        marker = msgspec.structs.replace(self._next_marker(token), back_to=to_version)
        return version if append(self._root, version, marker, list(then.values()), now_ms()) else None

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        """As `SinkTable.take_over`."""
        marker = self._next_marker(token)
        taken_over = {**marker.taken_over, **dict.fromkeys(former, by.text)}
        return self._append(self.version + 1, msgspec.structs.replace(marker, taken_over=taken_over), [])

    def _append(self, version: int, marker: Marker, lines: Sequence[LoggedFile]) -> int | None:
        if not is_compact(version):
            return version if append(self._root, version, marker, lines, now_ms()) else None
        before = content(self._root, self.version)
        if before is None:
            if not self._is_newest():
                # A newer run has removed the entries.
                return None
            raise self._too_old(self.version)
        if not append(self._root, version, marker, [*before.values(), *lines], now_ms()):
            return None
        remove_old_entries(self._root, version)
        return version

    def _next_marker(self, token: int) -> Marker:
        tokens = {**self._marker.tokens, self._application: token}
        return msgspec.structs.replace(self._marker, tokens=tokens, application=self._application, back_to=None)

    def _is_newest(self) -> bool:
        return versions(self._root)[-1] == self.version

    def _is_ours(self, entry: Entry) -> bool:
        return entry.marker.application == self._application

    def _token(self, entry: Entry) -> int:
        return entry.marker.tokens.get(self._application, 0)

    def _entries(self, first: int) -> dict[int, Entry]:
        found = ((v, read_entry(self._root, v)) for v in versions(self._root) if first <= v <= self.version)
        return {version: entry for version, entry in found if entry}

    def _contents(self, to_version: int) -> tuple[Mapping[str, LoggedFile], Mapping[str, LoggedFile]]:
        """Returns the current content and that of an older version, after checking that its files exist."""
        now, then = content(self._root, self.version), content(self._root, to_version)
        if now is None or then is None:
            raise self._too_old(to_version)
        missing = sorted(path for path in then.keys() - now.keys() if self._size(path) != then[path].size)
        if missing:
            raise SinkDiverged(
                "the folder cannot be rewound: files of that version no longer exist",
                hint=_HINT,
                table=str(self._root),
                version=to_version,
                files=missing[:3],
            )
        return now, then

    def _too_old(self, version: int) -> SinkDiverged:
        return SinkDiverged(
            "the folder cannot be rewound: its log no longer has that version",
            hint=_HINT,
            table=str(self._root),
            version=version,
        )

    def _others(self, entries: Mapping[int, Entry], removed: Mapping[str, LoggedFile]) -> Iterator[OtherCommit]:
        """Yields the commits of other applications that added files of `removed`."""
        for entry in entries.values():
            files = {path: file for path, file in entry.added.items() if path in removed}
            if files and not self._is_ours(entry):
                yield self._commit_of(entry, files)

    def _commit_of(self, entry: Entry, files: Mapping[str, LoggedFile]) -> OtherCommit:
        who, rows = entry.marker.application, _rows(files.values())
        back_to = entry.marker.back_to
        what = f"{rows} rows added" if back_to is None else f"version {back_to} restored"
        operation = "" if back_to is None else "RESTORE"
        text = f"version {entry.version}: {what} by {who}"
        return OtherCommit(entry.version, frozenset({who}), text, tuple(files), operation, rows)

    def _size(self, path: str) -> int | None:
        if parse_path(path, self._marker.format) is None:
            raise DataError("a file to publish was not written by a sink", path=path, table=str(self._root))
        try:
            return (self._root / path).lstat().st_size
        except FileNotFoundError:
            return None
        except OSError as e:
            raise disk_error(e, self._root / path) from e


def _rows(files: Iterable[LoggedFile]) -> int:
    return sum(file.stateflow.rows for file in files if isinstance(file.stateflow, FileFacts))
