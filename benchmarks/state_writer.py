"""Writing a savepoint from a DataFrame, compared with writing the same rows as Parquet.

``python -m benchmarks.state_writer FOLDER [KEYS]`` prints the figures as JSON; `measure` returns them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from stateflow import KeyedStateFrame, SavepointWriter, ValueStateDescriptor

KEYS = 5_000_000
VALUE_BYTES = 200
_CHUNK = 250_000
_REPEATS = 2


def measure(folder: Path, keys: int = KEYS, value_bytes: int = VALUE_BYTES) -> dict[str, float]:
    """Returns the times in seconds, of the best of two runs, and their ratio ``write_ratio``.

    The rows are a whole number, the key, and random bytes. Both read the same Parquet file and write to local disk.

    Args:
        folder: an empty folder for all files.
        keys: number of rows.
        value_bytes: size of a value.
    """
    source = folder / "input"
    source.mkdir(parents=True)
    _write_input(source, keys, value_bytes)
    is_own = SparkSession.getActiveSession() is None
    spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g").getOrCreate()
    try:
        frame = spark.read.parquet(str(source))
        state = ValueStateDescriptor("value", bytes)

        def as_parquet(target: Path) -> None:
            frame.write.parquet(str(target))

        def as_savepoint(target: Path) -> None:
            writer = SavepointWriter.new("benchmark", parallelism=2)
            writer.with_operator("state", key="key", states=[KeyedStateFrame(state, frame)]).write(target)

        parquet_s, savepoint_s = _best(as_parquet, folder / "parquet"), _best(as_savepoint, folder / "savepoint")
    finally:
        if is_own:
            spark.stop()
    return {
        "write_ratio": round(savepoint_s / parquet_s, 2),
        "write_savepoint_s": round(savepoint_s, 2),
        "write_parquet_s": round(parquet_s, 2),
    }


def _write_input(folder: Path, keys: int, value_bytes: int) -> None:
    for number, first in enumerate(range(0, keys, _CHUNK)):
        count = min(_CHUNK, keys - first)
        offsets = pa.py_buffer((np.arange(count + 1) * value_bytes).astype(np.int32))
        data = pa.py_buffer(os.urandom(count * value_bytes))
        values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])
        table = pa.table({"key": pa.array(np.arange(first, first + count)), "value": values})
        pq.write_table(table, folder / f"{number:04d}.parquet")


def _best(write: Callable[[Path], None], target: Path) -> float:
    times = []
    for _ in range(_REPEATS):
        shutil.rmtree(target, ignore_errors=True)
        began = time.perf_counter()
        write(target)
        times.append(time.perf_counter() - began)
    shutil.rmtree(target)
    return min(times)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
