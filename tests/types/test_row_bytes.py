"""The size of rows in Arrow columns, which parts of joins are limited by."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateflow.types.columns.conversion import row_bytes

TEXTS = pa.array(["", "abc", None, "x" * 1000])
WORDS = pa.array([["x" * 500], [], None, ["ab", "c"]])
MAPS = pa.array([[("k" * 300, 1)], None, [], [("a", 2), ("b", 3)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        (TEXTS, [4, 7, 4, 1004]),
        (pa.array([b"", b"ab"], pa.large_binary()), [4, 6]),
        (WORDS, [508, 4, 4, 15]),
        (MAPS, [316, 4, 4, 30]),
        (pa.array([1, 2, 3]), [8, 8, 8]),
        (pa.StructArray.from_arrays([TEXTS, WORDS, MAPS], names=["a", "b", "c"]), [828, 15, 12, 1049]),
        (pa.array([], pa.struct([])), []),
    ],
)
def test_a_row_has_the_size_of_its_values_also_in_a_slice(column: pa.Array, sizes: list[int]) -> None:
    for start in range(len(column) + 1):
        found = row_bytes(column.slice(start))
        assert found.tolist() == pytest.approx(sizes[start:], abs=3)
