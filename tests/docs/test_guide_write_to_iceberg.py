"""The guide on Iceberg: its sink works in a real catalog, and its table of types is the one of the sink."""

from __future__ import annotations

import datetime
import enum
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.connectors.iceberg.table import iceberg_type
from stateflow.storage import open_storage
from stateflow.types.columns.shapes import shape_of
from tests.docs.column_types import declared_shape
from tests.docs.pages import blocks, read, rows
from tests.support import iceberg_tables
from tests.support.delta_tables import context, put

GUIDE = read("write-to-iceberg")


def test_the_sink_of_the_guide_makes_a_snapshot_for_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks(GUIDE, "python")
    monkeypatch.setenv("CATALOG_CREDENTIAL", "none")
    catalog = iceberg_tables.create_catalog(tmp_path / "lake")
    catalog.create_namespace("flights")
    uri = f"sqlite:///{tmp_path}/lake/catalog.db"
    for old, new in (("https://catalog.internal", uri), ('"rest"', '"sql"'), ('"prod"', '"tests"')):
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    code = code.replace('"type":', f'"warehouse": "file://{tmp_path}/lake", "type":')
    # Not with the postponed annotations of this module.
    exec(compile(code, "guide", "exec", dont_inherit=True), names)
    movement, sink = names["Movement"], names["movements"]
    about = replace(context(movement), storage=open_storage(str(tmp_path / "root")))
    sink.prepare(about)
    for token in (1, 2):
        put(sink, about, token, [movement(token, datetime.datetime.fromisoformat(f"2026-11-0{token}"), "JFK", None)])
    table = catalog.load_table("flights.movements")
    assert [row["id"] for row in sorted(iceberg_tables.rows(table), key=lambda row: row["id"])] == [1, 2]
    assert str(table.spec().fields[0].transform) == "day"
    name = f"stateflow.token.{about.application}"
    assert "`stateflow.token.JOB/SINK`" in GUIDE and table.properties[name] == "2"
    for key in ("write.metadata.delete-after-commit.enabled", "commit.manifest.min-count-to-merge"):
        assert f"`{key}`" in GUIDE
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    handle = sink.open_table(about)
    assert handle.plan_rewind(1).rows_removed == 1


def test_the_guide_has_the_types_of_columns() -> None:
    described = [line for line in rows(GUIDE) if len(line) == 2 and "`" in line[0] and "`" in line[1]]
    assert len(described) >= 12
    for field, column in described:
        shape = declared_shape(field.strip("`"))
        assert str(iceberg_type(shape)) == column.strip("`"), field
    assert str(iceberg_type(shape_of(enum.Enum("E", {"A": "a"})))) == "string"
