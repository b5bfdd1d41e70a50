"""dags/jobs/fleet.py on Spark over real flights: killed, resumed, rescaled and drained, its tables row for row those
that plain Python computes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flights_demo.expected import read_flights
from flights_demo.flights import SCHEMA, csv_file

from stateflow.query import state_entries
from tests.spark.fleet import UNKNOWN, Flight, Oracle, deliveries
from tests.support import delta_tables, root_files
from tests.support.job_fixture import JobFixture
from tests.support.processes import ROOT, spawn, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="runs of Spark over real flights of months")]

TABLES = ("aircraft_days", "carrier_days", "late_flights")
_FIRST_MTIME = 1_700_000_000


class FleetJob(JobFixture):
    """The job with its input and its expected output."""

    def __init__(self, folder: Path, flights: list[Flight], files_per_batch: int) -> None:
        settings = {
            "job__flights": folder / "landing",
            "job__tables": folder / "tables",
            "source__max_files_per_batch": files_per_batch,
            "spark__conf__spark.local.dir": folder / "spark",
            "requests__interval": "20ms",
        }
        super().__init__(folder, settings, launcher=spawn)
        (folder / "landing").mkdir()
        self.oracle = Oracle()
        self._files = deliveries(flights)
        self._files_per_batch = files_per_batch
        self._arrived = 0

    @property
    def job_file(self) -> str:
        return str(ROOT / "dags" / "jobs" / "fleet.py")

    def deliver(self, batches: int) -> None:
        """Delivers the files of so many more batches to the job and to the oracle."""
        for _ in range(batches):
            numbers = range(self._arrived, self._arrived + self._files_per_batch)
            for number in numbers:
                unknown = [
                    {**row, "tailnum": None} if row["tailnum"] == UNKNOWN else row for row in self._files[number]
                ]
                path = self.folder / "landing" / f"{number:02d}.parquet"
                pq.write_table(pa.Table.from_pylist(unknown, SCHEMA), path)
                os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))
            self.oracle.take([row for number in numbers for row in self._files[number]])
            self._arrived = numbers.stop

    def drain(self, failpoint: str, **settings: Any) -> None:
        """A run that is stopped with a savepoint after all timers; it waits for the request at a failpoint."""
        self.marker.unlink(missing_ok=True)
        run = self.start(f"{failpoint}:stop", **settings)
        run.wait_stopped(run.family)
        requester = self.begin("stop", "--savepoint", "--drain", "--timeout", "120")
        wait_for(lambda: any((self.root / "requests").glob("*")), lambda: "the request")
        run.resume()
        asked, ended = requester.wait(), run.wait(run.family)
        assert (asked.code, ended.code) == (0, 0), f"{asked}\n{ended}"
        (made,) = root_files.savepoints(self.root).values()
        assert made["drained"] is True
        self.oracle.drain()

    def check(self) -> None:
        """Tables and state are the oracle's, with every row once; a failure shows a few of the differences."""
        for name in TABLES:
            rows = Counter(tuple(row.values()) for row in delta_tables.rows(self.table(name)))
            expected: Counter[tuple[Any, ...]] = getattr(self.oracle, name)
            wrong, missing = [*(rows - expected)], [*(expected - rows)]
            assert (name, wrong[:3], missing[:3]) == (name, [], [])
        state = {(e.state, e.key, e.map_key): e.value for e in state_entries(str(self.root), "aircraft-days")}
        assert sorted(state.keys() ^ self.oracle.state.keys(), key=str)[:3] == []
        assert state == self.oracle.state


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetJob]:
    job = FleetJob(tmp_path / "job", [f for f in read_flights(csv_file()) if f["carrier"] in ("FL", "WN")], 3)
    yield job
    job.end_all()
    for process in job.processes:
        process.wait_family()


def test_a_quarter_is_right_when_killed_resumed_at_another_parallelism_and_drained(fleet: FleetJob) -> None:
    fleet.deliver(4)
    fleet.reach("batch.reported:2", -9)
    # Three batches remain, and one without rows for the days that are over by then.
    fleet.drain("batch.reported:4", parallelism=3)
    fleet.check()
    assert fleet.oracle.returned and fleet.oracle.late_flights and fleet.oracle.forgotten
