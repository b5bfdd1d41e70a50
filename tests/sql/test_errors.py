"""What is not supported is refused with its line, its column and its text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.testing.harness.job import CollectedRows
from tests.sql.sql_jobs import Country, data, declared
from tests.support.errors import raises

WINDOW = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '1' SECOND))"
HOURS = WINDOW.replace("SECOND", "HOUR")
BOUNDS = "a.window_start = b.window_start AND a.window_end = b.window_end"
AT_CLOCK = "FOR SYSTEM_TIME AS OF PROCTIME()"
REFUSED = data("refused.txt")
for name, value in {"WINDOW": WINDOW, "HOURS": HOURS, "BOUNDS": BOUNDS, "AT_CLOCK": AT_CLOCK}.items():
    REFUSED = REFUSED.replace(f"{{{name}}}", value)


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_what_is_not_supported_is_refused_with_its_position(line: str) -> None:
    """A line has the text that is refused, and the query. tests/docs/test_guide_sql.py has what the guide names."""
    text, query = line.split(" :: ")
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


@pytest.mark.parametrize(
    ("register", "facts"),
    [
        (lambda env: env.register_sink("bid", CollectedRows()), {"name": "bid"}),
        (lambda env: env.register_sink("other", "a text"), {}),
        (lambda env: env.register_table("other", "a text"), {}),
        (lambda env: env.register_lookup_table("city", "cities", rows=Country), {"name": "city"}),
        (lambda env: env.register_lookup_table("bid", lambda spark: spark.table("bid"), rows=Country), {}),
    ],
)
def test_names_and_kinds_of_tables_and_sinks_are_checked(register: Any, facts: dict[str, str]) -> None:
    with raises(JobDefinitionError, **facts):
        declared(register)
    with pytest.raises(ConfigError):
        declared(lambda env: env.register_sink("../other", CollectedRows()))


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
