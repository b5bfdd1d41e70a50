"""The PostgreSQL sink keeps the contract of sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.rows import dict_row

from stateflow.api.sink import Sink
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from tests.servers.postgres import Postgres

_numbers = itertools.count(1)


def postgres_append(address: str) -> Sink:
    conninfo, table = address.split("#")
    return PostgresSink(conninfo, table)


def postgres_upsert(address: str) -> Sink:
    conninfo, table = address.split("#")
    return PostgresSink(conninfo, table, mode="upsert", keys="id", undo=timedelta(days=1))


@pytest.mark.long(reason="draws many histories of a table")
class InPostgres(SinkConformance):
    has_slow_drivers = True
    sweeps = False
    steps = 1
    actions = 15
    failpoints: ClassVar[tuple[str, ...]] = (*SinkConformance.failpoints, "postgres.before-commit")

    @pytest.fixture
    def address(self, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in postgres.variables.items():
            monkeypatch.setenv(name, value)
        return f"{postgres.conninfo}#public.conforming{next(_numbers)}"

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        assert isinstance(sink, PostgresSink)
        settings = sink._settings
        with psycopg.connect(settings.conninfo, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {settings.name}".encode()).fetchall()


@pytest.mark.slow(reason="runs the suite of sinks against a PostgreSQL server")
class TestPostgresAppends(InPostgres):
    factory = staticmethod(postgres_append)
    rewinds = False


class TestPostgresUpserts(InPostgres):
    factory = staticmethod(postgres_upsert)

    def test_a_rewind_lists_what_another_sink_published(self, published: TableUnderTest) -> None:
        """It need not: a rewind keeps rows of other keys."""
        other = published.with_uid("other")
        other.put(50, [50, 51])
        assert published.open().plan_rewind(3).others == ()
        published.rewind(3, token=7)
        assert (published.ids(), other.open().token) == ([1, 2, 3, 50, 51], 50)
