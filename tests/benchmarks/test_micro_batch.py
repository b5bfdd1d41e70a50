"""The micro-batch benchmark at a small size: its figures are consistent, whatever the speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import micro_batch
from benchmarks.micro_batch import Size
from tests.benchmarks.processes import alone

pytestmark = [pytest.mark.slow(reason="runs a benchmark"), pytest.mark.spark]


def test_jobs_of_one_to_three_levels_and_spark_alone_are_measured(tmp_path: Path) -> None:
    figures = alone(micro_batch.measure, tmp_path, Size(batches=3, warm_up=1, rows=2))
    by_levels = figures["interval_ms_by_levels"]
    assert list(by_levels) == ["1", "2", "3"]
    assert figures["interval_ms"] == by_levels["1"]
    assert figures["per_further_level_ms"] == pytest.approx((by_levels["3"] - by_levels["1"]) / 2, abs=0.1)
    assert figures["ratio_to_spark_alone"] == pytest.approx(
        by_levels["1"] / figures["spark_alone_interval_ms"], abs=0.01
    )
    assert 0 < figures["batch_ms"] < figures["p90_interval_ms"] * 2
    assert figures["interval_ms_with_synchronous_checkpoints"] > 0
    assert len(list(tmp_path.glob("*/table/_delta_log"))) == 5
