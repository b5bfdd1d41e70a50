"""The tests' Spark session, by the name that tests here use, and a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.servers.postgres import Postgres, postgres_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(spark_session: SparkSession) -> SparkSession:
    """A session that can read and write Delta tables by path."""
    return spark_session


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server, shared by the tests of a process: each has tables or a schema of its own."""
    with postgres_server() as server:
        yield server
