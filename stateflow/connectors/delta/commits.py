"""What the log of a Delta table says to a source: positions, and the files and changes between two of them, in order.

Positions are offsets of Delta's own source for Spark: the files of a version are numbered in the order of its log
entry, the files of the table as it was at the start by their modification times, then paths. So each can continue from
a position that the other has stored. A batch is cut where Delta's source may cut it, and nowhere else: a version with
files of changes, with deletion vectors, or, of changes, with additions and removals, is in one batch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from stateflow.connectors.delta.log import (
    CATALOG_FEATURES,
    DeltaHead,
    Metadata,
    Protocol,
    check_log,
    entry_path,
    list_log,
    log_lines,
    open_log_file,
    open_version,
    read_head,
)
from stateflow.connectors.delta.rows import FileRead, LoggedFile
from stateflow.connectors.delta.versions import Content, read_content
from stateflow.connectors.table_folder import TableFolder, open_table_folder
from stateflow.errors import ConfigError, CorruptFile, DataError, EnvironmentUnsupported, InputLost, SinkRefused
from stateflow.types.decoders import json_decoder

INSERT, DELETE = "insert", "delete"
_BEFORE, _AFTER = frozenset({DELETE, "update_preimage"}), frozenset({INSERT, "update_postimage"})
"""The kinds of changes that come first in their version, and those that come after them."""
_CHANGE_FEED = "delta.enableChangeDataFeed"
_COMMIT_TIMES = "delta.enableInCommitTimestamps"
_COMMIT_TIMES_VERSION = "delta.inCommitTimestampEnablementVersion"
_COMMIT_TIMES_BEGIN = "delta.inCommitTimestampEnablementTimestamp"
_NUMBER = re.compile(r"[0-9]{1,18}")
LOG_HINT = (
    "restore with --source UID=earliest or position:VERSION; to keep the log longer, set delta.logRetentionDuration "
    "of the table"
)
_KEPT_COMMITS, _KEPT_ACTIONS = 256, 10_000
"""How many log entries are kept until the next batch, and how many files they have, unless a single one has more."""
_COUNTED_ENTRIES = 200
"""How many log entries are read to tell how much input waits: a request to a store each, and a backlog has seconds."""
_UNORDERED_TIMES = 100
"""How many versions before a version may have later times: Delta's source looks at as many."""
_READ_FEATURES = frozenset(
    "columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck "
    # A column of these types is refused if it is declared.
    "variantType variantType-preview variantShredding variantShredding-preview geospatial".split()
)
_NEWEST_READER = 3


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """A position: the version that is read next, and the last of its files that was read; as Delta's source writes it.

    Attributes:
        isStartingVersion: whether it is in the table as it was at the start, and not in the changes of the version.
    """

    sourceVersion: int = 1
    reservoirId: str
    reservoirVersion: int
    index: int = -1
    isStartingVersion: bool = False

    @property
    def files_read(self) -> int:
        """How many files of the version were read: negative numbers are before its first one."""
        return max(self.index, -1) + 1

    @property
    def place(self) -> tuple[int, int]:
        """Sort key of a position within one table."""
        return self.reservoirVersion, self.files_read

    @property
    def newest_read(self) -> int:
        """The newest version of which rows were read; -1 for none."""
        return self.reservoirVersion - (0 if self.isStartingVersion or self.files_read else 1)

    def after(self, version: int) -> Offset:
        """Returns the position after all files of a version."""
        return Offset(reservoirId=self.reservoirId, reservoirVersion=version + 1)


class _CommitInfo(msgspec.Struct, frozen=True):
    operation: str | None = None
    operationMetrics: dict[str, object] | None = None
    inCommitTimestamp: int | None = None


class _Line(msgspec.Struct, frozen=True):
    add: LoggedFile | None = None
    remove: LoggedFile | None = None
    cdc: LoggedFile | None = None
    metaData: Metadata | None = None
    protocol: Protocol | None = None
    commitInfo: _CommitInfo | None = None


_line = json_decoder(_Line)
_NO_ROWS_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True)
class Commit:
    """A log entry.

    Attributes:
        actions: those that add or remove rows, and files of changes, in order.
    """

    version: int
    actions: tuple[_Line, ...]
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    info: _CommitInfo | None = None

    @classmethod
    def of(cls, version: int, lines: Sequence[_Line]) -> Commit:
        """Returns the entry of a version with these lines."""
        kept = tuple(line for line in lines if line.cdc or any(f and f.dataChange for f in (line.add, line.remove)))
        metadata = next((line.metaData for line in lines if line.metaData), None)
        protocol = next((line.protocol for line in lines if line.protocol), None)
        return cls(
            version, kept, metadata, protocol, next((line.commitInfo for line in lines if line.commitInfo), None)
        )

    @property
    def time(self) -> int | None:
        """The time in the commit, in milliseconds since 1970; None without one."""
        return None if self.info is None else self.info.inCommitTimestamp

    @property
    def removes_rows(self) -> bool:
        """Whether it removes rows, perhaps to add them with other values."""
        return any(line.remove for line in self.actions)

    @property
    def added(self) -> tuple[_Line, ...]:
        """The added files, as a source of rows numbers them."""
        return tuple(line for line in self.actions if line.add)

    @property
    def changes(self) -> tuple[_Line, ...]:
        """The files of changes, or else the added and removed files, as a source of changes numbers them."""
        changes = tuple(line for line in self.actions if line.cdc)
        return changes or self.actions

    @property
    def changes_no_rows(self) -> bool:
        """Whether it is a MERGE that has rewritten files, but has not changed a row."""
        found = self.info
        metrics = (found.operationMetrics if found else None) or {}
        return bool(
            found
            and found.operation == "MERGE"
            and not any(line.cdc for line in self.actions)
            and all(str(metrics.get(name)) == "0" for name in _NO_ROWS_CHANGED)
        )


@dataclass(frozen=True)
class Snapshot:
    """A version of a table; its files are in the order in which a source reads them."""

    version: int
    metadata: Metadata
    files: tuple[LoggedFile, ...]

    @classmethod
    def of(cls, content: Content) -> Snapshot:
        """Returns the version that has this content."""
        files = (msgspec.convert(file.action, LoggedFile) for file in content.files.values())
        ordered = sorted(files, key=lambda file: (file.modificationTime, file.path))
        return cls(content.version, content.metadata, tuple(ordered))


class TableLog:
    """The log of a table, for a source.

    Args:
        address: path or URI of the table.
        source: description of the source, for errors.
    """

    def __init__(self, address: str, source: str) -> None:
        self.address = address
        self._source = source
        self._head: DeltaHead | None = None
        self._snapshot: Snapshot | None = None
        self._commits: dict[int, Commit] = {}
        self._actions = 0
        """The number of actions in all of `_commits`."""
        self._recorded = range(-1, -1)
        """Versions of which the table is known to have recorded the changes."""

    def for_thread(self) -> TableLog:
        """Returns the log for another thread. It begins with the version that this one knows, and changes nothing here.

        A log keeps entries, and forgets them when there are too many: two threads would take them from each other.
        """
        copied = TableLog(self.address, self._source)
        copied.table = self.table
        # In this order: `head` forgets the files of a replaced table before it returns the new one.
        copied._head = self._head
        copied._snapshot = self._snapshot
        return copied

    @cached_property
    def table(self) -> TableFolder:
        """The table's folder. Raises ConfigError."""
        return open_table_folder(self.address)

    def head(self) -> DeltaHead:
        """Returns the newest version. Raises ConfigError, EnvironmentUnsupported, CorruptFile or StorageError."""
        known = self._head
        try:
            if known is None:
                check_log(self.table)
            head = read_head(self.table, "", known)
        except SinkRefused as e:
            reason = str(e.facts.get("reason", e.message))
            if (feature := e.facts.get("feature")) is not None:
                check_features([str(feature)], self.address)
            raise self._unreadable(reason) from e
        if head is None:
            raise self._unreadable("it does not exist, or has no log")
        if known is None or known.metadata.id != head.metadata.id:
            self._commits, self._actions, self._snapshot, self._recorded = {}, 0, None, range(-1, -1)
        self._head = head
        check_protocol(head.protocol, self.address)
        return head

    def _unreadable(self, reason: str) -> ConfigError:
        return ConfigError(
            "the source's Delta table cannot be read",
            hint="create it, or correct the path",
            source=self._source,
            reason=reason[:500],
        )

    def commit(self, version: int) -> Commit | None:
        """Returns the log entry of a version; None without one. Raises CorruptFile, ConfigError or StorageError."""
        if (kept := self._commits.get(version)) is not None:
            return kept
        path = entry_path(version)
        try:
            with open_log_file(self.table, path) as file:
                lines = log_lines(file, f"{self.table}/{path}")
                found = Commit.of(version, [_line.decode(line) for line in lines])
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            message = "a log entry of the Delta table cannot be decoded"
            raise CorruptFile(message, file=f"{self.table}/{path}", reason=str(e)) from e
        if found.protocol is not None:
            check_protocol(found.protocol, self.address)
        if len(self._commits) >= _KEPT_COMMITS or self._actions + len(found.actions) > _KEPT_ACTIONS:
            self._commits, self._actions = {}, 0
        self._commits[version] = found
        self._actions += len(found.actions)
        return found

    def snapshot(self, version: int) -> Snapshot:
        """Returns a version. Raises InputLost if the log no longer has it, CorruptFile or StorageError."""
        if self._snapshot is None or self._snapshot.version != version:
            # Kept, because the batches of a first read divide the same files.
            self._snapshot = Snapshot.of(self.content(version))
        return self._snapshot

    def content(self, version: int) -> Content:
        """Returns the content of a version. Raises as `snapshot`."""
        found = read_content(self.table, version, "")
        if found is None:
            raise self.lost(f"version {version}")
        check_protocol(found.protocol, self.address)
        return found

    def records_changes(self, version: int) -> bool:
        """Returns whether the table recorded its changes at a version; false if the log no longer says so."""
        if version in self._recorded:
            return True
        commit = self.commit(version)
        if commit is not None and commit.metadata is not None:
            found = has_feed(commit.metadata.configuration)
        else:
            found = (commit is not None and version == self._recorded.stop) or self._had_feed(version)
        if found:
            self.note_recorded(version, version)
        return found

    def note_recorded(self, first: int, last: int) -> None:
        """Keeps that the changes of the versions `first` to `last` are recorded: the next batch begins after them."""
        known = self._recorded
        begin = known.start if known.start <= first <= known.stop else first
        self._recorded = range(begin, max(last + 1, known.stop if begin == known.start else 0))

    def _had_feed(self, version: int) -> bool:
        """Returns whether the table had a change data feed after a version, as a checkpoint says."""
        head = self._head
        if head is not None and head.version == version:
            return has_feed(head.metadata.configuration)
        with open_version(self.table, version) as opened:
            if opened is not None:
                return has_feed(opened.metadata().configuration)
        # A clean-up has removed the checkpoint before the version: a later one has the same properties if no entry in
        # between changes them.
        later = min((v for v in list_log(self.table, version).checkpoints if v > version), default=version)
        between = [self.commit(number) for number in range(version + 1, later + 1)]
        if not between or any(commit is None or commit.metadata is not None for commit in between):
            return False
        with open_version(self.table, later) as opened:
            return opened is not None and has_feed(opened.metadata().configuration)

    def first_entry(self, version: int) -> int | None:
        """Returns the first version from one on that has a log entry; None without one."""
        return min((v for v in list_log(self.table, version).entries if v >= version), default=None)

    def times(self, first: int, last: int) -> Mapping[int, int]:
        """Returns the times of versions in milliseconds since 1970, as Delta's source has them.

        Without a time in the commit, it is the time of the entry's file, or a millisecond after the version before it.
        """
        begin = max(0, first - _UNORDERED_TIMES)
        found = _ordered({v: at for v, at in self.entry_times(begin).items() if v <= last})
        own = {v: commit.time for v in range(first, last + 1) if v in found and (commit := self.commit(v))}
        return {v: own.get(v) or time for v, time in found.items() if v >= first}

    def first_version_since(self, millis: int) -> int:
        """Returns the first version that was committed at a time or later; the next version if there is none.

        Reads the log's list of files, and a few entries of a table whose commits have times.

        Args:
            millis: the time, in milliseconds since 1970.

        Raises:
            CorruptFile: a commit has no time, or a property is not a number.
        """
        head = self.head()
        files = _ordered({v: at for v, at in self.entry_times(0).items() if v <= head.version})
        begin, enabled = self._begin_of_commit_times(head)
        own = [version for version in files if version >= begin]
        before = [version for version in files if version < begin]
        # As Delta's protocol has it: a copy of the table changes the times of files, but not the time of the enabling.
        if before and (not own or millis < enabled):
            at = bisect_left(before, millis, key=files.__getitem__)
            return before[at] if at < len(before) else min(own, default=head.version + 1)
        at = bisect_left(own, millis, key=self._time_in_commit)
        return own[at] if at < len(own) else head.version + 1

    def _begin_of_commit_times(self, head: DeltaHead) -> tuple[int, int]:
        """Returns the first version with a time in its commit, and this time; 0 for both if all versions have one."""
        about = head.metadata.configuration or {}
        if (about.get(_COMMIT_TIMES) or "").lower() != "true":
            return head.version + 1, 0
        numbers = {name: about.get(name) or "0" for name in (_COMMIT_TIMES_VERSION, _COMMIT_TIMES_BEGIN)}
        for name, text in numbers.items():
            if not _NUMBER.fullmatch(text):
                message = "a property of the Delta table is not a number"
                hint = f"ALTER TABLE … UNSET TBLPROPERTIES ('{name}'), or restore the log from a copy"
                raise CorruptFile(message, hint=hint, table=self.address, property=name, value=text[:100])
        return int(numbers[_COMMIT_TIMES_VERSION]), int(numbers[_COMMIT_TIMES_BEGIN])

    def _time_in_commit(self, version: int) -> int:
        commit = self.commit(version)
        if commit is None:
            # A clean-up has removed it since it was listed: entries are removed from the oldest on.
            return -1
        if commit.time is None:
            message = "a commit of the Delta table lacks the time that a property of the table promises"
            file = f"{self.table}/{entry_path(version)}"
            raise CorruptFile(message, hint="restore the file from a copy", file=file, property=_COMMIT_TIMES)
        return commit.time

    def entry_times(self, first: int) -> Mapping[int, int]:
        """Returns when the log entries from a version on were written, in milliseconds since 1970."""
        listing = list_log(self.table, first)
        return {v: listing.files[entry_path(v).rpartition("/")[2]].modified_ms for v in listing.entries if v >= first}

    def lost(self, versions: str) -> InputLost:
        """Returns the error about versions that were not read and have no log entry any more."""
        message = "a Delta table no longer has the log of versions that were not read"
        return InputLost(message, hint=LOG_HINT, source=self._source, lost=versions)


def _ordered(times: Mapping[int, int]) -> dict[int, int]:
    """Returns times by version, each at least a millisecond after the one before, as Delta's reader corrects them."""
    found: dict[int, int] = {}
    before = -1
    for version in sorted(times):
        before = found[version] = max(times[version], before + 1)
    return found


def has_feed(configuration: Mapping[str, str | None] | None) -> bool:
    """Returns whether a table with these properties records its changes."""
    return ((configuration or {}).get(_CHANGE_FEED) or "").lower() == "true"


def check_protocol(protocol: Protocol, table: str) -> None:
    """Raises EnvironmentUnsupported for a table that a reader of these features would read wrongly."""
    features = frozenset(protocol.reader_features or ())
    check_features(sorted(features - _READ_FEATURES), table)
    if not 1 <= protocol.min_reader_version <= _NEWEST_READER:
        check_features([f"reader version {protocol.min_reader_version}"], table)


def check_features(unknown: Sequence[str], table: str) -> None:
    """Raises EnvironmentUnsupported if a table has features that cannot be read."""
    if CATALOG_FEATURES.intersection(unknown):
        raise EnvironmentUnsupported(
            "a catalog manages the Delta table: its newest versions are not in its log",
            hint="read it through an engine of the catalog, or copy it to a table without the feature",
            table=table,
            features=list(unknown),
        )
    if unknown:
        raise EnvironmentUnsupported(
            "the Delta table has features that stateflow cannot read",
            hint="drop the features (ALTER TABLE … DROP FEATURE), or copy the rows to another table",
            table=table,
            features=list(unknown),
        )


@dataclass(frozen=True)
class WaitingFile:
    """A file that was not read.

    Attributes:
        added: when it was added, in milliseconds since 1970.
        weight: how many files it stands for, on average: the log entries of many versions are not all read.
    """

    file: LoggedFile
    added: int
    weight: float = 1.0


@dataclass(frozen=True)
class Feed:
    """The input of a source of a table.

    Attributes:
        log: the table's log.
        source: description of the source, for errors.
        changes: whether it reads changes instead of added rows.
        skips_changes: whether it skips versions that remove rows.
    """

    log: TableLog
    source: str
    changes: bool = False
    skips_changes: bool = False

    def without_state(self) -> Feed:
        """Returns the same input for another process, which reads the log itself."""
        return replace(self, log=TableLog(self.log.address, self.source))

    def for_thread(self) -> Feed:
        """Returns the same input for another thread of this process."""
        return replace(self, log=self.log.for_thread())

    def check_table(self, offset: Offset) -> DeltaHead:
        """Returns the newest version. Raises InputLost if the table is not the table of a position."""
        head = self.log.head()
        if head.metadata.id != offset.reservoirId:
            raise InputLost(
                "a Delta table was replaced since it was read",
                hint="restore with --source UID=earliest to read the new table",
                source=self.source,
                before=offset.reservoirId,
                now=head.metadata.id,
            )
        return head

    def next_offset(self, start: Offset, most: int, until: Offset | None = None) -> Offset:
        """Returns the position after the next batch; `start` without new input.

        Args:
            most: most files of a batch. A version that is not divided may have more.
            until: a position that no batch passes.

        Raises:
            DataError: the next version removes rows, and the source reads added ones.
            InputLost: the log no longer has the next version, or belongs to another table.
        """
        newest = self.check_table(start).version
        if start.isStartingVersion:
            return self._within_snapshot(start, most)
        at = start
        while at.reservoirVersion <= newest and most > 0 and (until is None or at.place < until.place):
            commit = self._existing(at.reservoirVersion)
            try:
                files = self._files_of(commit)[at.files_read :]
            except DataError:
                if at == start:
                    raise
                return at
            if len(files) > most:
                if not self._is_divided(commit):
                    return at.after(commit.version) if at == start else at
                return msgspec.structs.replace(at, index=at.files_read + most - 1)
            most -= len(files)
            at = at.after(commit.version)
        return at

    def _within_snapshot(self, start: Offset, most: int) -> Offset:
        # A batch ends with the table as it was at the start. Otherwise, which rows are in it would depend on when the
        # position is looked at again: it does not say at which version the table was read first.
        last = start.files_read + most
        if last < len(self.log.snapshot(start.reservoirVersion).files):
            return msgspec.structs.replace(start, index=last - 1)
        return start.after(start.reservoirVersion)

    def _existing(self, version: int) -> Commit:
        found = self.log.commit(version)
        if found is None:
            raise self.log.lost(f"version {version}")
        return found

    def _files_of(self, commit: Commit) -> tuple[_Line, ...]:
        """Returns the files of a version as they are numbered. Raises DataError for one that the source cannot read."""
        if self.changes:
            if commit.metadata is not None and not has_feed(commit.metadata.configuration):
                raise self.not_recorded(commit.version)
            return () if commit.changes_no_rows else commit.changes
        if not commit.removes_rows:
            return commit.added
        if self.skips_changes:
            return ()
        raise DataError(
            "a commit of a Delta table updates or deletes rows, and a source without changes reads only rows that are "
            "added",
            hint="skip such commits with DeltaSource(…, skip_changes=True), or read them with changes=True; to "
            "continue after it, restore with --source UID=position:VERSION",
            source=self.source,
            version=commit.version,
            operation=(commit.info and commit.info.operation) or "",
        )

    def _is_divided(self, commit: Commit) -> bool:
        return not self.changes or all(line.add and not line.add.deletionVector for line in commit.actions)

    def reads(self, start: Offset, end: Offset, times: bool = False) -> list[FileRead]:
        """Returns the files between two positions, in the order in which their rows arrive. Raises as `next_offset`.

        Args:
            times: whether the time of each change is needed.
        """
        found: list[FileRead] = []
        version, skipped = start.reservoirVersion, start.files_read
        if start.isStartingVersion:
            stop = end.files_read if end.isStartingVersion else None
            files = self.log.snapshot(version).files[skipped:stop]
            found += [FileRead(file, version, INSERT, without=file.deletionVector) for file in files]
            version, skipped = version + 1, 0
        last = -1 if end.isStartingVersion else end.reservoirVersion - (0 if end.files_read else 1)
        for number in range(version, last + 1):
            lines = self._files_of(self._existing(number))
            stop = end.files_read if number == end.reservoirVersion else None
            found += self._reads_of(number, lines[skipped if number == version else 0 : stop])
        versions = [read.version for read in found] if times else []
        known = self.log.times(min(versions), max(versions)) if versions else {}
        # Tasks do not need the statistics, which are most of an action.
        return [
            replace(read, file=msgspec.structs.replace(read.file, stats=None), committed=known.get(read.version))
            for read in found
        ]

    def waiting(self, start: Offset) -> Iterator[WaitingFile]:
        """Yields the files after a position; of many versions, those of some, which stand for the others as well."""
        version, skipped = start.reservoirVersion, start.files_read
        if start.isStartingVersion:
            for file in self.log.snapshot(version).files[skipped:]:
                yield WaitingFile(file, file.modificationTime)
            version, skipped = version + 1, 0
        versions = range(version, self.log.head().version + 1)
        counted = min(len(versions), _COUNTED_ENTRIES)
        times = self.log.entry_times(version) if counted else {}
        for number in (versions[at * len(versions) // counted] for at in range(counted)):
            commit = self._existing(number)
            if not self.changes and commit.removes_rows:
                continue
            for line in self._files_of(commit)[skipped if number == version else 0 :]:
                if (waiting := line.add or line.remove or line.cdc) is not None:
                    yield WaitingFile(waiting, times.get(number, 0), len(versions) / counted)

    def check_start(self, start: Offset) -> None:
        """Raises DataError if a new job would begin where the table does not record its changes."""
        version = min(start.reservoirVersion, self.log.head().version)
        # An entry that no longer exists is lost input.
        if self.changes and self.log.commit(version) is not None and not self.log.records_changes(version):
            raise self.not_recorded(version)

    def check_feed(self, start: Offset, end: Offset) -> None:
        """Raises DataError if the table has not recorded its changes at a position from which changes are read.

        `reads` finds the versions after it that end the feed.
        """
        first, last = start.reservoirVersion, end.reservoirVersion - (0 if end.files_read else 1)
        if start.isStartingVersion:
            last = max(first, -1 if end.isStartingVersion else last)
        if first > last:
            return
        if not self.log.records_changes(first):
            raise self.not_recorded(first)
        self.log.note_recorded(first, last)

    def not_recorded(self, version: int) -> DataError:
        """Returns the error about a version whose changes are not recorded."""
        return DataError(
            "a Delta table has not recorded its changes in versions that were not read",
            hint="set delta.enableChangeDataFeed=true of the table, and begin at a version since then: start=VERSION "
            "in a new job, or a restore with --source UID=position:VERSION",
            source=self.source,
            version=version,
        )

    def _reads_of(self, version: int, lines: Sequence[_Line]) -> list[FileRead]:
        """Returns how files of a version are read: what takes rows away comes first."""
        if not self.changes:
            return [FileRead(f, version, without=f.deletionVector) for line in lines if (f := line.add)]
        of_changes = [line.cdc for line in lines if line.cdc]
        if of_changes:
            return [FileRead(file, version, kinds=kinds) for kinds in (_BEFORE, _AFTER) for file in of_changes]
        removed = {line.remove.path: line.remove for line in lines if line.remove}
        added = {line.add.path: line.add for line in lines if line.add}
        # A file that is in both has other deleted rows afterwards.
        return [
            *(read for path, f in removed.items() for read in _changed(version, DELETE, f, added.get(path))),
            *(read for path, f in added.items() for read in _changed(version, INSERT, f, removed.get(path))),
        ]


def _changed(version: int, change: str, file: LoggedFile, other: LoggedFile | None) -> Iterator[FileRead]:
    """Yields the rows that a version removes or adds with a file, without the rows of its other action."""
    if other is None:
        yield FileRead(file, version, change, without=file.deletionVector)
    elif other.deletionVector is not None:
        yield FileRead(file, version, change, only=other.deletionVector, without=file.deletionVector)
