"""dags/jobs/fleet.py on Spark over real flights: killed, resumed, rescaled and drained, its tables row for row those
that plain Python computes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flights_demo.expected import read_flights
from flights_demo.flights import SCHEMA, csv_file

from tests.recovery import disk
from tests.recovery.flights import delta_rows
from tests.recovery.harness import Box
from tests.recovery.process import ROOT, spawn, wait_for
from tests.spark.fleet import UNKNOWN, Flight, Oracle, deliveries

pytestmark = pytest.mark.spark

TABLES = ("aircraft_days", "carrier_days", "late_flights")
_FIRST_MTIME = 1_700_000_000


class FleetBox(Box):
    """The job, what has arrived for it, and what must have come of that."""

    def __init__(self, folder: Path, flights: list[Flight]) -> None:
        landing = {"job__flights": folder / "landing", "job__tables": folder / "tables"}
        scratch = {"spark__conf__spark.local.dir": folder / "spark", "requests__interval": "20ms"}
        super().__init__(folder, landing | scratch, launcher=spawn)
        self.oracle = Oracle()
        self._files = deliveries(flights)
        self._arrived = 0

    @property
    def job_file(self) -> str:
        return str(ROOT / "dags" / "jobs" / "fleet.py")

    def deliver(self, files: int) -> None:
        """Makes that many more files arrive, and the oracle take them: a file is a batch."""
        landing = self.folder / "landing"
        landing.mkdir(exist_ok=True)
        for number in range(self._arrived, self._arrived + files):
            rows = self._files[number]
            known = [
                {**row, "tailnum": None if row["tailnum"] == UNKNOWN else row["tailnum"]} for row in rows
            ]
            path = landing / f"{number:02d}.parquet"
            pq.write_table(pa.Table.from_pylist(known, SCHEMA), path)
            os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))
            self.oracle.take(rows)
        self._arrived += files

    def drain(self, failpoint: str, **settings: Any) -> None:
        """A run that stands still at a failpoint when somebody stops it with a savepoint after all timers."""
        self.marker.unlink(missing_ok=True)
        run = self.start(f"{failpoint}:stop", **settings)
        run.wait_stopped(run.family)
        asker = self.begin("stop", "--savepoint", "--drain", "--timeout", "120")
        wait_for(lambda: any((self.root / "requests").glob("*")), lambda: "the request")
        run.resume()
        asked, ended = asker.wait(), run.wait(run.family)
        assert (asked.code, ended.code) == (0, 0), f"{asked}\n{ended}"
        (made,) = disk.savepoints(self.root).values()
        assert made["drained"] is True
        self.oracle.drain()

    def check(self) -> None:
        """The tables have the oracle's rows, each as often as it should be there, and no others."""
        for name in TABLES:
            rows = Counter(tuple(row.values()) for row in delta_rows(self.table(name)))
            expected: Counter[tuple[Any, ...]] = getattr(self.oracle, name)
            # A few of each: a comparison of all would print all.
            wrong, missing = [*(rows - expected)], [*(expected - rows)]
            assert (name, wrong[:3], missing[:3]) == (name, [], [])


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[[list[Flight]], FleetBox]]:
    boxes: list[FleetBox] = []

    def make(flights: list[Flight]) -> FleetBox:
        boxes.append(FleetBox(tmp_path / "job", flights))
        return boxes[-1]

    yield make
    for box in boxes:
        box.end_all()
        for process in box.processes:
            process.wait_family()


def test_some_carriers_are_right_when_killed_resumed_at_another_parallelism_and_drained(
    make_box: Callable[[list[Flight]], FleetBox],
) -> None:
    box = make_box([f for f in read_flights(csv_file()) if f["carrier"] in ("FL", "WN")])
    box.deliver(5)
    box.reach("batch.reported:3", -9)
    # It has three batches to go, and then one without rows for the days that are over by then.
    box.drain("batch.reported:4", parallelism=3)
    box.check()
    assert box.oracle.returned and box.oracle.late_flights


@pytest.mark.slow
def test_the_whole_year_is_right_whoever_is_killed_and_at_whatever_parallelism(
    make_box: Callable[[list[Flight]], FleetBox],
) -> None:
    box = make_box(read_flights(csv_file()))
    box.deliver(12)
    box.reach("commit.after:7", -9)
    box.deliver(12)
    # A worker: Spark tries its task again.
    box.reach("task.fired:5", 0, parallelism=3)
    box.check()
    box.deliver(12)
    # There are three tables, and not all get rows in each batch.
    box.reach("publish.after:14", -9, parallelism=3)
    box.deliver(11)
    box.finish()
    box.check()
    assert box.oracle.returned > 3000 and len(box.oracle.late_flights) > 3000
    box.deliver(1)
    box.drain("batch.reported:2")
    box.check()
