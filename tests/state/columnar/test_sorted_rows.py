"""The order of binary keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.binary_columns import from_list, sorted_rows

FEW = st.binary(max_size=12).map(lambda text: bytes(byte % 3 for byte in text))
"""Keys of which many are equal, or begin with another one."""


def _of_one_size(size: int) -> st.SearchStrategy[list[bytes]]:
    few = st.lists(st.sampled_from([0, 1, 255]), min_size=size, max_size=size).map(bytes)
    return st.lists(few | st.binary(min_size=size, max_size=size), max_size=40)


@given(st.lists(FEW | st.binary(max_size=40), max_size=40) | st.integers(0, 24).flatmap(_of_one_size), st.data())
def test_keys_are_in_order_and_equal_ones_stay_in_their_order(keys: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(keys)))
    column = from_list(keys).slice(first)
    part = keys[first:]
    assert sorted_rows(column).tolist() == sorted(range(len(part)), key=part.__getitem__)


def test_keys_that_are_equal_in_their_first_eight_distinct_bytes_are_in_order() -> None:
    keys = [b"x" * 8 + b"b", b"x" * 8 + b"a", b"y" * 8 + b"c"]
    assert sorted_rows(from_list(keys)).tolist() == [1, 0, 2]
