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
from stateflow.runtime.task.operators.vector_operator import VectorOperator
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task_spec import ChainSpec, InputSpec
from tests.state.test_column_aggregates import ROWS, VALUES, Keeper, Row, is_close, output_of
from tests.state.test_vector_operator import chain_of, pieces_of, task_info
from tests.support.errors import raises

EXACT = {
    **{f"count_{column}": ("count", column) for column in VALUES},
    **{f"{kind}_{column}": (kind, column) for kind in ("min", "max") for column in VALUES if column != "real"},
    "sum_whole": ("sum", "whole"),
    "mean_whole": ("mean", "whole"),
}


class DividedKeeper(Keeper):
    """Aggregates each of some partitions before what is kept sees it."""

    def __init__(self, wanted: dict[str, tuple[str, str]]) -> None:
        super().__init__(wanted)
        self.rows_behind_the_shuffle = 0

    def batch(self, rows: Sequence[Row], cuts: Sequence[int] = ()) -> list[dict[str, Any]]:
        function = ColumnAggregates(self.wanted, ("key",), RowSchema.of(Row), RowSchema.of(self.output))
        first = function.split(divide_floats=True)
        assert first is not None
        edges = [0, *sorted(c for c in set(cuts) if c < len(rows)), len(rows)]
        partitions = [rows[a:b] for a, b in pairwise(edges)]
        made = [b.to_pylist() for p in partitions for b in first.apply([to_batch(p, RowSchema.of(Row))])]
        partials = [first.schema.row_class(**row) for some in made for row in some]
        self.rows_behind_the_shuffle += len(partials)
        (given,) = chain_of(function, Row, self.output).inputs
        chain = replace(
            chain_of(function, Row, self.output),
            known_states=self.known,
            inputs=(InputSpec(given.prefix, first.schema, given.keying),),
        )
        return self._work(chain, partials)

    def _work(self, chain: ChainSpec, partials: list[Any]) -> list[dict[str, Any]]:
        operator = VectorOperator(chain, task_info(), self.store)
        emitted = [made for piece in pieces_of(chain, partials) for made in operator.process(*piece)]
        emitted += operator.finish()
        self.known = tuple(operator.schemas)
        return [row for _, made in emitted for row in made.to_pylist()]


@given(st.lists(st.tuples(ROWS, st.lists(st.integers(1, 11), max_size=3), st.booleans()), min_size=1, max_size=4))
def test_results_and_state_are_those_of_one_phase(batches: list[tuple[list[Row], list[int], bool]]) -> None:
    whole, divided = Keeper(EXACT), DividedKeeper(EXACT)
    for rows, cuts, swaps in batches:
        wanted = {row["key"]: _rounded(row) for row in whole.batch(rows)}
        assert {row["key"]: _rounded(row) for row in divided.batch(rows, cuts)} == wanted
        if swaps:
            # A job may go from one to the other with what is stored.
            whole.store, divided.store = divided.store, whole.store


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """A mean of whole numbers beyond 2^53 is rounded when one phase adds them as floats."""
    return {n: float(f"{v:.12g}") if isinstance(v, float) else v for n, v in row.items()}


def test_one_row_for_each_key_and_partition_goes_on() -> None:
    keeper = DividedKeeper({"n": ("count", "whole"), "sum": ("sum", "whole")})
    found = keeper.batch([Row(n % 3, n) for n in range(300)], cuts=[100, 200])
    assert sorted((row["key"], row["n"], row["sum"]) for row in found) == [
        (k, 100, sum(range(k, 300, 3))) for k in range(3)
    ]
    assert keeper.rows_behind_the_shuffle == 9


def test_many_rows_are_aggregated_in_bounded_memory() -> None:
    function = ColumnAggregates(
        {"n": ("count", "whole")}, ("key",), RowSchema.of(Row), RowSchema.of(output_of({"n": ("count", "whole")}))
    )
    first = function.split()
    assert first is not None
    pieces = [to_batch([Row(1, n)] * 40, RowSchema.of(Row)) for n in range(5)]
    assert [b.to_pylist() for b in replace(first, rows_at_once=100).apply(pieces)] == [
        [{"key": 1, "n__count": 80}],
        [{"key": 1, "n__count": 80}],
        [{"key": 1, "n__count": 40}],
    ]


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
        ("sum", "real"),
        ("mean", "real"),
        ("min", "real"),
        ("max", "real"),
        ("variance", "whole"),
        ("first", "whole"),
        ("last", "text"),
        ("approx_distinct", "whole"),
    ],
)
def test_where_the_result_would_depend_on_the_division_there_is_one_phase(wanted: tuple[str, str]) -> None:
    both = {"n": ("count", "whole"), "x": wanted}
    function = ColumnAggregates(both, ("key",), RowSchema.of(Row), RowSchema.of(output_of(both)))
    assert function.split() is None
    keeper = Keeper(both)
    assert keeper.batch([Row(1, 2, 2.0, text="a")])[0]["n"] == 1


@given(st.lists(st.tuples(ROWS, st.lists(st.integers(1, 11), max_size=3)), min_size=1, max_size=3))
def test_sums_of_floats_may_be_divided_when_asked(batches: list[tuple[list[Row], list[int]]]) -> None:
    wanted = {"sum": ("sum", "real"), "mean": ("mean", "real"), "n": ("count", "real"), "top": ("max", "whole")}
    whole, divided = Keeper(wanted), DividedKeeper(wanted)
    for rows, cuts in batches:
        found = sorted(divided.batch(rows, cuts), key=lambda row: row["key"])
        for one, other in zip(found, sorted(whole.batch(rows), key=lambda row: row["key"]), strict=True):
            assert all(is_close(one[name], other[name]) for name in ("key", *wanted))


def test_floats_as_keys_have_one_phase() -> None:
    class Measured(msgspec.Struct):
        real: float
        whole: int

    output = msgspec.defstruct("Output", [("real", float), ("n", int)])
    function = ColumnAggregates({"n": ("count", "whole")}, ("real",), RowSchema.of(Measured), RowSchema.of(output))
    assert function.split() is None


def test_a_key_column_may_be_aggregated_too() -> None:
    output = msgspec.defstruct("Output", [("key", int), ("n", int), ("top", int)])
    function = ColumnAggregates(
        {"n": ("count", "key"), "top": ("max", "key")}, ("key",), RowSchema.of(Row), RowSchema.of(output)
    )
    first = function.split()
    assert first is not None
    (made,) = first.apply([to_batch([Row(3), Row(3)], RowSchema.of(Row))])
    assert made.to_pylist() == [{"key": 3, "n__count": 2, "top__max": 3}]
    assert made.schema.types == [pa.int64()] * 3


def test_without_rows_nothing_goes_on() -> None:
    function = ColumnAggregates(
        {"n": ("count", "key")},
        ("key",),
        RowSchema.of(Row),
        RowSchema.of(msgspec.defstruct("Output", [("key", int), ("n", int)])),
    )
    first = function.split()
    assert first is not None
    assert list(first.apply([to_batch([], RowSchema.of(Row))])) == []
