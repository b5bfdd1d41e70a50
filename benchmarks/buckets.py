"""Measures Delta tables in a bucket against the same tables on disk, and upserts against delta-rs' own merge.

The bucket is on the S3 server of the tests, which waits 20 ms before each answer, on the same two cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.results import write_result
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import log
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.table_folder import open_table_folder
from stateflow.state.handles import Committable
from tests.servers.running import s3_server, variables_of
from tests.servers.s3 import Request, noted_requests

_PROJECT = Path(__file__).parent.parent
_JOB = Path(__file__).parent / "jobs" / "append.py"
_DELAY_MS = 20
_JOB_UUID = "0" * 32
_clock = SystemClock()


class Row(msgspec.Struct):
    """A row of the table of upserts."""

    key: int
    value: float
    text: str


@dataclass(frozen=True)
class Size:
    """How much is appended and upserted.

    Attributes:
        pairs: runs with the table on disk and in the bucket, in turn.
        batches: of a run; the first one is not timed.
        batch_rows: of each batch.
        table_rows: of the table of upserts.
        changed: rows of each upsert, half of which are new.
        upserts: how many, of which the first is not timed.
        versions: of the log that a start reads.
    """

    pairs: int = 3
    batches: int = 6
    batch_rows: int = 1_000_000
    table_rows: int = 400_000
    changed: int = 40_000
    upserts: int = 7
    versions: int = 10_000


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``buckets.json``.

    ``append_vs_disk`` is a ratio of rows per second: the median of pairs of runs. ``upsert_vs_merge`` is a ratio of
    times; less than 1 if this project is faster. Requests are those to the log of one table, as the server counts them:
    also answers to lists of other folders that have names of the log.
    """
    _write_rows(folder / "rows", size)
    objects = folder / "s3" / "data" / "bucket"
    with s3_server(folder / "s3", "bucket", delay_ms=_DELAY_MS) as variables, mock.patch.dict(os.environ, variables):
        appends = [_append_pair(folder, number, size) for number in range(size.pairs)]
        upserts, merges = _measure_upserts(size)
    requests = _requests_of_commits(objects.parent, size)
    start = requests_at_start(objects.parent, size.versions)
    ratios = [bucket / disk for disk, bucket in appends]
    figures = {
        "append_vs_disk": round(statistics.median(ratios), 2),
        "upsert_vs_merge": round(statistics.median(upserts) / statistics.median(merges), 2),
        "requests_per_commit": max(requests),
        f"requests_at_start_{size.versions}_versions": max(start.values()),
        "append_rows_per_s": {"disk": [round(d) for d, _ in appends], "bucket": [round(b) for _, b in appends]},
        "upsert_s": [round(seconds, 3) for seconds in upserts],
        "merge_s": [round(seconds, 3) for seconds in merges],
        "requests_at_start": start,
        "delay_ms": _DELAY_MS,
        "size": vars(size),
    }
    return write_result("buckets", figures)


def _write_rows(folder: Path, size: Size) -> None:
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(size.batches):
        pq.write_table(_rows(rng.permutation(size.batch_rows) + number * size.batch_rows), folder / f"{number}.parquet")


def _rows(keys: np.ndarray) -> pa.Table:
    texts = pa.array([f"text of {key % 1000}" for key in keys.tolist()])
    return pa.table({"key": pa.array(keys), "value": pa.array(keys / 7), "text": texts})


def _append_pair(folder: Path, number: int, size: Size) -> tuple[float, float]:
    """Returns the rows per second of two runs, with the table on disk and in the bucket; the first one alternates."""
    tables = {"disk": str(folder / f"table-{number}"), "bucket": f"s3://bucket/tables/append-{number}"}
    order = ("disk", "bucket") if number % 2 == 0 else ("bucket", "disk")
    rates = {name: _append(folder / f"{name}-{number}", tables[name], folder / "rows", size) for name in order}
    return rates["disk"], rates["bucket"]


def _append(place: Path, table: str, rows: Path, size: Size) -> float:
    place.mkdir()
    settings = {"job.rows": rows, "job.table": table, "local_dir": place / "local", "parallelism": 2}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = [sys.executable, "-m", "stateflow"]
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT)}
    root = str(place / "root")
    done = subprocess.run(
        [*program, "run", str(_JOB), "--job-root", root, *assignments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = subprocess.run(
        [*program, "history", "--job-root", root, "--json"], env=environment, capture_output=True, check=True
    )
    times = _commit_times([json.loads(line) for line in found.stdout.splitlines()])
    assert len(times) == size.batches, times
    count = sum(add["num_records"] for add in pa.table(DeltaTable(table).get_add_actions()).to_pylist())
    assert count == size.batches * size.batch_rows
    # A commit waits until its output is stored; the output of the last batch is published before the run ends.
    return size.batch_rows * (size.batches - 1) / (times[-1] - times[0])


def _commit_times(records: Sequence[Mapping[str, str]]) -> list[float]:
    """Returns the times of a job's checkpoints in seconds since 1970, oldest first."""
    found = [record["ended_at"] for record in records if record["kind"] == "checkpoint"]
    return sorted(datetime.fromisoformat(time).timestamp() for time in found)


_CONTEXT = SinkContext(_JOB_UUID, "table", RowSchema.of(Row))
_UPSERTS = "s3://bucket/tables/upserts"


def _measure_upserts(size: Size) -> tuple[list[float], list[float]]:
    """Returns the seconds of upserts, and the seconds of merges of the same rows."""
    other = "s3://bucket/tables/merges"
    ours: list[float] = []
    theirs: list[float] = []
    rng = np.random.default_rng(2)
    for table in (_UPSERTS, other):
        DeltaSink(table, mode="upsert", keys="key").prepare(_CONTEXT)
    for token in range(1, size.upserts + 2):
        keys = np.arange(size.table_rows) if token == 1 else _changed_keys(rng, size)
        rows = _rows(keys)
        ours.append(_upsert(token, rows))
        theirs.append(_merge(other, rows))
    assert _content(_UPSERTS) == _content(other)
    return ours[2:], theirs[2:]


def _changed_keys(rng: np.random.Generator, size: Size) -> np.ndarray:
    half = size.changed // 2
    new = size.table_rows + rng.choice(10 * size.table_rows, half, replace=False)
    return np.concatenate([rng.choice(size.table_rows, half, replace=False), new])


_sinks: dict[str, DeltaSink] = {}


def _upsert(token: int, rows: pa.Table) -> float:
    sink = _sinks.setdefault(_UPSERTS, DeltaSink(_UPSERTS, mode="upsert", keys="key"))
    began = time.monotonic()
    files = _write(sink, token, rows)
    handle = sink.open_table(_CONTEXT)
    assert handle.missing(files) == []
    assert handle.commit(token, files) is not None
    return time.monotonic() - began


def _write(sink: DeltaSink, token: int, rows: pa.Table) -> list[Committable]:
    writer = sink.writer(_CONTEXT, Writing(1, token, 0, _clock.new_id()))
    for batch in rows.to_batches(100_000):
        writer.write(batch)
    return writer.close()


def _merge(table: str, rows: pa.Table) -> float:
    began = time.monotonic()
    merge = DeltaTable(table).merge(rows, "target.key = source.key", source_alias="source", target_alias="target")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return time.monotonic() - began


def _content(table: str) -> int:
    found = DeltaTable(table).to_pyarrow_table(columns=["key"]).column("key").to_numpy()
    return int(np.unique(found).size * 10**9 + found.size)


def _to_log(received: list[Request]) -> int:
    """Returns how many requests are about the log of a table, and forgets them."""
    count = sum(request.is_about(log.LOG_FOLDER) for request in received)
    received.clear()
    return count


def _requests_of_commits(buckets: Path, size: Size) -> list[int]:
    """Returns the requests to the log that each of three more upserts sends.

    Args:
        buckets: the folder with the server's buckets. Upserts are timed with a server that notes nothing.
    """
    rng = np.random.default_rng(3)
    counts = []
    with noted_requests(buckets) as (endpoint, received), mock.patch.dict(os.environ, variables_of(endpoint)):
        for token in range(size.upserts + 2, size.upserts + 5):
            received.clear()
            _upsert(token, _rows(_changed_keys(rng, size)))
            counts.append(_to_log(received))
    return counts


def requests_at_start(buckets: Path, versions: int) -> dict[str, int]:
    """Returns the requests to the log of a table with many versions until the first output, or the first input.

    Args:
        buckets: the folder with the server's buckets.
    """
    # In the folder where the server keeps its objects: a version takes a millisecond.
    sink = DeltaSink(buckets / "bucket" / "tables" / "long")
    sink.prepare(_CONTEXT)
    for token in range(1, versions):
        files = _write(sink, token, _rows(np.arange(10))) if token % 100 == 1 else []
        assert sink.open_table(_CONTEXT).commit(token, files) is not None
    table = "s3://bucket/tables/long"
    found: dict[str, int] = {}
    with noted_requests(buckets) as (endpoint, received), mock.patch.dict(os.environ, variables_of(endpoint)):
        folder = open_table_folder(table)
        assert versions - 1 - log.newest_log(folder).newest_checkpoint(versions) < 100
        received.clear()
        for generation, name in enumerate(("first", "second", "third", "fourth"), versions):
            _start(table, generation, versions - 1)
            found[name] = _to_log(received)
        DeltaSource(table, schema=Row).check_settings(SourceSettings())
        found["source"] = _to_log(received)
    return found


def _start(table: str, generation: int, newest: int) -> None:
    """Starts a sink as a run does, of which the earlier ones have published everything."""
    sink = DeltaSink(table)
    sink.check(_CONTEXT)
    sink.prepare(_CONTEXT)
    sink.begin_run(_CONTEXT, generation)
    handle = sink.open_table(_CONTEXT)
    assert sink.sweep(_CONTEXT, lambda written, ordinal, path: ordinal > newest) == []
    assert (handle.version, handle.token) == (newest, newest)
