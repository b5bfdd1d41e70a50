"""An unknown column: the error names the call, the stream, the line of the job, and the closest column first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import WatermarkStrategy
from stateflow.api.schema import RowSchema
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import JobDefinitionError
from stateflow.helpers import closest_first, did_you_mean
from stateflow.runtime.job_loader import load_job
from tests.support.errors import raises
from tests.support.graphs import Nowhere, Pass


class Order(msgspec.Struct):
    order_id: int
    amount: float
    customer_id: str
    time: datetime


LATE = WatermarkStrategy.for_bounded_out_of_orderness(timedelta()).with_timestamp_column("custmer_id")


def _kept(rows: Any) -> Any:
    return rows.key_by("customer_id").process(Pass(), output=Order, uid="keep")


@pytest.mark.parametrize(
    ("call", "called", "stream"),
    [
        (lambda rows: rows.key_by("custmer_id"), "key_by", "orders"),
        (lambda rows: rows.key_by("time", order_by=["custmer_id"]), "order_by", "orders"),
        (lambda rows: rows.filter(lambda row: True).key_by("custmer_id"), "key_by", "orders"),
        (lambda rows: _kept(rows).key_by("custmer_id"), "key_by", "keep"),
        (lambda rows: _kept(rows).union(rows).key_by("custmer_id"), "key_by", "keep, orders"),
        (lambda rows: rows.assign_timestamps_and_watermarks(LATE), "assign_timestamps_and_watermarks", "orders"),
    ],
)
def test_the_error_names_the_call_and_the_line(call: Callable[[Any], Any], called: str, stream: str) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        call(env.from_collection([], Order, uid="orders"))

    where = f"{__file__}:{call.__code__.co_firstlineno}"
    facts = {"column": "custmer_id", "row_class": "Order", "called": called, "stream": stream, "where": where}
    with raises(JobDefinitionError, **facts) as refused:
        declare(build, "job", ())
    assert "customer_id, order_id, amount, time" in refused.value.hint


def test_an_aggregate_over_an_unknown_column_names_the_operator() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([], Order, uid="orders").key_by("customer_id")
        rows.aggregate_columns({"total": ("sum", "amuont")}, output=Order, uid="totals").sink_to(Nowhere())

    with raises(JobDefinitionError, operator="totals"):
        declare(build, "job", ())


def test_an_error_at_the_top_of_a_job_file_names_its_line(tmp_path: Path) -> None:
    job = tmp_path / "top_level_mistake.py"
    job.write_text("from stateflow import FileSource\n\nROWS = FileSource('in', schema=int)\n")
    with raises(JobDefinitionError, where=f"{job}:3"):
        load_job(job)


def test_names_like_the_wrong_one_come_first() -> None:
    assert closest_first("ORDR", ["time", "order", "orders", "x"]) == ["order", "orders", "time", "x"]
    alike = did_you_mean("jsn", ["csv", "json"])
    assert "json" in alike and "csv" not in alike
    assert "csv, json" in did_you_mean("zzz", ["csv", "json"])
    schema = RowSchema.of(Order)
    assert schema.column("amount").spark_type == "double"
    with raises(JobDefinitionError, column="Amount", row_class="Order"):
        schema.column("Amount")
