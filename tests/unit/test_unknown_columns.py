"""An unknown column: the error names the call, the stream, the line of the job, and the closest column first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import WatermarkStrategy
from stateflow.api.functions import Context, KeyedProcessFunction
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import StateflowError
from stateflow.runtime.assembly import load_job
from stateflow.similar_names import closest_first, did_you_mean
from tests.unit.kit import Nowhere


class Order(msgspec.Struct):
    order_id: int
    amount: float
    customer_id: str
    time: datetime


class Keep(KeyedProcessFunction[Order, Order]):
    def process_element(self, row: Order, ctx: Context) -> Any:
        return [row]


LATE = WatermarkStrategy.for_bounded_out_of_orderness(timedelta()).with_timestamp_column("custmer_id")


def _kept(rows: Any) -> Any:
    return rows.key_by("customer_id").process(Keep(), output=Order, uid="keep")


@pytest.mark.parametrize(("call", "called", "stream"), [
    (lambda rows: rows.key_by("custmer_id"), "key_by", "orders"),
    (lambda rows: rows.key_by("time", order_by=["custmer_id"]), "order_by", "orders"),
    (lambda rows: rows.filter(lambda row: True).key_by("custmer_id"), "key_by", "orders"),
    (lambda rows: _kept(rows).key_by("custmer_id"), "key_by", "keep"),
    (lambda rows: _kept(rows).union(rows).key_by("custmer_id"), "key_by", "keep, orders"),
    (lambda rows: rows.assign_timestamps_and_watermarks(LATE), "assign_timestamps_and_watermarks", "orders"),
])  # fmt: skip
def test_the_error_names_the_call_and_the_line(call: Callable[[Any], Any], called: str, stream: str) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        call(env.from_collection([], Order, uid="orders"))

    with pytest.raises(StateflowError) as raised:
        declare(build, "job", ())
    facts = raised.value.facts
    assert (facts["column"], facts["row_class"]) == ("custmer_id", "Order")
    assert (facts["called"], facts["stream"]) == (called, stream)
    assert facts["where"] == f"{__file__}:{call.__code__.co_firstlineno}"
    assert raised.value.hint.endswith("customer_id, order_id, amount, time")


def test_an_aggregate_over_an_unknown_column_names_the_operator() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([], Order, uid="orders").key_by("customer_id")
        rows.aggregate_columns({"total": ("sum", "amuont")}, output=Order, uid="totals").sink_to(Nowhere())

    with pytest.raises(StateflowError) as raised:
        declare(build, "job", ())
    assert raised.value.facts["operator"] == "totals"


def test_an_error_at_the_top_of_a_job_file_names_its_line(tmp_path: Path) -> None:
    job = tmp_path / "top_level_mistake.py"
    job.write_text("from stateflow import FileSource\n\nROWS = FileSource('in', schema=int)\n")
    with pytest.raises(StateflowError) as raised:
        load_job(job)
    assert raised.value.facts["where"] == f"{job}:3"


def test_names_like_the_wrong_one_come_first() -> None:
    assert closest_first("ORDR", ["time", "order", "orders", "x"]) == ["order", "orders", "time", "x"]
    assert did_you_mean("jsn", ["csv", "json"]) == "did you mean 'json'?"
    assert did_you_mean("zzz", ["csv", "json"]) == "known are csv, json"
