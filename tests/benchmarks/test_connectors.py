"""The benchmarks of connectors run against a broker, at sizes at which their figures have no meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_broker import BROKER_JARS
from pyarrow import parquet

from benchmarks import connectors, kafka_sink, latency, results
from benchmarks.peers.final import check_table

_needs_broker = pytest.mark.skipif(not BROKER_JARS.exists(), reason="no Kafka is installed: make setup downloads it")


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")


@_needs_broker
@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_tables_of_all_competitors_are_as_they_should_be(tmp_path: Path) -> None:
    counts = {"records": 400, "batches": 3, "keys": 50, "slow_batches": 2, "warm_up": 1}
    size = connectors.Size(**counts, table_rows=200, changed=20, changes=2, large_rows=300, large_changes=2)
    figures = json.loads(connectors.run(tmp_path / "files", size).read_text())
    assert {found["keys_checked"] for found in figures["counts"].values()} == {50}
    assert {found["keys_checked"] for found in figures["upserts"].values()} == {200}
    assert {found["commits"] for found in figures["upserts"].values()} == {3}
    assert {found["keys_checked"] for found in figures["large_upserts"].values()} == {300}
    assert figures["kafka_rows_per_s"] == figures["counts"]["columns"]["events_per_s"] > 0


@_needs_broker
@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_no_record_of_a_continuous_run_is_lost_or_doubled(tmp_path: Path) -> None:
    size = latency.Size(rows_per_s=100, warm_up_seconds=1, seconds=4, keys=7)
    figures = json.loads(latency.run(tmp_path, size).read_text())
    assert (figures["rows"], figures["rows_lost"], figures["rows_doubled"]) == (400, 0, 0)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]


@_needs_broker
@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_rows_of_the_kafka_sink_of_a_plain_producer_and_of_a_job_are_in_the_topic_once(tmp_path: Path) -> None:
    size = kafka_sink.Size(rows=1_000, large=1, small_rows=3, small=2, job_batches=2)
    figures = json.loads(kafka_sink.run(tmp_path / "files", size).read_text())
    names = ("publish_rows_per_s", "peer_rows_per_s", "job_rows_per_s", "small_checkpoint_ms")
    assert all(figures[name] > 0 for name in names)


@pytest.mark.parametrize("keys", [[1, 2], [1, 2, 4], [1, 2, 3, 3], []])
def test_a_table_with_other_rows_is_found(keys: list[int], tmp_path: Path) -> None:
    expected = tmp_path / "expected.parquet"
    parquet.write_table(_table([3, 1, 2]), expected)
    assert check_table(_table([1, 2, 3]), expected) == 3
    with pytest.raises(AssertionError):
        check_table(_table(keys), expected)
    with pytest.raises(AssertionError):
        check_table(_table([1, 2, 3], count=2), expected)


def _table(keys: list[int], count: int = 1) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64()), "count": pa.array([count] * len(keys), pa.int64())})
