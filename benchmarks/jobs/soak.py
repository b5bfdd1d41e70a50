"""A job for long runs: small batches over a large state, with a Delta table.

Parameters: ``job.table`` (folder of the Delta table), ``job.keys``, ``job.value_bytes``, ``job.rows`` (of a batch),
``job.batches`` (how many the source has after those that make the keys), ``job.events`` (a folder of Parquet files,
which Spark reads; without it the source is in this process).
"""

import hashlib

import msgspec

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings

FILL_ROWS = 2_000
"""Rows of a batch that makes keys."""
_STRIDE = 7_919


class Event(msgspec.Struct):
    """A key that gets a new value."""

    key: int
    number: int


class Change(msgspec.Struct):
    """How often a key's value has changed."""

    key: int
    count: int


class Kept(msgspec.Struct, array_like=True):
    """What is kept for a key."""

    count: int
    content: bytes


class Keep(KeyedProcessFunction[Event, Change]):
    """Counts, and keeps bytes that nothing can compress. Every tenth batch has output, but not those with new keys."""

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, ctx: RuntimeContext) -> None:
        self.kept = ctx.get_state(ValueStateDescriptor("kept", Kept))

    def process_element(self, row: Event, ctx: Context) -> tuple[Change, ...]:
        before = self.kept.value()
        count = before.count + 1 if before else 0
        content = hashlib.shake_128(f"{row.key} {count}".encode()).digest(self._size)
        self.kept.update(Kept(count, content))
        return (Change(row.key, count),) if count and has_output(row.number) else ()


def has_output(number: int) -> bool:
    """Whether the batch with this number writes to the table."""
    return number % 10 == 0


class Batches:
    """The rows of each batch: all keys first, then some of them again, in an order that repeats.

    Args:
        rows: of a batch after those that make the keys.
    """

    def __init__(self, keys: int, rows: int) -> None:
        self._keys = keys
        self._rows = rows
        self.fill = -(-keys // FILL_ROWS)

    def rows(self, number: int) -> list[Event]:
        """The rows of the batch with this number, from 0."""
        if number < self.fill:
            first = number * FILL_ROWS
            return [Event(key, number) for key in range(first, min(first + FILL_ROWS, self._keys))]
        first = (number - self.fill) * self._rows
        return [Event((first + n) * _STRIDE % self._keys, number) for n in range(self._rows)]


class BatchSource(LocalSource):
    """A given number of batches, made when they are read."""

    schema = RowSchema.of(Event)

    def __init__(self, batches: Batches, number: int) -> None:
        self._batches = batches
        self._end = batches.fill + number

    @property
    def description(self) -> str:
        return "BatchSource"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        number = int(position or 0)
        return Slice(self._batches.rows(number), str(number + 1)) if number < self._end else None


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    folder = env.parameter("events", "")
    if folder:
        env.configure(source__max_files_per_batch=1)
    batches = Batches(int(env.parameter("keys")), int(env.parameter("rows")))
    local = BatchSource(batches, int(env.parameter("batches")))
    events = env.from_source(FileSource(folder, schema=Event) if folder else local, uid="events")
    changes = events.key_by("key").process(Keep(int(env.parameter("value_bytes"))), output=Change, uid="keep")
    changes.sink_to(DeltaSink(env.parameter("table")), uid="changes")
