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


def _not_built() -> list[tuple[str, list[str]]]:
    """The rows of the table, each with the statements that the file has below the name of the row."""
    parts = (Path(__file__).parent / "data" / "not_built.sql").read_text(encoding="utf-8").split("-- ")[1:]
    return [(row, text.removesuffix(";\n").split(";\n")) for row, text in (part.split("\n", 1) for part in parts)]


def test_each_row_of_the_table_of_what_is_not_built_is_an_error_with_place_and_hint() -> None:
    table = read("sql").partition("## What is not built\n")[2].strip().partition("\n\n")[0]
    assert [line.split(" | ")[0].lstrip("| ") for line in table.splitlines()[2:]] == [row for row, _ in _not_built()]
    env, strategy = StreamExecutionEnvironment(), WatermarkStrategy.for_monotonous_timestamps()
    for name in ("t", "u"):
        rows = env.from_collection([_Other(1, 1, "a", START)], _Other, uid=name)
        env.register_table(name, rows.assign_timestamps_and_watermarks(strategy.with_timestamp_column("time")))
    late = timedelta(seconds=5)
    for at, (row, statements) in enumerate(_not_built()):
        for n, text in enumerate(statements):
            lateness = late if row.startswith("late rows") else timedelta()
            with pytest.raises(JobDefinitionError) as caught:
                if text.startswith("CREATE"):
                    env.sql(text, allowed_lateness=lateness)
                else:
                    env.sql_query(text, uid=f"q{at}.{n}", allowed_lateness=lateness)
            assert caught.value.hint and {"line", "column"} <= caught.value.facts.keys(), text
