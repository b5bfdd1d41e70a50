"""Rows are aggregated before the shuffle in parts that are limited by number and by size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow.api.aggregates.partial import Partial, PartialAggregation
from stateflow.api.schema import RowSchema
from stateflow.types.columns.shapes import shape_of


class Row(msgspec.Struct):
    key: str
    value: int


SCHEMA = RowSchema.of(Row)
COUNTS = PartialAggregation((SCHEMA.column("key"),), (Partial("n", "value", "count", shape_of(int)),))


def batches(count: int, rows: int, key: str) -> list[pa.RecordBatch]:
    made = pa.RecordBatch.from_pydict({"key": [key] * rows, "value": [1] * rows}, schema=SCHEMA.arrow)
    return [made] * count


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [100]),
        ({"rows_at_once": 40}, [40, 40, 20]),
        ({"bytes_at_once": 3 * 10_000}, [20, 20, 20, 20, 20]),
        ({"bytes_at_once": 1}, [10] * 10),
    ],
)
def test_a_part_has_no_more_rows_and_bytes_than_its_limits_or_one_batch(
    limits: dict[str, Any], expected: list[int]
) -> None:
    # A batch has ten keys of 1,000 bytes each.
    found = replace(COUNTS, **limits).apply(batches(10, 10, "k" * 1000))
    assert [row for batch in found for row in batch.column("n").to_pylist()] == expected


def test_empty_batches_are_no_part() -> None:
    assert [*COUNTS.apply(batches(3, 0, ""))] == []


@pytest.mark.parametrize(("key", "is_split"), [("key", True), ("value__count", False), ("Value__Count", False)])
def test_rows_are_not_aggregated_if_names_differ_in_case_at_most(key: str, is_split: bool) -> None:
    # Spark ignores the case of names.
    partials = {"n": (Partial("value__count", "value", "count", shape_of(int)),)}
    made = PartialAggregation.of([replace(SCHEMA.column("key"), name=key)], partials)
    assert (made is not None) == is_split
