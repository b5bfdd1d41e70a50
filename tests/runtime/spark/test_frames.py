"""Frames of a batch."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from stateflow import precision
from stateflow.api.schema import RowSchema
from stateflow.runtime.spark.frames import empty_frame


class _Item(msgspec.Struct):
    amount: Annotated[Decimal, precision(9, scale=2)]


class _Row(msgspec.Struct):
    number: int
    text: str | None
    time: datetime
    items: list[_Item]
    counts: dict[str, float]


def test_an_empty_frame_has_the_declared_columns_and_starts_no_worker(spark_session: SparkSession) -> None:
    schema = RowSchema.of(_Row)
    frame = empty_frame(spark_session, schema)
    assert frame.schema == StructType.fromDDL(schema.ddl)
    assert frame.collect() == []
    # Rows that come from Python would be read by PySpark's worker.
    assert frame.rdd.getNumPartitions() == 0
