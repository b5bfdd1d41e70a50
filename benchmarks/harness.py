"""One task on one core, without Spark: from sorted Arrow batches, as Spark delivers them, to a stored snapshot."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.jobs.running_mean import Event, EveryMean, Mean, RunningMean
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import TaskReport
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    CONTROL,
    GROUP_SHIFT,
    ORDER,
    PHASE_SHIFT,
    REPORT,
    SOURCE_PHASE,
    BatchId,
    BatchInfo,
    ChainSpec,
    InputSpec,
    LevelSpec,
    OutputSpec,
    TaskEnvironment,
    TaskSettings,
)
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.runtime.task.task import run_level
from stateflow.state.handles import SubtaskState
from stateflow.types.key_groups import key_hash

M = 4096
_SCHEMA = RowSchema.of(Event)
_JOB = "0" * 32


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        rows_per_arrow_batch: as `runtime.session` sets it for Spark.
    """

    batches: int = 6
    rows_per_batch: int = 1_000_000
    keys: int = 100_000
    rows_per_arrow_batch: int = 100_000
    seed: int = 1


def measure(folder: Path, function: KeyedFunction[Any], output: type[Any], size: Size = Size()) -> dict[str, Any]:
    """Events per second of each batch of one task; the first batch, which creates all keys, is separate.

    Generating the input is not measured; opening the store, processing and storing the snapshot are.
    """
    orders = _orders(size.keys)
    rng = np.random.default_rng(size.seed)
    chain = _chain(function, output)
    state: SubtaskState | None = None
    seconds = []
    try:
        for ordinal in range(1, size.batches + 1):
            given = _batch(size, orders, rng, ordinal)
            spec = _level(folder, replace(chain, bases=(_parts(state),)), ordinal)
            began = time.perf_counter()
            *_, answer = run_level(spec, 0, f"t{ordinal}", given)
            seconds.append(time.perf_counter() - began)
            report = msgspec.msgpack.decode(answer.column(REPORT)[0].as_py(), type=TaskReport)
            assert report.failure is None and report.rows_in == size.rows_per_batch, report.failure
            state = report.state
    finally:
        store_cache.close_all()
        shutil.rmtree(folder)
    return {
        "events_per_s": round(size.rows_per_batch / statistics.median(seconds[1:])),
        "best_events_per_s": round(size.rows_per_batch / min(seconds[1:])),
        "first_batch_s": round(seconds[0], 2),
    }


def _orders(keys: int) -> np.ndarray[Any, Any]:
    """The `_order` of each key, as Spark computes it."""
    digests = np.array([key_hash((key,), ("bigint",)) for key in range(keys)], dtype=np.int64)
    groups = digests % M
    hashes = (digests.view(np.uint64) >> np.uint64(64 - GROUP_SHIFT)).view(np.int64)
    return SOURCE_PHASE << PHASE_SHIFT | groups << GROUP_SHIFT | hashes


def _batch(
    size: Size, orders: np.ndarray[Any, Any], rng: np.random.Generator, ordinal: int
) -> Sequence[pa.RecordBatch]:
    keys = rng.integers(0, size.keys, size.rows_per_batch)
    values = rng.random(size.rows_per_batch)
    order = orders[keys]
    at = np.lexsort((keys, order))
    rows = len(at)
    names = [ORDER, CONTROL, "i0_key", "i0_value"]
    table = pa.RecordBatch.from_arrays(
        [pa.array(order[at]), pa.nulls(rows, pa.binary()), pa.array(keys[at]), pa.array(values[at])], names=names
    )
    barrier = pa.RecordBatch.from_arrays(
        [
            pa.array([BARRIER_ORDER]),
            pa.array([msgspec.msgpack.encode(BarrierMessage(1, ordinal))]),
            pa.nulls(1, pa.int64()),
            pa.nulls(1, pa.float64()),
        ],
        names=names,
    )
    return [*_cut(table, size.rows_per_arrow_batch), barrier]


def _cut(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    return (batch.slice(at, rows) for at in range(0, len(batch), rows))


def _chain(function: KeyedFunction[Any], output: type[Any]) -> ChainSpec:
    keying = Keying(("key",), (), ("bigint",))
    main = OutputSpec("", (), RowSchema.of(output), (), None)
    return ChainSpec("op", (InputSpec("i0_", _SCHEMA, keying),), function, (main,), (b"",), emits=main.schema)


def _level(folder: Path, chain: ChainSpec, ordinal: int) -> LevelSpec:
    batch = BatchInfo(
        BatchId(_JOB, 1, ordinal, datetime(2026, 1, 1, tzinfo=UTC)),
        TaskSettings(M),
        TaskEnvironment((folder / "root").as_uri(), folder / "local"),
    )
    return LevelSpec(batch, 1, (chain,), (), 0, pa.schema([pa.field(REPORT, pa.binary())]))


def _parts(state: SubtaskState | None) -> bytes:
    return msgspec.msgpack.encode([state]) if state else b""


def row(folder: Path, size: Size = Size()) -> dict[str, Any]:
    """The running mean of the row API: one row out for each row in."""
    return measure(folder / "row", RunningMean(), Mean, size)


def vectorized(folder: Path, size: Size = Size()) -> dict[str, Any]:
    """The running mean of the vectorized API: one row out for each row in."""
    return measure(folder / "vectorized", EveryMean(), Mean, size)


def figures(folder: Path, size: Size = Size()) -> dict[str, Any]:
    """What ``throughput.json`` has of them."""
    by_row, by_column = row(folder, size), vectorized(folder, size)
    return {
        "harness_row": by_row["events_per_s"],
        "harness_vectorized": by_column["events_per_s"],
        "harness_row_first_batch_s": by_row["first_batch_s"],
        "harness_vectorized_first_batch_s": by_column["first_batch_s"],
        "harness_rows_per_batch": size.rows_per_batch,
        "harness_keys": size.keys,
    }


if __name__ == "__main__":
    import sys
    import tempfile

    for name in sys.argv[1:] or ["row"]:
        print(name, globals()[name](Path(tempfile.mkdtemp())))
