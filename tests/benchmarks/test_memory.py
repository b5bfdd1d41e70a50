"""The memory benchmark at a small size: it finds the workers and their peaks, which stay below the sum."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.memory import MIB, Size
from tests.benchmarks.processes import alone

_TINY = Size(keys=4000, updates=1000, rows_per_file=1000)


@pytest.mark.slow(reason="runs a benchmark")
@pytest.mark.spark
def test_workers_stay_below_the_sum_of_the_settings_and_hold_their_libraries(tmp_path: Path) -> None:
    figures = alone(memory.measure, tmp_path, _TINY)
    assert figures["state_mib"] > 4000 * 4096 / MIB
    assert figures["workers"] >= 2
    # A worker has at least that much.
    assert 50 < figures["peak_mib"] < figures["bound_mib"]


def test_the_sum_names_every_setting() -> None:
    size = Size(
        base_bytes=1,
        write_buffer_bytes=10,
        block_cache_bytes=100,
        sort_memory_bytes=10_000,
        rows_per_arrow_batch=10,
        copies=10,
        value_bytes=10,
    )
    assert size.bound == 1 + 2 * 10 + 100 + 10_000 + 1000


def test_the_state_of_the_full_size_is_twenty_times_the_sum() -> None:
    assert Size().keys * Size().value_bytes >= 20 * Size().bound


def test_a_process_that_is_no_daemon_s_is_no_worker() -> None:
    assert memory.workers(os.getpid()) == []


def test_the_peak_counts_memory_that_was_released() -> None:
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert memory.peak_bytes(os.getpid()) > 64 * MIB
