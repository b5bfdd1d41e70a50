"""Every benchmark runs, at a size at which its figures have no meaning; results that it checks are checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka_broker import BROKER_JARS
from pyarrow import parquet

from benchmarks import (
    asynchronous,
    browser,
    bulk_load,
    connectors,
    garbage,
    harness,
    history_cost,
    increments,
    kafka_sink,
    killed_driver,
    latency,
    memory,
    metrics_cost,
    micro_batch,
    pages,
    query,
    rescale,
    restore,
    results,
    savepoints,
    soak,
    start,
    state,
    state_diff,
    throughput,
)
from benchmarks.cells import Cell
from benchmarks.competitors import COMPETITORS
from benchmarks.data import ZIPF, Events, write_events
from benchmarks.large_state import Size
from benchmarks.peers.final import Final, check_final
from benchmarks.stores import LookUps
from tests.support.browser import needs_chromium

Figures = Mapping[str, Any]
_slow = pytest.mark.slow(reason="a benchmark, which starts processes or writes much state")
_on_spark = [pytest.mark.spark, _slow]
_needs_broker = pytest.mark.skipif(not BROKER_JARS.exists(), reason="no Kafka is installed: make setup downloads it")


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")


def _read(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text())
    return figures


_FILES = Events(files=300, rows_per_file=10, keys=5)
_QUERIES = query.Size(keys=5_000, slice=2_000, changed=500, blocks=3, batches=40)
_PAGES = pages.Size(checkpoints=80, subtasks=20, users=3, seconds=2, pause=0.05, delay_ms=1)
_INCREMENTS = increments.Size(keys=2_000, batches=3, early=1, look_ups=LookUps(keys=200, rounds=1))
_CHECKPOINTS = asynchronous.Size(keys=400, changed=20, slice=100, warm_up=2, blocks=2, batches=10)
_HARNESS = harness.Size(batches=2, rows_per_batch=500, keys=50, rows_per_arrow_batch=200)
RUNS: dict[str, tuple[Callable[[Path], Figures], str]] = {
    "asynchronous": (lambda f: _read(asynchronous.run(f, _CHECKPOINTS)), "keys"),
    "bulk load": (lambda f: bulk_load.measure(f, bulk_load.Size(keys=2_000), repeats=1), "canonical_bytes"),
    "garbage": (lambda f: _read(garbage.run(f, garbage.Size(files=40, checkpoints=5))), "files_40_s"),
    "harness": (lambda f: harness.figures(f, _HARNESS), "harness_row"),
    "increments": (lambda f: _read(increments.run(f, _INCREMENTS)), "keys"),
    "pages": (lambda f: _read(pages.run(f, _PAGES)), "users"),
    "queries": (lambda f: _read(query.run(f, _QUERIES)), "gets_per_s"),
    "rescaling": (lambda f: rescale.measure(f, rescale.Size(keys=2_000), repeats=1), "keys"),
    "savepoints": (lambda f: _read(savepoints.run(f, Size(keys=400, slice=200, rows=5), flink=False)), "keys"),
    "state": (lambda f: state.measure(f, keys=300), "dataframe_rows_per_s_core"),
    "state diff": (lambda f: state_diff.measure(f, state_diff.Size(keys=2_000), repeats=1), "changed_keys"),
    "killed driver": (lambda f: killed_driver.measure(f, kills=1, events=_FILES), "recovery_s"),
    "start": (lambda f: _read(start.run(f, start.Size(idle=1, with_spark=1))), "idle_run_s"),
}
"""The benchmark, and a figure that is above zero."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("garbage", "harness") else _slow if n == "pages" else _on_spark) for n in RUNS],
)
def test_a_benchmark_runs(tmp_path: Path, name: str) -> None:
    measure, figure = RUNS[name]
    assert measure(tmp_path)[figure] > 0


@_slow
@needs_chromium
def test_the_benchmark_of_the_browser_runs(tmp_path: Path) -> None:
    figures = _read(browser.run(tmp_path, pages.Size(checkpoints=700, subtasks=20, checkpoints_of_run=20), loads=1))
    assert figures["pages"].keys() == {"disk", "bucket", "bucket, new server"}
    for place, found in figures["pages"].items():
        assert found.keys() == browser.VISITS.keys()
        for name, page in found.items():
            acts = () if place.endswith("new server") else browser.VISITS[name].acts
            assert page.keys() == {"first_paint", "shown", *acts}
            assert 0 < page["first_paint"]["median_ms"] and 0 < page["shown"]["median_ms"]


@_slow
def test_the_restore_benchmark_runs(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed_driver, "measure", lambda *_: {"recovery_s": 1})
    assert _read(restore.run(tmp_path, restore.Size(keys=2_000, repeats=1), elsewhere))["fetch_speed_vs_copy"] > 0


@_slow
@pytest.mark.spark
def test_the_soak_benchmark_runs_with_spark_and_without(tmp_path: Path) -> None:
    size = soak.Size(batches=60, spark_batches=0, keys=300, value_bytes=100, runs=2, idle_runs=1)
    figures = _read(soak.run(tmp_path / "local", size))["without_spark"]
    assert (figures["batches"], figures["restarts"], figures["restores"]) == (61, 3, 1)
    figures = _read(soak.run(tmp_path / "spark", replace(size, batches=0, spark_batches=60)))["with_spark"]
    assert figures["rss_mib"].keys() == {"driver", "workers", "jvm", "heap"}


def _alone(measure: Callable[..., Figures], *arguments: object) -> Figures:
    """The figures of a benchmark that starts Spark: a process has one Spark, and that of the benchmark lacks the Delta
    JARs that later tests need."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


@_slow
@pytest.mark.spark
def test_workers_stay_below_the_sum_of_the_settings_and_hold_their_libraries(tmp_path: Path) -> None:
    figures = _alone(memory.measure, tmp_path, memory.Size(keys=4000, updates=1000, rows_per_file=1000))
    assert figures["state_mib"] > 4000 * 4096 / memory.MIB and figures["workers"] >= 2
    # A worker has at least that much.
    assert 50 < figures["peak_mib"] < figures["bound_mib"]


@_slow
@pytest.mark.spark
def test_jobs_of_one_to_three_levels_and_spark_alone_are_measured(tmp_path: Path) -> None:
    figures = _alone(micro_batch.measure, tmp_path, micro_batch.Size(batches=3, warm_up=1, rows=2))
    assert list(figures["interval_ms_by_levels"]) == ["1", "2", "3"]
    assert len(list(tmp_path.glob("*/table/_delta_log"))) == 5


_NOT_HERE = {"flink_sql", "flink_sql_example", "vectorized_rows"}
"""The first two need an environment of their own, whose set-up takes minutes; the third runs in the harness."""
_TINY = Cell(rows_per_batch=200, keys=20, distribution=ZIPF, events=800)


@_slow
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(COMPETITORS.keys() - _NOT_HERE))
def test_a_competitor_ends_with_what_numpy_computes(name: str, tmp_path: Path) -> None:
    figures = throughput.measure(tmp_path / "cell", _TINY, {name: COMPETITORS[name]})["competitors"][name]
    assert "failed" not in figures, figures
    assert figures["keys_checked"] > 10
    assert figures["rows_behind_first"] == figures["events"] - 200


def test_a_wrong_sum_count_or_name_of_one_key_is_found(tmp_path: Path) -> None:
    write_events(tmp_path / "events", Events(files=2, rows_per_file=100, keys=5))
    rows = parquet.read_table(tmp_path / "events").to_pylist()
    of_key = [[row["value"] for row in rows if row["key"] == key] for key in range(5)]
    keys, counts = np.arange(5), np.array([len(values) for values in of_key])
    totals = np.array([sum(values) for values in of_key])
    assert check_final(Final(keys, counts, totals), tmp_path / "events") == 5
    wrong = [
        Final(keys, counts + (keys == 3), totals),
        Final(keys, counts, totals + 1e-6 * (keys == 3)),
        Final(keys + (keys == 4), counts, totals),
        Final(keys[1:], counts[1:], totals[1:]),
    ]
    for found in wrong:
        with pytest.raises(AssertionError):
            check_final(found, tmp_path / "events")


# -- connectors -------------------------------------------------------------------------------------------------------


@_needs_broker
@_slow
@pytest.mark.spark
def test_tables_of_all_competitors_are_as_they_should_be(tmp_path: Path) -> None:
    counts = {"records": 400, "batches": 3, "keys": 50, "slow_batches": 2, "warm_up": 1}
    size = connectors.Size(**counts, table_rows=200, changed=20, changes=2, large_rows=300, large_changes=2)
    figures = _read(connectors.run(tmp_path / "files", size))
    assert {found["keys_checked"] for found in figures["counts"].values()} == {50}
    assert {found["keys_checked"] for found in figures["upserts"].values()} == {200}
    assert {found["commits"] for found in figures["upserts"].values()} == {3}
    assert {found["keys_checked"] for found in figures["large_upserts"].values()} == {300}


@_needs_broker
@_slow
@pytest.mark.spark
def test_no_record_of_a_continuous_run_is_lost_or_doubled(tmp_path: Path) -> None:
    figures = _read(latency.run(tmp_path, latency.Size(rows_per_s=100, warm_up_seconds=1, seconds=4, keys=7)))
    assert (figures["rows"], figures["rows_lost"], figures["rows_doubled"]) == (400, 0, 0)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]


@_needs_broker
@_slow
@pytest.mark.spark
def test_rows_of_the_kafka_sink_of_a_plain_producer_and_of_a_job_are_in_the_topic_once(tmp_path: Path) -> None:
    size = kafka_sink.Size(rows=1_000, large=1, small_rows=3, small=2, job_batches=2)
    figures = _read(kafka_sink.run(tmp_path / "files", size))
    assert all(figures[f"{name}_rows_per_s"] > 0 for name in ("publish", "peer", "job"))


@pytest.mark.slow(reason="starts sixteen processes")
def test_each_kind_of_operator_runs_with_and_without_metrics() -> None:
    sizes = metrics_cost.Sizes(pairs=2, rows=300, warm_up=0, iterations=1)
    found = metrics_cost.measure(metrics_cost.KINDS, sizes)
    assert set(found["ratios"]) == set(metrics_cost.KINDS)
    assert all(0 < ratio["median"] < 10 for ratio in found["ratios"].values())


@pytest.mark.slow(reason="starts twelve processes")
def test_the_job_root_of_a_run_has_the_data_for_its_pages_unless_they_are_replaced(tmp_path: Path) -> None:
    sizes = history_cost.Sizes(rounds=2, warm_up=0, batches=2, rows=50)
    found = history_cost.measure(tmp_path, sizes, (history_cost.RUN, history_cost.IN_BUCKET))
    for case in (history_cost.RUN, history_cost.IN_BUCKET):
        assert all(0 < ratio["median"] < 10 for ratio in found[case]["ratios"].values())
        stored = found[case]["stored_bytes"]
        assert stored["all"]["run-files"] > 0 and stored["all"]["history"] > stored["none"]["history"] > 0
        assert "backlog" in stored["all"]
        assert not {"run-files", "backlog"} & {*stored["metrics"], *stored["none"]}
        assert found[case]["calls"]["run_record"] == 1 and found[case]["spent_ms"]["graph"] > 0
