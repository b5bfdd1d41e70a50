"""Tables that look-up joins read through Spark, and that other writers change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Airport = tuple[str, str, int, float | None, datetime]
"""Code, city, altitude, latitude, and when it was opened."""


class AirportTable(ABC):
    """A table of airports."""

    @abstractmethod
    def write(self, *airports: Airport) -> None:
        """Replaces the content."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """Returns the content, as a job reads it."""


@dataclass(frozen=True)
class ParquetAirports(AirportTable):
    """A folder of Parquet files."""

    folder: Path

    def write(self, *airports: Airport) -> None:
        self.folder.mkdir(exist_ok=True)
        pq.write_table(_arrow(airports), self.folder / "airports.parquet")

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(self.folder))


@dataclass(frozen=True)
class DeltaAirports(AirportTable):
    """A Delta table, which another library than Spark writes."""

    folder: Path

    def write(self, *airports: Airport) -> None:
        write_deltalake(self.folder, _arrow(airports), mode="overwrite")

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(self.folder))


@dataclass(frozen=True)
class PostgresAirports(AirportTable):
    """A table in PostgreSQL, with a primary key."""

    server: Postgres
    table: str = "public.airports"

    def write(self, *airports: Airport) -> None:
        columns = "faa text PRIMARY KEY, city varchar(40), altitude bigint, latitude double precision, opened timestamp"
        self.server.execute(f"CREATE TABLE IF NOT EXISTS {self.table} ({columns})")
        self.server.execute(f"DELETE FROM {self.table}")
        for row in airports:
            self.server.execute(f"INSERT INTO {self.table} VALUES (%s, %s, %s, %s, %s)", *row)

    def read(self, spark: SparkSession) -> DataFrame:
        login = {"user": "postgres", "password": self.server.password, "driver": "org.postgresql.Driver"}
        return spark.read.jdbc(self.server.jdbc_url, self.table, properties={**login, "preferTimestampNTZ": "true"})


def _arrow(airports: Sequence[Airport]) -> pa.Table:
    columns = [("faa", pa.string()), ("city", pa.string()), ("altitude", pa.int64()), ("latitude", pa.float64())]
    columns.append(("opened", pa.timestamp("us")))
    rows = [dict(zip((name for name, _ in columns), row, strict=True)) for row in airports]
    return pa.Table.from_pylist(rows, pa.schema(columns))
