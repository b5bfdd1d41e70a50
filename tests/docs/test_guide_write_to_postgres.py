"""The guide on PostgreSQL: its sink works on a real server, and its table of types is the one of the sink."""

from __future__ import annotations

import enum
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.schema import Column
from stateflow.connectors.postgres.target import postgres_type, target_field
from stateflow.storage import open_storage
from stateflow.types.columns.shapes import shape_of
from tests.docs.column_types import declared_shape
from tests.docs.pages import blocks, read, rows
from tests.servers.postgres import postgres_server
from tests.support.delta_tables import context, put

GUIDE = read("write-to-postgres")


def test_the_sink_of_the_guide_keeps_the_newest_row_of_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks(GUIDE, "python")
    with postgres_server() as server:
        monkeypatch.setenv("FLIGHTS_PASSWORD", server.password)
        names: dict[str, Any] = {}
        conninfo = "host=db.internal dbname=flights user=etl sslmode=verify-full"
        assert conninfo in code
        exec(code.replace(conninfo, server.conninfo), names)
        position, sink = names["Position"], names["newest"]
        about = replace(context(position), storage=open_storage(str(tmp_path)))
        sink.prepare(about)
        put(sink, about, 1, [position("a", 2, "air", False), position("a", 1, "gate", False)])
        put(sink, about, 2, [position("b", 1, None, False), position("b", 2, None, True)])
        assert server.rows("public.positions") == [{"aircraft": "a", "at": 2, "place": "air"}]
        handle = sink.open_table(about)
        assert handle.plan_rewind(1).to_version == 1
        assert set(re.findall(r"`(stateflow_\w+)`", GUIDE)) == {
            name for (name,) in server.execute("SELECT relname FROM pg_class WHERE relname ~ '^stateflow_[a-z]+$'")
        }


def test_the_guide_has_the_types_of_columns() -> None:
    described = [line for line in rows(GUIDE) if len(line) == 3 and "`" in line[1]]
    assert len(described) >= 12
    for field, column, also in described:
        shape = declared_shape(field.strip("`") if "`" in field else "list[int]")
        assert postgres_type(shape) == column.strip("`"), field
        assert all(target_field(Column("x", shape), name, False) for name in re.findall("`(.+?)`", also)), field
    assert postgres_type(shape_of(enum.Enum("E", {"A": "a"}))) == "text"
    assert postgres_type(shape_of(enum.Enum("E", {"A": 1}))) == "bigint"
