"""Measures counts of keys from Kafka to Delta, and upserts from files, against Spark's own queries with MERGE."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from benchmarks.competitors import Timed
from benchmarks.kafka_server import SPARK_JARS, Broker, kafka_broker
from benchmarks.processes import run_program
from benchmarks.results import write_result

_ROOT = Path(__file__).parent.parent
_JOBS = Path(__file__).parent / "jobs"
_DELTA_JARS = tuple(sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar"))))
_HEAP = "2g"
_LIMIT_SECONDS = 300.0
_ALL, _FIRST = "events", "first-events"
_RECORD_BYTES = 100

_Figures = dict[str, int | float]
_Order = dict[str, str | dict[str, str]]
_Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    """How much is counted and upserted.

    Attributes:
        records: of Kafka, in each batch.
        batches: of these, the first of which is not timed.
        keys: how many different ones the records have.
        slow_batches: how many of the batches transformWithState gets.
        table_rows: of the table of upserts, which its first batch writes.
        changed: rows in each further batch, all of different keys.
        changes: how many further batches.
    """

    records: int = 200_000
    batches: int = 8
    keys: int = 100_000
    slow_batches: int = 3
    table_rows: int = 400_000
    changed: int = 40_000
    changes: int = 8


@dataclass(frozen=True)
class _Program:
    """A competitor's program and what it gets.

    Attributes:
        rows: in all batches but the first.
        batches: how many.
    """

    name: str
    module: str
    order: Mapping[str, str | dict[str, str]]
    rows: int
    batches: int


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``connectors.json``.

    ``kafka_rows_per_s`` is the count by `aggregate_columns`, which aggregates before the shuffle, as Spark's peer does;
    ``row_keys_rows_per_s`` that by a function in Python, as transformWithState's. A ratio of rows is larger, and that
    of the cost of upserts smaller, if this project is faster.
    """
    counts = measure_counts(folder / "counts", size)
    upserts = measure_upserts(folder / "upserts", size)
    rates = {name: figures["events_per_s"] for name, figures in counts.items()}
    best = max(rates["spark_agg"], rates["spark_agg_memory"])
    costs = {name: figures["batch_s"] for name, figures in upserts.items()}
    figures = {
        "kafka_rows_per_s": rates["columns"],
        "kafka_vs_spark_agg": round(rates["columns"] / best, 2),
        "kafka_vs_tws_row": round(rates["columns"] / rates["tws_row"], 2),
        "row_keys_rows_per_s": rates["row_keys"],
        "row_keys_vs_spark_agg": round(rates["row_keys"] / best, 2),
        "row_keys_vs_tws_row": round(rates["row_keys"] / rates["tws_row"], 2),
        "upsert_cost_vs_merge": round(costs["upsert"] / costs["merge"], 2),
        "upsert_cost_vs_merge_vectors": round(costs["upsert"] / costs["merge_vectors"], 2),
        "counts": counts,
        "upserts": upserts,
        "size": vars(size),
    }
    return write_result("connectors", figures)


def measure_counts(folder: Path, size: Size) -> dict[str, _Figures]:
    """Counts the records of a topic, one competitor after another."""
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(1).integers(0, size.keys, size.batches * size.records)
    first = drawn[: size.slow_batches * size.records]
    for topic, keys in ((_ALL, drawn), (_FIRST, first)):
        _write_counts(folder / f"{topic}.parquet", keys)
    with kafka_broker(folder / "broker") as broker:
        broker.create(_ALL, _FIRST)
        broker.send(_ALL, _records(drawn))
        broker.send(_FIRST, _records(first))
        programs = [
            _count("columns", folder, size, broker),
            _count("spark_agg", folder, size, broker),
            _count("spark_agg_memory", folder, size, broker),
            _count("row_keys", folder, size, broker),
            _count("tws_row", folder, size, broker),
        ]
        return {program.name: _run(program, folder) for program in programs}


def measure_upserts(folder: Path, size: Size) -> dict[str, _Figures]:
    """Upserts the rows of the same files, one competitor after another. Each batch is one version of the table."""
    rows, expected = folder / "rows", folder / "expected.parquet"
    _write_changes(rows, expected, size)
    total, batches = size.changed * size.changes, 1 + size.changes
    # A batch ends when its rows are visible, as those of the peers do.
    settings = {"job.rows": str(rows), "parallelism": "2", "checkpoints.asynchronous": "no"}
    ours: _Order = {"job": str(_JOBS / "upserts.py"), "settings": settings, "expected": str(expected)}
    programs = [_Program("upsert", "delta_ours", ours, total, batches)]
    for peer in ("merge", "merge_vectors"):
        order: _Order = {"peer": peer, "rows": str(rows), "expected": str(expected), "jars": ",".join(_DELTA_JARS)}
        programs.append(_Program(peer, "delta_spark", order, total, batches))
    return {program.name: _run(program, folder) for program in programs}


def _count(name: str, folder: Path, size: Size, broker: Broker) -> _Program:
    is_slow = name == "tws_row"
    topic, batches = (_FIRST, size.slow_batches) if is_slow else (_ALL, size.batches)
    expected = {"expected": str(folder / f"{topic}.parquet")}
    order: _Order
    if name in ("columns", "row_keys"):
        settings = {
            "job.brokers": broker.address,
            "job.topic": topic,
            "job.kind": name,
            "parallelism": "2",
            "source.max_rows_per_batch": str(size.records),
            "spark.conf.spark.jars": ",".join(SPARK_JARS),
        }
        order = {"job": str(_JOBS / "kafka_counts.py"), "settings": settings, **expected}
        return _Program(name, "delta_ours", order, (batches - 1) * size.records, batches)
    order = {
        "peer": name,
        "brokers": broker.address,
        "topic": topic,
        "rows_per_batch": str(size.records),
        "jars": ",".join((*_DELTA_JARS, *SPARK_JARS)),
        **expected,
    }
    return _Program(name, "delta_spark", order, (batches - 1) * size.records, batches)


def _run(program: _Program, folder: Path) -> _Figures:
    home = folder / program.name
    home.mkdir()
    given, answered = home / "order.json", home / "answer.json"
    given.write_text(json.dumps({**program.order, "folder": str(home), "heap": _HEAP}))
    command = [sys.executable, "-m", f"benchmarks.peers.{program.module}", str(given), str(answered)]
    usage = run_program(command, {"PYTHONPATH": str(_ROOT)}, home / "output.txt", _LIMIT_SECONDS)
    answer = json.loads(answered.read_text())
    ends = answer["ends"]
    assert len(ends) == program.batches, f"{program.name} had {len(ends)} batches instead of {program.batches}"
    timed = Timed(answer["began"], ends[0], ends[-1], program.rows, usage)
    figures = {
        **timed.figures(),
        "batch_s": round(statistics.median(after - before for before, after in pairwise(ends)), 3),
        "commits": answer["commits"],
        "keys_checked": answer["keys"],
    }
    print(f"{program.name}: {figures}", flush=True)
    shutil.rmtree(home)
    return figures


def _records(keys: _Keys) -> Iterator[bytes]:
    """JSON of 100 bytes."""
    for number, key in enumerate(keys.tolist()):
        begin = b'{"key":%d,"value":%d.5,"text":"' % (key, number % 1000)
        yield begin + b"x" * (_RECORD_BYTES - len(begin) - 2) + b'"}'


def _write_counts(path: Path, keys: _Keys) -> None:
    found, counts = np.unique(keys, return_counts=True)
    parquet.write_table(pa.table({"key": found, "count": counts}), path)


def _write_changes(folder: Path, expected: Path, size: Size) -> None:
    """Writes two files for each batch: a row of each key in the first, and of some keys in each further one.

    A key has at most one row in a batch, since MERGE refuses others.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    last = np.zeros(size.table_rows)
    for batch in range(1 + size.changes):
        keys = random.permutation(size.table_rows)[: size.changed if batch else None]
        last[keys] = batch
        for part, some in enumerate(np.array_split(keys, 2)):
            path = folder / f"{batch:03}-{part}.parquet"
            parquet.write_table(_changed(some, np.full(len(some), float(batch))), path)
            # Files are read in the order of their times.
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    parquet.write_table(_changed(np.arange(size.table_rows), last), expected)


def _changed(keys: _Keys, values: npt.NDArray[np.float64]) -> pa.Table:
    texts = [f"{key:08}-{value:03.0f}-{'x' * 50}" for key, value in zip(keys.tolist(), values.tolist(), strict=True)]
    return pa.table({"key": keys, "value": values, "text": texts})
