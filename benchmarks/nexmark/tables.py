"""Nexmark's tables for a stateflow job: streams of persons, auctions and bids over the files of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.rules import AUCTION, BID, PERSON
from stateflow import DataStream, FileSource, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.schema import RowSchema

TABLES = {"person": PERSON, "auction": AUCTION, "bid": BID}
WATERMARKS = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=4)).with_timestamp_column("dateTime")
"""As in Nexmark's own table."""
_OF_ALL_EVENTS = ("dateTime", "extra")


class Tables(ABC):
    """The tables that a query reads.

    Attributes:
        env: the environment of the job.
        side_input: path of a CSV file, a table that does not change: each number from 0 on, and the same as text.
    """

    def __init__(self, env: StreamExecutionEnvironment, side_input: str = "") -> None:
        self.env = env
        self.side_input = side_input

    def bids(self, row_class: type[msgspec.Struct]) -> DataStream:
        """Returns the bids, with the columns of a row class: names of Nexmark's view."""
        (stream,) = self.views(bid=row_class)
        return stream

    @abstractmethod
    def views(self, **row_classes: type[msgspec.Struct]) -> tuple[DataStream, ...]:
        """Returns several tables, by the name of each: `person`, `auction` or `bid`. A job calls this once."""


class FileTables(Tables):
    """Tables over Parquet files that the generator has written; only the columns of the row classes are read."""

    def __init__(self, env: StreamExecutionEnvironment, events: str, side_input: str = "") -> None:
        super().__init__(env, side_input)
        self._events = events

    def views(self, **row_classes: type[msgspec.Struct]) -> tuple[DataStream, ...]:
        """See `Tables.views`."""
        source = FileSource(self._events, schema=event_class(row_classes), bounded=True)
        events = self.env.from_source(source, uid="events")
        return tuple(_view(events, table, row_class) for table, row_class in row_classes.items())


def event_class(row_classes: dict[str, type[msgspec.Struct]]) -> type[msgspec.Struct]:
    """Returns a row class of events with what tables need of them: their columns are null in events of other types."""
    columns: dict[str, object] = {"event_type": int}
    for table, row_class in row_classes.items():
        for field in msgspec.structs.fields(row_class):
            name = event_column(table, field.name)
            columns[name] = field.type if name in _OF_ALL_EVENTS else field.type | None
    return msgspec.defstruct("Event", list(columns.items()))


def event_column(table: str, name: str) -> str:
    """Returns the column of events that has a column of a table."""
    return name if name in _OF_ALL_EVENTS else f"{table}_{name}"


def _view(events: DataStream, table: str, row_class: type[msgspec.Struct]) -> DataStream:
    names = RowSchema.of(row_class).names
    columns = [event_column(table, name) for name in names]

    def of_table(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.select(columns).filter(pc.equal(batch.column("event_type"), TABLES[table]))
        return pa.RecordBatch.from_arrays(rows.columns, names=names)

    return events.transform_columns(of_table, output=row_class)
