"""A job with large state and no output: one random value per key. Runs without Spark.

Parameters: ``job.keys`` (number of keys, which the first rows create), ``job.updates`` (rows after them, which update
existing keys), ``job.slice`` (rows of a batch that creates keys), ``job.small`` (rows of a batch after that).
"""

import json
import os
import random

import msgspec

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings

VALUE_BYTES = 200


class Touch(msgspec.Struct):
    """A key that gets a new value."""

    key: int


class Keep(KeyedProcessFunction[Touch, Touch]):
    """Keeps random bytes for each key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", bytes, queryable="values"))

    def process_element(self, row: Touch, ctx: Context) -> tuple[Touch, ...]:
        self.value.update(os.urandom(VALUE_BYTES))
        return ()


class Keys(LocalSource):
    """Every key once, then some of them again."""

    def __init__(self, keys: int, updates: int, large: int, small: int) -> None:
        self.schema = RowSchema.of(Touch)
        self._keys, self._updates, self._large, self._small = keys, updates, large, small

    @property
    def description(self) -> str:
        return "Keys"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(json.loads(position)["row"]) if position else 0
        if start < self._keys:
            end = min(start + self._large, self._keys)
            # Not in order, so that the files of a store overlap.
            rows = [Touch(n * 2_654_435_761 % self._keys) for n in range(start, end)]
        else:
            end = min(start + self._small, self._keys + self._updates)
            rng = random.Random(start)
            rows = [Touch(rng.randrange(self._keys)) for _ in range(start, end)]
        return Slice(rows, json.dumps({"row": end})) if rows else None


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    source = Keys(*(int(env.parameter(name)) for name in ("keys", "updates", "slice", "small")))
    touches = env.from_source(source, uid="keys").key_by("key")
    touches.process(Keep(), output=Touch, uid="keep")
