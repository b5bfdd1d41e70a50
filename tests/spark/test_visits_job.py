"""Timers between the rows of a batch in whole runs: killed, resumed, rescaled, drained, on Spark and without it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import visits
from tests.support import job_fixture, root_files
from tests.support.processes import Ended, fork, spawn

Row = tuple[str, int]


def _rows() -> list[Row]:
    """In order of event time; a key's next row is sometimes in its visit, and sometimes after it."""
    chance, at, rows = random.Random(3), 1000, []
    for _ in range(120):
        at += chance.choice([1, 5, 20, 60, 90])
        rows.append((chance.choice("wxyz"), at))
    return rows


ROWS = _rows()


def _expected(rows: list[Row]) -> Counter[tuple[str, int, int, int]]:
    """All visits of these rows."""
    found: dict[str, list[list[int]]] = {}
    for key, at in rows:
        own = found.setdefault(key, [])
        if own and at - own[-1][-1] <= visits.GAP:
            own[-1].append(at)
        else:
            own.append([at])
    return Counter((key, of[0], of[-1], len(of)) for key, own in found.items() for of in own)


class VisitsBox(job_fixture.JobFixture):
    """The job without Spark, or on it; batches that hold several visits of a key."""

    def __init__(self, folder: Path, spark: bool = False) -> None:
        settings = {
            "job__home": folder,
            "job__spark": "yes" if spark else "no",
            "max_parallelism": 8,
            "source__max_rows_per_batch": 40 if spark else 15,
            "requests__interval": "20ms",
        }
        super().__init__(folder, settings, launcher=spawn if spark else fork)

    @property
    def job_file(self) -> str:
        return visits.__file__

    def deliver(self, count: int) -> None:
        (self.folder / "events.json").write_text(json.dumps(ROWS[:count]))

    def visits(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in FolderSink(self.folder / "visits").rows())


def _box(folder: Path, spark: bool = False) -> Iterator[VisitsBox]:
    box = VisitsBox(folder, spark)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[VisitsBox]:
    yield from _box(tmp_path)


@pytest.fixture(params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def any_box(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[VisitsBox]:
    yield from _box(tmp_path, spark=request.param == "spark")


def test_each_visit_ends_before_the_next_row_of_its_key_at_any_parallelism(any_box: VisitsBox) -> None:
    box = any_box
    for count, parallelism in ((50, 1), (90, 3), (len(ROWS), 2)):
        box.deliver(count)
        box.finish(parallelism=parallelism)
    ended = box.visits()
    assert ended < _expected(ROWS)
    drained = _run_draining(box)
    assert (drained.result["stopped_because"], _mentions_draining(drained)) == ("drained", False), str(drained)
    assert box.visits() == _expected(ROWS)


def test_a_run_that_was_to_drain_and_did_not_says_so(box: VisitsBox) -> None:
    box.deliver(60)
    ended = _run_draining(box, "--set", "run.max_batches=1")
    assert (ended.result["stopped_because"], _mentions_draining(ended)) == ("batches", True), str(ended)
    assert box.visits() < _expected(ROWS[:60])


def _run_draining(box: VisitsBox, *more: str) -> Ended:
    """A run by the command line's option, which must end well."""
    result = box.folder / "result.json"
    words = ("run", box.job_file, "--drain", "--result-file", str(result), *more)
    ended = box.begin(*words, with_job=True).wait()
    assert ended.code == 0, str(ended)
    return replace(ended, result=json.loads(result.read_text()))


def _mentions_draining(ended: Ended) -> bool:
    """Whether a line that the run wrote for people, other than its result, is about the option."""
    return "drain" in ended.err


@pytest.mark.parametrize(
    "failpoint",
    job_fixture.mostly_slow(
        [
            "task.processed:3",
            "task.uploaded:5",
            "batch.reported:4",
            "commit.after:2",
            "publish.after:3",
            "task.fired:9",
        ],
        ["task.uploaded:5"],
    ),
)
def test_a_kill_changes_nothing(box: VisitsBox, failpoint: str) -> None:
    box.deliver(len(ROWS))
    box.reach(failpoint, -9)
    box.finish()
    box.finish(run__drain="true")
    assert box.visits() == _expected(ROWS)


def test_a_stop_that_drains_without_a_run_runs_the_job_for_that_alone(any_box: VisitsBox) -> None:
    box = any_box
    box.deliver(60)
    box.finish()
    box.deliver(len(ROWS))
    before = root_files.head(box.root).doc["sources"]
    refused = box.command("stop", "--savepoint", "--drain")
    assert (refused.code, refused.error.code) == (2, "config") and "--job" in refused.err
    _stop(box)
    assert box.visits() == _expected(ROWS[:60])
    assert root_files.head(box.root).doc["sources"] == before
    (savepoint,) = root_files.savepoints(box.root).values()
    assert (savepoint["drained"], savepoint["origin"]) == (True, "stop")
    # It is where the job stands: nothing is left to fire, and no run is needed for another one.
    assert box.command("stop", "--savepoint", "--drain").code == 0


def test_a_stop_that_drains_and_is_killed_is_done_by_the_next_one(box: VisitsBox) -> None:
    box.deliver(60)
    box.finish()
    _stop(box, failpoint="commit.after:1", code=-9)
    _stop(box)
    assert box.visits() == _expected(ROWS[:60])


def _stop(box: VisitsBox, failpoint: str = "", code: int = 0) -> None:
    words = ("stop", "--savepoint", "--drain", "--name", "last", "--request-id", "r1", "--job", box.job_file)
    ended = box.begin(*words, failpoint=failpoint, with_job=True).wait()
    assert ended.code == code, str(ended)
