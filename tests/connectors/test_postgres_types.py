"""Columns in PostgreSQL: every type of a row comes back, and tables that cannot have the rows are refused."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.errors import SchemaMismatch, SinkRefused, StorageError
from tests.servers.postgres import Postgres
from tests.servers.running import CANARY
from tests.support.delta_tables import Colour, Every, Exact, Inner, Pair, Price, every_row
from tests.support.errors import raises
from tests.support.examples import one_in
from tests.support.postgres_tables import PostgresTable

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
_ROWS = every_row(_TEXT, st.floats())


@pytest.fixture(scope="module")
def every(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> PostgresTable:
    return PostgresTable.create(postgres, tmp_path_factory.mktemp("types"), Every).prepare()


@pytest.mark.long(reason="draws many rows")
@given(st.lists(_ROWS, min_size=1, max_size=5))
@one_in(4)
def test_every_value_comes_back(every: PostgresTable, rows: list[Every]) -> None:
    every.server.execute(f"TRUNCATE {every.name}")
    every.put((every.token or 0) + 1, rows)
    found = every.server.rows(every.name)
    for row in found:
        # In JSON, a large float has no exponent, and is read as an integer that has other digits.
        row["numbers"] = row["numbers"] and [float(n) if isinstance(n, int) else n for n in row["numbers"]]
    assert list(map(_comparable, found)) == [_comparable(_wanted(row)) for row in rows]


def _wanted(row: Every) -> dict[str, Any]:
    """The values as psycopg returns them."""
    nested = {
        "inner": None if row.inner is None else _json(row.inner),
        "numbers": None if row.numbers is None else [_json(number) for number in row.numbers],
        "named": None if row.named is None else {key: _json(value) for key, value in row.named.items()},
    }
    colour = None if row.colour is None else row.colour.value
    return {**msgspec.structs.asdict(row), **nested, "colour": colour}


def _json(value: Any) -> Any:
    if isinstance(value, Inner):
        price = None if value.price is None else float(value.price)
        lasting = [msgspec.to_builtins(duration) for duration in value.lasting]
        return {"number": value.number, "price": price, "lasting": lasting}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()
    }


def test_columns_have_the_types_that_the_guide_names(every: PostgresTable) -> None:
    found = dict(
        every.server.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{every.name}'::regclass AND attnum > 0"
        )
    )
    assert found == {
        "id": "bigint", "amount": "double precision", "text": "text", "flag": "boolean", "raw": "bytea", "day": "date",
        "local": "timestamp without time zone", "instant": "timestamp with time zone", "price": "numeric(12,2)",
        "exact": "numeric(38,4)", "time": "time without time zone", "lasting": "interval", "uid": "uuid",
        "colour": "text", "inner": "jsonb", "numbers": "jsonb", "named": "jsonb",
    }  # fmt: skip


def test_keys_of_every_type_are_upserted_and_restored(postgres: Postgres, tmp_path: Path) -> None:
    class Keyed(msgspec.Struct):
        id: int
        text: str
        flag: bool
        raw: bytes
        day: datetime.date
        local: datetime.datetime
        time: datetime.time
        lasting: datetime.timedelta
        uid: uuid.UUID
        colour: Colour
        exact: Exact
        value: int
        when: dict[datetime.date, int] = {}

    def row(value: int) -> Keyed:
        now = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - without a zone, as its column
        key = (1, '"', True, b"\0", now.date(), now, now.time(), datetime.timedelta(microseconds=-1))
        exact = decimal.Decimal("-1234567890123456789012345678901234.5670")
        return Keyed(*key, uuid.UUID(int=7), Colour.RED, exact, value, {now.date(): value})

    keys = [name for name in Keyed.__struct_fields__ if name not in ("value", "when")]
    undo = datetime.timedelta(days=1)
    table = PostgresTable.create(postgres, tmp_path, Keyed, mode="upsert", keys=keys, undo=undo).prepare()
    table.put(1, [row(1)])
    table.put(2, [row(2)])
    assert [(found["value"], found["when"]) for found in table.rows("id")] == [(2, {"2026-01-02": 2})]
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(1).to_version, 3) == 3
    assert [found["value"] for found in table.rows("id")] == [1]


@pytest.mark.parametrize("row", [Every(id=1, text="a\0"), Every(id=1, named={"k\0": None})])
def test_a_text_that_cannot_be_stored_is_refused_before_the_checkpoint(every: PostgresTable, row: Every) -> None:
    column = "text" if row.text else "named"
    with raises(SchemaMismatch, column=column):
        every.stage(1, [Every(id=2), row])


_WIDER = (
    'CREATE TABLE {table} (note text, price numeric(14,3), id numeric, uid text, text varchar, "inner" json, extra int)'
)


def test_wider_types_and_further_columns_are_accepted(postgres: Postgres, tmp_path: Path) -> None:
    class Some(msgspec.Struct):
        id: int
        text: str
        price: Price
        uid: uuid.UUID
        inner: Inner

    table = PostgresTable.create(postgres, tmp_path, Some, _WIDER).prepare()
    table.put(1, [Some(1 << 40, "long", decimal.Decimal("1.50"), uuid.UUID(int=7), Inner(1))])
    (row,) = table.rows("id")
    assert (row["id"], row["price"], row["uid"]) == (1 << 40, decimal.Decimal("1.50"), str(uuid.UUID(int=7)))
    assert (row["inner"]["number"], row["note"], row["extra"]) == (1, None, None)


_UPSERT: dict[str, Any] = {"mode": "upsert", "keys": "id"}


@pytest.mark.parametrize(
    ("ddl", "settings_", "facts"),
    [
        ("CREATE UNLOGGED TABLE {table} (id bigint, text text)", {}, {"property": "UNLOGGED"}),
        ("CREATE VIEW {table} AS SELECT 1::bigint AS id, ''::text AS text", {}, {"relkind": "v"}),
        ("CREATE TABLE {table} (id bigint, text text, more int NOT NULL)", {}, {"column": "more"}),
        ("CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, text text)", {}, {"column": "id"}),
        ("CREATE TABLE {table} (id bigint, text text GENERATED ALWAYS AS ('x') STORED)", {}, {"column": "text"}),
        ("CREATE TABLE {table} (id bigint, text text)", _UPSERT, {"keys": ["id"]}),
        ("CREATE TABLE {table} (id bigint, text text, UNIQUE (id, text))", _UPSERT, {"keys": ["id"]}),
        ("CREATE TABLE {table} (id bigint UNIQUE DEFERRABLE, text text)", _UPSERT, {"keys": ["id"]}),
    ],
)
def test_a_table_that_would_change_or_lose_rows_is_refused(
    postgres: Postgres, tmp_path: Path, ddl: str, settings_: dict[str, Any], facts: dict[str, Any]
) -> None:
    table = PostgresTable.create(postgres, tmp_path, Pair, ddl, **settings_)
    for call in (table.sink.check, table.sink.prepare):
        with raises(SinkRefused, table=table.sink.location, **facts):
            call(table.about)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("id text, text text", {"id": "text"}),
        ("id bigint, text character(5)", {"text": "character(5)"}),
        ('id bigint, "Text" text', {"text": None}),
    ],
)
def test_columns_that_cannot_have_all_values_are_a_mismatch(
    postgres: Postgres, tmp_path: Path, columns: str, found: dict[str, Any]
) -> None:
    table = PostgresTable.create(postgres, tmp_path, Pair, f"CREATE TABLE {{table}} ({columns})")
    with raises(SchemaMismatch, table=table.sink.location, found=found):
        table.sink.prepare(table.about)


def test_missing_privileges_and_schemas_are_named(postgres: Postgres, tmp_path: Path) -> None:
    table = PostgresTable.create(postgres, tmp_path, Pair, "CREATE TABLE {table} (id bigint PRIMARY KEY, text text)")
    table.prepare()
    postgres.execute("CREATE ROLE poor LOGIN PASSWORD 'poor'")
    postgres.execute(f"GRANT INSERT, SELECT ON {table.name} TO poor")
    conninfo = postgres.conninfo.replace("user=postgres", "user=poor")
    with raises(SinkRefused, privileges=["DELETE", "UPDATE"]):
        PostgresSink(conninfo, table.name, password="poor", **_UPSERT).check(table.about)
    with raises(SinkRefused, schema="elsewhere"):
        PostgresSink(conninfo, "elsewhere.t", password="poor").check(table.about)
    with raises(SinkRefused, schema="public"):
        PostgresSink(conninfo, "other", password="poor").prepare(table.about)
    with pytest.raises(StorageError) as caught:
        PostgresSink(postgres.conninfo, "other", password=f"{CANARY}-old").check(table.about)
    assert CANARY not in str(caught.value) and "authentication" in str(caught.value.facts["reason"])
