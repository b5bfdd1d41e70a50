"""A job with a large value for each key, and no output.

Parameters: ``job.events`` (folder of Parquet files with the keys), ``job.value_bytes``.
"""

import hashlib

import msgspec

from stateflow import (
    Context,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Event(msgspec.Struct):
    """A key that gets a new value."""

    key: int
    value: float


class Keep(KeyedProcessFunction[Event, Event]):
    """Keeps bytes that nothing can compress."""

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, ctx: RuntimeContext) -> None:
        self.kept = ctx.get_state(ValueStateDescriptor("kept", bytes))

    def process_element(self, row: Event, ctx: Context) -> tuple[Event, ...]:
        before = self.kept.value() or str(row.key).encode()
        self.kept.update(hashlib.shake_128(before).digest(self._size))
        return ()


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=1)
    events = env.from_source(FileSource(env.parameter("events"), schema=Event), uid="events")
    events.key_by("key").process(Keep(int(env.parameter("value_bytes"))), output=Event, uid="keep")
