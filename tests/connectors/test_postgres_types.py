"""Columns in PostgreSQL: every type of a row comes back, and tables that cannot have the rows are refused."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.errors import SchemaMismatch, SinkRefused, StorageError
from stateflow.storage import open_storage
from tests.servers.postgres import Postgres
from tests.servers.running import CANARY
from tests.support.delta_tables import Colour, Every, Exact, Inner, Pair, Price, context, every_row, pairs, put
from tests.support.errors import raises
from tests.support.examples import one_in
from tests.support.staged_tables import PostgresTable

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


# -- a role that may create objects in the schema of a sink's table ---------------------------------------------------

_UNDO = datetime.timedelta(days=1)
_TOKENS = (
    "CREATE TABLE stateflow_tokens (table_oid bigint NOT NULL, application text NOT NULL, table_id text NOT NULL, "
    "token bigint NOT NULL, version bigint NOT NULL{more}, PRIMARY KEY (table_oid, application))"
)
_UNDO_TABLE = (
    "CREATE TABLE stateflow_undo (table_oid bigint NOT NULL, application text NOT NULL, version bigint NOT NULL, "
    "token bigint NOT NULL, at timestamp with time zone NOT NULL, key jsonb, former jsonb{more})"
)
_STOLEN = (
    "CREATE FUNCTION stolen() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO {schema}.loot VALUES (current_user::text); RETURN NEW; END $$"
)
_STOLEN_VALUE = (
    "CREATE FUNCTION stolen_value() RETURNS bigint LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO {schema}.loot VALUES (current_user::text); RETURN 0; END $$"
)
_PLANTED: dict[str, list[str]] = {
    "trigger": [
        _TOKENS.format(more=""),
        "CREATE TRIGGER steal BEFORE INSERT OR UPDATE ON stateflow_tokens FOR EACH ROW EXECUTE FUNCTION stolen()",
    ],
    "default": [_TOKENS.format(more=", more bigint DEFAULT stolen_value()")],
    "generated": [_TOKENS.format(more=", more text")],
    "owner": [_TOKENS.format(more="")],
    "rule": [
        _TOKENS.format(more=""),
        "CREATE RULE r AS ON INSERT TO stateflow_tokens DO INSTEAD SELECT stolen_value()",
    ],
    "check": [_TOKENS.format(more=", CHECK (stolen_value() = 0)")],
    "index": [
        _TOKENS.format(more=""),
        "CREATE FUNCTION f(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 0; END $$",
        "CREATE INDEX ON stateflow_tokens (f(token))",
    ],
    "view": ["CREATE VIEW stateflow_tokens AS SELECT 1::bigint AS table_oid, stolen_value() AS token"],
    "row security": [
        _TOKENS.format(more=""),
        "ALTER TABLE stateflow_tokens ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON stateflow_tokens USING (stolen_value() = 0)",
    ],
    "parent": [_TOKENS.format(more=""), "CREATE TABLE child () INHERITS (stateflow_tokens)"],
}


def _planted(kind: str, table: str) -> list[str]:
    """Returns the statements that plant a table of the sink."""
    if table == "stateflow_tokens":
        return _PLANTED[kind]
    tokens, undo = (text.partition("{more}") for text in (_TOKENS, _UNDO_TABLE))
    return [
        statement.replace(tokens[0], undo[0]).replace(tokens[2], undo[2]).replace("stateflow_tokens", table)
        for statement in _PLANTED[kind]
    ]


@dataclass(frozen=True)
class _Victim:
    """A schema in which the role `mallory` may create, and a sink of the role `etl`."""

    server: Postgres
    schema: str
    sink: PostgresSink
    folder: Path

    def attack(self, statements: list[str]) -> None:
        conninfo = self.server.conninfo.replace("user=postgres", "user=mallory")
        with psycopg.connect(conninfo, password="mallory", autocommit=True) as connection:
            connection.execute(f"SET search_path = {self.schema}".encode())
            for statement in [_STOLEN, _STOLEN_VALUE, *statements]:
                connection.execute(statement.replace("{schema}", self.schema).encode())

    def loot(self) -> list[tuple[Any, ...]]:
        return self.server.execute(f"SELECT * FROM {self.schema}.loot")

    def about(self, row_class: type[Any] = Pair) -> Any:
        return replace(context(row_class), storage=open_storage(str(self.folder / "root")))


@pytest.fixture
def victim(postgres: Postgres, tmp_path: Path) -> Iterator[_Victim]:
    schema = f"s{abs(hash(str(tmp_path)))}"
    roles = {name for (name,) in postgres.execute("SELECT rolname FROM pg_roles")}
    for role in ("etl", "mallory"):
        if role not in roles:
            postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    postgres.execute(f"CREATE SCHEMA {schema}")
    postgres.execute(f"GRANT CREATE, USAGE ON SCHEMA {schema} TO etl, mallory")
    postgres.execute(f"CREATE TABLE {schema}.loot (who text)")
    postgres.execute(f"GRANT ALL ON {schema}.loot TO PUBLIC")
    postgres.execute(f"ALTER ROLE etl SET search_path = {schema}, public, pg_catalog")
    conninfo = postgres.conninfo.replace("user=postgres", "user=etl")
    sink = PostgresSink(conninfo, f"{schema}.t", password="etl", mode="upsert", keys="id", undo=_UNDO)
    yield _Victim(postgres, schema, sink, tmp_path)
    postgres.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.long(reason="starts a PostgreSQL server")
@pytest.mark.parametrize("table", ["stateflow_tokens", "stateflow_undo"])
@pytest.mark.parametrize("kind", _PLANTED)
def test_a_planted_table_of_the_sink_is_refused_and_none_of_its_code_runs(
    victim: _Victim, kind: str, table: str
) -> None:
    victim.attack([*_planted(kind, table), f"GRANT ALL ON {table} TO PUBLIC"])
    for act in (victim.sink.check, victim.sink.prepare):
        with raises(SinkRefused, found=f"{victim.schema}.{table}", owner="mallory"):
            act(victim.about())
    assert victim.loot() == []


@pytest.mark.parametrize("table", ["stateflow_tokens", "stateflow_undo"])
def test_a_table_of_the_sink_that_is_planted_while_a_run_publishes_is_refused(victim: _Victim, table: str) -> None:
    about = victim.about()
    victim.sink.prepare(about)
    handle = victim.sink.open_table(about)
    victim.server.execute(f"DROP TABLE {victim.schema}.{table}")
    victim.attack([*_planted("trigger", table), f"GRANT ALL ON {table} TO PUBLIC"])
    with raises(SinkRefused, found=f"{victim.schema}.{table}", owner="mallory"):
        handle.commit(1, [])
    assert victim.loot() == []


def test_functions_and_operators_in_the_search_path_do_not_run(victim: _Victim) -> None:
    body = "LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {schema}.loot VALUES (current_user::text); RETURN {value}; END $$"
    shadows = [
        ("set_config(text, text, boolean)", "text", "$1"), ("current_setting(text)", "text", "'on'"),
        ("now()", "timestamptz", "clock_timestamp()"), ("jsonb_build_object(variadic text[])", "jsonb", "'{}'"),
        ("to_jsonb(anyelement)", "jsonb", "'{}'"), ("split_part(text, text, integer)", "text", "$1"),
        ("pg_advisory_xact_lock(integer)", "void", "NULL"), ("same(bigint, bigint)", "boolean", "true"),
        ("row_security_active(oid)", "boolean", "false"),
    ]  # fmt: skip
    made = [f"CREATE FUNCTION {name} RETURNS {kind} {body.replace('{value}', v)}" for name, kind, v in shadows]
    made = [text.replace("RETURN NULL; END", "RETURN; END") for text in made]
    victim.attack([*made, "CREATE OPERATOR = (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = same)"])
    about = victim.about()
    victim.sink.prepare(about)
    put(victim.sink, about, 1, pairs(0, 3))
    put(victim.sink, about, 2, [Pair(1, "new")])
    handle = victim.sink.open_table(about)
    assert handle.rewind(handle.plan_rewind(1).to_version, 3) is not None
    assert victim.loot() == []
    assert sorted(row["text"] for row in victim.server.rows(f"{victim.schema}.t")) == ["row 0", "row 1", "row 2"]


# -- names -------------------------------------------------------------------------------------------------------------

_NAMES = ["t", "s", "o", "k", "r", "key", "former", "version", "excluded", "order", "select", "user", "Upper", "true_"]


@pytest.mark.parametrize("table", ["t", "excluded", "s", 'Say "hi" 100%', "x" * 63])
def test_columns_and_tables_of_any_name_are_published_and_restored(victim: _Victim, table: str) -> None:
    row_class = msgspec.defstruct("Named", [*((name, int) for name in _NAMES[:7]), *((n, str) for n in _NAMES[7:])])
    keys = ["t", "key", "former"]
    conninfo = victim.server.conninfo.replace("user=postgres", "user=etl")
    name = f"{victim.schema}.{table}"
    sink = PostgresSink(conninfo, name, password="etl", mode="upsert", keys=keys, undo=_UNDO)
    about = victim.about(row_class)
    sink.prepare(about)

    def row(key: int, text: str) -> Any:
        return row_class(*[key] * 7, *[text] * 7)

    put(sink, about, 1, [row(1, "a"), row(2, "a")])
    put(sink, about, 2, [row(1, "b"), row(3, "b")])
    quoted = f"""{victim.schema}."{table.replace('"', '""')}\""""
    assert sorted((found["t"], found["Upper"]) for found in victim.server.rows(quoted)) == [
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]
    handle = sink.open_table(about)
    plan = handle.plan_rewind(1)
    assert (plan.rows_removed, plan.rows_returned) == (2, 1)
    assert handle.rewind(plan.to_version, 3) is not None
    assert sorted((each["t"], each["order"]) for each in victim.server.rows(quoted)) == [(1, "a"), (2, "a")]
