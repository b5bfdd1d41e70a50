"""Rich functions, the short forms on keyed streams, collections and print, on Spark and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import UserCodeError
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import short_forms
from tests.support.errors import reported_error

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """The job's folder after two runs of small batches, and what they printed."""

    home: Path
    printed: list[list[str]]

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in FolderSink(self.home / name).rows()]


def _run(home: Path, runner: str, *more: str) -> subprocess.CompletedProcess[str]:
    settings = (
        f"job.home={home}",
        f"job.spark={'yes' if runner == 'spark' else 'no'}",
        f"local_dir={home / 'local'}",
        "source.max_rows_per_batch=2",
        "parallelism=2",
        *more,
    )
    assignments = [word for each in settings for word in ("--set", each)]
    command = [sys.executable, "-m", "stateflow", "run", short_forms.__file__, "--job-root", str(home / "root")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *assignments], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def runner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ran(runner: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = tmp_path_factory.mktemp(f"short-{runner}")
    printed = []
    for bound in (("run.max_batches=2",), ()):
        done = _run(home, runner, *bound)
        assert done.returncode == 0, done.stderr[-6000:]
        printed.append([line for line in done.stdout.splitlines() if line.startswith("(")])
    return Ran(home, printed)


def test_count_window_average_prints_1_4_and_1_5(ran: Ran) -> None:
    """The first pair of values is in one batch, the second ends in another run."""
    assert ran.printed == [["(1,4)"], ["(1,5)"]]


def test_a_rich_map_function_has_state_for_each_key(ran: Ran) -> None:
    assert Counter(ran.rows("map")) == Counter(
        [(1, "1: 3"), (2, "1: 10"), (1, "2: 5"), (1, "3: 7"), (2, "2: 30"), (1, "4: 4"), (1, "5: 2")]
    )


def test_a_rich_filter_function_has_state_for_each_key(ran: Ran) -> None:
    assert Counter(ran.rows("filter")) == Counter([(1, 3), (2, 10), (1, 5), (1, 7), (2, 30)])


def test_reduce_emits_what_has_come_of_all_rows_so_far(ran: Ran) -> None:
    assert Counter(ran.rows("reduce")) == Counter([(1, 3), (2, 10), (1, 8), (1, 15), (2, 40), (1, 19), (1, 21)])


def test_aggregate_emits_the_result_so_far(ran: Ran) -> None:
    assert Counter(ran.rows("aggregate")) == Counter(
        [(1, "3/1"), (2, "10/1"), (1, "8/2"), (1, "15/3"), (2, "40/2"), (1, "19/4"), (1, "21/5")]
    )


def test_map_with_state_gets_none_at_first_and_then_what_it_returned(ran: Ran) -> None:
    assert Counter(ran.rows("map_with_state")) == Counter(
        [(1, "None 3"), (2, "None 10"), (1, "3 5"), (1, "5 7"), (2, "10 30"), (1, "7 4"), (1, "4 2")]
    )


def test_flat_map_with_state_emits_any_number_of_rows(ran: Ran) -> None:
    assert Counter(ran.rows("flat_map_with_state")) == Counter({(1, 5): 2, (2, 30): 2, (1, 4): 2})


def test_filter_with_state_clears_by_returning_none(ran: Ran) -> None:
    assert Counter(ran.rows("filter_with_state")) == Counter([(1, 5), (2, 30), (1, 4)])


def test_a_row_function_that_fails_names_itself_and_the_row(runner: str, tmp_path: Path) -> None:
    done = _run(tmp_path, runner, "job.fails=yes")
    error = reported_error(done.stderr)
    assert (done.returncode, error.code) == (UserCodeError.exit_code, UserCodeError.code), done.stderr[-3000:]
    assert (error.facts["function"], error.facts["row"]) == ("refuse_seven", "Pair(key=1, value=7)")
    assert "ValueError" in done.stderr and "seven is not welcome" in done.stderr
    reduced = [tuple(row.values()) for row in FolderSink(tmp_path / "reduce").rows()]
    assert Counter(reduced) == Counter([(1, 3), (2, 10)]), "the batch leaves nothing behind"
