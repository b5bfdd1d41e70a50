"""Nexmark's queries as Flink runs them: those that map onto operators have the rows of plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pytest

from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.rules import Stream
from benchmarks.nexmark.tables import WATERMARKS
from stateflow import DeltaSink, StreamExecutionEnvironment
from stateflow.environment import declare
from stateflow.errors import JobDefinitionError
from stateflow.testing.harness.job import CollectedRows
from tests.support.local_jobs import LocalJobs

FOLDER = Path(__file__).parents[2] / "benchmarks" / "nexmark" / "flink_sql"
EVENTS = generate(Stream(events_per_second=40), 0, 1_500)
KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("q0", "q1", "q2", "q3", "q7", "q8", "q10", "q20", "q21", "q22", "q23"), ()),
    "q4": ("id",),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}
"""The key of each query's result; empty where rows are not corrected."""
REFUSED = {
    **dict.fromkeys(("cep0", "cep1", "cep2", "cep3"), "MATCH_RECOGNIZE"),  # patterns
    "q6": "`dateTime`",  # rows before a row, of corrected rows; Flink refuses it, too
    "q11": "SESSION(",  # windows in GROUP BY in place of a table
    "q12": "PROCTIME",
    "q13": "TABLE(side_input(",  # a table function of the user
    "q14": "count_character(",  # a function of the user
}
"""Where the other queries are refused. q5 corrects results that have no key, so no sink takes them."""
_NEVER_NULL = ("event_type", "dateTime", "extra")


def _type_of(field: pa.Field) -> Any:
    kind = datetime if pa.types.is_timestamp(field.type) else str if pa.types.is_string(field.type) else int
    return kind if field.name in _NEVER_NULL else kind | None


Event = msgspec.defstruct("Event", [(field.name, _type_of(field)) for field in EVENTS.schema])
ROWS = [Event(*row) for row in zip(*(column.to_pylist() for column in EVENTS.columns), strict=True)]


def statement(name: str) -> str:
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def register(env: StreamExecutionEnvironment) -> None:
    events = env.from_collection(ROWS, Event, uid="events")
    env.register_table("datagen", events.assign_timestamps_and_watermarks(WATERMARKS))
    env.sql(statement("sources"))


@pytest.mark.long(reason="runs queries over thousands of events")
@pytest.mark.parametrize("query", KEYS)
def test_rows_are_those_of_plain_python(tmp_path: Path, query: str) -> None:
    keys, table = KEYS[query], tmp_path / "table"

    def build(env: StreamExecutionEnvironment) -> None:
        register(env)
        env.register_sink("result", DeltaSink(table, mode="upsert" if keys else "append", keys=keys))
        env.sql(f"INSERT INTO result {statement(query)}")

    LocalJobs(tmp_path, parallelism=2, source__max_rows_per_batch=900).run(build)
    found = pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table())
    columns = [found[name].to_pylist() for name in found.column_names]
    assert Counter(zip(*columns, strict=True)) == RESULTS[query](Events(EVENTS))


@pytest.mark.parametrize("query", REFUSED)
def test_queries_with_other_constructs_are_refused_where_they_have_them(query: str) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        register(env)
        env.register_sink("result", CollectedRows())
        text = statement(query)
        at = text.rindex("SELECT") if query == "q12" else text.index("SELECT")
        env.sql(f"{text[:at]}INSERT INTO result {text[at:]}")

    with pytest.raises(JobDefinitionError) as caught:
        declare(build, "job", ())
    assert str(caught.value.facts["sql"]).startswith(REFUSED[query])


def test_a_result_of_corrections_without_a_key_needs_another_sink(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        register(env)
        env.register_sink("result", DeltaSink(tmp_path))
        env.sql(f"INSERT INTO result {statement('q5')}")

    with pytest.raises(JobDefinitionError) as caught:
        declare(build, "job", ())
    assert caught.value.facts["row_kind"] == "row_kind"
