"""Every benchmark runs, at a size at which its figures have no meaning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from benchmarks import (
    asynchronous,
    bulk_load,
    garbage,
    harness,
    increments,
    killed_driver,
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
from benchmarks.cells import CELLS, GOAL, Cell, selected
from benchmarks.competitors import COMPETITORS
from benchmarks.data import UNIFORM, ZIPF, Events, write_events
from benchmarks.large_state import Size
from benchmarks.peers.final import Final, check_final
from benchmarks.processes import ProgramFailed, Usage, run_program
from benchmarks.soak_leg import Sample
from benchmarks.stores import LookUps


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")


def test_the_harness_benchmark_runs(tmp_path: Path) -> None:
    size = harness.Size(batches=2, rows_per_batch=500, keys=50, rows_per_arrow_batch=200)
    assert harness.figures(tmp_path, size)["harness_row"] > 0


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_the_start_benchmark_runs(tmp_path: Path) -> None:
    path = start.run(tmp_path, start.Size(idle=1, with_spark=1))
    figures = json.loads(path.read_text())
    assert 0 < figures["idle_run_s"] < figures["spark_run_s"]


def test_the_state_benchmark_runs(tmp_path: Path) -> None:
    figures = state.measure(tmp_path, keys=300)
    assert figures["keys"] == 300 and figures["dataframe_rows_per_s_core"] > 0


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_the_state_benchmark_has_the_figures_of_all_goals(tmp_path: Path, spark_session: SparkSession) -> None:
    figures = json.loads(state.run(tmp_path, keys=2_000).read_text())
    goals = ("dataframe_rows_per_s_core", "diff_read_fraction", "diff_s", "write_ratio")
    assert all(figures[name] >= 0 for name in goals)


@pytest.mark.slow(reason="runs a benchmark")
def test_the_savepoint_benchmark_runs(tmp_path: Path) -> None:
    path = savepoints.run(tmp_path, Size(keys=400, slice=200, rows=5), flink=False)
    assert json.loads(path.read_text())["keys"] == 400


def test_the_garbage_benchmark_runs(tmp_path: Path) -> None:
    path = garbage.run(tmp_path, garbage.Size(files=40, checkpoints=5))
    assert json.loads(path.read_text())["files_40_s"] > 0


@pytest.mark.slow(reason="runs a benchmark")
def test_the_asynchronous_benchmark_runs(tmp_path: Path) -> None:
    size = asynchronous.Size(keys=400, changed=20, slice=100, warm_up=2, blocks=2, batches=10)
    assert json.loads(asynchronous.run(tmp_path, size).read_text())["keys"] == 400


def test_the_increments_benchmark_runs(tmp_path: Path) -> None:
    size = increments.Size(keys=2_000, batches=3, early=1, look_ups=LookUps(keys=200, rounds=1))
    assert json.loads(increments.run(tmp_path, size).read_text())["keys"] == 2_000


def test_the_restore_benchmark_runs(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed_driver, "measure", lambda *_: {"recovery_s": 1})
    path = restore.run(tmp_path, restore.Size(keys=2_000, repeats=1), elsewhere)
    assert json.loads(path.read_text())["fetch_speed_vs_copy"] > 0


_SHORT = soak.Size(batches=60, spark_batches=0, keys=300, value_bytes=100, runs=2, idle_runs=1)


@pytest.mark.slow(reason="runs a benchmark")
def test_the_soak_benchmark_runs(tmp_path: Path) -> None:
    figures = json.loads(soak.run(tmp_path, _SHORT).read_text())["without_spark"]
    assert (figures["batches"], figures["restarts"], figures["restores"]) == (61, 3, 1)
    assert figures["rss_mib"]["driver"] > 20 and figures["log_entries"]["max_second_half"] > 0


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_the_soak_benchmark_runs_on_spark(tmp_path: Path) -> None:
    size = replace(_SHORT, batches=0, spark_batches=60)
    figures = json.loads(soak.run(tmp_path, size).read_text())["with_spark"]
    assert figures["rss_mib"].keys() == {"driver", "workers", "jvm", "heap"}


def test_memory_that_grows_is_distinguished_from_peaks() -> None:
    def run(*resident: float) -> list[Sample]:
        return [Sample(10 * n, 1.0, 1.0, 1.0, {"driver": mib}, {}) for n, mib in enumerate(resident, 1)]

    start, saw = [50.0] * 5, [100.0, 100.0, 130.0, 100.0, 100.0]
    assert soak.growth([run(*start, *saw * 9)], "driver") == 0
    assert soak.growth([run(*start, *saw * 8, *[140.0] * 5)], "driver") == 40
    assert soak.growth([run(*start, *saw * 9), run(*[115.0] * 5)], "driver") == 15


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_a_killed_driver_recovers_after_a_measured_time(tmp_path: Path) -> None:
    figures = killed_driver.measure(tmp_path, kills=1, events=Events(files=300, rows_per_file=10, keys=5))
    assert figures["recovery_s"] > 0


@pytest.mark.slow(reason="runs a benchmark")
def test_the_rescaling_benchmark_runs(tmp_path: Path) -> None:
    figures = rescale.measure(tmp_path, rescale.Size(keys=2_000), repeats=1)
    assert figures["keys"] == 2_000


@pytest.mark.slow(reason="runs a benchmark")
def test_the_benchmark_of_bulk_loading_runs(tmp_path: Path) -> None:
    figures = bulk_load.measure(tmp_path, bulk_load.Size(keys=2_000), repeats=1)
    assert figures["keys"] == 2_000 and figures["canonical_bytes"] > 2_000 * 200


def test_the_benchmark_of_comparing_checkpoints_runs(tmp_path: Path) -> None:
    figures = state_diff.measure(tmp_path, state_diff.Size(keys=2_000), repeats=1)
    assert figures["changed_keys"] == figures["listed_keys"] == 20


_NOT_HERE = {"flink_sql", "flink_sql_example", "vectorized_rows"}
"""The first two need an environment of their own, whose set-up takes minutes; the third runs in the harness."""
_TINY = Cell(rows_per_batch=200, keys=20, distribution=ZIPF, events=800)


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(COMPETITORS.keys() - _NOT_HERE))
def test_a_competitor_ends_with_what_numpy_computes(name: str, tmp_path: Path) -> None:
    found = throughput.measure(tmp_path / "cell", _TINY, {name: COMPETITORS[name]})
    figures = found["competitors"][name]
    assert "failed" not in figures, figures
    assert figures["keys_checked"] > 10
    assert figures["rows_behind_first"] == figures["events"] - 200


def test_a_wrong_sum_count_or_name_of_one_key_is_found(tmp_path: Path) -> None:
    write_events(tmp_path / "events", Events(files=2, rows_per_file=100, keys=5))
    keys = np.arange(5)
    counts, totals = _computed(tmp_path / "events")
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


def _computed(events: Path) -> tuple[np.ndarray, np.ndarray]:
    from pyarrow import parquet

    rows = parquet.read_table(events).to_pylist()
    of_key = [[row["value"] for row in rows if row["key"] == key] for key in range(5)]
    return np.array([len(values) for values in of_key]), np.array([sum(values) for values in of_key])


def test_a_zipf_cell_has_its_first_key_n_times_as_often_as_its_nth(tmp_path: Path) -> None:
    from pyarrow import parquet

    write_events(tmp_path / "events", Events(files=2, rows_per_file=100_000, keys=1000, distribution=ZIPF))
    counts = np.bincount(parquet.read_table(tmp_path / "events")["key"].to_numpy(), minlength=1000)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.1)
    assert counts[0] / counts.sum() == pytest.approx(1 / sum(1 / n for n in range(1, 1001)), rel=0.05)


def test_cells_are_selected_by_name_and_the_goal_is_one_of_them() -> None:
    assert GOAL in CELLS and len(CELLS) == 8
    assert selected(["1m-100k-uniform"], 2_000_000) == [Cell(1_000_000, 100_000, UNIFORM, 2_000_000)]
    assert selected([]) == CELLS
    with pytest.raises(ValueError):
        selected(["1m"])


def test_a_cell_that_is_not_measured_stays_in_the_results() -> None:
    results.merge_result("throughput", {"row_vs_spark_agg": 2}, {"cells": {"a": {"x": 1}, "b": {"x": 1}}})
    path = results.merge_result("throughput", {}, {"cells": {"b": {"x": 2}}})
    document = json.loads(path.read_text())
    assert document["cells"] == {"a": {"x": 1}, "b": {"x": 2}}
    assert document["row_vs_spark_agg"] == 2


def test_cpu_time_between_two_times_is_that_of_the_samples_between() -> None:
    usage = Usage(times=[0.0, 1.0, 2.0, 4.0], cpu=[0.0, 1.0, 3.0, 3.0])
    assert usage.cpu_between(1.0, 2.0) == 2
    assert usage.cpu_between(0.5, 1.5) == 1.5
    assert usage.cpu_between(-1.0, 9.0) == 3


def test_the_error_of_a_program_that_fails_has_its_output(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="no such thing") as raised:
        run_program(["bash", "-c", "printf '%s such thing' no; exit 3"], {}, tmp_path / "output.txt")
    assert raised.value.reason == "ended with 3"


def test_a_program_that_does_not_end_is_killed_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed) as raised:
        run_program(["sleep", "600"], {}, tmp_path / "output.txt", limit_seconds=0)
    assert raised.value.reason == "did not end within 0 s"


@pytest.mark.slow(reason="runs a benchmark")
def test_the_query_benchmark_runs(tmp_path: Path) -> None:
    path = query.run(tmp_path, query.Size(keys=5_000, slice=2_000, changed=500, blocks=3, batches=40))
    figures = json.loads(path.read_text())
    assert figures["gets_per_s"] > 0 and figures["visible_after_ms"]["checkpoints"] > 0
