"""Watermark strategies: declared on a stream, computed per source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stateflow.api.schema import RowSchema
from stateflow.clock import epoch_milliseconds
from stateflow.errors import JobDefinitionError

_MILLISECOND = timedelta(milliseconds=1)
_TIME_TYPES = ("timestamp", "timestamp_ntz", "bigint")


@dataclass(frozen=True)
class WatermarkStrategy:
    """The timestamp column of a stream, and how late rows may arrive.

    Attributes:
        out_of_orderness: milliseconds by which the watermark lags the latest event time.
        column: timestamp column: a datetime, or an int in milliseconds since 1970.
        idleness: milliseconds after which a source without new rows no longer holds back the watermark; None if it
            always does.
    """

    out_of_orderness: int
    column: str = ""
    idleness: int | None = None

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: timedelta) -> WatermarkStrategy:
        """Returns a strategy for rows that arrive at most this much out of order. Raises JobDefinitionError."""
        return cls(_milliseconds("the bound of out-of-orderness", max_out_of_orderness))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Returns a strategy for batches that arrive in order of event time."""
        return cls(0)

    def with_timestamp_column(self, column: str) -> WatermarkStrategy:
        """Returns the strategy with the timestamp column. A row whose value is null has no event time."""
        return replace(self, column=column)

    def with_idleness(self, timeout: timedelta) -> WatermarkStrategy:
        """Returns the strategy with an idle timeout, in processing time.

        A source, or a split of one such as a partition of Kafka, that has no new rows holds back the watermark: rows
        of other sources wait for it. With a timeout, it does until it had no new rows for that time; with a timeout of
        zero, until a batch has none of its rows. Time between two runs counts. Raises JobDefinitionError.
        """
        return replace(self, idleness=_milliseconds("the time until a source is idle", timeout))

    def check(self, schema: RowSchema) -> None:
        """Raises JobDefinitionError if `schema` does not have the timestamp column, or the column has another type."""
        if not self.column:
            raise JobDefinitionError(
                "a watermark strategy needs a timestamp column",
                hint='declare it: strategy.with_timestamp_column("time")',
            )
        kind = schema.column(self.column).spark_type
        if kind not in _TIME_TYPES:
            raise JobDefinitionError(
                "a timestamp column has an unsupported type",
                hint="declare it as datetime, or as int for milliseconds since 1970",
                column=self.column,
                type=kind,
            )


def has_event_time(schema: RowSchema, column: str) -> bool:
    """Returns whether `schema` has a column of this name and of a timestamp type."""
    return any(c.name == column and c.spark_type in _TIME_TYPES for c in schema.columns)


def event_time_reader(column: str) -> Callable[[object], int | None] | None:
    """Returns a function that reads the event time of a row object, in milliseconds since 1970.

    Args:
        column: the timestamp column; empty for rows without event time, whose reader is None.
    """
    if not column:
        return None

    def time_of(row: object) -> int | None:
        value: datetime | int | None = getattr(row, column)
        return epoch_milliseconds(value) if isinstance(value, datetime) else value

    return time_of


def _milliseconds(what: str, duration: object) -> int:
    if not isinstance(duration, timedelta) or duration < timedelta():
        raise JobDefinitionError(
            f"{what} must be a timedelta of zero or more", hint="pass a timedelta of zero or more", given=repr(duration)
        )
    return duration // _MILLISECOND
