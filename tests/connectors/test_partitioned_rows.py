"""Rows of a partitioned source: objects, dicts and Arrow data, and those that do not fit the row class."""

from __future__ import annotations

import json
from datetime import datetime

import msgspec
import pyarrow as pa
import pytest

from stateflow import BadRow, ColumnPolicy, DeadLetters
from stateflow.api.schema import RejectedRecord
from stateflow.errors import CorruptInput, SchemaMismatch
from tests.connectors.partitioned_lists import NO_LIMITS, Item, Lists, rows_of
from tests.support.errors import raises


def _row(**values: object) -> dict[str, object]:
    return {"name": "a", "number": 1, "note": None, **values}


def test_rows_are_objects_dicts_or_arrow_data() -> None:
    table = pa.table({"number": pa.array([3, 4], pa.int16()), "name": ["a", "b"], "note": ["x", None]})
    source = Lists({"p": [Item("a", 1), _row(number=2), table, *table.to_batches()]})
    numbers = [(row.name, row.number, row.note) for row in rows_of(source)]  # type: ignore[attr-defined]
    assert numbers == [("a", 1, None), ("a", 2, None), *[("a", 3, "x"), ("b", 4, None)] * 2]


BAD: list[tuple[object, str]] = [
    (_row(number="1"), "number"),
    (_row(name=None), "name"),
    ({"name": "a", "number": 1}, "note"),
    (Item("a", "1"), "number"),  # type: ignore[arg-type]
    (Item(None, 1), "name"),  # type: ignore[arg-type]
    (BadRow(b"\xff", "not a record"), "not a record"),
    (BadRow("{", "not a record", offset=77), "not a record"),
]


def test_rows_that_do_not_fit_are_rejected_one_by_one_with_their_position() -> None:
    rows = [Item("a", 0), *(bad for bad, _ in BAD), Item("a", 9)]
    found = rows_of(Lists({"p": rows}, on_error=DeadLetters(budget=9), split_size=2))
    assert [row for row in found if isinstance(row, Item)] == [Item("a", 0), Item("a", 9)]
    records = sorted((row for row in found if isinstance(row, RejectedRecord)), key=lambda each: each.offset)
    assert [record.offset for record in records] == [1, 2, 3, 4, 5, 6, 77]
    assert {record.topic for record in records} == {"p"}
    for record, (_, reason) in zip(records, BAD, strict=True):
        assert reason in record.reason
    assert json.loads(records[3].value or "") == {"name": "a", "number": "1", "note": None}
    assert [record.value for record in records[5:]] == ["base64:/w==", "{"]


@pytest.mark.parametrize("bad", [bad for bad, _ in BAD], ids=str)
def test_without_dead_letters_a_row_that_does_not_fit_ends_the_run(bad: object) -> None:
    with raises(CorruptInput, topic="p", partition=0):
        Lists({"p": [Item("a", 0), bad]}).read(None, NO_LIMITS)


@pytest.mark.parametrize(
    ("policy", "row", "wanted"),
    [
        (ColumnPolicy(), {"more": 1}, [("a", 1, None)]),
        (ColumnPolicy(added="refuse"), {"more": 1}, None),
        (ColumnPolicy(missing="null"), {"note": ...}, [("a", 1, None)]),
        (ColumnPolicy(), {"note": ...}, None),
        (ColumnPolicy(missing="null"), {"number": ...}, None),
    ],
    ids=["added", "added-refused", "missing-null", "missing-refused", "missing-required"],
)
def test_columns_of_a_dict_and_of_an_arrow_batch_follow_the_same_policy(
    policy: ColumnPolicy, row: dict[str, object], wanted: list[tuple[object, ...]] | None
) -> None:
    values = {name: value for name, value in _row(**row).items() if value is not ...}
    kinds = {"name": pa.string(), "number": pa.int64(), "note": pa.string(), "more": pa.int64()}
    batch = pa.RecordBatch.from_pylist([values], pa.schema([(name, kinds[name]) for name in values]))
    for item, error in ((values, CorruptInput), (batch, SchemaMismatch)):
        source = Lists({"p": [item]}, columns=policy)
        if wanted is None:
            with raises(error):
                source.read(None, NO_LIMITS)
        else:
            assert [(r.name, r.number, r.note) for r in rows_of(source)] == wanted  # type: ignore[attr-defined]


class Typed(msgspec.Struct):
    number: int
    ratio: float
    at: datetime
    parts: list[Item] = []


_PARTS = pa.list_(pa.struct({"name": pa.string(), "number": pa.int32(), "note": pa.string()}))


@pytest.mark.parametrize(
    ("column", "values", "fits"),
    [
        ("number", pa.array([1], pa.uint32()), True),
        ("number", pa.array([1], pa.uint64()), False),
        ("number", pa.array([1.0], pa.float32()), False),
        ("number", pa.array(["1"]), False),
        ("number", pa.array([None], pa.int64()), False),
        ("ratio", pa.array([1], pa.int32()), True),
        ("ratio", pa.array([1], pa.int64()), False),
        ("at", pa.array([1], pa.timestamp("s")), True),
        ("at", pa.array([1], pa.timestamp("ns")), False),
        ("at", pa.array([1], pa.timestamp("us", tz="UTC")), False),
        ("at", pa.array([2**60], pa.timestamp("s")), False),
        ("parts", pa.array([[{"name": "a", "number": 1, "note": "x"}]], _PARTS), True),
        ("parts", pa.array([[{"name": None, "number": 1, "note": "x"}]], _PARTS), False),
    ],
    ids=str,
)
def test_arrow_columns_are_widened_but_never_changed(column: str, values: pa.Array, fits: bool) -> None:
    table = {"number": pa.array([1]), "ratio": pa.array([1.0]), "at": pa.array([1], pa.timestamp("us"))}
    table["parts"] = pa.array([[]], _PARTS)
    source = Lists({"p": [pa.table({**table, column: values})]}, row=Typed)
    if fits:
        (row,) = rows_of(source)
        assert msgspec.to_builtins(getattr(row, column)) == msgspec.to_builtins(values.to_pylist()[0])
    else:
        with pytest.raises(SchemaMismatch) as caught:
            source.read(None, NO_LIMITS)
        assert str(caught.value.facts["column"]).startswith(column)


def test_a_column_of_the_same_type_in_the_place_of_another_is_taken_for_a_rename() -> None:
    batch = pa.RecordBatch.from_pydict({"name": ["a"], "number": [1], "remark": ["x"]})
    with raises(SchemaMismatch, column="remark", renamed_to="note", position=3):
        Lists({"p": [batch]}, columns=ColumnPolicy(missing="null")).read(None, NO_LIMITS)
    twice = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["name", "name"])
    with raises(SchemaMismatch, columns=["name"]):
        Lists({"p": [twice]}).read(None, NO_LIMITS)
