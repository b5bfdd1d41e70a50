"""Plans of queries, as data, and the uids of their operators."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stateflow.api.sql.expressions import BIGINT, STRING, TIMESTAMP, Field
from stateflow.api.sql.parser import SqlPosition, SqlText, parse_statements
from stateflow.api.sql.plan import Computed, Filtered, Joined, LookupTable, Path, Plan, Table
from stateflow.api.sql.queries import QueryPlanner
from tests.sql.sql_jobs import declared

AT = SqlPosition(1, 1, "")
BID = Table("bid", (Field("auction", BIGINT), Field("price", BIGINT), Field("at", TIMESTAMP)), "at", AT)
AUCTION = Table("auction", (Field("id", BIGINT), Field("category", STRING), Field("at", TIMESTAMP)), "at", AT)


OWNER = LookupTable("owner", (Field("id", BIGINT), Field("name", STRING), Field("at", TIMESTAMP)), AT)


def planned(text: str) -> Plan:
    (node,) = parse_statements(text)
    return QueryPlanner(SqlText(text), {"bid": BID, "auction": AUCTION, "owner": OWNER}).plan(node, Path("q"))


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


def test_a_join_stores_only_the_columns_that_are_used_of_rows_that_pass_the_conditions() -> None:
    plan = planned("SELECT b.price AS p FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 'x'")
    assert isinstance(plan, Joined)
    assert (plan.kind, plan.columns) == ("regular", (("p", True, "price"),))
    assert [each.name for each in plan.left.fields] == ["auction", "price"]
    assert [each.name for each in plan.right.fields] == ["id"]
    assert "category" in str(plan.right)


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
