"""Measures Delta tables in a bucket against the same tables on disk, and upserts against delta-rs' own merge.

The bucket is on the S3 server of the tests, which waits 20 ms before each answer, on the same two cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.results import write_result
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext, Writing
from stateflow.clock import SystemClock
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import log
from stateflow.connectors.table_folder import open_table_folder
from tests.servers.running import s3_server

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
    times; less than 1 if this project is faster. Requests are those to the log of one table.
    """
    _write_rows(folder / "rows", size)
    objects = folder / "s3" / "data" / "bucket"
    with s3_server(folder / "s3", "bucket", delay_ms=_DELAY_MS) as variables, mock.patch.dict(os.environ, variables):
        appends = [_append_pair(folder, number, size) for number in range(size.pairs)]
        upserts, merges, requests = _measure_upserts(size)
        start = _requests_at_start(objects, size.versions)
    ratios = [bucket / disk for disk, bucket in appends]
    figures = {
        "append_vs_disk": round(statistics.median(ratios), 2),
        "upsert_vs_merge": round(statistics.median(upserts) / statistics.median(merges), 2),
        "requests_per_commit": max(requests),
        f"requests_at_start_{size.versions}_versions": start.total(),
        "append_rows_per_s": {"disk": [round(d) for d, _ in appends], "bucket": [round(b) for _, b in appends]},
        "upsert_s": [round(seconds, 3) for seconds in upserts],
        "merge_s": [round(seconds, 3) for seconds in merges],
        "requests_at_start": dict(start),
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


def _measure_upserts(size: Size) -> tuple[list[float], list[float], list[int]]:
    """Returns the seconds of upserts, the seconds of merges of the same rows, and the requests of each upsert's log."""
    context = SinkContext(_JOB_UUID, "table", RowSchema.of(Row))
    own, other = "s3://bucket/tables/upserts", "s3://bucket/tables/merges"
    ours: list[float] = []
    theirs: list[float] = []
    requests: list[int] = []
    rng = np.random.default_rng(2)
    for table in (own, other):
        DeltaSink(table, mode="upsert", keys="key").prepare(context)
    for token in range(1, size.upserts + 2):
        keys = np.arange(size.table_rows) if token == 1 else _changed_keys(rng, size)
        rows = _rows(keys)
        with _log_requests() as sent:
            ours.append(_upsert(own, context, token, rows))
        requests.append(sent.total())
        theirs.append(_merge(other, rows))
    assert _content(own) == _content(other)
    return ours[2:], theirs[2:], requests[2:]


def _changed_keys(rng: np.random.Generator, size: Size) -> np.ndarray:
    half = size.changed // 2
    new = size.table_rows + rng.choice(10 * size.table_rows, half, replace=False)
    return np.concatenate([rng.choice(size.table_rows, half, replace=False), new])


_sinks: dict[str, DeltaSink] = {}


def _upsert(table: str, context: SinkContext, token: int, rows: pa.Table) -> float:
    sink = _sinks.setdefault(table, DeltaSink(table, mode="upsert", keys="key"))
    began = time.monotonic()
    writer = sink.writer(context, Writing(1, token, 0, _clock.new_id()))
    for batch in rows.to_batches(100_000):
        writer.write(batch)
    files = writer.close()
    handle = sink.open_table(context)
    assert handle.missing(files) == []
    assert handle.commit(token, files) is not None
    return time.monotonic() - began


def _merge(table: str, rows: pa.Table) -> float:
    began = time.monotonic()
    merge = DeltaTable(table).merge(rows, "target.key = source.key", source_alias="source", target_alias="target")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return time.monotonic() - began


def _content(table: str) -> int:
    found = DeltaTable(table).to_pyarrow_table(columns=["key"]).column("key").to_numpy()
    return int(np.unique(found).size * 10**9 + found.size)


@contextlib.contextmanager
def _log_requests() -> Iterator[Counter[str]]:
    """Counts the requests of this process to logs of tables."""
    sent: Counter[str] = Counter()

    def counting(name: str) -> mock._patch[object]:
        call = getattr(obstore, name)

        def counted(store: object, *args: object, **more: object) -> object:
            if args and log.LOG_FOLDER in str(args[0]):
                # A list takes a request for each thousand names, which no small log has.
                sent[name] += 1
            return call(store, *args, **more)

        return mock.patch.object(obstore, name, counted)

    with contextlib.ExitStack() as stack:
        for name in ("put", "get", "head", "list", "list_with_delimiter", "delete"):
            stack.enter_context(counting(name))
        yield sent


def _requests_at_start(objects: Path, versions: int) -> Counter[str]:
    """Returns the requests to the log of a table with many versions that a sink sends until its first output."""
    context = SinkContext(_JOB_UUID, "table", RowSchema.of(Row))
    # In the folder where the server keeps its objects: a version takes a millisecond.
    sink = DeltaSink(objects / "tables" / "long")
    sink.prepare(context)
    for token in range(1, versions):
        assert sink.open_table(context).commit(token, []) is not None
    folder = open_table_folder("s3://bucket/tables/long")
    assert versions - 1 - log.newest_log(folder).newest_checkpoint(versions) < 100
    with _log_requests() as sent:
        again = DeltaSink("s3://bucket/tables/long")
        again.check(context)
        again.prepare(context)
        handle = again.open_table(context)
        again.sweep(context, lambda generation, ordinal, path: True)
    assert (handle.version, handle.token) == (versions - 1, versions - 1)
    return sent
