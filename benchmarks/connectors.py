"""Measures counts of keys from Kafka to Delta, and upserts from files, against Spark's own queries with MERGE."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
_MERGES = ("merge", "merge_direct")

_Figures = dict[str, int | float]
_Order = dict[str, str | dict[str, str]]
_Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    """How much is counted and upserted.

    Attributes:
        records: of Kafka, in each batch.
        batches: of these.
        keys: how many different ones the records have.
        slow_batches: how many of the batches transformWithState gets.
        table_rows: of the table of upserts, which its first batch writes.
        changed: rows in each further batch, all of different keys.
        changes: how many further batches.
        warm_up: how many batches are not timed, of those of `batches` and `changes` each: a JVM still compiles.
        large_rows: of a second, larger table of upserts.
        large_changes: how many further batches that one gets.
    """

    records: int = 200_000
    batches: int = 11
    keys: int = 100_000
    slow_batches: int = 3
    table_rows: int = 400_000
    changed: int = 40_000
    changes: int = 12
    warm_up: int = 4
    large_rows: int = 2_000_000
    large_changes: int = 8


@dataclass(frozen=True)
class _Program:
    """A competitor's program and what it gets.

    Attributes:
        rows: in the batches that are timed.
        batches: how many.
        untimed: how many of these are not timed.
    """

    name: str
    module: str
    order: Mapping[str, str | dict[str, str]]
    rows: int
    batches: int
    untimed: int


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``connectors.json``.

    ``kafka_rows_per_s`` is the count by `aggregate_columns`, which aggregates before the shuffle, as Spark's peer does;
    ``row_keys_rows_per_s`` that by a function in Python, as transformWithState's. A ratio of rows is larger, and that
    of the cost of upserts smaller, if this project is faster. The cost is compared with the fastest MERGE of its kind.
    """
    counts = measure_counts(folder / "counts", size)
    upserts = measure_upserts(folder / "upserts", size, [*_MERGES, "merge_vectors"])
    larger = replace(size, table_rows=size.large_rows, changes=size.large_changes)
    large_upserts = measure_upserts(folder / "large-upserts", larger, _MERGES)
    rates = {name: figures["events_per_s"] for name, figures in counts.items()}
    best = max(rates["spark_agg"], rates["spark_agg_memory"])
    figures = {
        "kafka_rows_per_s": rates["columns"],
        "kafka_vs_spark_agg": round(rates["columns"] / best, 2),
        "kafka_vs_tws_row": round(rates["columns"] / rates["tws_row"], 2),
        "row_keys_rows_per_s": rates["row_keys"],
        "row_keys_vs_spark_agg": round(rates["row_keys"] / best, 2),
        "row_keys_vs_tws_row": round(rates["row_keys"] / rates["tws_row"], 2),
        "upsert_cost_vs_merge": _cost(upserts, *_MERGES),
        "upsert_cost_vs_merge_vectors": _cost(upserts, "merge_vectors"),
        "large_upsert_cost_vs_merge": _cost(large_upserts, *_MERGES),
        "counts": counts,
        "upserts": upserts,
        "large_upserts": large_upserts,
        "size": vars(size),
    }
    return write_result("connectors", figures)


def _cost(upserts: Mapping[str, _Figures], *peers: str) -> float:
    """The time of a batch of upserts, in times that of the fastest of some peers."""
    return round(upserts["upsert"]["batch_s"] / min(upserts[peer]["batch_s"] for peer in peers), 2)


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


def measure_upserts(folder: Path, size: Size, peers: Sequence[str]) -> dict[str, _Figures]:
    """Upserts the rows of the same files, one competitor after another. Each batch is one version of the table."""
    rows, expected = folder / "rows", folder / "expected.parquet"
    _write_changes(rows, expected, size)
    total, batches = size.changed * (size.changes - size.warm_up), 1 + size.changes
    amounts = total, batches, 1 + size.warm_up
    # A batch ends when its rows are visible, as those of the peers do.
    settings = {"job.rows": str(rows), "parallelism": "2", "checkpoints.asynchronous": "no"}
    ours: _Order = {"job": str(_JOBS / "upserts.py"), "settings": settings, "expected": str(expected)}
    programs = [_Program("upsert", "delta_ours", ours, *amounts)]
    for peer in peers:
        order: _Order = {"peer": peer, "rows": str(rows), "expected": str(expected), "jars": ",".join(_DELTA_JARS)}
        programs.append(_Program(peer, "delta_spark", order, *amounts))
    return {program.name: _run(program, folder) for program in programs}


def _count(name: str, folder: Path, size: Size, broker: Broker) -> _Program:
    is_slow = name == "tws_row"
    topic, batches, untimed = (_FIRST, size.slow_batches, 1) if is_slow else (_ALL, size.batches, size.warm_up)
    amounts = (batches - untimed) * size.records, batches, untimed
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
        return _Program(name, "delta_ours", order, *amounts)
    order = {
        "peer": name,
        "brokers": broker.address,
        "topic": topic,
        "rows_per_batch": str(size.records),
        "jars": ",".join((*_DELTA_JARS, *SPARK_JARS)),
        **expected,
    }
    return _Program(name, "delta_spark", order, *amounts)


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
    since = ends[program.untimed - 1 :]
    figures = {
        **replace(timed, first_ended=since[0]).figures(),
        "first_batch_s": round(timed.first_ended - timed.began, 2),
        "batch_s": round(statistics.median(after - before for before, after in pairwise(since)), 3),
        "last_batch_s": round(since[-1] - since[-2], 3),
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
