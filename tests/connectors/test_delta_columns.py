"""Columns that a row class gains: a sink adds them to its table if that is set, and never takes a rename for one."""

from __future__ import annotations

import datetime
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.sink import column_actions
from stateflow.errors import ConfigError, SchemaMismatch
from tests.support.delta_tables import Inner, Pair, Price, commit_elsewhere, context, pairs, put, visible, write
from tests.support.errors import raises


class More(msgspec.Struct, kw_only=True):
    """`Pair` with further columns, one of them first."""

    first: datetime.datetime | None = None
    id: int
    text: str | None = None
    price: Price | None = None
    inner: Inner | None = None
    lasting: datetime.timedelta | None = None


OLD, NEW = context(Pair), context(More)
MORE = More(id=7, text="x", inner=Inner(1), lasting=datetime.timedelta(microseconds=5))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with two rows of the old class, at version 1."""
    sink = DeltaSink(tmp_path / "out")
    sink.prepare(OLD)
    put(sink, OLD, 1, pairs(1, 2))
    return tmp_path / "out"


def _adding(table: Path) -> DeltaSink:
    return DeltaSink(table, schema_evolution="add-columns")


def _columns(table: Path) -> list[str]:
    return [field.name for field in DeltaTable(str(table)).schema().fields]


def test_columns_are_refused_unless_they_may_be_added(table: Path) -> None:
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with raises(SchemaMismatch, found={"first": None, "price": None, "inner": None, "lasting": None}) as refused:
            call(NEW)
        assert "add-columns" in refused.value.hint
    with raises(ConfigError, given="add"):
        DeltaSink(table, schema_evolution="add")  # type: ignore[arg-type]
    assert DeltaTable(str(table)).version() == 1


def test_added_columns_are_null_in_existing_rows_and_the_token_stays(table: Path) -> None:
    sink = _adding(table)
    table_id = sink.check(NEW)
    assert _columns(table) == ["id", "text"], "a check changes nothing"
    assert sink.prepare(NEW) == table_id
    assert _columns(table) == ["id", "text", "first", "price", "inner", "lasting"]
    assert sink.open_table(NEW).token == 1
    assert DeltaTable(str(table)).protocol().reader_features == ["timestampNtz"]
    put(sink, NEW, 2, [MORE])
    assert [row["id"] for row in visible(table)] == [1, 2, 7]
    assert visible(table)[2] == {
        "id": 7,
        "text": "x",
        "first": None,
        "price": None,
        "lasting": 5,
        "inner": {"number": 1, "price": None, "lasting": []},
    }
    version = DeltaTable(str(table)).version()
    assert _adding(table).prepare(NEW) == table_id and DeltaTable(str(table)).version() == version
    # The old version of the job continues: the table has further columns.
    put(DeltaSink(table), OLD, 3, pairs(9, 1))


def test_output_of_the_old_rows_is_published_before_columns_are_added(table: Path) -> None:
    pending = write(DeltaSink(table), OLD, pairs(5, 1))
    sink = _adding(table)
    assert sink.open_table(NEW).commit(2, pending) == 2
    sink.prepare(NEW)
    assert [row["id"] for row in visible(table)] == [1, 2, 5]


def test_a_rewind_keeps_added_columns(table: Path) -> None:
    sink = _adding(table)
    sink.prepare(NEW)
    put(sink, NEW, 2, [MORE])
    opened = sink.open_table(NEW)
    plan = opened.plan_rewind(1)
    assert opened.rewind(plan.to_version, 3) is not None
    assert [row["id"] for row in visible(table)] == [1, 2]
    assert len(_columns(table)) == 6
    put(sink, NEW, 4, [MORE])


Renamed = msgspec.defstruct("Renamed", [("id", int), ("name", str | None)])
Both = msgspec.defstruct("Both", [("id", int), ("text", str | None), ("name", str | None)])
OtherType = msgspec.defstruct("OtherType", [("id", int), ("size", int | None)])


@pytest.mark.parametrize(
    ("row_class", "columns"), [(Renamed, None), (Both, ["id", "text", "name"]), (OtherType, ["id", "text", "size"])]
)
def test_a_column_of_the_same_type_in_the_place_of_another_is_taken_for_a_rename(
    table: Path, row_class: Any, columns: list[str] | None
) -> None:
    sink = _adding(table)
    if columns is None:
        with raises(SchemaMismatch, table=str(table), column="text", renamed_to="name", position=2):
            sink.prepare(context(row_class))
        return
    sink.prepare(context(row_class))
    assert _columns(table) == columns


def test_drivers_that_add_columns_at_the_same_time_agree(table: Path) -> None:
    with ThreadPoolExecutor() as pool:
        ids = list(pool.map(lambda _: _adding(table).prepare(NEW), range(6)))
    assert len(set(ids)) == 1
    assert _columns(table) == ["id", "text", "first", "price", "inner", "lasting"]


def test_a_commit_of_another_writer_in_between_costs_one_more_try(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [pairs(20, 1)]

    def late(*given: Any) -> Any:
        if others:
            commit_elsewhere(table, others.pop())
        return column_actions(*given)

    monkeypatch.setattr("stateflow.connectors.delta.sink.column_actions", late)
    _adding(table).prepare(NEW)
    assert len(_columns(table)) == 6 and [row["id"] for row in visible(table)] == [1, 2, 20]


def test_tasks_and_shadow_tables_get_the_setting(table: Path) -> None:
    sink = _adding(table)
    for other in (pickle.loads(pickle.dumps(sink)), sink.shadow()):
        assert other.schema_evolution == "add-columns"
