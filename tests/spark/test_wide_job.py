"""A job with every shape of edge on Spark, against plain Python."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.query import read_state
from stateflow.runtime.spark.settings import REQUIRED
from stateflow.testing.sinks import FolderSink
from tests.spark.processes import ended, observed_runs

JOB = Path(__file__).parent / "jobs" / "wide.py"
SLICE = 60
_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Ran:
    """The job's folder after two runs, the first of one batch only, and what the second one said about Spark."""

    home: Path
    observed: dict[str, Any]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = tmp_path_factory.mktemp("wide")
    settings = {"job.home": str(home), "local_dir": str(home / "local")}
    return Ran(home, observed_runs(JOB, home / "root", {**settings, "run.max_batches": "1"}, settings))


@pytest.fixture(scope="module")
def home(ran: Ran) -> Path:
    return ran.home


def _rows(folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in FolderSink(folder).rows())


def _input() -> list[tuple[int, str, int]]:
    return [(i, f"k{i * 7 % 17}", i % 5) for i in range(240)]


def test_an_unkeyed_sink_gets_every_row_once(home: Path) -> None:
    assert _rows(home / "raw") == Counter(_input())


def test_a_keyed_operator_sees_the_rows_of_a_key_in_their_order(home: Path) -> None:
    counts: Counter[str] = Counter()
    expected = []
    for number, key, _ in _input():
        if number % 3:
            counts[key] += 1
            expected.append((key, number, counts[key]))
    assert _rows(home / "seen") == Counter(expected)


def test_two_streams_of_one_frame_have_state_of_their_own(home: Path) -> None:
    keys: defaultdict[int, set[str]] = defaultdict(set)
    expected = []
    for number, key, group in _input():
        if number % 3:
            keys[group].add(key)
            expected.append((group, number, len(keys[group])))
    assert _rows(home / "pairs") == Counter(expected)


def test_an_operator_behind_an_operator_gets_its_rows_through_a_spark_expression(home: Path) -> None:
    counts: Counter[str] = Counter()
    reached: Counter[int] = Counter()
    expected = []
    for first in range(0, 240, SLICE):
        seen = []
        for number, key, _ in _input()[first : first + SLICE]:
            if number % 3:
                counts[key] += 1
                seen.append((number, counts[key]))
        for number, count in sorted(seen):
            if number % 2 == 0:
                reached[count] += 1
                expected.append((str(count), number, reached[count]))
    assert _rows(home / "counts") == Counter(expected)


def test_no_position_is_asked_for_again_after_its_checkpoint(home: Path) -> None:
    asked = [tuple(json.loads(line)) for line in (home / "ledger").read_text().splitlines()]
    assert asked == [(i, i + SLICE) for i in range(0, 240, SLICE)]


def test_the_state_can_be_read_from_outside(home: Path) -> None:
    counts = Counter(key for number, key, _ in _input() if number % 3)
    found = {entry.key[0]: entry.value for entry in read_state(str(home / "root"), "per-key")}
    assert found == counts


# -- what Spark is asked for --------------------------------------------------------------------------------------


def test_a_batch_is_one_action_for_the_whole_graph(ran: Ran) -> None:
    """Two sinks of one frame, two keyed streams and an operator behind an operator: still one. Spark may split it into
    several jobs, but a second action would run tasks again, and their reports would be of other attempts."""
    assert len(ran.observed["batches"]) == 3
    for batch in ran.observed["batches"]:
        outer, ours = batch["executions"]
        # Spark has one around each micro-batch, in which nothing runs.
        assert outer["root"] == outer["id"] == ours["root"]
        assert (outer["jobs"], ours["jobs"]) == (0, batch["all_jobs"])
        assert ours["jobs"] > 0


def test_a_run_makes_spark_compare_the_rows_of_attempts(ran: Ran) -> None:
    assert set(REQUIRED) == {f"{_CHECKSUM}.enabled", f"{_CHECKSUM}.enableFullRetryOnMismatch"}
    assert ran.observed["settings"] == dict.fromkeys(REQUIRED, "true")


def test_a_run_without_that_is_refused(tmp_path: Path) -> None:
    key = f"{_CHECKSUM}.enabled"
    told = ended(
        [
            sys.executable,
            "-m",
            "stateflow",
            "run",
            str(JOB),
            "--job-root",
            str(tmp_path / "root"),
            "--set",
            f"job.home={tmp_path}",
            "--set",
            f"spark.conf.{key}=false",
        ],
        code=2,
    )
    assert "error [config]" in told and key in told and "hint: set it to true" in told
    assert not (tmp_path / "root").exists()
