"""Aggregation in two phases, with the shuffle in between, gives what one phase gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.schema import RowSchema
from stateflow.errors import StateError
from stateflow.runtime.executor import InputSpec
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from tests.state.operators.test_column_aggregates import (
    ROWS,
    VALUES,
    Keeper,
    Row,
    Wanted,
    aggregates_of,
    is_close,
    output_of,
)
from tests.support.errors import raises
from tests.support.operators import chain_of

EXACT: Wanted = {
    **{f"count_{column}": ("count", column) for column in VALUES},
    **{
        f"{kind}_{column}": (kind, column)
        for kind in ("min", "max")
        for column in VALUES
        if column not in ("real", "lasting")
    },
    "sum_whole": ("sum", "whole"),
    "mean_whole": ("mean", "whole"),
    **{f"{kind}_whole_where": (kind, "whole", "flag") for kind in ("count", "min", "sum", "mean")},
}
FLOATS: Wanted = {"sum_real": ("sum", "real"), "mean_real": ("mean", "real")}


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return to_batch(rows, RowSchema.of(Row))


def _first_phase(wanted: Wanted, divide_floats: bool = False) -> Any:
    first = aggregates_of(wanted).split(divide_floats=divide_floats)
    assert first is not None
    return first


class DividedKeeper(Keeper):
    """Aggregates each of some partitions before what is kept sees it."""

    rows_after_the_shuffle = 0

    def batch(self, rows: Sequence[Row], cuts: Sequence[int] = ()) -> list[dict[str, Any]]:
        function = aggregates_of(self.wanted)
        first = function.split(divide_floats=True)
        assert first is not None
        edges = [0, *sorted(c for c in set(cuts) if c < len(rows)), len(rows)]
        made = [to_rows(b.columns, first.schema) for a, z in pairwise(edges) for b in first.apply([_batch(rows[a:z])])]
        partials = [row for some in made for row in some]
        self.rows_after_the_shuffle += len(partials)
        chain = chain_of(function, Row, output_of(self.wanted))
        (given,) = chain.inputs
        return self.work(replace(chain, inputs=(InputSpec(given.prefix, first.schema, given.keying),)), partials)


@given(st.lists(st.tuples(ROWS, st.lists(st.integers(1, 11), max_size=3), st.booleans()), min_size=1, max_size=4))
def test_results_and_state_are_those_of_one_phase(batches: list[tuple[list[Row], list[int], bool]]) -> None:
    whole, divided = Keeper(EXACT | FLOATS), DividedKeeper(EXACT | FLOATS)
    for rows, cuts, swaps in batches:
        wanted = {row["key"]: row for row in whole.batch(rows)}
        found = {row["key"]: row for row in divided.batch(rows, cuts)}
        assert found.keys() == wanted.keys()
        for key, row in found.items():
            assert _rounded(row) == _rounded(wanted[key])
            assert all(is_close(row[name], wanted[key][name]) for name in FLOATS)
        if swaps:
            # A job may go from one to the other with what is stored.
            whole.store, divided.store = divided.store, whole.store


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """A mean of whole numbers beyond 2^53 is rounded when one phase adds them as floats."""
    return {n: float(f"{v:.12g}") if isinstance(v, float) else v for n, v in row.items() if n not in FLOATS}


def test_one_row_for_each_key_and_partition_is_shuffled() -> None:
    keeper = DividedKeeper({"n": ("count", "whole"), "sum": ("sum", "whole")})
    found = keeper.batch([Row(n % 3, n) for n in range(300)], cuts=[100, 200])
    assert sorted((row["key"], row["n"], row["sum"]) for row in found) == [
        (k, 100, sum(range(k, 300, 3))) for k in range(3)
    ]
    assert keeper.rows_after_the_shuffle == 9


def test_many_rows_are_aggregated_in_bounded_memory_and_none_give_none() -> None:
    first = replace(_first_phase({"n": ("count", "whole")}), rows_at_once=100)
    made = first.apply([_batch([Row(1, n)] * 40) for n in range(5)])
    assert [b.to_pylist() for b in made] == [[{"key": 1, "n__count": n}] for n in (80, 80, 40)]
    assert list(first.apply([_batch([])])) == []


def test_partial_sums_never_wrap() -> None:
    keeper = DividedKeeper({"total": ("sum", "whole")})
    top = (1 << 63) - 1
    assert keeper.batch([Row(1, top), Row(1, top), Row(1, -top), Row(1, -top)], cuts=[2]) == [{"key": 1, "total": 0}]
    assert keeper.batch([Row(1, top), Row(1, -(1 << 63))], cuts=[1]) == [{"key": 1, "total": -1}]
    with raises(StateError, column="whole", sum=2 * top - 1):
        keeper.batch([Row(1, top), Row(1, top)])


@pytest.mark.parametrize(
    "wanted",
    [
        *[(kind, "real") for kind in ("sum", "mean", "min", "max")],
        *[(kind, "whole") for kind in ("variance", "first", "last", "approx_distinct")],
    ],
)
def test_where_the_result_would_depend_on_the_division_there_is_one_phase(wanted: tuple[str, str]) -> None:
    assert aggregates_of({"n": ("count", "whole"), "x": wanted}).split() is None


def test_floats_as_keys_have_one_phase() -> None:
    row, output = (msgspec.defstruct("R", [("real", float), (name, int)]) for name in ("whole", "n"))
    function = ColumnAggregates({"n": ("count", "whole")}, ("real",), RowSchema.of(row), RowSchema.of(output))
    assert function.split() is None


def test_a_key_column_may_be_aggregated_too() -> None:
    (made,) = _first_phase({"n": ("count", "key"), "top": ("max", "key")}).apply([_batch([Row(3), Row(3)])])
    assert made.to_pylist() == [{"key": 3, "n__count": 2, "top__max": 3}]
    assert made.schema.types == [pa.int64()] * 3
