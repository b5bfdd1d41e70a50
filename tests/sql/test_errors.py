"""What is not supported is refused with its line, its column and its text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.testing.harness.job import CollectedRows
from tests.sql.sql_jobs import Country, declared

WINDOW = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '1' SECOND))"
HOURS = WINDOW.replace("SECOND", "HOUR")
BOUNDS = "a.window_start = b.window_start AND a.window_end = b.window_end"
AT_CLOCK = "FOR SYSTEM_TIME AS OF PROCTIME()"
REFUSED = [
    ("SELEC auction FROM bid", "SELEC"), ("SELECT auction FROM bid WHERE", "WHERE"),
    ("SELECT auctoin FROM bid", "auctoin"), ("SELECT b.auction FROM bid AS a", "b.auction"),
    ("SELECT auction FROM bids", "bids"), ("SELECT price + channel AS x FROM bid", "price + channel"),
    ("SELECT auction FROM bid WHERE price", "price"), ("SELECT auction FROM bid WHERE FOO(price) = 1", "FOO"),
    ("SELECT auction, price FROM bid ORDER BY price", "price"), ("SELECT auction FROM bid LIMIT 10", "10"),
    ("SELECT auction + 1 FROM bid", "auction + 1"), ("SELECT auction, auction FROM bid", "auction"),
    ("SELECT NULL AS n FROM bid", "NULL AS n"), ("SELECT at + INTERVAL '1' DAY AS at FROM bid", "at + INTERVAL"),
    ("SELECT at + INTERVAL '1' MONTH AS t FROM bid", "'1' MONTH"),
    ("SELECT auction, price FROM bid GROUP BY auction", "price"), ("SELECT COUNT(*) AS n FROM bid", "COUNT(*) AS n"),
    ("SELECT auction, SUM(DISTINCT price) AS s FROM bid GROUP BY auction", "SUM(DISTINCT price"),
    ("SELECT auction, SUM(channel) AS s FROM bid GROUP BY auction", "SUM(channel"),
    ("SELECT auction FROM bid GROUP BY GROUPING SETS (auction)", "auction"),
    ("SELECT auction FROM bid HAVING auction > 1", "auction > 1"),
    ("SELECT auction FROM bid WHERE auction IN (SELECT id FROM auction)", "auction IN (SELECT"),
    (f"SELECT auction FROM {WINDOW}", "auction"),
    (f"SELECT COUNT(*) AS n FROM {WINDOW} GROUP BY auction", "auction"),
    ("SELECT 1 AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(price), INTERVAL '1' SECOND)) GROUP BY n", "price"),
    ("SELECT 1 AS n FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(at), INTERVAL '1' SECOND)) GROUP BY n", "CUMULATE"),
    ("SELECT a.id FROM auction AS a CROSS JOIN bid AS b", "bid AS b"),
    ("SELECT a.id FROM auction AS a JOIN bid AS b ON a.id > b.auction", "bid AS b ON a.id > b.auction"),
    ("SELECT a.id FROM auction AS a JOIN auction AS a ON a.id = a.id", "auction AS a"),
    ("SELECT id FROM auction AS a JOIN bid AS b ON a.id = b.auction AND at < b.at", "at"),
    (f"SELECT a.id FROM auction AS a JOIN {WINDOW} AS b ON a.id = b.auction", "TABLE"),
    (f"SELECT a.auction FROM {WINDOW} AS a JOIN {WINDOW} AS b ON a.auction = b.auction", "a.auction = b.auction"),
    (f"SELECT a.auction FROM {WINDOW} AS a LEFT JOIN {WINDOW} AS b ON a.auction = b.auction AND {BOUNDS}", "TABLE"),
    (f"SELECT a.auction FROM {WINDOW} AS a JOIN {WINDOW} AS b ON {BOUNDS}", "TABLE"),
    (f"SELECT a.auction FROM {WINDOW} AS a JOIN {HOURS} AS b ON a.auction = b.auction AND {BOUNDS}", "TABLE"),
    ("SELECT c.name FROM country AS c", "country"),
    ("SELECT c.name FROM auction AS a JOIN country AS c ON a.seller = c.seller", "country"),
    (f"SELECT b.id FROM bid AS a JOIN auction {AT_CLOCK} AS b ON a.auction = b.id", "PROCTIME"),
    (f"SELECT c.name FROM auction AS a RIGHT JOIN country {AT_CLOCK} AS c ON a.seller = c.seller", "country"),
    (f"SELECT c.name FROM auction AS a JOIN country {AT_CLOCK} AS c ON a.seller = c.seller + 1", "a.seller ="),
    (f"SELECT c.name FROM {WINDOW} AS b JOIN country {AT_CLOCK} AS c ON b.bidder = c.seller", "country"),
    (
        f"SELECT c.seller AS at FROM (SELECT bidder FROM bid) AS b JOIN country {AT_CLOCK} AS c ON b.bidder = c.seller",
        "c.seller",
    ),
    (
        "SELECT c.name FROM (SELECT seller, COUNT(*) AS n FROM auction GROUP BY seller) AS a "
        f"JOIN country {AT_CLOCK} AS c ON a.seller = c.seller",
        "country",
    ),
    *(
        (f"SELECT b.at FROM bid AS b JOIN auction {version} AS a ON a.id = b.auction", text)
        for version, text in [
            ("FOR VERSION AS OF b.at", "b.at"),
            ("FOR SYSTEM_TIME FROM b.at TO b.at", "b.at"),
            ("FOR SYSTEM_TIME ALL", "ALL"),
        ]
    ),
    (
        "SELECT c.name FROM auction AS a JOIN country FOR VERSION AS OF PROCTIME() AS c ON a.seller = c.seller",
        "PROCTIME",
    ),
    ("SELECT auction FROM bid UNION SELECT id FROM auction", "auction FROM bid UNION"),
    ("SELECT auction FROM bid UNION ALL SELECT category FROM auction", "auction FROM bid UNION ALL"),
    ("SELECT auction, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY at) AS n FROM bid", "ROW_NUMBER"),
    ("SELECT auction, RANK() OVER (PARTITION BY auction ORDER BY at) AS n FROM bid", "RANK"),
    ("SELECT SUM(price) OVER (PARTITION BY auction ORDER BY price) AS n FROM bid", "price"),
    (
        "SELECT SUM(price) OVER (PARTITION BY auction ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE "
        "TIES) AS s FROM bid",
        "1 PRECEDING AND CURRENT ROW",
    ),
    ("SELECT SUM(price) OVER w AS s FROM bid WINDOW w AS (PARTITION BY auction ORDER BY at)", "w"),
    ("SELECT ROUND(CAST(price AS DECIMAL(38, 0)), -1) AS c FROM bid", "ROUND"),
    ("SELECT CAST(channel AS CHAR(8)) AS c FROM bid", "channel AS CHAR(8"),
    ("SELECT CAST(at AS TIMESTAMP(0)) AS c FROM bid", "at AS TIMESTAMP(0"),
    ("SELECT CAST(at AS TIMESTAMP_LTZ(3)) AS c FROM bid", "at AS TIMESTAMP_LTZ(3"),
    ("SELECT CAST(price AS FLOAT) AS c FROM bid", "price AS FLOAT"),
    ("SELECT CAST(price AS ARRAY<BIGINT>) AS c FROM bid", "price AS ARRAY"),
    (
        "SELECT x.at FROM bid AS x JOIN (SELECT auction FROM bid) AS y JOIN auction AS c ON y.auction = c.id "
        "ON x.auction = y.auction",
        "auction AS c",
    ),
    ("SELECT auction FROM (SELECT auction FROM bid) TABLESAMPLE (10 PERCENT)", "10"),
    (f"SELECT 1 AS n FROM {WINDOW} TABLESAMPLE (10 PERCENT) GROUP BY window_start, window_end", "10"),
    (
        f"SELECT COUNT(*) AS n FROM {WINDOW} WHERE at > window_start + INTERVAL '0.5' SECOND "
        "GROUP BY window_start, window_end",
        "at > window_start",
    ),
    (
        "SELECT COUNT(*) AS n FROM TABLE(SESSION(TABLE bid PARTITION BY auction, DESCRIPTOR(at), INTERVAL '6' SECOND)) "
        "WHERE price > 9 AND window_end > TIMESTAMP '2026-01-01 00:00:10' GROUP BY auction, window_start, window_end",
        "price > 9 AND",
    ),
    ("SELECT -TRUE AS c FROM bid", "TRUE"),
    (f"SELECT MAX(window_end) AS n FROM {WINDOW} GROUP BY window_start, window_end, auction", "MAX(window_end"),
    (f"SELECT COUNT(*) AS n FROM {WINDOW} GROUP BY HOUR(window_end), window_start, window_end", "COUNT("),
    ("SELECT other.bid.auction FROM bid", "other"),
    ("SELECT auction FROM bid MATCH_RECOGNIZE (PARTITION BY auction ORDER BY at)", "MATCH_RECOGNIZE"),
    ("SELECT auction FROM bid WHERE COUNT(*) > 1 GROUP BY auction", "COUNT"),
    ("SELECT SUM(price) AS s FROM bid GROUP BY SUM(price)", "SUM"),
    ("SELECT auction, SUM(COUNT(*)) AS s FROM bid GROUP BY auction", "SUM(COUNT"),
    ("SELECT PROCTIME() AS p FROM bid", "PROCTIME"),
    ("SELECT CURRENT_TIMESTAMP AS p FROM bid", "CURRENT_TIMESTAMP"),
    ("SELECT FLOOR(at TO CENTURY) AS f FROM bid", "CENTURY"),
    ("SELECT TIMESTAMPDIFF(DECADE, at, at) AS f FROM bid", "DECADE"),
    ("SELECT COUNT(*) AS n FROM bid GROUP BY auction", "COUNT(*) AS n"),
    ("SELECT COUNT(*) AS n FROM bid GROUP BY TUMBLE(at, INTERVAL '1' HOUR)", "TUMBLE(at"),
    (
        "SELECT COUNT(*) AS n FROM TABLE(TUMBLE(DATA => TABLE bid, TIMECOL => DESCRIPTOR(at), GAP => INTERVAL '1' "
        "HOUR)) GROUP BY window_start, window_end",
        "DESCRIPTOR(at",
    ),
    ("SELECT TUMBLE_START(at, INTERVAL '1' HOUR) AS n FROM bid", "TUMBLE_START(at"),
    ("SELECT channel LIKE 'a!b' ESCAPE '!' AS f FROM bid", "'a!b'"),
    ("SELECT DATE_FORMAT(at, '{}') AS f FROM bid", "DATE_FORMAT"),
    ("SELECT REGEXP_EXTRACT(channel, '(a?)*') AS f FROM bid", "REGEXP_EXTRACT"),
    ("WITH RECURSIVE r AS (SELECT auction FROM bid) SELECT auction FROM r", "r AS (SELECT"),
    ("SELECT /*+ broadcast(bid) */ auction FROM bid", "auction FROM"),
    ("SELECT n FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction)", "n FROM"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_not_supported_is_refused_with_its_position(query: str, text: str) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        declared(lambda env: env.sql(f"INSERT INTO out\n  {query}"))
    facts = caught.value.facts
    assert str(facts["sql"]).startswith(text)
    assert facts["line"] == 2
    assert f"  {query}"[int(str(facts["column"])) - 1 :].startswith(text.split("(")[0])
    assert caught.value.hint


STATEMENTS = [
    "SELECT auction FROM bid", "DELETE FROM out", "CREATE TABLE t (id BIGINT)",
    "INSERT INTO nowhere SELECT auction FROM bid", "INSERT OVERWRITE out SELECT auction FROM bid",
    "INSERT INTO out VALUES (1)", "INSERT INTO out (a, b) SELECT auction FROM bid",
    "CREATE TEMPORARY VIEW bid AS SELECT auction FROM bid", "", "SELECT 'a",
]  # fmt: skip


@pytest.mark.parametrize("text", STATEMENTS)
def test_other_statements_are_refused(text: str) -> None:
    with pytest.raises(JobDefinitionError):
        declared(lambda env: env.sql(text))


def nested(before: str, middle: str, after: str, times: int) -> str:
    return before * times + middle + after * times


HOSTILE = [
    "SELECT " + nested("(", "1", ")", 5_000) + " AS n FROM bid",
    "SELECT " + nested("(", "1", ")", 100) + " AS n FROM bid",
    "SELECT " + nested("ABS(", "price", ")", 90) + " AS n FROM bid", "SELECT " + "- " * 40_000 + "1 AS n FROM bid",
    "SELECT " + "NOT " * 20_000 + "TRUE AS n FROM bid", "SELECT " + " + ".join(["price"] * 10_000) + " AS n FROM bid",
    "SELECT auction FROM bid WHERE " + " OR ".join(["price = 1"] * 5_000),
    nested("SELECT auction FROM (", "SELECT auction FROM bid", ")", 1_000),
    " UNION ALL ".join(["SELECT auction FROM bid"] * 3_000),
    "SELECT " + nested("CASE WHEN TRUE THEN ", "1", " END", 2_000) + " AS n FROM bid",
    "SELECT " + ", ".join(["1"] * 30_000) + " FROM bid", "SELECT auction FROM bid -- " + "x" * 200_000,
    "SELECT auction AS `a b\x00` FROM bid", "/*" * 20_000,
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE, ids=[query[:30] + str(len(query)) for query in HOSTILE])
def test_texts_that_are_too_long_or_too_deep_are_refused(query: str) -> None:
    with pytest.raises(JobDefinitionError):
        declared(lambda env: env.sql(f"INSERT INTO out {query}"))


def test_a_deep_text_within_the_limits_is_planned() -> None:
    condition = " OR ".join(f"price = {n}" for n in range(80))
    declared(lambda env: env.sql(f"INSERT INTO out SELECT auction FROM bid WHERE {condition}"))


def test_queries_that_use_each_other_many_times_are_planned_once() -> None:
    names = [f"q{n}" for n in range(30)]
    queries = ["q0 AS (SELECT DISTINCT auction FROM bid)"]
    queries += [f"{b} AS (SELECT * FROM {a} UNION ALL SELECT * FROM {a})" for a, b in pairwise(names)]
    env = declared(lambda env: env.sql_query(f"WITH {', '.join(queries)} SELECT * FROM q0", uid="q").print())
    assert [operator.uid for operator in env.graph.operators] == ["q.q0.distinct"]


def test_names_of_tables_and_sinks_are_checked() -> None:
    def twice(env: StreamExecutionEnvironment) -> None:
        env.register_sink("bid", CollectedRows())

    with pytest.raises(JobDefinitionError) as caught:
        declared(twice)
    assert caught.value.facts["name"] == "bid"
    with pytest.raises(JobDefinitionError):
        declared(lambda env: env.register_table("other", "a text"))  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError):
        declared(lambda env: env.register_sink("other", "a text"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        declared(lambda env: env.register_sink("../other", CollectedRows()))


def test_a_look_up_table_needs_a_function_and_a_name_of_its_own() -> None:
    with pytest.raises(JobDefinitionError) as caught:
        declared(lambda env: env.register_lookup_table("city", "cities", rows=Country))  # type: ignore[arg-type]
    assert caught.value.facts["name"] == "city"
    with pytest.raises(JobDefinitionError):
        declared(lambda env: env.register_lookup_table("bid", lambda spark: spark.table("bid"), rows=Country))


COUNTS = f"SELECT auction, window_start, COUNT(*) AS n FROM {WINDOW} GROUP BY auction, window_start, window_end"
SESSIONS = (
    "SELECT auction, window_start, COUNT(*) AS n FROM TABLE(SESSION(TABLE bid PARTITION BY auction, DESCRIPTOR(at), "
    "INTERVAL '5' SECOND)) GROUP BY auction, window_start, window_end"
)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "declare_statements",
    [
        lambda env: env.sql_query("SELECT * FROM bid", uid="q", late_rows="late"),
        lambda env: env.sql_query(f"{COUNTS} UNION ALL {COUNTS}", uid="q", late_rows="late"),
        lambda env: env.sql_query(COUNTS, uid="q", late_rows="bid"),
        lambda env: env.sql_query(SESSIONS, uid="q", allowed_lateness=MINUTE),
        lambda env: env.sql_query(COUNTS.replace("window_start, COUNT", "COUNT"), uid="q", allowed_lateness=MINUTE),
        lambda env: env.sql_query(COUNTS, uid="q", allowed_lateness=-MINUTE),
        lambda env: env.sql(f"CREATE TEMPORARY VIEW v AS {COUNTS}", late_rows="late"),
        # Its results are corrected, and only retractions could be aggregated.
        lambda env: env.sql_query(
            f"SELECT n, COUNT(*) AS windows FROM ({COUNTS}) GROUP BY n", uid="q", allowed_lateness=MINUTE
        ),
    ],
)
def test_late_rows_that_a_statement_cannot_treat_are_refused(
    declare_statements: Callable[[StreamExecutionEnvironment], object],
) -> None:
    with pytest.raises(JobDefinitionError):
        declared(declare_statements)
