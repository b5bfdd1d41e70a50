"""The guide for users of Flink: each of its programs is run over a few orders, and compared with results by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.joins.joined_rows import unkeyed

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NOON = datetime.fromisoformat("2026-03-01T12:00")
Times = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n\n".join(blocks(read("from-flink"), "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_from_flink.py", text)


@pytest.fixture(scope="module")
def orders(guide: ModuleType) -> list[Any]:
    """Four orders of two customers, at 12:00, 12:20, 12:40 and 13:30."""
    given = [("1", "ann", "EUR", 10.0, 0), ("2", "bob", "USD", 20.0, 20), ("3", "ann", "USD", 150.0, 40)]
    given.append(("4", "ann", "EUR", 30.0, 90))
    return [guide.Order(*values, NOON + minutes * MINUTE) for *values, minutes in given]


@pytest.fixture(scope="module")
def payments(guide: ModuleType) -> list[Any]:
    """Payments at 12:30 of the first order, at 14:00 of the third, and too early of the fourth."""
    return [guide.Payment(of, NOON + minutes * MINUTE) for of, minutes in (("1", 30), ("3", 120), ("4", 80))]


def _input(row_class: Any, key: str) -> KeyedInput:
    return KeyedInput(row_class, key, event_time="time", out_of_orderness=2 * HOUR)


def _run(declared: Callable[..., Any], rows: list[Any]) -> list[Any]:
    """Runs a program over orders, in two batches."""
    with KeyedHarness(lambda keyed: declared(unkeyed(keyed)), _input(type(rows[0]), "id")) as h:
        h.push(*rows[:2])
        h.push(*rows[2:])
        h.drain()
        return h.output


def _join(declared: Callable[..., Any], left: list[Any], right: list[Any], keys: tuple[str, str]) -> list[Any]:
    """Runs a join, in two batches."""
    inputs = [_input(type(rows[0]), key) for rows, key in zip((left, right), keys, strict=True)]
    with KeyedHarness(lambda *keyed: declared(*map(unkeyed, keyed)), *inputs) as h:
        h.push_both(left[:2], right[2:])
        h.push_both(left[2:], right[:2])
        h.drain()
        return h.output


def _pairs(rows: list[Any], *names: str) -> Times:
    return sorted(tuple(getattr(row, name) for name in names) for row in rows)


def test_the_program_declares_source_and_sink(guide: ModuleType, tmp_path: Any) -> None:
    env = StreamExecutionEnvironment({"orders": str(tmp_path), "table": str(tmp_path / "table")})
    guide.build(env)
    assert [node.uid for node in env.graph.sinks] == ["orders-table"]


def test_stateless_steps_are_declared(guide: ModuleType, orders: list[Any]) -> None:
    env = StreamExecutionEnvironment()
    stream = env.from_collection(orders, guide.Order, uid="orders")
    assert guide.large_by_spark(stream).schema.names == guide.large(stream).schema.names == ("id", "amount")
    limits = env.from_collection([], guide.Limit, uid="limits")
    assert guide.above_limit(stream, limits).schema.names == stream.schema.names
    assert guide.with_country(stream, "path").schema.names[-1] == "country"


def test_functions_have_state_timers_and_broadcast_state(guide: ModuleType, orders: list[Any]) -> None:
    # A timer for each order, all of which fire at the end, after the rows.
    assert _pairs(_run(guide.totals, orders), "customer", "total") == [*[("ann", 190.0)] * 3, ("bob", 20.0)]
    limits = BroadcastInput(guide.Limit)
    keyed = KeyedInput(guide.Order, "customer")
    with KeyedHarness(guide.AboveLimit(), keyed, limits, output=guide.Order) as h:
        h.push_both(orders[:1], [guide.Limit("USD", 100.0)])
        assert [row.id for row in h.push_both(orders[1:], [])] == ["3"]


def test_windows_have_the_rows_of_flink(guide: ModuleType, orders: list[Any]) -> None:
    names = ("customer", "start", "orders", "total")
    one = NOON + HOUR
    assert _pairs(_run(guide.tumble, orders), *names) == [
        ("ann", NOON, 2, 160.0),
        ("ann", one, 1, 30.0),
        ("bob", NOON, 1, 20.0),
    ]
    half = 30 * MINUTE
    assert _pairs(_run(guide.hop, orders), *names) == [
        ("ann", NOON - half, 1, 10.0),
        ("ann", NOON, 2, 160.0),
        ("ann", NOON + half, 1, 150.0),
        ("ann", one, 1, 30.0),
        ("ann", one + half, 1, 30.0),
        ("bob", NOON - half, 1, 20.0),
        ("bob", NOON, 1, 20.0),
    ]
    assert _pairs(_run(guide.session, orders), *names) == [
        ("ann", NOON, 3, 190.0),
        ("bob", NOON + 20 * MINUTE, 1, 20.0),
    ]
    sums = _pairs(_run(guide.sums, orders), "customer", "total")
    assert sums == [("ann", 30.0), ("ann", 160.0), ("bob", 20.0)]
    of_two = _pairs(_run(guide.sums_of_two, orders), "customer", "total")
    assert of_two == [("ann", 10.0), ("ann", 160.0), ("ann", 180.0), ("bob", 20.0)]
    assert _pairs(_run(guide.largest_of_the_hour, orders), "id") == [("3",), ("4",)]


def test_patterns_have_the_matches_of_flink(guide: ModuleType, orders: list[Any]) -> None:
    assert _pairs(_run(guide.rises, orders), "customer", "low", "high") == [("ann", 10.0, 150.0)]


def test_aggregates_and_rankings_have_the_rows_of_flink(guide: ModuleType, orders: list[Any]) -> None:
    latest = {row.customer: (row.orders, row.currencies, row.total) for row in _run(guide.customer_totals, orders)}
    assert latest == {"ann": (3, 2, 190.0), "bob": (1, 1, 20.0)}
    again = [guide.Order("1", "ann", "EUR", 5.0, NOON - HOUR), guide.Order("2", "bob", "USD", 25.0, NOON + HOUR)]
    assert {row.id: row.amount for row in _run(guide.newest, [*orders, *again])} == {
        "1": 10.0,
        "2": 25.0,
        "3": 150.0,
        "4": 30.0,
    }
    ranked = {(row.customer, row.rn): row.id for row in _run(guide.largest, orders)}
    assert ranked == {("ann", 1): "3", ("ann", 2): "4", ("ann", 3): "1", ("bob", 1): "2"}
    assert _pairs(_run(guide.with_sum, orders), "id", "recent") == [
        ("1", 10.0),
        ("2", 20.0),
        ("3", 160.0),
        ("4", 180.0),
    ]


def test_joins_have_the_rows_of_flink(guide: ModuleType, orders: list[Any], payments: list[Any]) -> None:
    keys = ("id", "order")
    first = ("1", "ann", NOON + 30 * MINUTE)
    third, fourth = ("3", "ann", NOON + 120 * MINUTE), ("4", "ann", NOON + 80 * MINUTE)
    names = ("id", "customer", "paid")
    for declared in (guide.paid_in_an_hour, guide.paid_in_an_hour_by_columns):
        assert _pairs(_join(declared, orders, payments, keys), *names) == [first]
    assert _pairs(_join(guide.paid_in_the_same_hour, orders, payments, keys), *names) == [first, fourth]
    assert _pairs(_join(guide.paid, orders, payments, keys), *names) == [first, third]
    table: dict[str, Any] = {}
    for row in _join(guide.maybe_paid, orders, payments, keys):
        if row.kind.is_retraction:
            assert table.pop(row.id) == row.paid
        else:
            table[row.id] = row.paid
    assert table == {"1": first[2], "2": None, "3": third[2], "4": fourth[2]}
    rates = [guide.Rate("USD", 0.5, NOON), guide.Rate("USD", 0.9, NOON + 30 * MINUTE), guide.Rate("EUR", 1.0, NOON)]
    found = _join(guide.in_euros, orders, rates, ("currency", "currency"))
    assert _pairs(found, "id", "euros") == [("1", 10.0), ("2", 10.0), ("3", 135.0), ("4", 30.0)]
