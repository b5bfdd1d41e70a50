"""Metrics of operators and sinks in the history, compared with counts in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    WatermarkStrategy,
)
from stateflow.api.functions.vectorized import VectorState
from stateflow.checkpoint.barriers import TaskReport, TaskUsage
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.log.documents import CheckpointRecord, OperatorMetrics, SinkMetrics, Spread
from stateflow.clock import ManualClock, Section, Stopwatch
from stateflow.observability import METRIC_FIELDS, METRICS, MemoryRecorder, MetricKind
from stateflow.runtime.driver.background import without_old_metrics
from stateflow.runtime.task import input_reader, store_cache, vector_operator
from stateflow.state.backends import factory
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.kinds import keyed_state_batch
from stateflow.storage.base import TrafficCounts
from stateflow.storage.posix import PosixStorage
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs
from tests.support.traffic import own_traffic

BATCH = 50
ROWS = [Row(f"k{n % 7}", n) for n in range(200)]


class Seen(msgspec.Struct):
    key: str
    number: int


class Remember(KeyedProcessFunction[Row, Seen]):
    """Emits each even number; keeps the last one, and all numbers."""

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int))
        self.all = ctx.get_map_state(MapStateDescriptor("all", int, int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        self.last.update(row.number)
        self.all.put(row.number, 1)
        if row.number % 2 == 0:
            yield Seen(row.key, row.number)


def run(jobs: LocalJobs, rows: Sequence[Row], declare: Any, **settings: Any) -> list[CheckpointRecord]:
    source = Growing(rows, Row)

    def build(env: StreamExecutionEnvironment) -> None:
        declare(env.from_source(source, uid="rows"))

    jobs.run(build, **{"source__max_rows_per_batch": BATCH, **settings})
    return read_records(jobs.storage)


def total(records: Sequence[CheckpointRecord], uid: str) -> OperatorMetrics:
    first, *later = [record.operators[uid] for record in records]
    for each in later:
        first = first.plus(each)
    return first


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
@pytest.mark.parametrize("per_checkpoint", [1, 3])
def test_rows_and_state_of_an_operator_are_those_of_plain_python(
    tmp_path: Path, backend: str, per_checkpoint: int
) -> None:
    jobs = LocalJobs(tmp_path, state__backend=backend, parallelism=2, max_parallelism=16)

    def declare(rows: Any) -> None:
        seen = rows.key_by("key").process(Remember(), output=Seen, uid="remember")
        seen.filter(lambda row: row.number % 3 == 0).sink_to(jobs.sink("out"), uid="out")

    records = run(jobs, ROWS, declare, checkpoints__interval_batches=per_checkpoint)
    found = total(records, "remember")
    emitted = [row for row in ROWS if row.number % 2 == 0]
    kept = [row for row in emitted if row.number % 3 == 0]
    assert (found.rows_in, found.rows_out, found.subtasks) == (len(ROWS), len(emitted), 2)
    assert found.rows_filtered == len(emitted) - len(kept)
    assert (found.rows_late, found.rows_dropped, found.dead_letters) == (0, 0, 0)
    assert found.state_entries_exact == (backend != "rocksdb")
    # One value for each key, and one entry for each number.
    entries = len({row.key for row in ROWS}) + len(ROWS)
    assert found.state_entries == (entries if backend != "rocksdb" else pytest.approx(entries, rel=0.5))
    assert records[-1].full_bytes == found.state_bytes > 0
    sinks = [record.sinks["out"] for record in records if record.sinks]
    assert sum(sink.rows for sink in sinks) == len(kept) and all(sink.publish_ms > 0 for sink in sinks)
    assert found.function_ms > 0 and found.cpu_ms > 0
    assert sum(record.cpu_ms for record in records) >= found.cpu_ms
    assert (found.store_ms > 0, found.watermark_lag_ms) == (True, None)


class SlowCalls:
    """A clock of the stopwatches that only advances in calls that a test makes slow."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._patched = patched
        self._now = 0.0
        patched.setattr("stateflow.clock.perf_counter", lambda: self._now)

    def slow_down(self, of: Any, name: str, seconds: float) -> None:
        """Makes each call of an attribute take some seconds."""
        call = getattr(of, name)

        @wraps(call)
        def slow(*args: Any, **more: Any) -> Any:
            self._now += seconds
            return call(*args, **more)

        self._patched.setattr(of, name, slow)


class SlowDatabase:
    """RocksDB's database, of which reads of one key, reads of many keys and a flush are calls of their own."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def get(self, key: Any) -> Any:
        return self.get_many(key) if isinstance(key, list) else self.get_one(key)

    def get_one(self, key: bytes) -> Any:
        return self._database.get(key)

    def get_many(self, keys: list[bytes]) -> Any:
        return self._database.get(keys)

    def flush(self) -> None:
        self._database.flush()


FUNCTION, KEYS, OPEN, READ_ONE, READ_MANY, SNAPSHOT, WRITE_COLUMN = 2, 3, 5, 1, 7, 11, 4
"""Seconds of each slow call."""


def slow_down_stores(calls: SlowCalls, backend: str, patched: pytest.MonkeyPatch) -> None:
    place: type[Any] = DictBackend if backend == "memory" else SlowDatabase
    names = ("get", "multi_get", "snapshot") if backend == "memory" else ("get_one", "get_many", "flush")
    for name, seconds in zip(names, (READ_ONE, READ_MANY, SNAPSHOT), strict=True):
        calls.slow_down(place, name, seconds)
    open_backend = factory.open_backend

    def opened(*args: Any) -> Any:
        store: Any = open_backend(*args)
        if backend == "rocksdb":
            store._db = SlowDatabase(store._db)
        return store

    patched.setattr(store_cache, "open_backend", opened)
    calls.slow_down(store_cache, "open_backend", OPEN)


class Recall(Remember):
    """Reads for each row a number that no earlier row had: the store is asked for each."""

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        assert self.all.get(row.number) is None
        yield from super().process_element(row, ctx)


class Recount(VectorizedKeyedFunction):
    """Reads and writes a value of each key, for all keys at once."""

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> None:
        state.write(self.last, state.read(self.last).fill_null(1))


SUBTASKS = 2
MOST, LEAST = 128, 64
"""Rows of the two subtasks: multiples of 64, as one of 64 reads of a key is measured."""


@pytest.mark.parametrize(
    ("of", "backend", "function", "state", "store"),
    [
        ("rows", "rocksdb", FUNCTION * (MOST + LEAST), KEYS * SUBTASKS,
         (OPEN + READ_MANY + SNAPSHOT) * SUBTASKS + READ_ONE * (MOST + LEAST)),
        ("rows", "memory", (FUNCTION + READ_ONE) * (MOST + LEAST), (KEYS + READ_MANY) * SUBTASKS,
         (OPEN + SNAPSHOT) * SUBTASKS),
        ("columns", "rocksdb", FUNCTION * SUBTASKS, (KEYS + WRITE_COLUMN) * SUBTASKS,
         (OPEN + READ_MANY + SNAPSHOT) * SUBTASKS),
        ("columns", "memory", FUNCTION * SUBTASKS, (KEYS + WRITE_COLUMN + READ_MANY) * SUBTASKS,
         (OPEN + SNAPSHOT) * SUBTASKS),
    ],
)  # fmt: skip
def test_the_time_of_an_operator_is_that_of_its_slow_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, backend: str, function: int, state: int, store: int
) -> None:
    """With stores in memory, only opening and snapshots are time in the store."""
    calls = SlowCalls(monkeypatch)
    slow_down_stores(calls, backend, monkeypatch)
    calls.slow_down(Recall, "process_element", FUNCTION)
    calls.slow_down(input_reader, "encode_key", KEYS)
    calls.slow_down(Recount, "process_batch", FUNCTION)
    calls.slow_down(vector_operator, "encode_keys", KEYS)
    calls.slow_down(keyed_state_batch, "_encoded", WRITE_COLUMN)
    jobs = LocalJobs(tmp_path, state__backend=backend, parallelism=SUBTASKS, max_parallelism=16)

    def declare(rows: Any) -> None:
        made = rows.key_by("key").process(Recall() if of == "rows" else Recount(), output=Seen, uid="slow")
        made.sink_to(jobs.sink("out"), uid="out")

    # Keys of different subtasks.
    rows = [Row("k0" if n < MOST else "k1", n) for n in range(MOST + LEAST)]
    (record,) = run(jobs, rows, declare, source__max_rows_per_batch=len(rows))
    found = record.operators["slow"]
    assert [each.rows_in for each in found.busiest] == [MOST, LEAST]
    times = {"function_ms": found.function_ms, "state_ms": found.state_ms, "store_ms": found.store_ms}
    assert times == {"function_ms": function * 1000, "state_ms": state * 1000, "store_ms": store * 1000}
    of_subtasks = [each.function_ms for each in found.busiest]
    calls_of = (MOST, LEAST) if of == "rows" else (1, 1)
    assert of_subtasks == [times["function_ms"] * each / sum(calls_of) for each in calls_of]
    average = times["function_ms"] / SUBTASKS
    assert found.spread["function_ms"] == Spread(min=min(of_subtasks), avg=average, max=max(of_subtasks))


def test_bytes_and_files_of_a_sink_are_those_on_disk(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path)
    records = run(jobs, ROWS, lambda rows: rows.sink_to(jobs.sink("out"), uid="out"))
    files = list((tmp_path / "out" / "data").rglob("*.*"))
    assert sum(record.sinks["out"].written_bytes for record in records) == sum(file.stat().st_size for file in files)
    assert sum(record.sinks["out"].files for record in records) == len(files)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_skew_is_the_number_of_subtasks_if_one_has_all_rows(tmp_path: Path, parallelism: int) -> None:
    jobs = LocalJobs(tmp_path, parallelism=parallelism, max_parallelism=16)

    def declare(rows: Any) -> None:
        rows.key_by("key").process(Remember(), output=Seen, uid="remember").sink_to(jobs.sink("out"), uid="out")

    records = run(jobs, [Row("only", n) for n in range(60)], declare)
    assert {record.operators["remember"].skew_ratio for record in records} == {parallelism}
    for record in records:
        found = record.operators["remember"]
        rows = found.rows_in
        assert [each.rows_in for each in found.busiest] == [rows, *[0] * (parallelism - 1)]
        assert len({each.subtask for each in found.busiest}) == parallelism
        assert found.busiest[0].state_bytes == found.spread["state_bytes"].max == found.state_bytes > 0
        least = rows if parallelism == 1 else 0
        assert found.spread["rows_in"] == Spread(min=least, avg=rows / parallelism, max=rows)
    # Batches in which other subtasks are the busiest ones are as slow.
    first, second = (OperatorMetrics(subtasks=2, rows_in=10, busiest_subtask_rows=10) for _ in range(2))
    assert first.plus(second).skew_ratio == 2
    assert OperatorMetrics(subtasks=2, rows_in=10, busiest_subtask_rows=5).plus(first).skew_ratio == 1.5


LATE: OutputTag[Row] = OutputTag("late", Row)


@pytest.mark.parametrize("aside", [False, True], ids=["dropped", "aside"])
def test_late_rows_count_whether_they_are_dropped_or_not(tmp_path: Path, aside: bool) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path, clock)
    # Two rows per batch: the second batch has two that are not after the watermark of 499, and the third has one.
    rows = [Row("a", at) for at in (1, 500, 2, 3, 490, 600)]

    def declare(given: Any) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("number")
        windows = (
            given.assign_timestamps_and_watermarks(strategy)
            .key_by("key")
            .window(TumblingEventTimeWindows.of(timedelta(milliseconds=10)))
        )
        windows = windows.side_output_late_data(LATE) if aside else windows
        windows.reduce(lambda a, b: Row(a.key, a.number + b.number), uid="sums").sink_to(jobs.sink("out"), uid="out")

    source = Growing(rows, Row)

    def build(env: StreamExecutionEnvironment) -> None:
        declare(env.from_source(source, uid="rows"))

    jobs.run(build, source__max_rows_per_batch=2)
    found = total(read_records(jobs.storage), "sums")
    assert (found.rows_in, found.rows_late, found.rows_dropped) == (6, 3, 0 if aside else 3)
    now = int(clock.now().timestamp() * 1000)
    assert found.watermark_at == 499 and found.watermark_lag_ms == now - 499


def test_metrics_have_one_series_for_each_operator_and_sink_whatever_the_parallelism(tmp_path: Path) -> None:
    names: list[set[str]] = []
    for parallelism in (1, 4):
        jobs = LocalJobs(tmp_path / str(parallelism), parallelism=parallelism, max_parallelism=16)
        jobs.recorder = recorder = MemoryRecorder()

        def declare(rows: Any, jobs: LocalJobs = jobs) -> None:
            rows.key_by("key").process(Remember(), output=Seen, uid="remember").sink_to(jobs.sink("out"), uid="out")

        records = run(jobs, ROWS, declare)
        series = {**recorder.counters, **recorder.gauges}
        names.append({name for name in series if "{" in name})
        for name, field in METRIC_FIELDS["operator"].items():
            factor = 0.001 if field.endswith("_ms") else 1
            found: list[Any] = [getattr(record.operators["remember"], field) for record in records]
            values: list[Any] = [None if value is None else value * factor for value in found]
            if METRICS[name].kind is MetricKind.COUNTER:
                assert series[f"{name}{{operator=remember}}"] == pytest.approx(sum(values))
            elif values[-1] is not None:
                assert series[f"{name}{{operator=remember}}"] == values[-1]
        assert series["stateflow.sink.rows{sink=out}"] == sum(record.sinks["out"].rows for record in records)
        assert series["stateflow.cpu.time"] == pytest.approx(sum(record.cpu_ms for record in records) / 1000)
    assert names[0] == names[1]


def test_a_report_without_use_grows_by_a_few_bytes() -> None:
    """10,000 subtasks send one each batch."""
    report = TaskReport(generation=1, ordinal=1, uid="op", subtask=1, attempt="t1")
    size = len(msgspec.msgpack.encode(report))
    assert size - len(msgspec.msgpack.encode(report).replace(b"\xa5usage\x90", b"")) < 10
    used = TaskUsage(100_000, 100_000, 1.5, 1.5, 1.5, 1.5, 1000, 1 << 40, 1 << 40)
    assert len(msgspec.msgpack.encode(msgspec.structs.replace(report, usage=used))) - size < 80


def test_time_of_an_inner_section_does_not_count_for_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr("stateflow.clock.perf_counter", lambda: next(now))
    watch = Stopwatch()
    assert watch.switch(Section.FUNCTION) == Section.OTHER
    assert watch.switch(Section.STORE) == Section.FUNCTION
    watch.switch(Section.FUNCTION)
    watch.switch(Section.OTHER)
    assert watch.read() == [1.0 + 5.0, 2.0 + 4.0, 0.0, 3.0]


def test_requests_and_bytes_of_a_storage_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, storage = own_traffic("stateflow.storage.posix", monkeypatch), PosixStorage(tmp_path)
    storage.put_new("a", b"12345")
    assert storage.get("a") == b"12345"
    (tmp_path / "file").write_bytes(b"1234567")
    storage.put_file("b", tmp_path / "file")
    assert b"".join(storage.chunks("b")) == b"1234567"
    storage.list("")
    assert traffic.now() == TrafficCounts(5, 12, 12)


def test_a_manifest_has_a_bounded_number_of_metrics_that_are_not_stored_yet() -> None:
    sinks = {f"s{number}": SinkMetrics(rows=number) for number in range(3)}
    numbers: dict[str, Any] = {"checkpoint_id": 1, "generation": 1, "ordinal": 1, "run": 1, "files": 0, "rows_in": 0}
    record = CheckpointRecord(
        **numbers, ended_at="", duration_ms=1, increment_bytes=0, full_bytes=0, rows_out={}, driver="", sinks=sinks
    )
    assert without_old_metrics([record] * 4, 12) == [record] * 4
    kept = without_old_metrics([record] * 4, 8)
    assert [len(each.sinks) for each in kept] == [0, 0, 3, 3]
