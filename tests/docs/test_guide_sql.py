"""The guide about SQL: its queries are declared, and what it calls not built is refused."""

from __future__ import annotations

import inspect
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import DeltaSink, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.errors import JobDefinitionError
from tests.docs.pages import blocks, load_module, read

START = datetime.fromisoformat("2026-01-01")


def test_each_query_of_the_guide_is_declared_and_its_own_test_passes(tmp_path: Path) -> None:
    """tests/sql compares results of each of these constructs with those of SQLite and Flink."""
    guide = load_module(tmp_path / "guide_sql.py", "\n".join(blocks(read("sql"), "python")))
    counts = DeltaSink(tmp_path / "counts", mode="upsert", keys=("auction", "window_start"))
    late = DeltaSink(tmp_path / "late")
    more: dict[str, tuple[Any, ...]] = {"high_bids": (late,), "corrected_counts": (counts, late), "with_cities": ("x",)}
    declared = 0
    for name, function in vars(guide).items():
        is_query = inspect.isfunction(function) and "env" in inspect.signature(function).parameters
        if is_query and name not in ("register", "build"):
            env = StreamExecutionEnvironment()
            guide.register(env, *(env.from_collection([], row, uid=row.__name__) for row in (guide.Bid, guide.Auction)))
            function(env, *more.get(name, ()))
            declared += 1
    assert declared == 8
    guide.test_totals_are_corrected()


# -- what is not built -------------------------------------------------------------------------------------------------


class _Other(msgspec.Struct):
    auction: int
    price: int
    name: str
    time: datetime


def _windows(table: str, kind: str = "TUMBLE") -> str:
    keys = " PARTITION BY auction" if kind == "SESSION" else ""
    return f"TABLE({kind}(TABLE {table}{keys}, DESCRIPTOR(time), INTERVAL '10' SECOND))"


def _window_join(how: str, kind: str = "TUMBLE") -> str:
    same = "a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end"
    return f"SELECT a.auction, b.price FROM {_windows('t', kind)} AS a {how} JOIN {_windows('u', kind)} AS b ON {same}"


def _interval_join(how: str) -> str:
    bounds = "b.time BETWEEN o.time AND o.time + INTERVAL '10' SECOND"
    return f"SELECT b.auction, o.price FROM t b {how} JOIN u o ON b.auction = o.auction AND {bounds}"


def _over(call: str, frame: str = "") -> str:
    return f"SELECT auction, {call} OVER (PARTITION BY auction ORDER BY time {frame}) AS s FROM t"


_CORRECTED = "(SELECT auction AS a, COUNT(*) AS n FROM t GROUP BY auction)"
_MATCH = "PARTITION BY auction ORDER BY time MEASURES A.price AS p PATTERN (A B) DEFINE A AS A.price > 1"
_CUMULATE = "CUMULATE(TABLE t, DESCRIPTOR(time), INTERVAL '1' MINUTE, INTERVAL '1' HOUR)"
_BY_WINDOW = "GROUP BY auction, window_start, window_end"
_NOT_BUILT = {
    "`MATCH_RECOGNIZE`": [f"SELECT * FROM t MATCH_RECOGNIZE ({_MATCH}) AS m"],
    "`PROCTIME()` outside of a look-up, `CURRENT_TIMESTAMP`, `RAND`, `UUID`": [
        f"SELECT {call} AS c FROM t" for call in ("PROCTIME()", "CURRENT_TIMESTAMP", "RAND()", "UUID()")
    ],
    "an aggregate in an aggregate, in `WHERE` or in `GROUP BY`": [
        "SELECT auction, MAX(COUNT(*)) AS n FROM t GROUP BY auction",
        "SELECT auction, COUNT(*) AS n FROM t WHERE COUNT(*) > 1 GROUP BY auction",
        "SELECT COUNT(*) AS n FROM t GROUP BY COUNT(*)",
    ],
    "an aggregate over all rows": ["SELECT COUNT(*) AS n FROM t"],
    "`SUM(DISTINCT …)`, `AVG(DISTINCT …)`": [
        f"SELECT auction, {name}(DISTINCT price) AS s FROM t GROUP BY auction" for name in ("SUM", "AVG")
    ],
    "`FIRST_VALUE`, `LAST_VALUE`, `APPROX_COUNT_DISTINCT` over corrected rows": [
        f"SELECT n, {name}(a) AS f FROM {_CORRECTED} GROUP BY n"
        for name in ("FIRST_VALUE", "LAST_VALUE", "APPROX_COUNT_DISTINCT")
    ],
    "`GROUP BY TUMBLE(time, …)` with `TUMBLE_START`": [
        "SELECT TUMBLE_START(time, INTERVAL '1' MINUTE) AS s FROM t GROUP BY TUMBLE(time, INTERVAL '1' MINUTE)",
        "SELECT COUNT(*) AS n FROM t GROUP BY TUMBLE(time, INTERVAL '1' MINUTE)",
    ],
    "windows without aggregates, `SELECT * FROM TABLE(TUMBLE(…))`": [f"SELECT * FROM {_windows('t')}"],
    "`CUMULATE`, joins of `SESSION`": [
        f"SELECT auction, window_start, COUNT(*) AS n FROM TABLE({_CUMULATE}) {_BY_WINDOW}",
        _window_join("", "SESSION"),
    ],
    "outer interval joins": [_interval_join(how) for how in ("LEFT", "RIGHT", "FULL")],
    "outer window joins": [_window_join(how) for how in ("LEFT", "RIGHT", "FULL")],
    "`OVER` with decimals, `RANK`, `LAG`, frames after the row": [
        _over("SUM(CAST(price AS DECIMAL(9, 2)))"),
        _over("RANK()"),
        _over("LAG(price)"),
        _over("SUM(price)", "ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING"),
    ],
    "`INTERVAL` of months": ["SELECT time + INTERVAL '1' MONTH AS t FROM t"],
    "`CAST` of a text to a time, `TO_TIMESTAMP`, the type `TIME`": [
        f"SELECT {call} AS c FROM t"
        for call in ("CAST(name AS TIMESTAMP)", "CAST(name AS DATE)", "TO_TIMESTAMP(name)", "CAST(time AS TIME)")
    ],
    "`UNION` without `ALL`, `INTERSECT`, `EXCEPT`, `IN` with a query": [
        *(f"SELECT auction FROM t {word} SELECT auction FROM u" for word in ("UNION", "INTERSECT", "EXCEPT")),
        "SELECT auction FROM t WHERE auction IN (SELECT auction FROM u)",
    ],
    "`ORDER BY`, `LIMIT`": [f"SELECT auction FROM t {clause}" for clause in ("ORDER BY auction", "LIMIT 3")],
    "arrays, maps, rows and their functions; JSON; functions of users": [
        f"SELECT {call} AS c FROM t"
        for call in ("ARRAY[1, 2]", "MAP['a', 1]", "ROW(1, 2)", "CARDINALITY(name)", "JSON_VALUE(name, '$')", "mine(1)")
    ],
    "late rows of joins and `OVER`; allowed lateness of `SESSION` and of windows in views": [
        _window_join(""),
        _interval_join(""),
        _over("SUM(price)"),
        f"SELECT auction, COUNT(*) AS n FROM {_windows('t', 'SESSION')} {_BY_WINDOW}",
        f"CREATE TEMPORARY VIEW v AS SELECT auction, COUNT(*) AS n FROM {_windows('t')} {_BY_WINDOW}",
    ],
}


def test_each_row_of_the_table_of_what_is_not_built_is_an_error_with_place_and_hint() -> None:
    table = read("sql").partition("## What is not built\n")[2].strip().partition("\n\n")[0]
    assert [line.split(" | ")[0].lstrip("| ") for line in table.splitlines()[2:]] == list(_NOT_BUILT)
    env, strategy = StreamExecutionEnvironment(), WatermarkStrategy.for_monotonous_timestamps()
    for name in ("t", "u"):
        rows = env.from_collection([_Other(1, 1, "a", START)], _Other, uid=name)
        env.register_table(name, rows.assign_timestamps_and_watermarks(strategy.with_timestamp_column("time")))
    late = timedelta(seconds=5)
    for at, (row, statements) in enumerate(_NOT_BUILT.items()):
        for n, text in enumerate(statements):
            lateness = late if row.startswith("late rows") else timedelta()
            with pytest.raises(JobDefinitionError) as caught:
                if text.startswith("CREATE"):
                    env.sql(text, allowed_lateness=lateness)
                else:
                    env.sql_query(text, uid=f"q{at}.{n}", allowed_lateness=lateness)
            assert caught.value.hint and {"line", "column"} <= caught.value.facts.keys(), text
