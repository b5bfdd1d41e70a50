"""Rows that are taken back: of keys without rows, infinite ones, and at any size of batches, as row by row."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import RowKind
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs.materialized import materialized


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    value: float | None
    number: int


class Totals(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    rows: int
    values: int
    total: float | None
    mean: float | None
    numbers: int
    mean_number: float


WANTED = {
    "rows": ("count", "number"),
    "values": ("count", "value"),
    "total": ("sum", "value"),
    "mean": ("mean", "value"),
    "numbers": ("sum", "number"),
    "mean_number": ("mean", "number"),
}
values = st.sampled_from([None, 0.5, -2.0, math.inf, -math.inf, math.nan])
steps = st.tuples(st.sampled_from("ab"), values, st.integers(0, 5), st.booleans())
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def totals(changes: Any, *, retract: bool = False) -> Any:
    return changes.aggregate_columns(WANTED, output=Totals, retract=retract, uid="totals")


def plain(changes: list[Change]) -> dict[str, list[Change]]:
    """The rows of each key, row by row as in Flink: a row that is taken back of a key without rows is ignored."""
    alive: dict[str, list[Change]] = {}
    for change in changes:
        rows = alive.setdefault(change.key, [])
        if not change.kind.is_retraction:
            rows.append(change)
        elif rows:
            same = [row for row in rows if repr(row.value) == repr(change.value) and row.number == change.number]
            rows.remove(same[0])
    return {key: rows for key, rows in alive.items() if rows}


def expected(rows: list[Change]) -> list[float | None]:
    found = [row.value for row in rows if row.value is not None]
    numbers = [row.number for row in rows]
    total = sum(found) if found else None
    mean = sum(found) / len(found) if found else None
    return [len(rows), len(found), total, mean, sum(numbers), sum(numbers) / len(numbers)]


def changes_of(given_steps: list[tuple[str, float | None, int, bool]]) -> list[Change]:
    """Each step inserts a row, takes one back, or takes one back of a key without rows."""
    alive: dict[str, list[Change]] = {"a": [], "b": []}
    found = []
    for key, value, number, takes_back in given_steps:
        rows = alive[key]
        if takes_back and rows:
            row = rows.pop(number % len(rows))
            found.append(msgspec.structs.replace(row, kind=RowKind.UPDATE_BEFORE if number % 2 else RowKind.DELETE))
        elif takes_back:
            found.append(Change(RowKind.DELETE, key, value, number))
        else:
            rows.append(Change(RowKind.INSERT if number % 2 else RowKind.UPDATE_AFTER, key, value, number))
            found.append(rows[-1])
    return found


@settings(max_examples=max(10, settings().max_examples // 2))
@given(st.lists(steps, max_size=20), sizes, st.booleans())
def test_results_are_those_of_row_by_row_at_any_size_of_batches(
    given_steps: list[tuple[str, float | None, int, bool]], batch_sizes: list[int], retract: bool
) -> None:
    changes = changes_of(given_steps)
    found, at = list[Totals](), 0
    with KeyedHarness(lambda rows: totals(rows, retract=retract), KeyedInput(Change, "key")) as h:
        while at < len(changes):
            size = batch_sizes[at % len(batch_sizes)]
            found += h.push(*changes[at : at + size])
            at += size
        kept = plain(changes)
    comparable = [
        msgspec.structs.replace(row, **{n: repr(getattr(row, n)) for n in ("total", "mean")}) for row in found
    ]
    table = materialized(comparable, "key", kind="kind", retracts=retract)
    wanted = {
        (key,): [repr(value) if at in (2, 3) else value for at, value in enumerate(expected(rows))]
        for key, rows in kept.items()
    }
    assert {key: list(msgspec.structs.astuple(row)[2:]) for key, row in table.items()} == wanted


def test_a_row_that_is_taken_back_before_any_other_has_no_effect() -> None:
    rows = [Change(RowKind.DELETE, "a", 1.0, 1), Change(RowKind.INSERT, "a", 2.0, 2)]
    for batches in ([rows], [rows[:1], rows[1:]]):
        with KeyedHarness(totals, KeyedInput(Change, "key")) as h:
            found = [row for batch in batches for row in h.push(*batch)]
            assert found == [Totals(RowKind.INSERT, "a", 1, 1, 2.0, 2.0, 2, 2.0)]


def test_an_infinity_that_is_taken_back_leaves_nothing() -> None:
    rows = [Change(RowKind.INSERT, "a", value, 0) for value in (1.0, math.inf, -math.inf, math.nan)]
    with KeyedHarness(totals, KeyedInput(Change, "key")) as h:
        sums = [row.total for row in h.push(*rows)]
        for row in rows[:0:-1]:
            sums += [each.total for each in h.push(msgspec.structs.replace(row, kind=RowKind.DELETE))]
    assert repr(sums) == "[nan, nan, inf, 1.0]"
