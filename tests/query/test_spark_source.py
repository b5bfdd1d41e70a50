"""The data source of Spark, as Spark's Python processes call it, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
)
from pyspark.sql.pandas.types import to_arrow_schema

import stateflow
from stateflow.errors import ConfigError
from stateflow.query.data_source import ColumnComparison, StateDataSource, rows_of
from stateflow.query.state_table import Rows
from stateflow.types.key_groups import KeyGroupRange, key_group
from tests.query.summed_job import SummedJob, totals


def _source(ran: SummedJob, **options: str) -> StateDataSource:
    given = {"path": ran.uri, "operator": "sum", "state": "total", **options}
    return StateDataSource(CaseInsensitiveDict(given))


def _rows(source: StateDataSource, filters: Sequence[Filter] = ()) -> list[dict[str, Any]]:
    """What the tasks return; reader and partitions are sent to them."""
    schema = source.schema()
    reader = source.reader(schema)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark must evaluate all filters"
    planned = reader.partitions() or [InputPartition(None)]
    reader, partitions = pickle.loads(pickle.dumps((reader, planned)))
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert all(batch.schema.equals(to_arrow_schema(schema, timezone="UTC")) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("snapshot", [{}, {"snapshot": "canonical"}, {"snapshot": "native"}])
def test_tasks_return_the_rows_of_a_state(ran: SummedJob, snapshot: dict[str, str]) -> None:
    rows = _rows(_source(ran, **snapshot))
    assert {row["key"]: row["value"] for row in rows} == totals(12)
    assert list(_rows(_source(ran, columns="value, key", **snapshot))[0]) == ["value", "key"]


def test_filters_reduce_what_tasks_read(ran: SummedJob) -> None:
    (row,) = _rows(_source(ran), [EqualTo(("key",), "a")])
    assert (row["key"], row["value"]) == ("a", totals(12)["a"])
    assert {row["key"] for row in _rows(_source(ran), [In(("key",), ("a", "b", "none"))])} == {"a", "b"}
    # Spark converts one of the two types, so nothing is left out.
    assert len(_rows(_source(ran), [EqualTo(("key",), 7)])) == len(totals(12))
    group = key_group(["a"], ["string"], 16)
    of_group = [GreaterThanOrEqual(("key_group",), group), LessThan(("key_group",), group + 1)]
    assert {row["key_group"] for row in _rows(_source(ran), of_group)} == {group}


@pytest.mark.parametrize(
    "filters",
    [
        [LessThan(("key_group",), 0)],
        [GreaterThanOrEqual(("key_group",), 9), LessThan(("key_group",), 3)],
        [EqualNullSafe(("key",), None)],
    ],
)
def test_a_filter_that_no_row_fulfils_leaves_no_row(ran: SummedJob, filters: list[Filter]) -> None:
    assert _rows(_source(ran), filters) == []


def test_a_query_pins_its_checkpoint_until_the_lease_ends(ran: SummedJob) -> None:
    before = set(ran.root.head().entry.pinned)
    source = _source(ran, lease_seconds="60")
    source.reader(source.schema()).partitions()
    pins = [pin for pin in ran.root.head().entry.pinned if pin not in before]
    assert [bool(pin.until) for pin in pins] == [True]
    for pin in pins:
        ran.root.admin.unpin(pin.id)


@pytest.mark.parametrize("table", ["snapshots", "operators", "states", "files"])
def test_a_table_of_metadata_is_read(ran: SummedJob, table: str) -> None:
    source = StateDataSource(CaseInsensitiveDict({"path": ran.uri, "table": table}))
    assert _rows(source) == stateflow.read_metadata(ran.uri, table).to_pylist()


@pytest.mark.parametrize(
    "options", [{"state": ""}, {"sate": "total"}, {"lease_seconds": "0"}, {"lease_seconds": "soon"}, {"columns": "no"}]
)
def test_a_wrong_option_is_a_config_error(ran: SummedJob, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        _source(ran, **options).schema()


# -- which keys and key groups filters leave ---------------------------------------------------------------------------

A, B, NULL = (
    ColumnComparison("a", "in", (1, 2)),
    ColumnComparison("b", "in", ("x",)),
    ColumnComparison("b", "in", (None,)),
)


@pytest.mark.parametrize(
    ("comparisons", "wanted"),
    [
        ([], Rows()),
        ([A], Rows()),
        ([A, B], Rows(keys=((1, "x"), (2, "x")))),
        ([A, ColumnComparison("a", "in", (2,)), B], Rows(keys=((2, "x"),))),
        ([A, NULL], Rows(keys=((1, None), (2, None)))),
        ([A, ColumnComparison("b", "in", ())], Rows(keys=())),
        ([ColumnComparison("a", ">", (1,)), B], Rows()),
        ([ColumnComparison("a", "in", tuple(range(10_001))), B], Rows()),
        ([ColumnComparison("key_group", "in", (5, 7))], Rows(groups=KeyGroupRange(5, 7))),
        (
            [ColumnComparison("key_group", ">", (5,)), ColumnComparison("key_group", "<=", (9,))],
            Rows(groups=KeyGroupRange(6, 9)),
        ),
        ([ColumnComparison("key_group", "in", (5, None)), ColumnComparison("key_group", "in", (1.5,))], Rows()),
        (
            [ColumnComparison("key_group", ">=", (7,)), ColumnComparison("key_group", "<", (3,))],
            Rows(groups=KeyGroupRange(7, 2)),
        ),
    ],
)
def test_filters_leave_keys_and_key_groups(comparisons: list[ColumnComparison], wanted: Rows) -> None:
    assert rows_of(comparisons, ["a", "b"]) == wanted


def test_a_table_without_keys_has_no_keys_to_look_up() -> None:
    assert rows_of([A], []) == Rows()
