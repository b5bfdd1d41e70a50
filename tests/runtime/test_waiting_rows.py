"""Rows that wait for another source: their number, what they wait for, and where it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from stateflow import Context, KeyedProcessFunction, RuntimeContext, ValueStateDescriptor, WatermarkStrategy
from stateflow.checkpoint.barriers import combine_spans
from stateflow.checkpoint.log.documents import SourceWatermark, SplitWatermark, TimeSpan
from stateflow.cli.main import main
from stateflow.clock import ManualClock, epoch_milliseconds
from stateflow.environment import StreamExecutionEnvironment
from stateflow.observability import MemoryRecorder
from stateflow.operations.status import describe
from stateflow.runtime.task.task import _spans
from stateflow.runtime.watermarks import Waiting, waiting_for_others, waiting_rows
from stateflow.testing.sinks import FolderSink
from tests.support.local_jobs import Build, Growing, LocalJobs, restore

NOON = epoch_milliseconds(datetime(2026, 1, 20, 12, tzinfo=UTC))
MINUTE = 60_000


class Order(msgspec.Struct):
    product: str
    at: int


class Price(msgspec.Struct):
    product: str
    at: int
    price: int


class Priced(msgspec.Struct):
    product: str
    price: int


_TIMES = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")


def declare(env: StreamExecutionEnvironment, orders: list[int], prices: list[int], kind: type[Growing]) -> None:
    """Declares a join of orders with the price of their time; the rows are given in minutes after noon."""
    left = env.from_source(Growing([Order("a", NOON + at * MINUTE) for at in orders], Order), uid="orders")
    right = env.from_source(kind([Price("a", NOON + at * MINUTE, at) for at in prices], Price), uid="products")
    timed = [each.assign_timestamps_and_watermarks(_TIMES).key_by("product") for each in (left, right)]
    joined = timed[0].temporal_join(timed[1])
    made = joined.apply(lambda order, price: Priced(order.product, price.price), output=Priced, uid="price")
    made.sink_to(FolderSink(env.parameter("out")), uid="out")


class Shop(LocalJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ManualClock(), max_parallelism=8, parallelism=2)
        self.recorded = self.recorder = MemoryRecorder()

    def read(self, orders: list[int], prices: list[int], rows: int = 10_000, kind: type[Growing] = Growing) -> None:
        """Runs the job, given the minutes after noon of all rows so far, with at most `rows` of each in a batch."""

        def build(env: StreamExecutionEnvironment) -> None:
            declare(env, orders, prices, kind)

        self.run(build, job__out=self.folder / "out", source__max_rows_per_batch=rows)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        found = describe(str(self.folder / "root")).waiting
        recorded = self.recorded.gauges["num_records_waiting"]
        assert recorded == sum(each.rows for each in found)
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize("rows", [7, 10_000])
def test_rows_above_the_watermark_wait_for_the_source_with_the_lowest_one(shop: Shop, rows: int) -> None:
    orders = list(range(240))
    shop.read(orders, [0, 11], rows)
    # At 12:11 another price of that minute may follow. So the watermark is a millisecond before it.
    at = NOON + 11 * MINUTE - 1
    (found,) = shop.waiting
    assert found == Waiting("price", "orders", 240 - 11, ("products",), at)
    assert str(found) == "229 rows of orders wait for products, at 2026-01-20T12:11:00"
    assert len(shop.rows()) == 11

    shop.read(orders, [0, 11, 200], rows)
    assert [each.rows for each in shop.waiting] == [40]
    shop.read(orders, [0, 11, 200, 800], rows)
    (turned,) = shop.waiting
    assert str(turned) == "1 row of products waits for orders, at 2026-01-20T15:59:00"
    assert len(shop.rows()) == 239


class Numbered(KeyedProcessFunction[Order, Order]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Order, ctx: Context) -> Iterator[Order]:
        self.count.update((self.count.value() or 0) + 1)
        yield value


@pytest.mark.parametrize("maps", [("counted=numbered",), ("counted=orders", "orders=counted")])
def test_rows_of_a_renamed_operator_still_wait(tmp_path: Path, maps: tuple[str, ...]) -> None:
    jobs = LocalJobs(tmp_path, ManualClock(), max_parallelism=8, parallelism=2)

    def job(source: str, operator: str) -> Build:
        def build(env: StreamExecutionEnvironment) -> None:
            orders = env.from_source(Growing([Order("a", NOON + at * MINUTE) for at in range(9)], Order), uid=source)
            timed = orders.assign_timestamps_and_watermarks(_TIMES).key_by("product")
            counted = timed.process(Numbered(), output=Order, uid=operator).key_by("product")
            prices = env.from_source(Growing([Price("a", NOON + MINUTE, 1)], Price), uid="products")
            joined = counted.temporal_join(prices.assign_timestamps_and_watermarks(_TIMES).key_by("product"))
            made = joined.apply(lambda order, price: Priced(order.product, price.price), output=Priced, uid="price")
            made.sink_to(jobs.sink("out"), uid="out")

        return build

    def waiting() -> list[Waiting]:
        return [each for each in describe(str(jobs.folder / "root")).waiting if each.operator == "price"]

    jobs.run(job("orders", "counted"))
    (before,) = waiting()
    assert (before.input, before.rows) == ("counted", 8)
    new = dict(pair.split("=") for pair in maps)
    restore(jobs, job(new.get("orders", "orders"), new["counted"]), *maps)
    assert waiting() == [replace(before, input=new["counted"])]


def test_the_number_of_rows_with_very_many_times_is_about_right(shop: Shop) -> None:
    shop.read(list(range(5000)), [0])
    (found,) = shop.waiting
    assert found.exact and found.rows == 5000
    shop.read(list(range(5000)), [0, 1307])
    (found,) = shop.waiting
    assert str(found).startswith("about ") and 3693 <= found.rows <= 3713


def test_no_row_waits_for_a_source_that_has_ended_or_after_a_drain(shop: Shop) -> None:
    class Ended(Growing):
        bounded = True

    shop.read(list(range(20)), [0, 11], kind=Ended)
    assert shop.waiting == ()
    assert len(shop.rows()) == 19, "the last order waits for later ones"


@pytest.mark.parametrize("both", [True, False])
def test_rows_wait_for_an_idle_source_only_while_all_are_idle(both: bool) -> None:
    partitions = [SplitWatermark(name=name, watermark=at, active_at=0, idle=both) for name, at in (("0", 8), ("1", 9))]
    orders = SourceWatermark(uid="orders", watermark=8, active_at=0, idle=both, splits=partitions)
    products = SourceWatermark(uid="products", watermark=4, active_at=0, idle=True)
    names = {"orders", "products"}
    chain: Any = SimpleNamespace(uid="op", watermark_sources=names, sources=names, waiting_inputs=("orders",))
    taken = {("op", "orders"): [TimeSpan(first=7, last=7, rows=2)]}
    found = waiting_rows([chain], (), taken, [orders, products], watermarks={"op": 4}, ended=())
    assert waiting_for_others(found) == ((Waiting("op", "orders", 2, ("products",), 4),) if both else ())


def test_a_split_that_holds_its_source_back_is_named() -> None:
    splits = [SplitWatermark(name=name, watermark=at, active_at=0) for name, at in (("t-0", 50), ("t-1", None))]
    source = SourceWatermark(uid="clicks", watermark=None, active_at=0, splits=splits)
    chain: Any = SimpleNamespace(uid="op", watermark_sources={"clicks"}, sources={"clicks"}, waiting_inputs=("clicks",))
    taken = {("op", "clicks"): [TimeSpan(first=1, last=9, rows=4)]}
    found = waiting_rows([chain], (), taken, [source], watermarks={"op": None}, ended=())
    assert waiting_for_others(found) == (Waiting("op", "clicks", 4, ("clicks (t-1)",), None),)


JOB = """
from tests.runtime import test_waiting_rows as shop
from tests.support.local_jobs import Growing

def build(env):
    shop.declare(env, list(range(20)), [0, 11], Growing)
"""


def test_the_command_line_says_what_waits(tmp_path: Path) -> None:
    job, root = tmp_path / "shop.py", str(tmp_path / "root")
    job.write_text(JOB)
    options = ["run", str(job), "--job-root", root, "--set", f"job.out={tmp_path / 'out'}"]
    ran = CliRunner().invoke(main, options)
    waiting = "9 rows of orders wait for products, at 2026-01-20T12:11:00"
    assert ran.exit_code == 0 and ran.stdout.strip().endswith(f"; {waiting}"), ran.output
    assert waiting in CliRunner().invoke(main, ["status", "--job-root", root]).output.splitlines()
    (document, *_) = CliRunner().invoke(main, ["status", "--job-root", root, "--json"]).stdout.splitlines()
    (found,) = json.loads(document)["waiting"]
    assert found["waits_for"] == ["products"] and (found["input"], found["rows"]) == ("orders", 9)


@given(st.lists(st.integers(-50, 50), max_size=300), st.integers(1, 20), st.integers(-60, 60))
def test_combined_spans_have_all_rows_in_order(times: list[int], limit: int, at: int) -> None:
    spans = combine_spans(_spans(np.array(times, np.int64)), limit)
    assert len(spans) <= limit and sum(span.rows for span in spans) == len(times)
    assert all(a.last < b.first for a, b in pairwise(spans))
    above = sum(span.rows for span in spans if span.last > at)
    cut = max((span.rows for span in spans if span.first <= at < span.last), default=0)
    assert 0 <= above - sum(time > at for time in times) <= cut
