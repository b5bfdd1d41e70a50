"""A role that may create objects in the schema of a sink's table: its code never runs with the rights of the sink."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.errors import SinkRefused
from stateflow.storage import open_storage
from tests.servers.postgres import Postgres
from tests.support.delta_tables import Pair, context, pairs, put
from tests.support.errors import raises

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
