"""Sinks by key after a source or a union: one task writes all rows of a key, in their order, at any parallelism."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from stateflow import DeltaSink, RowKind, StreamExecutionEnvironment
from tests.support.examples import one_in
from tests.support.local_jobs import Growing, LocalJobs


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    id: int
    text: str


class Row(msgspec.Struct, frozen=True):
    id: int
    number: int


class Best(msgspec.Struct, frozen=True):
    kind: RowKind
    id: int
    number: int


def _table(folder: Path) -> dict[int, Any]:
    files = DeltaTable(str(folder)).file_uris() if folder.exists() else []
    return {row.pop("id"): row for uri in files for row in pq.read_table(uri).to_pylist()}


def _changes(steps: list[tuple[int, bool]]) -> tuple[list[Change], dict[int, Any]]:
    """Each step replaces the row of an id, or deletes it. Returns the changes, and the rows after all of them."""
    rows: dict[int, str] = {}
    changes = []
    for number, (key, deletes) in enumerate(steps):
        before, after = rows.pop(key, None), None if deletes else f"t{number}"
        if before is not None:
            changes.append(Change(RowKind.UPDATE_BEFORE if after else RowKind.DELETE, key, before))
        if after is not None:
            changes.append(Change(RowKind.UPDATE_AFTER if before else RowKind.INSERT, key, after))
            rows[key] = after
    return changes, {key: {"text": text} for key, text in rows.items()}


@one_in(12)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 8)
)
def test_a_table_follows_the_changes_of_a_source(steps: list[tuple[int, bool]], parallelism: int, size: int) -> None:
    changes, expected = _changes(steps)

    def build(env: StreamExecutionEnvironment) -> None:
        given = env.from_source(Growing(changes, Change), uid="changes")
        kept = given.map(lambda row: row).filter(lambda row: True)
        kept.sink_to(DeltaSink(folder / "table", mode="upsert", keys="id"), uid="table")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        LocalJobs(folder, parallelism=parallelism, source__max_rows_per_batch=size).run(build)
        assert _table(folder / "table") == expected


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_table_follows_a_union_of_changelogs(tmp_path: Path, parallelism: int) -> None:
    rows = [Row(number % 3, number) for number in range(12)]

    def build(env: StreamExecutionEnvironment) -> None:
        given = env.from_source(Growing(rows, Row), uid="rows")
        parts = [given.filter(lambda row: row.id < 2), given.filter(lambda row: row.id >= 2)]
        first, second = (
            part.key_by("id").top_n(1, order_by=[("number", "desc")], output=Best, retract=True, uid=f"best-{at}")
            for at, part in enumerate(parts)
        )
        first.union(second).sink_to(DeltaSink(tmp_path / "table", mode="upsert", keys="id"), uid="table")

    LocalJobs(tmp_path, parallelism=parallelism).run(build)
    assert _table(tmp_path / "table") == {0: {"number": 9}, 1: {"number": 10}, 2: {"number": 11}}
