"""A small job without Spark, and an oracle of its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    operations,
)
from stateflow.checkpoint.log.documents import OperatorState, SavepointFormat
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.operations import SavepointReport, SavepointRequest
from stateflow.query.state import entries_of
from stateflow.storage import Storage
from tests.support.local_jobs import Growing, LocalJobs

BATCH = 4
"""Rows of a batch; each batch has a checkpoint."""


class Row(msgspec.Struct):
    key: str
    number: int


class Sum(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        self.total.update((self.total.value() or 0) + row.number)
        yield Row(row.key, self.total.value() or 0)


def rows(count: int) -> list[Row]:
    return [Row("abcde"[n % 5], n) for n in range(count)]


def totals(count: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows(count):
        found[row.key] += row.number
    return dict(found)


class SummedJob(LocalJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, max_parallelism=16, checkpoints__retained=2, checkpoints__asynchronous="no")

    @property
    def uri(self) -> str:
        return str(self.folder / "root")

    @property
    def root(self) -> JobRoot:
        return JobRoot.open(self.storage, SystemClock(), "a test")

    @property
    def kept(self) -> list[int]:
        root = self.root
        return [ref.id for ref in root.checkpoints.list_kept(root.head())]

    def declare(self, env: StreamExecutionEnvironment, count: int) -> None:
        stream = env.from_source(Growing(rows(count), Row), uid="rows").key_by("key")
        stream.process(Sum(), output=Row, uid="sum").sink_to(self.sink("out"), uid="out")

    def run(self, count: int, **settings: object) -> str:  # type: ignore[override]
        return super().run(lambda env: self.declare(env, count), **settings)

    def create_savepoint(self, name: str) -> SavepointReport:
        request = SavepointRequest(name=name, format=SavepointFormat(name), from_head=True)
        return operations.create_savepoint(self.uri, request)


def totals_in(operator: OperatorState, storage: Storage) -> dict[str, int]:
    return {str(e.key[0]): e.value for e in entries_of(operator, storage, SystemClock())}
