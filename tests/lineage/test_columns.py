"""Which columns of sinks come from which columns of sources."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import pytest

from stateflow import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from stateflow.api.datasets import Dataset
from stateflow.api.graph import Graph
from stateflow.api.sink import PrintSink
from stateflow.api.source import CollectionSource
from stateflow.api.streams.data_stream import DataStream
from stateflow.environment import declare
from stateflow.lineage.events import MOST_COLUMNS, JobDatasets, trace_columns


class Sale(msgspec.Struct):
    id: int
    shop: str
    amount: float
    at: datetime


class Shop(msgspec.Struct):
    shop: str
    city: str
    since: datetime


class Named(CollectionSource):
    """Rows with the name of a dataset."""

    def __init__(self, name: str, row_class: type[object]) -> None:
        super().__init__([], row_class)
        self.name = name

    def datasets(self, offset: str) -> list[Dataset]:
        return [Dataset("file", f"/{self.name}")]


class Out(PrintSink):
    def datasets(self) -> list[Dataset]:
        return [Dataset("file", "/out")]


def _timed(stream: DataStream, column: str) -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=1)).with_timestamp_column(column)
    return stream.assign_timestamps_and_watermarks(strategy)


def _graph(build: Callable[[StreamExecutionEnvironment, DataStream, DataStream], DataStream | None]) -> Graph:
    def declared(env: StreamExecutionEnvironment) -> None:
        sales = _timed(env.from_source(Named("sales", Sale), uid="sales"), "at")
        shops = _timed(env.from_source(Named("shops", Shop), uid="shops"), "since")
        env.register_table("sales", sales)
        env.register_table("shops", shops)
        env.register_sink("out", Out())
        made = build(env, sales, shops)
        if made is not None:
            made.sink_to(Out(), uid="out")

    env, _ = declare(declared, "job", ())
    return env.graph


def _found(graph: Graph) -> tuple[dict[str, set[str]], set[str]]:
    traced = trace_columns(graph.sinks[0].parent)
    columns = {
        name: {f"{derivation.name} {source.uid}.{source.column}" for source, derivation in of.items()}
        for name, of in traced.columns.items()
    }
    return columns, {f"{influence.name} {source.uid}.{source.column}" for source, influence in traced.rows}


_KEY, _SUM = {"IDENTITY sales.shop"}, {"AGGREGATION sales.amount"}
_QUERIES = {
    "SELECT id, UPPER(shop) AS name, 1 AS one FROM sales WHERE amount > 2": (
        {"id": {"IDENTITY sales.id"}, "name": {"TRANSFORMATION sales.shop"}, "one": set()},
        {"FILTER sales.amount"},
    ),
    "SELECT shop, SUM(amount) + COUNT(id) AS total FROM sales GROUP BY shop": (
        {"shop": _KEY, "total": {"AGGREGATION sales.amount", "AGGREGATION sales.id"}},
        {"GROUP_BY sales.shop"},
    ),
    "SELECT s.id, c.city FROM sales s JOIN shops c ON s.shop = c.shop": (
        {"id": {"IDENTITY sales.id"}, "city": {"IDENTITY shops.city"}},
        {"JOIN sales.shop", "JOIN shops.shop"},
    ),
    "SELECT s.id, c.city FROM sales s LEFT JOIN shops c ON s.shop = c.shop": (
        {"id": {"IDENTITY sales.id"}, "city": {"IDENTITY shops.city"}, "row_kind": set()},
        {"JOIN sales.shop", "JOIN shops.shop"},
    ),
    "SELECT s.id, c.city FROM sales s JOIN shops c ON s.shop = c.shop "
    "AND c.since BETWEEN s.at - INTERVAL '1' HOUR AND s.at": (
        {"id": {"IDENTITY sales.id"}, "city": {"IDENTITY shops.city"}},
        # A row without a time has no partner.
        {"JOIN sales.shop", "JOIN shops.shop", "FILTER sales.at", "FILTER shops.since"},
    ),
    "SELECT shop, window_start, SUM(amount) AS total FROM TABLE(TUMBLE(TABLE sales, DESCRIPTOR(at), INTERVAL '1' DAY)) "
    "GROUP BY shop, window_start, window_end": (
        {"shop": _KEY, "total": _SUM, "window_start": {"TRANSFORMATION sales.at"}},
        {"GROUP_BY sales.shop"},
    ),
    "SELECT * FROM (SELECT id, shop, ROW_NUMBER() OVER (PARTITION BY shop ORDER BY amount DESC) AS place FROM sales) "
    "WHERE place <= 3": (
        {"id": {"IDENTITY sales.id"}, "shop": _KEY, "place": {"TRANSFORMATION sales.amount"}},
        {"GROUP_BY sales.shop", "SORT sales.amount"},
    ),
    "SELECT id, SUM(amount) OVER (PARTITION BY shop ORDER BY at) AS total FROM sales": (
        {"id": {"IDENTITY sales.id"}, "total": _SUM},
        {"GROUP_BY sales.shop"},
    ),
    "SELECT shop FROM sales UNION ALL SELECT city AS shop FROM shops": (
        {"shop": {"IDENTITY sales.shop", "IDENTITY shops.city"}},
        set(),
    ),
}


@pytest.mark.parametrize("query", _QUERIES)
def test_the_columns_of_an_sql_query_are_traced_to_those_of_sources(query: str) -> None:
    columns, rows = _QUERIES[query]
    found, influences = _found(_graph(lambda env, *_: env.sql_query(query, uid="q")))
    assert {name: of for name, of in found.items() if name != "at"} == columns
    assert influences == rows


def test_a_function_of_the_user_hides_the_origin_of_its_columns_and_a_filter_hides_none() -> None:
    class Name(msgspec.Struct):
        name: str

    mapped = _graph(lambda _, sales, __: sales.map(lambda row: Name(row.shop), output=Name))
    assert _found(mapped) == ({}, set())
    kept = _graph(lambda _, sales, __: sales.filter(lambda row: row.amount > 2))
    assert _found(kept)[0] == {name: {f"IDENTITY sales.{name}"} for name in ("id", "shop", "amount", "at")}


def test_named_aggregates_are_traced_also_through_a_reduction_before_the_shuffle() -> None:
    class Total(msgspec.Struct):
        shop: str
        total: float | None

    def build(_: object, sales: DataStream, __: object) -> DataStream:
        windows = sales.key_by("shop").window(TumblingEventTimeWindows.of(timedelta(days=1)))
        return windows.aggregate_columns({"total": ("sum", "amount")}, output=Total, uid="totals")

    assert _found(_graph(build))[0] == {"shop": _KEY, "total": _SUM}


def test_a_column_with_a_part_of_unknown_origin_has_none() -> None:
    class Name(msgspec.Struct):
        shop: str
        at: datetime

    def build(env: StreamExecutionEnvironment, sales: DataStream, shops: DataStream) -> DataStream:
        env.register_table("mapped", sales.map(lambda row: Name(row.shop, row.at), output=Name))
        return env.sql_query("SELECT m.shop, c.city FROM mapped m JOIN shops c ON m.shop = c.shop", uid="q")

    assert _found(_graph(build)) == ({"city": {"IDENTITY shops.city"}}, {"JOIN shops.shop"})


def test_outputs_name_the_datasets_of_the_columns() -> None:
    query = "SELECT s.id, c.city FROM sales s JOIN shops c ON s.shop = c.shop WHERE amount > 1"
    (output,) = JobDatasets(_graph(lambda env, *_: env.sql_query(query, uid="q"))).outputs((), {})
    (city,) = output.origins["city"]
    assert (city.dataset.name, city.column, city.transformations) == ("/shops", "city", (("DIRECT", "IDENTITY"),))
    rows = {(each.dataset.name, each.column): each.transformations for each in output.row_origins}
    assert rows["/sales", "amount"] == (("INDIRECT", "FILTER"),)


def test_a_dataset_with_too_many_columns_is_named_without_them() -> None:
    wide = msgspec.defstruct("Wide", [(f"c{n}", int) for n in range(MOST_COLUMNS + 1)])

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Named("wide", wide), uid="wide").sink_to(Out(), uid="out")

    env, _ = declare(build, "job", ())
    datasets = JobDatasets(env.graph)
    (source,), (sink,) = datasets.inputs(()), datasets.outputs((), {})
    assert (source.dataset.name, source.columns) == ("/wide", ())
    assert (sink.dataset.name, sink.columns, sink.origins) == ("/out", (), {})
