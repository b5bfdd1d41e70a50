"""Plans of queries, as data, and the uids of their operators."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stateflow.api.sql.expressions import BIGINT, STRING, TIMESTAMP, Constant, Expression, Field, Ref, columns_of
from stateflow.api.sql.parser import Position, SqlText, parse_statements
from stateflow.api.sql.plan import (
    Aggregate,
    Computed,
    Filtered,
    Grouped,
    Joined,
    LookupTable,
    Path,
    Plan,
    Table,
    TopN,
    Window,
    Windowed,
    source_time,
    time_of,
)
from stateflow.api.sql.queries import QueryPlanner
from tests.sql.sql_jobs import declared

AT = Position(1, 1, "")
BID = Table("bid", (Field("auction", BIGINT), Field("price", BIGINT), Field("at", TIMESTAMP)), "at", AT)
AUCTION = Table("auction", (Field("id", BIGINT), Field("category", STRING), Field("at", TIMESTAMP)), "at", AT)
A, P, T = Ref("auction", BIGINT), Ref("price", BIGINT), Ref("at", TIMESTAMP)


OWNER = LookupTable("owner", (Field("id", BIGINT), Field("name", STRING), Field("at", TIMESTAMP)), AT)


def planned(text: str) -> Plan:
    (node,) = parse_statements(text)
    return QueryPlanner(SqlText(text), {"bid": BID, "auction": AUCTION, "owner": OWNER}).plan(node, Path("q"))


def test_an_aggregate_gets_the_name_and_the_place_of_its_column() -> None:
    plan = planned("SELECT COUNT(*) AS n, auction AS a FROM bid GROUP BY auction")
    before = Computed(BID, (("a", A),), AT)
    fields = (Field("n", BIGINT), Field("a", BIGINT))
    grouped = Grouped(before, ("a",), (Aggregate("n", "count", "a"),), fields, "q.aggregate", AT)
    assert plan == Computed(grouped, (("n", Ref("n", BIGINT)), ("a", Ref("a", BIGINT))), AT)


def test_windows_without_other_keys_have_a_constant_key() -> None:
    table = "TABLE(HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
    plan = planned(f"SELECT MAX(price) AS m, window_end AS e FROM {table} GROUP BY window_start, window_end")
    assert isinstance(plan, Computed)
    items: tuple[tuple[str, Expression], ...] = (("all_rows", Constant(0, BIGINT)), ("price", P), ("at", T))
    assert plan.input == Windowed(
        Computed(BID, items, AT),
        Window("HOP", timedelta(seconds=10), timedelta(seconds=2)),
        ("all_rows",),
        (Aggregate("m", "max", "price"),),
        (("e", "window_end"),),
        (Field("m", BIGINT), Field("e", TIMESTAMP), Field("all_rows", BIGINT)),
        "q.window",
        AT,
    )


def test_rows_are_looked_up_by_columns_of_the_table_and_keep_their_event_time() -> None:
    clause = "JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o ON b.auction = o.id AND b.auction * 2 = o.id"
    plan = planned(f"SELECT b.price, b.at, o.at AS since, o.name FROM bid AS b LEFT {clause}")
    assert isinstance(plan, Computed)
    join = plan.input
    assert isinstance(join, Joined)
    assert (join.kind, join.how, join.right, join.right_keys) == ("lookup", "left", OWNER, ("id", "id"))
    assert len({*join.left_keys}) == 2 and join.left_keys[0] == "auction"
    assert ("o_at", False, "at") in join.columns
    assert time_of(plan) == source_time(plan) == "at"
    assert [each.type.nullable for each in plan.fields] == [False, False, True, True]


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("JOIN maybe FOR SYSTEM_TIME AS OF PROCTIME() AS m ON b.k = m.k", [False, True, False, True]),
        ("LEFT JOIN maybe FOR SYSTEM_TIME AS OF PROCTIME() AS m ON b.k = m.k", [True, True, True, True]),
        # The value that is looked up is not null, the column that it is computed of may be.
        ("JOIN maybe FOR SYSTEM_TIME AS OF PROCTIME() AS m ON COALESCE(b.k, 1) = m.k", [True, True, False, True]),
        ("JOIN changing AS m ON b.k = m.k", [False, True, False, True]),
    ],
)
def test_the_columns_that_an_inner_join_compares_are_not_null(clause: str, expected: list[bool]) -> None:
    null = BIGINT.with_null(True)
    fields = Field("k", null), Field("v", null)
    catalog: dict[str, Plan] = {name: Table(name, fields, "", AT) for name in ("bid", "changing")}
    catalog["maybe"] = LookupTable("maybe", fields, AT)
    (node,) = parse_statements(f"SELECT b.k AS bk, b.v AS bv, m.k AS mk, m.v AS mv FROM bid AS b {clause}")
    plan = QueryPlanner(SqlText(""), catalog).plan(node, Path("q"))
    assert [each.type.nullable for each in plan.fields] == expected


def test_names_of_keys_and_looked_up_columns_are_new() -> None:
    clause = (
        "JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o ON b.key1 = o.id AND b.key1 = o.key AND b.KEY2 + 1 = o.id"
    )
    fields = Field("key1", BIGINT), Field("KEY2", BIGINT), Field("at", TIMESTAMP)
    owner = LookupTable("owner", (Field("id", BIGINT), Field("key", BIGINT), Field("at", TIMESTAMP)), AT)
    # The inner query does not have the event time, which the stream keeps.
    text = f"SELECT b.key1, o.at AS since FROM (SELECT key1, KEY2 FROM bid) AS b {clause}"
    (node,) = parse_statements(text)
    plan = QueryPlanner(SqlText(text), {"bid": Table("bid", fields, "at", AT), "owner": owner}).plan(node, Path("q"))
    assert isinstance(plan, Computed) and isinstance(plan.input, Joined)
    join = plan.input
    assert (join.left_keys, join.right_keys) == (("key1", "key1_", "key2_"), ("id", "key", "id"))
    assert ("o_at", False, "at") in join.columns


def test_conditions_of_the_stream_are_applied_before_a_look_up() -> None:
    clause = "JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o ON b.auction = o.id"
    plan = planned(f"SELECT b.price, o.name FROM bid AS b {clause} WHERE b.price > 1 AND o.name = 'x'")
    assert isinstance(plan, Computed) and isinstance(plan.input, Filtered)
    assert [*columns_of(plan.input.condition)] == ["name"]
    join = plan.input.input
    assert isinstance(join, Joined) and isinstance(join.left, Computed) and isinstance(join.left.input, Filtered)


def test_a_join_stores_only_the_columns_that_are_used_of_rows_that_pass_the_conditions() -> None:
    plan = planned("SELECT b.price AS p FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 'x'")
    assert isinstance(plan, Joined)
    assert (plan.kind, plan.columns) == ("regular", (("p", True, "price"),))
    assert [each.name for each in plan.left.fields] == ["auction", "price"]
    assert [each.name for each in plan.right.fields] == ["id"]
    assert "category" in str(plan.right)


def test_equal_columns_in_where_are_keys_of_an_inner_join() -> None:
    plan = planned("SELECT b.at AS t FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE b.price = a.id * 2")
    assert isinstance(plan, Joined)
    assert [len(keys) for keys in (plan.left_keys, plan.right_keys)] == [2, 2]
    assert plan.left_keys == ("auction", "price") and plan.right_keys[0] == "id"


def interval_join(text: str, catalog: dict[str, Plan]) -> tuple[Joined, int]:
    """Returns the join of a query, and how many conditions filter its rows."""
    (node,) = parse_statements(text)
    plan, filters = QueryPlanner(SqlText(text), catalog).plan(node, Path("q")), 0
    while isinstance(plan, Computed | Filtered):
        filters += isinstance(plan, Filtered)
        plan = plan.input
    assert isinstance(plan, Joined) and plan.kind == "interval"
    return plan, filters


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("b.at BETWEEN a.at - INTERVAL '1' SECOND AND a.at + INTERVAL '2' SECOND", (-1_000, 2_000)),
        ("a.at BETWEEN b.at - INTERVAL '2' SECOND AND b.at + INTERVAL '1' SECOND", (-1_000, 2_000)),
        ("b.at > a.at AND b.at < a.at + INTERVAL '2' SECOND AND b.at <= a.at + INTERVAL '1' DAY", (0, 2_000)),
        ("a.at = b.at", (0, 0)),
        ("b.at > a.at - INTERVAL '0.0015' SECOND AND b.at < a.at + INTERVAL '0.0015' SECOND", (-2, 2)),
    ],
)
def test_bounds_of_timestamps_are_an_interval_join_with_the_exact_conditions(
    condition: str, bounds: tuple[int, int]
) -> None:
    text = f"SELECT a.id FROM auction AS a JOIN bid AS b ON a.id = b.auction AND {condition}"
    join, filters = interval_join(text, {"bid": BID, "auction": AUCTION})
    assert tuple(bound / timedelta(milliseconds=1) for bound in join.bounds) == bounds
    assert filters


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("b.at BETWEEN a.at AND a.at", (0, 0)),
        ("b.at >= a.at AND a.at > b.at AND a.at = b.at", (0, -1)),
        ("b.at > a.at AND a.at >= b.at", (1, 0)),
    ],
)
def test_bounds_of_milliseconds_are_exact(condition: str, bounds: tuple[int, int]) -> None:
    catalog: dict[str, Plan] = {
        each.name: replace(each, fields=(*each.fields[:-1], Field("at", BIGINT))) for each in (BID, AUCTION)
    }
    text = f"SELECT a.id FROM auction AS a JOIN bid AS b ON a.id = b.auction AND {condition}"
    join, filters = interval_join(text, catalog)
    assert (tuple(bound / timedelta(milliseconds=1) for bound in join.bounds), filters) == (bounds, 0)


def test_numbers_of_rows_are_dropped_if_they_are_not_used() -> None:
    inner = "SELECT auction, price, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rn FROM bid"
    plan = planned(f"SELECT auction, price FROM ({inner}) WHERE rn < 4")
    assert isinstance(plan, Computed) and isinstance(plan.input, Computed)
    rows = Computed(BID, (("auction", A), ("price", P)), AT)
    assert plan.input.input == TopN(rows, ("auction",), (("price", True),), 3, "", "q.from.top", AT)
    used = planned(f"SELECT * FROM ({inner}) WHERE rn < 4")
    assert isinstance(used, Computed) and isinstance(used.input, Computed)
    assert isinstance(used.input.input, TopN) and used.input.input.rank == "rn"


def test_nested_queries_are_planned_the_same_however_they_are_written() -> None:
    text = "SELECT auction, SUM(price*2) AS s FROM bid WHERE price>1 GROUP BY auction"
    spread = (
        "select\n  auction\n  , sum( ((price) * 2) ) as s -- a comment\nfrom `bid` where (price > 1) group by auction"
    )
    assert planned(text) == planned(spread)


def uids(text: str) -> list[str]:
    env = declared(lambda env: env.sql(text))
    return [*(operator.uid for operator in env.graph.operators), *(sink.uid for sink in env.graph.sinks)]


def test_uids_are_of_the_sink_the_query_and_the_clause() -> None:
    best = "SELECT auction, MAX(price) AS best FROM bid GROUP BY auction"
    count = "SELECT best, COUNT(*) AS n FROM {} GROUP BY best"
    assert uids(f"INSERT INTO out WITH top AS ({best}) {count.format('top')}") == [
        "out.top.aggregate",
        "out.aggregate",
        "out",
    ]
    assert uids(f"INSERT INTO out {count.format(f'({best}) AS top')}")[0] == "out.top.aggregate"
    assert uids(f"INSERT INTO out {count.format(f'({best})')}")[0] == "out.from.aggregate"
    view = f"CREATE TEMPORARY VIEW top AS {best}; INSERT INTO out {count.format('top')}"
    assert uids(view)[0] == "top.aggregate"
    named = best.replace("SELECT", "SELECT /*+ uid('best-bids') */")
    assert uids(f"INSERT INTO out {count.format(f'({named})')}")[:2] == ["best-bids.aggregate", "out.aggregate"]


def test_uids_of_joins_and_unions_are_numbered() -> None:
    join = (
        "SELECT x.auction FROM bid AS x JOIN bid AS y ON x.auction = y.auction JOIN bid AS z ON x.auction = z.auction"
    )
    assert uids(f"INSERT INTO out {join} UNION ALL SELECT DISTINCT auction FROM bid") == [
        "out.1.join",
        "out.1.join2",
        "out.2.distinct",
        "out",
    ]


def test_columns_of_insert_rename_those_of_the_query() -> None:
    env = declared(lambda env: env.sql("INSERT INTO out (a, b) SELECT auction, price FROM bid"))
    (sink,) = env.graph.sinks
    assert sink.parent.schema.names == ("a", "b")
