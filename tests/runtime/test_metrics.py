"""Metrics and spans of runs, as a recorder, a scraper and an OpenTelemetry collector receive them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from stateflow import (
    Context,
    KeyedProcessFunction,
    OutputTag,
    Pattern,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.log.documents import CheckpointRecord
from stateflow.clock import ManualClock
from stateflow.config.settings import TelemetrySettings
from stateflow.errors import ConfigError
from stateflow.observability import METRIC_FIELDS, METRICS, MemoryRecorder, MetricKind, telemetry
from stateflow.runtime.driver.checkpointing import report_metrics
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local_run import run_local
from tests.servers.otlp import otlp_collector
from tests.servers.running import ROOT, free_port
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.local_jobs import Growing, LocalJobs

HOUR = timedelta(hours=1)


class Stamped(msgspec.Struct):
    number: int
    at: str


class Stamp(KeyedProcessFunction[Row, Stamped]):
    def process_element(self, row: Row, ctx: Context) -> Iterator[Stamped]:
        yield Stamped(row.number, ctx.current_processing_time().isoformat())

    def on_batch_end(self, ctx: Context) -> Iterator[Stamped]:
        yield Stamped(-1, ctx.current_processing_time().isoformat())


class Sum(msgspec.Struct):
    key: str
    number: int


Keyed = KeyedStream[DataStream]
HUNDREDS = TumblingEventTimeWindows.of(timedelta(milliseconds=100))
LATE = OutputTag("late", Row)
SUM = {"number": ("sum", "number")}


def _first(first: Row, second: Row) -> Row:
    return first


def _of_match(match: Mapping[str, list[Row]]) -> Row:
    return match["any"][0]


OPERATORS: dict[str, tuple[Callable[[Keyed], DataStream], int]] = {
    "windows of rows": (lambda rows: rows.window(HUNDREDS).reduce(_first, uid="op"), 3),
    "windows by columns": (lambda rows: rows.window(HUNDREDS).aggregate_columns(SUM, output=Sum, uid="op"), 3),
    "late rows of windows in an output": (
        lambda rows: rows.window(HUNDREDS).side_output_late_data(LATE).reduce(_first, uid="op"),
        0,
    ),
    "patterns": (lambda rows: rows.match_pattern(Pattern.begin("any")).select(_of_match, output=Row, uid="op"), 3),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_that_are_dropped_because_they_are_late_are_counted(tmp_path: Path, name: str) -> None:
    declare, dropped = OPERATORS[name]
    recorder, source = MemoryRecorder(), Growing([Row("a", at) for at in (1, 500, 2, 3, 490, 600)], Row)
    jobs = LocalJobs(tmp_path, ManualClock(), source__max_rows_per_batch=2)
    jobs.recorder = recorder

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("number")
        rows = env.from_source(source, uid="rows").assign_timestamps_and_watermarks(strategy).key_by("key")
        declare(rows).sink_to(jobs.sink("out"), uid="out")

    run = jobs.prepare(build)
    run.start()
    run_local(run, {"rows": source}, lambda result: None)
    assert recorder.counters["num_late_records_dropped"] == run.totals.late_rows_dropped == dropped


def _gauges(result: BatchResult, record: CheckpointRecord) -> dict[str, float]:
    """The gauges after a batch with a checkpoint of its own."""
    return {
        "last_completed_checkpoint_id": result.checkpoint_id,
        "last_checkpoint_size": result.increment_bytes,
        "last_checkpoint_compaction_size": 0,
        "last_checkpoint_full_size": result.full_bytes,
        "last_checkpoint_duration": result.seconds,
        "number_of_in_progress_checkpoints": 0,
        "last_checkpoint_manifest_size": record.manifest_bytes,
        "last_checkpoint_files": record.files,
        "last_checkpoint_new_files": record.new_files,
        "last_batch_duration": result.seconds,
        "hot_key_pairs": 0,
        "num_records_waiting": 0,
        "last_checkpoint_restore_timestamp": datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000,
    }


def test_each_batch_is_recorded_with_the_names_of_flink_and_has_one_processing_time(tmp_path: Path) -> None:
    """25 rows of three keys, ten to a batch, with an hour between the batches."""
    clock, recorder, source = ManualClock(), MemoryRecorder(), Growing([Row(f"k{i % 3}", i) for i in range(25)], Row)
    jobs = LocalJobs(tmp_path, clock, source__max_rows_per_batch=10, checkpoints__asynchronous=False)
    jobs.recorder = recorder
    results: list[BatchResult] = []
    gauges: list[dict[str, float]] = []

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(source, uid="rows").key_by("key")
        stream.process(Stamp(), output=Stamped, uid="stamp").sink_to(jobs.sink("out"), uid="out")

    def on_batch(result: BatchResult) -> None:
        results.append(result)
        gauges.append({name: value for name, value in recorder.gauges.items() if "." not in name})
        clock.sleep(HOUR)

    start, run = clock.now(), jobs.prepare(build)
    run.start()
    run_local(run, {"rows": source}, on_batch)
    records = read_records(jobs.storage)
    counters = {name: count for name, count in recorder.counters.items() if "." not in name}
    assert counters == {"number_of_completed_checkpoints": 3, "num_records_in": 25, "num_records_out": 25 + 9}
    assert [r.rows_in for r in results] == [10, 10, 5]
    assert gauges == [_gauges(r, record) for r, record in zip(results, records, strict=True)]
    assert (results[0].checkpoint_id, results[-1].checkpoint_id) == (2, run.head.checkpoint_id)
    assert all(r.full_bytes >= r.increment_bytes for r in results)

    expected = [(-1, batch) for batch in range(3) for _ in range(3)] + [(n, n // 10) for n in range(25)]
    assert sorted(jobs.rows()) == [(number, (start + batch * HOUR).isoformat()) for number, batch in expected]

    # Its size includes what a compaction wrote; tests/recovery/test_checkpoints.py counts it in the storage.
    report_metrics(recorder, msgspec.structs.replace(records[-1], increment_bytes=30, compaction_bytes=12))
    assert (recorder.gauges["last_checkpoint_size"], recorder.gauges["last_checkpoint_compaction_size"]) == (42, 12)


def test_names_and_units_of_metrics_are_those_of_opentelemetry() -> None:
    """Words in lower case; seconds and bytes in UCUM; no name is also a namespace, as its conventions of names say."""
    for name, spec in METRICS.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*(\.[a-z]+(_[a-z]+)*)*", name)
        assert re.fullmatch(r"1|s|ms|By|\{[a-z]+\}", spec.unit)
        # A point in time is in milliseconds, as in Flink; a duration is in seconds.
        assert (spec.unit == "ms") == name.endswith("timestamp")
        assert [other for other in METRICS if other.startswith(f"{name}.")] == []
        assert not name.endswith((".time", ".lag", ".age", "_duration")) or spec.unit == "s"
    assert {"s", "By"} < {METRICS[name].unit for fields in METRIC_FIELDS.values() for name in fields}
    for name, field in (pair for fields in METRIC_FIELDS.values() for pair in fields.items()):
        unit = METRICS[name].unit
        assert field.endswith("_ms") == (unit == "s") and field.endswith("_bytes") == (unit == "By")
        assert field.endswith("_at") == (unit == "ms")


# -- exporters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job")
    yield made
    made.end_all()


_SCRAPED = """
import sys, urllib.request
from pathlib import Path
from stateflow.launch import RunRequest, run_job

job, root, port, *assigned = sys.argv[1:]
seen = []

def look(result):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        seen.append(answer.read().decode())

settings = dict(each.split("=", 1) for each in assigned) | {"telemetry.prometheus_port": port}
run_job(RunRequest(Path(job), root, (settings,), "a test", on_batch=look))
print(seen[-1])
try:
    look(None)
except OSError:
    print("closed")
"""


@pytest.mark.long(reason="runs a job as processes")
def test_a_scraper_sees_metrics_with_the_names_of_flink_while_a_run_lasts(job: AccountsJob) -> None:
    job.deliver(4 * SLICE)
    assigned = [f"job.folder={job.folder}", f"local_dir={job.local}", "checkpoints.asynchronous=no"]
    command = [sys.executable, "-c", _SCRAPED, job.job_file, job.job_root, str(free_port()), *assigned]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = dict(re.findall(r'^([a-z_]+)\{job="accounts"[^}]*\} ([\d.e+]+)$', ended.stdout, re.MULTILINE))
    names = set()
    for name, about in METRICS.items():
        # Prometheus has underscores for dots, and the unit after the name.
        exported = name.replace(".", "_")
        names |= {found for found in figures if found.startswith(exported)}
        is_counter = re.search(rf"# TYPE {exported}(_seconds|_bytes)?_total counter", ended.stdout)
        assert about.kind is MetricKind.GAUGE or is_counter or exported not in ended.stdout
    assert names == set(figures)
    assert float(figures["number_of_completed_checkpoints_total"]) == 4
    assert float(figures["num_records_in_total"]) == 4 * SLICE
    assert float(figures["last_checkpoint_size_bytes"]) > 0
    assert ended.stdout.rstrip().endswith("closed")


@pytest.mark.slow(reason="waits until the exporter has given up")
def test_a_port_in_use_and_a_collector_that_does_not_respond_fail_no_run(job: AccountsJob) -> None:
    job.deliver(2 * SLICE)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        collector = f"http://127.0.0.1:{free_port()}"
        ended = job.finish(telemetry__prometheus_port=port, telemetry__otlp_endpoint=collector)
    [warning] = [line for line in ended.err.splitlines() if " WARNING " in line and "prometheus_port" in line]
    assert str(port) in warning
    assert "Traceback" not in ended.err
    job.check_results()


def test_only_runs_with_telemetry_settings_need_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with telemetry(TelemetrySettings(), "job") as recorder:
        recorder.count("num_records_in", 3)
        recorder.gauge("last_checkpoint_size", 5)
    with (
        raises(ConfigError, package="opentelemetry.sdk.metrics") as refused,
        telemetry(TelemetrySettings(prometheus_port=free_port()), "job"),
    ):
        pass
    assert "stateflow[telemetry]" in refused.value.hint


def test_the_counters_of_a_job_are_zero_from_the_start_of_a_run() -> None:
    port = free_port()
    with (
        telemetry(TelemetrySettings(prometheus_port=port), "flights") as recorder,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as first,
    ):
        series = re.findall(r'^([a-z_]+)_total\{job="flights"[^}]*\} ([\d.e+]+)$', first.read().decode(), re.MULTILINE)
        recorder.count("number_of_failed_checkpoints")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as second:
            failed = re.search(r"^number_of_failed_checkpoints_total\{.*\} (.+)$", second.read().decode(), re.MULTILINE)
    assert {value for _, value in series} == {"0.0"} and failed and float(failed[1]) == 1
    names = [name for name, _ in series]
    assert len(names) == len(set(names))
    # What the documented alerts, and increase() in Prometheus, need.
    assert {"number_of_failed_checkpoints", "num_restarts", "num_collection_failures", "num_records_in"} <= set(names)
    assert not [name for name in names if name.startswith(("stateflow_operator", "stateflow_sink"))]


def test_spans_and_metrics_go_to_a_collector(job: AccountsJob) -> None:
    job.deliver(3 * SLICE)
    with otlp_collector() as collector:
        job.finish(telemetry__otlp_endpoint=collector.address, checkpoints__asynchronous="yes")
        spans, figures = collector.spans(), collector.text("/v1/metrics")
    assert {"batch", "checkpoint", "upload", "restore"} <= {name for name, _ in spans}
    assert {facts["stateflow.job"] for name, facts in spans if name == "batch"} == {"accounts"}
    for name in ("number_of_completed_checkpoints", "last_checkpoint_size", "num_records_in", "num_records_out"):
        assert name in figures
