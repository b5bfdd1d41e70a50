"""dags/jobs/fleet.py on Spark over a few flights: killed, resumed at another parallelism and drained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flights_demo.flights import SCHEMA

from tests.support import delta_tables
from tests.support.job_fixture import KILLED, JobFixture
from tests.support.processes import ROOT, spawn

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]


def _flight(at: str, tailnum: str | None, arr_delay: float | None) -> dict[str, Any]:
    given = {"time": datetime.fromisoformat(at), "tailnum": tailnum, "arr_delay": arr_delay}
    return {"carrier": "UA", "flight": 7, "origin": "EWR", **given}


LATE = _flight("2013-01-01T09:00", "N2", 5.0)
FILES = [
    [
        _flight("2013-01-01T08:00", "N1", 10.0), _flight("2013-01-01T09:00", "N1", None),
        _flight("2013-01-01T07:00", "N2", 4.0), _flight("2013-01-01T07:30", None, 90.0),
    ],
    # Six hours before the last one, the day before has ended.
    [_flight("2013-01-02T06:30", "N1", -2.0)],
    [LATE, _flight("2013-02-10T12:00", "N1", 1.0)],
]  # fmt: skip
FIRST, SECOND, LAST = date(2013, 1, 1), date(2013, 1, 2), date(2013, 2, 10)
TABLES: dict[str, list[tuple[Any, ...]]] = {
    # N1 comes back after more than 30 days.
    "aircraft_days": [
        ("UA", "N1", FIRST, 2, 1, 10.0, FIRST, 1), ("UA", "N1", SECOND, 1, 1, -2.0, FIRST, 2),
        ("UA", "N1", LAST, 1, 1, 1.0, LAST, 1), ("UA", "N2", FIRST, 1, 1, 4.0, FIRST, 1),
    ],
    "carrier_days": [
        ("UA", FIRST, 2, 2, 3, 2, 7.0), ("UA", SECOND, 1, 0, 1, 1, -2.0), ("UA", LAST, 1, 1, 1, 1, 1.0),
    ],
    "late_flights": [tuple(LATE[name] for name in ("time", "carrier", "flight", "origin", "tailnum", "arr_delay"))],
}  # fmt: skip


class FleetJob(JobFixture):
    @property
    def job_file(self) -> str:
        return str(ROOT / "dags" / "jobs" / "fleet.py")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetJob]:
    settings = {"job__flights": tmp_path / "landing", "job__tables": tmp_path / "job" / "tables"}
    job = FleetJob(tmp_path / "job", settings, launcher=spawn)
    (tmp_path / "landing").mkdir()
    for number, flights in enumerate(FILES):
        path = tmp_path / "landing" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(flights, SCHEMA), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    yield job
    job.end_all()
    for process in job.processes:
        process.wait_family()


def test_each_day_of_an_aircraft_and_of_a_carrier_is_counted_once(fleet: FleetJob) -> None:
    fleet.reach("batch.reported:2", KILLED)
    fleet.finish(parallelism=3, run__drain="yes")
    for name, rows in TABLES.items():
        assert sorted(tuple(row.values()) for row in delta_tables.rows(fleet.table(name))) == sorted(rows), name
