"""Totals by a function over columns, published to one sink of each kind but Delta's.

Parameters: ``job.home``, which holds JSON files in ``in/`` and gets the ``files`` of a `FileSink`; ``job.lake``, the
folder of an Iceberg catalog; ``job.brokers``, with the topic ``totals``; ``job.postgres``, how to connect to a server.
"""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from stateflow import (
    FileSink,
    FileSource,
    IcebergSink,
    KafkaSink,
    PostgresSink,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
)
from tests.support.staged_tables import iceberg_properties


class Row(msgspec.Struct):
    name: str
    number: int


class Totals(VectorizedKeyedFunction):
    """The total of each name of a batch so far."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self.total).fill_null(0).to_numpy()
        totals = pa.array(before + np.add.reduceat(batch.column("number").to_numpy(), state.starts))
        state.write(self.total, totals)
        return pa.record_batch({"name": state.keys.column("name"), "number": totals})


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    catalog = iceberg_properties(Path(env.parameter("lake")))
    sinks = {
        "files": FileSink(home / "files"),
        "iceberg": IcebergSink("db.totals", catalog="tests", properties=catalog, partition_by="bucket(2, name)"),
        "kafka": KafkaSink(env.parameter("brokers"), topic="totals", key="name"),
        "postgres": PostgresSink(env.parameter("postgres"), "public.totals", mode="upsert", keys="name"),
    }
    rows = env.from_source(FileSource(home / "in", schema=Row, format="json"), uid="rows")
    totals = rows.key_by("name").process(Totals(), output=Row, uid="totals")
    for uid, sink in sinks.items():
        totals.sink_to(sink, uid=uid)
