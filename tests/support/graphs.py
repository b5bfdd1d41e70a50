"""Graphs, entries and handles for tests of what is pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from stateflow.api.functions.process import KeyedProcessFunction
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.api.source import LocalSource, Slice
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Ancestry, EntryKind, EntryRef, JobFormat, LogEntry
from stateflow.config.settings import SourceSettings
from stateflow.environment import StreamExecutionEnvironment
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import data_folder

JOB = JobFormat(version=1, job="job", job_uuid="0" * 32, max_parallelism=128, key_types={}, shadow=False)


class Row(msgspec.Struct):
    key: str
    number: int
    other: float | None = None


class Nowhere(Sink):
    """A sink that is only declared."""

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        raise NotImplementedError

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        raise NotImplementedError

    def open_table(self, context: SinkContext) -> SinkTable:
        raise NotImplementedError

    def sweep(self, context: SinkContext, is_leftover: Any) -> list[str]:
        raise NotImplementedError

    def shadow(self) -> Sink:
        raise NotImplementedError


class Nothing(LocalSource):
    def __init__(self, row_class: type[Any] = Row) -> None:
        self.schema = RowSchema.of(row_class)

    @property
    def description(self) -> str:
        return "nothing"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        return None


class Pass(KeyedProcessFunction[Row, Row]):
    """A function that is only declared."""


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment({})


class DeclaredJob:
    """A job that is declared and never runs: its environment, and the stream of its source "rows"."""

    def __init__(self) -> None:
        self.env = environment()
        self.rows = self.source("rows")

    def source(self, uid: str = "more", row_class: type[Any] = Row) -> DataStream:
        return self.env.from_source(Nothing(row_class), uid=uid)


def process(stream: DataStream, uid: str = "op", function: Any = None, output: Any = Row) -> DataStream:
    """Adds an operator after a `key_by`, with a function that is only declared unless one is given."""
    return stream.key_by("key").process(Pass() if function is None else function, output=output, uid=uid)


def handle(generation: int, ordinal: int, name: str = "manifest.json", attempt: str = "driver") -> FileHandle:
    return FileHandle(key=f"{data_folder(generation, ordinal, attempt)}{name}", size=1, sha256="0" * 64)


def entry(seq: int, kind: EntryKind = EntryKind.COMMIT, **changes: Any) -> LogEntry:
    """An entry of `JOB`, with what the test is not about filled in."""
    given = {
        "generation": 1, "ordinal": 0, "writer": "w", "nonce": f"n{seq}", "parent": f"p{seq}",
        "at": "2026-01-31T03:00:00+00:00", "manifest": handle(1, seq) if kind is EntryKind.COMMIT else None,
        "run": "r", "runs": 1, "ancestry": Ancestry(), **changes,
    }  # fmt: skip
    return LogEntry(job_uuid=JOB.job_uuid, seq=seq, kind=kind, **given)


def head(seq: int, kind: EntryKind = EntryKind.COMMIT, **changes: Any) -> Head:
    return Head(entry(seq, kind, **changes), f"sha{seq}")


def ref(seq: int) -> EntryRef:
    return EntryRef(id=seq, sha256=f"sha{seq}", manifest=handle(1, seq), at="2026-01-31T03:00:00+00:00")


def table(rows: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": "a", "number": n} for n in range(rows)])
