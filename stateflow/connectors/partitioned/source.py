"""A source in Python with partitions, which tasks of Spark read in parallel."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.schema import RowSchema
from stateflow.api.source import Backlog, InitialPosition, LocalSource, Slice, StartKind, StartPosition
from stateflow.config.settings import SourceSettings
from stateflow.connectors.column_policy import ColumnPolicy
from stateflow.connectors.partition_offsets import (
    count_waiting,
    gaps_after,
    has_new_rows,
    position_error,
    shorten_texts,
)
from stateflow.connectors.partitioned.positions import (
    Available,
    Offsets,
    Split,
    describe_lost_rows,
    find_offset_error,
    find_uncovered,
    format_position,
    limit_end,
    parse_position,
    skip_lost,
    splits_between,
)
from stateflow.connectors.partitioned.split_rows import Chunk, SplitRows
from stateflow.connectors.stream_reader import read_failure
from stateflow.errors import BatchFailed, ConfigError, InputLost, StateflowError, StorageError, UserCodeError
from stateflow.helpers import check_choice
from stateflow.types.columns.conversion import to_objects

log = logging.getLogger(__name__)

CONTINUE = "continue"


class PartitionedSource(LocalSource):
    """Base class of a source in Python, whose partitions tasks read in parallel.

    A partition is a sequence of rows with growing offsets, such as a topic's partition, a shard, or a table with a
    serial number. A position has the next offset of each partition, is stored in the checkpoint, and is restored
    exactly. On Spark, the driver calls `ends`, `starts` and `plan_splits`, and tasks call `read_split`. The object is
    sent to them: it has settings, and no connections. `description` must identify the data: a restore refuses to
    continue from a position of other data.

    Args:
        schema: row class of the rows.
        start: where a job begins that has no position yet: ``"earliest"`` or ``"latest"``.
        columns: what happens if rows that are not objects of the row class have other columns: which ones are ignored,
            or null. An Arrow batch that does not fit ends the run; a dict that does not fit is a row that does not.
        on_error: what happens to rows that do not fit the row class, and to `BadRow` objects: ``"fail"``, or
            `DeadLetters`; `get_dead_letters` of the stream then has them, with partition and offset.
        on_data_loss: what happens if the source no longer has rows that were not read: ``"fail"``, or ``"continue"``
            with a warning.
        split_size: largest number of offsets that a task reads; None for one split per partition.

    Attributes:
        needs_spark: whether a job with this source runs on Spark. Otherwise, and without other sources of Spark, the
            run reads one split after another in its own process, as tests do.

    Raises:
        ConfigError: an argument is not one of its values.
        JobDefinitionError: the row class has a field of an unsupported type.
    """

    needs_spark = True
    has_splits = True
    start_kinds = frozenset({StartKind.EARLIEST, StartKind.LATEST, StartKind.POSITION})

    def __init__(
        self,
        *,
        schema: type[object],
        start: Literal["earliest", "latest"] = "earliest",
        columns: ColumnPolicy | None = None,
        on_error: str | DeadLetters = FAIL,
        on_data_loss: Literal["fail", "continue"] = "fail",
        split_size: int | None = None,
    ) -> None:
        check_choice("start", start, (StartKind.EARLIEST.value, StartKind.LATEST.value))
        check_choice("on_data_loss", on_data_loss, (FAIL, CONTINUE))
        if split_size is not None and split_size < 1:
            raise ConfigError(
                "the size of a split must be positive", hint="pass a number of rows", split_size=split_size
            )
        self.schema = RowSchema.of(schema)
        self.on_error = check_policy(on_error)
        self.columns = columns or ColumnPolicy()
        self._start = StartKind(start)
        self._continues = on_data_loss == CONTINUE
        self._split_size = split_size

    def __repr__(self) -> str:
        return self.description

    @abstractmethod
    def ends(self) -> Mapping[str, int]:
        """Returns the offset after the last row of each partition, by name. A new partition is read from its start."""

    def starts(self) -> Mapping[str, int]:
        """Returns the first offset of each partition that still exists; partitions that are missing here begin at 0."""
        return {}

    @abstractmethod
    def read_split(self, split: Split) -> Iterable[object]:
        """Returns the rows of a partition from ``split.start`` up to, and without, ``split.end``.

        Called once for each attempt of a task; must return the same rows whenever it is called.

        Returns:
            objects of the row class, dicts, Arrow batches or tables, and `BadRow` for what cannot be decoded. A
            generator keeps little in memory.
        """

    def plan_splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """Returns the splits of a batch. Override it to divide partitions in another way.

        All offsets between the two positions must be in exactly one split.

        Args:
            start: the position before the batch.
            end: the position after it.
        """
        return splits_between(start, end, self._split_size)

    def oldest_waiting(self, position: Offsets) -> datetime | None:
        """Returns when the oldest row at or after a position was written, for the backlog; None if it is not known.

        Override it if that takes a few requests at most. Called only while rows wait.

        Args:
            position: the next offset of each partition.
        """
        return None

    # -- calls of the runtime -----------------------------------------------------------------------------------------

    def available(self) -> Available:
        """Returns the offsets that the source has now.

        Raises:
            UserCodeError: they are invalid.
            BatchFailed: the user's code raised an exception that is not one of stateflow.
        """
        # In this order: retention must not remove all that `ends` has seen.
        found = Available(self._offsets(self.starts), self._offsets(self.ends))
        if found.invalid:
            raise _invalid_offsets(self.description, found.invalid)
        return found

    def first_position(self) -> str:
        """Returns the position at which a new job begins."""
        available = self.available()
        return format_position(available.earliest if self._start is StartKind.EARLIEST else available.ends)

    def next_position(self, position: str, limits: SourceSettings, target: Offsets | None = None) -> str:
        """Returns the position after the next batch; `position` itself without new input.

        Args:
            target: ends that must not be passed; None for the current ends.

        Raises:
            InputLost: rows after the position no longer exist, and the source must not continue without them.
        """
        before, available = self.parse_offsets(position), self.available()
        if target is not None:
            available = available.until(target, before)
        start = self._existing(before, available)
        end = limit_end(start, available.ends, limits.max_rows_per_batch)
        return position if end == before else format_position(end)

    def splits_of(self, position: str, end: str) -> list[Split]:
        """Returns the splits between two positions."""
        before, after = self.parse_offsets(position), self.parse_offsets(end)
        # Of a partition without rows in the batch, the source may have removed the next ones.
        idle = {name: offset for name, offset in before.items() if after.get(name) == offset}
        # The batch has ends of its own: a partition that was created again may have more by now.
        start = self._existing(before, Available({**self._offsets(self.starts), **idle}, after))
        with self.forwarded_errors("the splits of a source cannot be planned"):
            found = list(self.plan_splits(start, after))
        wrong = find_uncovered(found, start, after)
        if wrong:
            raise UserCodeError(
                "the splits of a source do not cover the rows between two positions exactly once",
                hint="correct plan_splits",
                source=self.description,
                reason=wrong[:500],
            )
        return found

    def chunks(self, split: Split) -> Iterator[Chunk]:
        """Yields the rows of a split. Raises the errors of `SplitRows.convert`, and BatchFailed for the user's code."""
        rows = SplitRows(
            split, schema=self.schema, policy=self.columns, on_error=self.on_error, source=self.description
        )
        with self.forwarded_errors("a split of a source cannot be read", split=split):
            yield from rows.convert(self.read_split(split))

    def check_position(self, position: str) -> None:
        """Raises InputLost if rows after a position no longer exist, and the source must not continue without them."""
        self._existing(self.parse_offsets(position), self.available())

    def parse_offsets(self, position: str) -> dict[str, int]:
        """Returns the offsets of a position. Raises ConfigError if it is not one of such a source."""
        try:
            return parse_position(position)
        except ValueError as e:
            hint = 'such as {"a":1200,"b":1150}, with the next offset of each partition'
            raise position_error("a partitioned source", hint, self.description, position, e) from e

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        """See `LocalSource.read`: reads all splits of a batch, one after another."""
        start = self.first_position() if position is None else position
        end = self.next_position(start, limits)
        return None if end == position else self.slice_between(start, end)

    def slice_between(self, position: str | None, end: str) -> Slice:
        """See `LocalSource.slice_between`; raises InputLost as `next_position` does."""
        rows: dict[str, list[object]] = {name: [] for name in sorted(self.parse_offsets(end))}
        for split in self.splits_of(position or self.first_position(), end):
            for chunk in self.chunks(split):
                found = to_objects(self.schema.shape, chunk.columns.to_struct_array())
                rows[split.partition] += [*found, *chunk.rejected]
        return Slice([row for part in rows.values() for row in part], end, rows)

    def holds(self, position: str) -> bool | None:
        """See `LocalSource.holds`; None if the source does not answer."""
        try:
            available = self.available()
            return not any(gaps_after(self.parse_offsets(position), available.earliest, available.ends))
        except (BatchFailed, StorageError):
            # A restore must be possible while the system that is read is not.
            return None

    def lost_between(self, start: str | None, end: str) -> Sequence[str]:
        """See `LocalSource.lost_between`; unknown for the first batch, which began where the source did then."""
        if start is None:
            return ()
        return describe_lost_rows(self.parse_offsets(start), self.parse_offsets(end), self.available())

    def has_new_input(self, position: str) -> bool | None:
        """See `LocalSource.has_new_input`: compares the position with the ends of all partitions."""
        return has_new_rows(self.parse_offsets(position), self.available().ends)

    def backlog(self, position: str | None) -> Backlog:
        """See `LocalSource.backlog`: compares the position with the ends of all partitions.

        Offsets are counted, of which a source may skip some. Override it for exact numbers.
        """
        available = self.available()
        if position is None:
            before = available.earliest if self._start is StartKind.EARLIEST else available.ends
        else:
            before = self.parse_offsets(position)
        rows = count_waiting(before, available.earliest, available.ends)
        oldest = self.oldest_waiting(before) if rows else None
        return Backlog(rows=rows, oldest_at=oldest, exact=False)

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`: the ends of all partitions, or given offsets such as ``{"a":12}``."""
        if start.kind is StartKind.LATEST:
            return InitialPosition(format_position(self.available().ends))
        return InitialPosition(format_position(self.parse_offsets(start.position)))

    def earliest_position(self) -> InitialPosition:
        """See `Source.earliest_position`."""
        if self._start is StartKind.EARLIEST:
            return super().earliest_position()
        return InitialPosition(format_position(self.available().earliest))

    def _offsets(self, read: Callable[[], Offsets]) -> Offsets:
        """Returns offsets of the user's code; raises as `available` does."""
        with self.forwarded_errors("the offsets of a source cannot be read"):
            found = read()
        wrong = find_offset_error(found)
        if wrong:
            raise _invalid_offsets(self.description, wrong)
        return found

    def _existing(self, position: Offsets, available: Available) -> dict[str, int]:
        """Returns where to continue, which is the position and new partitions unless something is lost."""
        gaps = gaps_after(position, available.earliest, available.ends)
        lost = shorten_texts([gap.describe(gap.partition) for gap in gaps])
        if lost and not self._continues:
            raise InputLost(
                "a source no longer has rows that were not read",
                hint='to continue without them, set on_data_loss="continue" of the source, or restore with --source '
                "UID=earliest or another position",
                source=self.description,
                lost=lost,
            )
        if lost:
            log.warning("continuing after lost rows: source=%s lost=%s", self.description, lost)
        return skip_lost(position, available)

    @contextmanager
    def forwarded_errors(self, what: str, split: Split | None = None) -> Iterator[None]:
        """Translates exceptions of the user's code, which a new run may not meet, into BatchFailed."""
        try:
            yield
        except StateflowError:
            raise
        except Exception as e:
            facts = {} if split is None else {"split": f"{split.partition} [{split.start}, {split.end})"}
            raise read_failure(what, self.description, e, **facts) from e


def _invalid_offsets(source: str, reason: str) -> UserCodeError:
    return UserCodeError(
        "a source has returned invalid offsets",
        hint="return whole numbers of zero or more by name, with starts that are not after the ends",
        source=source,
        reason=reason[:500],
    )
