"""Rows that are retracted: of keys without rows, infinite, in batches of any size; and what cannot be retracted."""

from __future__ import annotations

import math
import statistics
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StreamExecutionEnvironment, precision
from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs.materialized import materialized
from tests.support.errors import raises
from tests.support.examples import one_in
from tests.support.local_jobs import Growing, LocalJobs


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    value: float | None
    number: int
    is_odd: bool = False


class Results(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    rows: int
    values: int
    total: float | None
    mean: float | None
    sum_of_numbers: int
    mean_number: float
    lowest: float | None
    highest: float | None
    least: int
    most_odd: int | None
    numbers: int
    odd_numbers: int
    variance: float | None


WANTED = {
    "rows": ("count", "number"), "values": ("count", "value"), "total": ("sum", "value"), "mean": ("mean", "value"),
    "sum_of_numbers": ("sum", "number"), "mean_number": ("mean", "number"), "lowest": ("min", "value"),
    "highest": ("max", "value"), "least": ("min", "number"), "most_odd": ("max", "number", "is_odd"),
    "numbers": ("count_distinct", "number"), "odd_numbers": ("count_distinct", "number", "is_odd"),
    "variance": ("variance", "value"),
}  # fmt: skip
values = st.sampled_from([None, 0.5, -2.0, math.inf, -math.inf, math.nan])
steps = st.tuples(st.sampled_from("ab"), values, st.integers(0, 5), st.booleans())
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def plain(changes: list[Change]) -> dict[str, list[Change]]:
    """The rows of each key, row by row as in Flink: a retraction of a key without rows is ignored."""
    alive: dict[str, list[Change]] = {}
    for change in changes:
        rows = alive.setdefault(change.key, [])
        if not change.kind.is_retraction:
            rows.append(change)
        elif rows:
            same = [row for row in rows if repr(row.value) == repr(change.value) and row.number == change.number]
            rows.remove(same[0])
    return {key: rows for key, rows in alive.items() if rows}


def expected(rows: list[Change]) -> list[object]:
    """NaN is the largest float; the variance with a value that is not finite is NaN."""
    found = [row.value for row in rows if row.value is not None]
    numbers, odd = [row.number for row in rows], [row.number for row in rows if row.is_odd]
    total, mean = (sum(found), sum(found) / len(found)) if found else (None, None)
    ordered: list[float | None] = [*sorted(found, key=lambda value: (math.isnan(value), value))] or [None]
    variance = None
    if len(found) > 1:
        variance = statistics.variance(found) if all(map(math.isfinite, found)) else math.nan
    sums = [len(rows), len(found), total, mean, sum(numbers), sum(numbers) / len(numbers)]
    of_values = [ordered[0], ordered[-1], min(numbers), max(odd, default=None), len(set(numbers)), len(set(odd))]
    return [*sums, *of_values, variance]


def shown(value: object) -> str:
    return repr(round(value, 9) + 0.0 if isinstance(value, float) else value)


def changes_of(given_steps: list[tuple[str, float | None, int, bool]]) -> list[Change]:
    """Each step inserts a row, retracts one, or retracts one of a key without rows."""
    alive: dict[str, list[Change]] = {"a": [], "b": []}
    found = []
    for key, value, number, takes_back in given_steps:
        rows = alive[key]
        if takes_back and rows:
            row = rows.pop(number % len(rows))
            found.append(msgspec.structs.replace(row, kind=RowKind.UPDATE_BEFORE if number % 2 else RowKind.DELETE))
        elif takes_back:
            found.append(Change(RowKind.DELETE, key, value, number, number % 2 == 1))
        else:
            kind = RowKind.INSERT if number % 2 else RowKind.UPDATE_AFTER
            rows.append(Change(kind, key, value, number, number % 2 == 1))
            found.append(rows[-1])
    return found


@pytest.mark.long(reason="draws many histories")
@one_in(3)
@given(st.lists(steps, max_size=20), sizes, st.booleans())
def test_results_are_those_of_row_by_row_at_any_size_of_batches(
    given_steps: list[tuple[str, float | None, int, bool]], batch_sizes: list[int], retract: bool
) -> None:
    changes = changes_of(given_steps)
    found, at = list[Results](), 0

    def declare(rows: Any) -> Any:
        return rows.aggregate_columns(WANTED, output=Results, retract=retract, uid="results")

    with KeyedHarness(declare, KeyedInput(Change, "key")) as h:
        while at < len(changes):
            size = batch_sizes[at % len(batch_sizes)]
            found += h.push(*changes[at : at + size])
            at += size
        left, kept = h.state_entries(), plain(changes)
    floats = ("total", "mean", "lowest", "highest", "variance")
    comparable = [msgspec.structs.replace(row, **{n: shown(getattr(row, n)) for n in floats}) for row in found]
    table = materialized(comparable, "key", kind="kind", retracts=retract)
    rows_of = {key: list(msgspec.structs.astuple(row)[2:]) for key, row in table.items()}
    shown_rows = {key: [v if isinstance(v, str) else shown(v) for v in row] for key, row in rows_of.items()}
    assert shown_rows == {(key,): list(map(shown, expected(rows))) for key, rows in kept.items()}
    assert kept or not left, "a key without rows has state"


@pytest.mark.parametrize(
    ("kind", "low", "middle", "high"),
    [
        (Annotated[Decimal, precision(12, scale=8)], Decimal("-2.00000001"), Decimal("1E-8"), Decimal(10)),
        (time, time(1), time(1, 0, 0, 1), time(23)),
        (timedelta, timedelta(-1), timedelta(microseconds=1), timedelta(days=2)),
        (date, date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)),
        (datetime, *map(datetime.fromisoformat, ("0001-01-01", "2026-01-01", "9999-12-31"))),
        (str, "", "a", "\u00e9"),
        (bytes, b"", b"\0", b"\xff"),
        (bool, False, True, True),
    ],
)
def test_extremes_that_are_retracted_give_way_to_the_next_ones_of_any_type(
    kind: Any, low: object, middle: object, high: object
) -> None:
    row = msgspec.defstruct("Row", [("kind", RowKind), ("key", str), ("value", kind)])
    ends = msgspec.defstruct("Ends", [("kind", RowKind), ("key", str), ("low", kind), ("high", kind)])
    wanted = {"low": ("min", "value"), "high": ("max", "value")}
    with KeyedHarness(lambda rows: rows.aggregate_columns(wanted, output=ends, uid="e"), KeyedInput(row, "key")) as h:
        h.push(*(row(RowKind.INSERT, "a", value) for value in (low, middle, high)))
        h.push(row(RowKind.DELETE, "a", low))
        h.push(row(RowKind.DELETE, "a", high))
        assert [(each.low, each.high) for each in h.output] == [(low, high), (middle, high), (middle, middle)]


def test_the_values_of_a_key_are_read_only_when_its_extreme_is_retracted(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    read = KeyedStateBatch.all_entries

    def counted(self: KeyedStateBatch, state: Any) -> Any:
        reads.append(state)
        return read(self, state)

    monkeypatch.setattr(KeyedStateBatch, "all_entries", counted)
    wanted = {"least": ("min", "number"), "most": ("max", "number"), "numbers": ("count_distinct", "number")}
    ends = msgspec.defstruct("Ends", [("kind", RowKind), ("key", str), *((name, int) for name in wanted)])
    with KeyedHarness(
        lambda rows: rows.aggregate_columns(wanted, output=ends, uid="e"), KeyedInput(Change, "key")
    ) as h:
        h.push(*(Change(RowKind.INSERT, "a", None, number) for number in range(100)))
        for number, expected in ((50, (0, 99, 99)), (0, (1, 99, 98)), (99, (1, 98, 97))):
            reads.clear()
            (row,) = h.push(Change(RowKind.DELETE, "a", None, number))
            assert ((row.least, row.most, row.numbers), len(reads)) == (expected, int(number != 50))


class Appended(msgspec.Struct, frozen=True):
    key: str
    value: float | None
    number: int = 0


class Total(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    rows: int


def test_rows_that_were_only_appended_cannot_be_retracted(tmp_path: Path) -> None:
    rows = [Appended("a", 1), Appended("a", 2)]
    jobs = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment, is_changelog: bool) -> None:
        given = env.from_source(Growing(rows, Appended), uid="rows")
        if is_changelog:
            given = given.map(lambda row: Change(RowKind.DELETE, row.key, row.value, 0), output=Change)
        totals = given.key_by("key").aggregate_columns({"rows": ("count", "number")}, output=Total, uid="totals")
        totals.print()

    jobs.run(lambda env: build(env, is_changelog=False))
    rows.append(Appended("a", 1))
    with raises(StateError, state="aggregated-rows"):
        jobs.run(lambda env: build(env, is_changelog=True))


LAST = {"value": ("last", "value"), "rows": ("count", "number")}


@pytest.mark.parametrize(
    ("wanted", "output", "facts"),
    [
        ({}, Total, {}),
        ({"rows": ("count", "number")}, msgspec.defstruct("Out", [("key", str), ("rows", int)]), {"row_kind": "kind"}),
        (
            LAST,
            msgspec.defstruct("Out", [("kind", RowKind), ("key", str), ("value", float | None), ("rows", int)]),
            {"name": "value", "aggregate": "Last"},
        ),
    ],
)
def test_what_cannot_be_retracted_is_refused(wanted: Any, output: type[Any], facts: dict[str, Any]) -> None:
    with raises(JobDefinitionError, **facts):
        KeyedHarness(lambda rows: rows.aggregate_columns(wanted, output=output, uid="m"), KeyedInput(Change, "key"))
