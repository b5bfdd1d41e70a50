"""The tests' Spark session, by the name that tests here use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(spark_session: SparkSession) -> SparkSession:
    """A session that can read and write Delta tables by path."""
    return spark_session
