"""Which keys and key groups filters leave."""

from __future__ import annotations

import pytest

from stateflow.query.data_source import Comparison, rows_of
from stateflow.query.state_table import Rows
from stateflow.types.key_groups import KeyGroupRange

A, B, NULL = Comparison("a", "in", (1, 2)), Comparison("b", "in", ("x",)), Comparison("b", "in", (None,))


@pytest.mark.parametrize(
    ("comparisons", "wanted"),
    [
        ([], Rows()),
        ([A], Rows()),
        ([A, B], Rows(keys=((1, "x"), (2, "x")))),
        ([A, Comparison("a", "in", (2,)), B], Rows(keys=((2, "x"),))),
        ([A, NULL], Rows(keys=((1, None), (2, None)))),
        ([A, Comparison("b", "in", ())], Rows(keys=())),
        ([Comparison("a", ">", (1,)), B], Rows()),
        ([Comparison("a", "in", tuple(range(10_001))), B], Rows()),
        ([Comparison("key_group", "in", (5, 7))], Rows(groups=KeyGroupRange(5, 7))),
        ([Comparison("key_group", ">", (5,)), Comparison("key_group", "<=", (9,))], Rows(groups=KeyGroupRange(6, 9))),
        ([Comparison("key_group", "in", (5, None)), Comparison("key_group", "in", (1.5,))], Rows()),
        ([Comparison("key_group", ">=", (7,)), Comparison("key_group", "<", (3,))], Rows(groups=KeyGroupRange(7, 2))),
    ],
)
def test_filters_leave_keys_and_key_groups(comparisons: list[Comparison], wanted: Rows) -> None:
    assert rows_of(comparisons, ["a", "b"]) == wanted


def test_a_table_without_keys_has_no_keys_to_look_up() -> None:
    assert rows_of([A], []) == Rows()
