"""Restores of regular joins of changelogs whose rows have other fields than those that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stateflow import RowKind
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import IncompatibleState
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.changelog_rows import ADD, Change, D, Joined, joined
from tests.joins.joined_rows import Keyed, unkeyed
from tests.support.errors import raises


class Part(msgspec.Struct, frozen=True):
    size: int
    name: str


class ReorderedPart(msgspec.Struct, frozen=True):
    name: str
    size: int


Fields = dict[str, Any]
FIELDS: Fields = {"kind": RowKind, "key": str, "id": int, "value": int, "part": Part}
"""The fields of the rows of the left side, by name."""


def _with_fields(fields: Fields, upsert_key: Sequence[str] = ()) -> Any:
    """Returns the declaration of a join whose left rows have these fields, in this order."""
    typed = [(name, fields[name]) for name in fields if name != "more"]
    made = msgspec.defstruct("Made", [*typed, *(("more", int, 0) for name in fields if name == "more")], frozen=True)

    def convert(row: Change) -> Any:
        found = msgspec.structs.asdict(row) | {"part": fields["part"](name="p", size=row.value), "more": 3}
        return made(**{name: found[name] for name in fields})

    def declare(left: Keyed, right: Keyed) -> DataStream:
        rows = unkeyed(left).map(convert, output=made).as_changelog(*upsert_key, retracts=not upsert_key)
        join = rows.key_by("key").regular_join(right)
        return join.apply(joined, output=Joined, uid="join")

    return declare


REVERSED = dict(reversed(FIELDS.items()))
ALL = "content: id bigint, key string, part struct<name:string,size:bigint>, value bigint"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_with_fields(FIELDS), _with_fields(REVERSED)),
        (_with_fields(FIELDS), _with_fields(FIELDS | {"part": ReorderedPart})),
        (_with_fields(FIELDS), _with_fields(FIELDS | {"value": int | None, "id": int | None})),
        (_with_fields(FIELDS, ("key", "id")), _with_fields(REVERSED, ("id", "key"))),
        (_with_fields(FIELDS, ("key", "id")), _with_fields(FIELDS | {"value": float, "more": int}, ("key", "id"))),
    ],
    ids=["reversed", "reversed-within", "nullable", "key", "fields-outside-of-key"],
)
def test_a_row_that_was_stored_with_other_fields_is_retracted(before: Any, after: Any) -> None:
    with KeyedHarness(before, KeyedInput(Change, "key"), KeyedInput(Change, "key")) as h:
        h.push_both([Change(ADD, "k", 1, 5)], [Change(ADD, "k", 7)])
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, after) as h:
        assert [row.kind for row in h.push_both([Change(D, "k", 1, 5)], [])] == [D]
        assert [entry.state for entry in h.state_entries()] == ["right-counted"]


@pytest.mark.parametrize(
    ("after", "declared"),
    [
        (_with_fields({name: FIELDS[name] for name in FIELDS if name != "value"}), ALL.removesuffix(", value bigint")),
        (_with_fields(FIELDS | {"more": int}), ALL.replace("part ", "more bigint, part ")),
        (_with_fields(FIELDS | {"value": float}), ALL.replace("value bigint", "value double")),
        (_with_fields(FIELDS, ("key", "id")), "upsert key: id bigint, key string"),
    ],
    ids=["removed", "added", "widened", "key"],
)
def test_a_restore_whose_rows_would_not_be_found_is_refused(after: Any, declared: str) -> None:
    with KeyedHarness(_with_fields(FIELDS), KeyedInput(Change, "key"), KeyedInput(Change, "key")) as h:
        h.push_both([Change(ADD, "k", 1, 5)], [])
        snapshot = h.snapshot()
    with raises(IncompatibleState, name="left-counted", stored=ALL, declared=declared):
        KeyedHarness.restore(snapshot, after)
