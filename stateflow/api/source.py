"""Sources: what a source promises, its positions, and the source of a list of rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stateflow.api.datasets import Dataset, without_credentials
from stateflow.api.dead_letters import OnError
from stateflow.api.input_files import FileFormat, ListedFormat, OnCorruptFile
from stateflow.api.schema import RowSchema
from stateflow.config.settings import LIMITS, SourceSettings
from stateflow.errors import ConfigError, InputLost, JobDefinitionError, StateflowError
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.api.schema import RejectedRecord


class StartKind(StrEnum):
    """The positions that a source can be set to when a job is restored, apart from the one that it had."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    POSITION = "position"


FROM_START = "-"
"""The offset of a source that was not read yet: it begins where a new job would begin."""


@dataclass(frozen=True)
class StartPosition:
    """A position that a user has chosen for a source.

    Attributes:
        kind: what the position is determined by.
        timestamp: for *timestamp*, the time from which on input is read; for *latest*, the time of the request.
        position: for *position*, the source's own text: `Slice.position`, or a line of Spark's offset log.
    """

    kind: StartKind
    timestamp: datetime | None = None
    position: str = ""


@dataclass(frozen=True)
class InitialPosition:
    """A position that a source can read from.

    Attributes:
        offset: `Slice.position`, or a line of Spark's offset log.
        logs: contents of the files of Spark's log of the source for this position, by name.
        text: the position in words, for plans; empty to show the offset.
    """

    offset: str
    logs: Mapping[str, bytes] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Backlog:
    """Input of a source that waits after a position. A number that the source cannot tell is None.

    Attributes:
        rows: number of rows.
        size_bytes: their size, as it is stored at the source.
        files: number of files.
        oldest_at: when the oldest of it was written, by the source's clock; None also if nothing waits.
        exact: whether `rows` is exact, and not an estimate or an upper bound.
        unknown: why one of the numbers is not known; empty if the source has told all that it can.
    """

    rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    oldest_at: datetime | None = None
    exact: bool = True
    unknown: str = ""


NO_BACKLOG = Backlog(unknown="the source does not tell how much input waits")
"""The answer of a source that has no way to tell."""


def _as_read(rows: DataFrame) -> DataFrame:
    return rows


Arrange = Callable[["DataFrame"], "DataFrame"]


class Source(ABC):
    """A source that Spark reads. Positions are Spark's own offsets, stored unchanged."""

    schema: RowSchema
    bounded: bool = False
    """Whether the input ends. After a run has read all of it, every event-time timer fires, as in Flink."""
    start_kinds: frozenset[StartKind] = frozenset({StartKind.EARLIEST, StartKind.POSITION})
    """The positions that it can be set to. `initial_position` is called for all but *earliest*."""
    on_corrupt_file: OnCorruptFile = "fail"
    """Whether an unreadable file fails the run, or is skipped as a whole and recorded."""

    has_splits: bool = False
    """Whether each part of the source, such as a partition, has a watermark of its own. Then the frame of `stream` ends
    with the columns `SPLIT` and, with dead letters, `REJECTED` of `stateflow.api.schema`."""
    on_error: OnError = None
    """Policy for records of a source with splits that cannot be decoded."""

    @property
    def ends_by_itself(self) -> bool:
        """Whether Spark's AvailableNow trigger reads all input that exists at the start.

        Otherwise, the run triggers batches until the source has no new input.
        """
        return True

    @property
    def unchecked(self) -> str:
        """The part of the input that `check` and `warnings` do not cover; empty if they cover all of it."""
        return ""

    def warnings(self, spark: SparkSession) -> Sequence[str]:
        """Returns likely causes of a later failure that do not prevent a run, one sentence each."""
        return ()

    @property
    @abstractmethod
    def description(self) -> str:
        """Description of the input; compared on restore, so that sources are not confused."""

    def datasets(self, offset: str) -> Sequence[Dataset]:
        """Returns what the source reads, for lineage events.

        Args:
            offset: the newest position, as in Spark's offset log; empty without one.
        """
        return (Dataset("stateflow", without_credentials(self.description)),)

    @abstractmethod
    def check(self, spark: SparkSession) -> None:
        """Raises ConfigError or SchemaMismatch if the input cannot be read as declared."""

    @abstractmethod
    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        """Returns the streaming DataFrame with the columns of `schema`."""

    def stream_files(self, spark: SparkSession, limits: SourceSettings, log: Path) -> DataFrame | None:
        """Returns the streaming DataFrame, without rows, of a source that lists its files itself; None for another one.

        Args:
            log: the folder of the log of files, which the source writes as Spark's file source does: see `FileLog`.
        """
        return None

    @property
    def is_table(self) -> bool:
        """Whether `read_now` reads all rows of the input."""
        return False

    def read_now(self, spark: SparkSession) -> DataFrame:
        """Returns the rows that the input has now, with the columns of `schema`, for look-up joins.

        Raises:
            InputLost, CorruptInput, BatchFailed or StorageError: it cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} is not a table")

    def splits(self, offset: str) -> list[str]:
        """Returns the names of all splits at a position, for a source with splits.

        Args:
            offset: the position, as in Spark's offset log.
        """
        return []

    def check_position(self, offset: str) -> None:  # noqa: B027 - most sources find it out themselves
        """Raises InputLost if input after a position no longer exists. Called before Spark reads from it.

        Args:
            offset: the position, as in Spark's offset log.
        """

    def explain_failure(self, reason: str) -> StateflowError | None:
        """Returns the error that made Spark fail a batch, if it is one of the source; None if that is unknown.

        Args:
            reason: text of Spark's error.
        """
        return None

    def first_offset(self, logs: Mapping[str, bytes]) -> str:
        """Returns the position at which the source begins in a new job; empty if each run would begin at the same one.

        A run that finds no input stores it, so that the next run does not miss what arrives in between.

        Args:
            logs: contents of the files of Spark's log of the source, by name.
        """
        return ""

    def reason(self, record: RejectedRecord) -> str:
        """Returns why a record cannot be decoded, more precisely than the record itself; empty if it says all."""
        return ""

    @property
    def limited_by(self) -> frozenset[str]:
        """The names of the limits of a batch that have an effect on the source, of `SourceSettings`."""
        return frozenset()

    def check_settings(self, limits: SourceSettings) -> None:  # noqa: B027 - most sources have none
        """Checks what needs no Spark, such as limits and folders. Raises ConfigError.

        Args:
            limits: the limits of the source.
        """

    @property
    def files_address(self) -> str | None:
        """The folder, or Hadoop's glob pattern, of all files that the source reads; None if unknown, or without files.

        A start refuses a checkpoint in which the source has read other files. For a source that reads files through
        Spark and returns None, a forged savepoint can name any file as one that was read.
        """
        return None

    @property
    def has_files(self) -> bool:
        """Whether `read_files` reads the rows of a batch from files."""
        return type(self).read_files is not Source.read_files

    def read_files(self, spark: SparkSession, files: Sequence[str], arrange: Arrange = _as_read) -> DataFrame:
        """Returns the rows of some of the source's files, with the columns of `schema`.

        Args:
            spark: the session.
            files: percent-encoded URIs, as in the source's log, in the order of their rows.
            arrange: must be applied to the frame of Spark's reader, before any function in Python: Spark reads files in
                the order of their sizes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def file_format(self, files: Sequence[str]) -> FileFormat | None:
        """Returns what reads the files of a batch in tasks; None if only Spark can read them as the source declares.

        Args:
            files: percent-encoded URIs, as in the source's log.
        """
        return None

    def files_between(self, start: str, end: str) -> ListedFormat | None:
        """Returns what reads the rows of a batch in tasks, for a source whose frame has no rows; None for any other.

        Args:
            start: the position before the batch, as in Spark's offset log; `FROM_START` for the first batch.
            end: the position after it.

        Raises:
            InputLost: input between the positions no longer exists.
        """
        return None

    def find_truncated(self, files: Sequence[str]) -> dict[str, str]:
        """Returns the files with an invalid header or footer, each with the reason. Other files may be corrupt, too."""
        return {}

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """Returns a position that was chosen, one of `start_kinds`, without starting Spark.

        Raises:
            ConfigError: it is not a position of this source.
        """
        return InitialPosition(start.position)

    def earliest_position(self) -> InitialPosition:
        """Returns the position before all input; `FROM_START` if a new job begins there.

        Raises:
            ConfigError: the source cannot be set to it.
        """
        return InitialPosition(FROM_START)

    def can_keep(self, description: str) -> bool:
        """Returns whether a position of a source with another description can be a position of this one."""
        return True

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Returns whether all input after a position that was read once can be read again; None if unknown.

        Args:
            offset: the position, as in Spark's offset log.
            logs: contents of the files that Spark has written about this source since then.
        """
        return None

    def lost_between(self, start: str, end: str, logs: Mapping[str, bytes]) -> Sequence[str]:
        """Returns texts on the input between two positions that no longer exists; empty if none is known to be lost.

        Called before a batch is replayed. Unless it is overridden, all input after the first position has to exist.

        Args:
            start: the position before the batch, as in Spark's offset log; `FROM_START` for the first batch.
            end: the position after it.
            logs: contents of the files of Spark's log of the source, by name.
        """
        if start == FROM_START:
            return ()
        try:
            self.check_position(start)
        except InputLost as e:
            return texts_of(e)
        return () if self.holds(start, list(logs.values())) is not False else _AFTER_START

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Returns whether there is input after a position; None if that is unknown without Spark.

        A scheduled run does not start Spark if every source returns False. So a source returns False only if Spark,
        too, would find no input after the position, and None whenever it is uncertain: its input would never be read.

        Args:
            offset: the position, as in Spark's offset log.
            logs: contents of the files of Spark's log of the source at that position.
        """
        return None

    def backlog(self, offset: str, logs: Sequence[bytes]) -> Backlog:
        """Returns how much input waits after a position; without Spark, and without reading the input.

        It may raise any error. It is called in a thread of its own. After ten seconds the backlog is unknown, and the
        run reads on while the call lasts: it must not share data that changes with the other methods.

        Args:
            offset: the position, as in Spark's offset log; `FROM_START` for a source that was not read yet.
            logs: contents of the files of Spark's log of the source at that position.
        """
        return NO_BACKLOG

    def files_since(self, offset: str, logs: Sequence[bytes]) -> int | None:
        """Returns the number of files read since a position; None for a source without files. Arguments: as `holds`."""
        return None


_AFTER_START = ("input after the position before the batch",)


def texts_of(error: InputLost) -> list[str]:
    """Returns what an error says about lost input."""
    lost = error.facts.get("lost")
    return [str(text) for text in lost] if isinstance(lost, list) else [error.sentence if lost is None else str(lost)]


@dataclass(frozen=True)
class Slice:
    """Rows of one micro-batch, and the position after them.

    Attributes:
        rows: objects of the row class and, with dead letters, of `RejectedRecord`.
        splits: for a source with splits, the same rows by the name of their split; splits without rows, too.
    """

    rows: Sequence[object]
    position: str
    splits: Mapping[str, Sequence[object]] = field(default_factory=dict)


class LocalSource(ABC):
    """A source that a run without Spark reads."""

    schema: RowSchema
    bounded: bool = False
    """See `Source.bounded`."""
    may_use_spark: bool = False
    """Whether a job with Spark expressions, and without a source for Spark, may run on Spark with this source."""
    needs_spark: bool = False
    """Whether a job with this source runs on Spark."""
    start_kinds: frozenset[StartKind] = frozenset({StartKind.EARLIEST, StartKind.POSITION})
    """See `Source.start_kinds`."""
    has_splits: bool = False
    """Whether each part of the source has a watermark of its own. Then slices have `Slice.splits`."""
    on_error: OnError = None
    """See `Source.on_error`."""
    limited_by: frozenset[str] = frozenset({"max_rows_per_batch"})
    """See `Source.limited_by`."""

    @property
    @abstractmethod
    def description(self) -> str:
        """See `Source.description`."""

    def datasets(self, offset: str) -> Sequence[Dataset]:
        """See `Source.datasets`."""
        return (Dataset("stateflow", without_credentials(self.description)),)

    def check_settings(self, limits: SourceSettings) -> None:  # noqa: B027 - most sources have none
        """See `Source.check_settings`."""

    def reason(self, record: RejectedRecord) -> str:
        """See `Source.reason`."""
        return ""

    @abstractmethod
    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        """Returns the next micro-batch after `position` (None: from the start); None without new input."""

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """Returns the rows between two positions once more; None if only `read` returns rows, at the same positions.

        For a source of which `read` returns other positions when there is more input.

        Args:
            position: the position before the rows; None for the start.
            end: the position that `read` returned after them.
        """
        return None

    def slice_between(self, position: str | None, end: str) -> Slice | None:
        """Returns what `between` returns as a slice, with the rows of each split for a source with splits."""
        rows = self.between(position, end)
        return None if rows is None else Slice(rows, end)

    def holds(self, position: str) -> bool | None:
        """Returns whether all input after `position` can be read again; None if unknown."""
        return None

    def lost_between(self, start: str | None, end: str) -> Sequence[str]:
        """Returns texts on the input between two positions that no longer exists, as `Source.lost_between`.

        Args:
            start: the position before a batch; None for the first batch.
            end: the position after it.
        """
        return _AFTER_START if start is not None and self.holds(start) is False else ()

    def has_new_input(self, position: str) -> bool | None:
        """Returns whether there is input after `position`; None if unknown. See `Source.has_new_input`."""
        return None

    def backlog(self, position: str | None) -> Backlog:
        """Returns how much input waits after `position`; None is the start. See `Source.backlog`."""
        return NO_BACKLOG

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`."""
        return InitialPosition(start.position)

    def earliest_position(self) -> InitialPosition:
        """See `Source.earliest_position`."""
        return InitialPosition(FROM_START)


def limits_of(uid: str, source: Source | LocalSource, settings: SourceSettings) -> SourceSettings:
    """Returns the limits of a source: its own, or those for all sources that have an effect on it."""
    if uid in settings.of:
        return settings.of[uid]
    files, rows = (getattr(settings, name) if name in source.limited_by else None for name in LIMITS)
    return SourceSettings(files, rows)


def check_limits(sources: Mapping[str, Source | LocalSource], settings: SourceSettings) -> None:
    """Checks that each limit has an effect on a source.

    Args:
        sources: the sources of the job by uid.

    Raises:
        ConfigError: a limit has none; the hint names those that the sources have.
    """
    for uid, limits in settings.of.items():
        if uid not in sources:
            raise ConfigError(
                "a limit names a source that the job does not have",
                hint="use the uid of a source",
                uid=uid,
                known=sorted(sources),
            )
        for name in limits.given.keys() - sources[uid].limited_by:
            raise ConfigError(
                "the limit of a batch has no effect on this source",
                hint=_limits_of_kind(f"source.of.{uid}", sources[uid].limited_by),
                setting=f"source.of.{uid}.{name}",
                source=sources[uid].description,
            )
    possible = frozenset(name for source in sources.values() for name in source.limited_by)
    for name in settings.given.keys() - possible:
        raise ConfigError(
            "no source of the job has this limit",
            hint=_limits_of_kind("source", possible),
            setting=f"source.{name}",
            sources=sorted(sources),
        )


def _limits_of_kind(prefix: str, names: frozenset[str]) -> str:
    if not names:
        return "set the option of the source that limits a batch"
    return f"set {' or '.join(f'{prefix}.{name}' for name in sorted(names))}"


_POSITION = "position"
_BEFORE_ALL = {_POSITION: "start"}
_offset = json_decoder(dict[str, str])


def spark_position(position: str | None) -> dict[str, str]:
    """Returns the offset of Spark for a position of a local source; None is the position before all input."""
    if position is None:
        return dict(_BEFORE_ALL)
    found = {_POSITION: position}
    # A source may use any text as a position.
    return found if found != _BEFORE_ALL else {**found, "of": "source"}


def local_position(offset: str) -> str | None:
    """Returns the position in an offset that `spark_position` has made; None before all input, or if it is not one.

    Args:
        offset: a line of Spark's offset log.
    """
    try:
        found = _offset.decode(offset)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return None if found == _BEFORE_ALL else found.get(_POSITION)


class CollectionSource(LocalSource):
    """A bounded source whose rows are in the job file.

    A position is a number of rows, so if a later version of the job has a longer list, the run reads the new rows.

    Args:
        rows: objects of `row_class`.
        row_class: class of the rows.
    """

    bounded = True
    may_use_spark = True
    start_kinds = frozenset({StartKind.EARLIEST, StartKind.LATEST, StartKind.POSITION})

    def __init__(self, rows: Iterable[object], row_class: type[object]) -> None:
        self.schema = RowSchema.of(row_class)
        self._rows = list(rows)
        wrong = [repr(row) for row in self._rows if not isinstance(row, row_class)]
        if wrong:
            raise JobDefinitionError(
                f"expected rows of type {row_class.__name__}",
                hint="pass objects of the row class",
                given=wrong[0][:200],
            )

    @property
    def description(self) -> str:
        return f"CollectionSource[{self.schema.row_class.__name__}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        # Rows of the job file are not a dataset.
        return ()

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(json.loads(position)["row"]) if position else 0
        rows = self._rows[start:][: limits.max_rows_per_batch]
        return Slice(rows, json.dumps({"row": start + len(rows)})) if rows else None

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """See `LocalSource.between`: a longer list has other slices. None if the list does not have the rows."""
        start, stop = (int(json.loads(at)["row"]) if at else 0 for at in (position, end))
        return self._rows[start:stop] if start <= stop <= len(self._rows) else None

    def holds(self, position: str) -> bool | None:
        return True

    def backlog(self, position: str | None) -> Backlog:
        """See `LocalSource.backlog`."""
        return Backlog(rows=max(0, len(self._rows) - (int(json.loads(position)["row"]) if position else 0)))

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """Returns the position after all rows, or a given one: ``{"row": N}`` after N rows."""
        if start.kind is StartKind.LATEST:
            return InitialPosition(json.dumps({"row": len(self._rows)}))
        try:
            row = json.loads(start.position)["row"]
        except (ValueError, KeyError, TypeError, RecursionError):
            row = None
        if type(row) is not int or not 0 <= row <= len(self._rows):
            raise ConfigError(
                "the position of a collection must be a number of its rows",
                hint=f'use {{"row": N}} with N from 0 to {len(self._rows)}',
                position=start.position[:200],
            )
        return InitialPosition(json.dumps({"row": row}))
