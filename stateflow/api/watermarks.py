"""How far event time has come: declared on a stream, computed per source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

_MILLISECOND = timedelta(milliseconds=1)
_TIME_TYPES = ("timestamp", "timestamp_ntz", "bigint")


@dataclass(frozen=True)
class WatermarkStrategy:
    """Which column has a row's event time, and how late a row may come.

    Attributes:
        out_of_orderness: milliseconds by which the watermark stays behind the latest event time.
        column: of event time: a datetime, or a whole number of milliseconds since 1970.
        idleness: milliseconds for which a source without rows still holds back the watermark.
    """

    out_of_orderness: int
    column: str = ""
    idleness: int = 0

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: timedelta) -> WatermarkStrategy:
        """For rows that come at most so much later than later ones. Raises JobDefinitionError."""
        return cls(_milliseconds("the bound of out-of-orderness", max_out_of_orderness))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """For rows that come in order of event time, batch by batch."""
        return cls(0)

    def with_timestamp_column(self, column: str) -> WatermarkStrategy:
        """The same, with event time in `column`. A row without a value has no event time."""
        return replace(self, column=column)

    def with_idleness(self, timeout: timedelta) -> WatermarkStrategy:
        """The same; a source without new rows holds the watermark back until it had none for so long, by processing
        time. Without this it never does. Raises JobDefinitionError."""
        return replace(self, idleness=_milliseconds("the time until a source is idle", timeout))

    def check(self, schema: RowSchema) -> None:
        """Raises JobDefinitionError when rows of `schema` have no such event time."""
        if not self.column:
            raise JobDefinitionError("a watermark strategy has no event time", hint="name the column: "
                                     "strategy.with_timestamp_column(\"time\")")  # fmt: skip
        kind = schema.column(self.column).spark_type
        if kind not in _TIME_TYPES:
            raise JobDefinitionError("a column of event time has another type", hint="declare it as datetime, or as "
                                     "int for milliseconds since 1970", column=self.column, type=kind)  # fmt: skip


def has_event_time(schema: RowSchema, column: str) -> bool:
    """Whether rows have a column of that name that can be event time."""
    return any(c.name == column and c.spark_type in _TIME_TYPES for c in schema.columns)


def _milliseconds(what: str, duration: Any) -> int:
    if not isinstance(duration, timedelta) or duration < timedelta():
        raise JobDefinitionError(f"{what} is not a duration", hint="give a timedelta, zero or more",
                                 given=repr(duration))  # fmt: skip
    return duration // _MILLISECOND
