"""The guides about streams: each of their functions can be declared, and emits what the golden files have."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow import KeyedProcessFunction, RowKind, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.testing import KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.joins.joined_rows import unkeyed
from tests.support.graphs import Nowhere

NOON = datetime.fromisoformat("2026-03-01T12:00")
HOUR = timedelta(hours=1)


class Seat(msgspec.Struct, frozen=True):
    user: str
    seat: int


class Forward(KeyedProcessFunction[Any, Any]):
    """Emits its rows; a harness has no place for the functions of rows that come before the first operator."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


def _at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


# -- the streams that the functions of a guide take, by the names of their parameters ----------------------------------


def _windows(guide: ModuleType) -> dict[str, list[Any]]:
    hours = [0, 0.5, 1, 2, 3, 25, 26, 30, 31, 60, 61, 62, 63]
    flights = [guide.Flight(_at(at), "UA", f"N{n % 2}", None if n == 1 else float(n)) for n, at in enumerate(hours)]
    return {"flights": flights}


def _joins(guide: ModuleType) -> dict[str, list[Any]]:
    flights = [("N1", "EWR", 0), ("N2", "JFK", 0.5), ("N1", "JFK", 2), ("N3", "EWR", 3)]
    reports = [("EWR", 0, 20.0), ("EWR", -1, 9.0), ("JFK", 0.75, 7.0), ("JFK", 1.5, 16.0), ("EWR", 2.5, 3.0)]
    owners = [("N1", -1, "UA"), ("N1", 1, "AA"), ("N2", 1, "DL")]
    insert, delete = RowKind.INSERT, RowKind.DELETE
    changes = [("N1", insert, -1, "UA"), ("N2", insert, -1, "AA"), ("N1", delete, 1, "UA")]
    planes = [("N1", 2026, 100), ("N2", 1999, 50), ("N1", 2026, 120)]
    return {
        "flights": [guide.Flight(_at(at), tailnum, origin) for tailnum, origin, at in flights],
        "reports": [guide.Report(_at(at), station, speed) for station, at, speed in reports],
        "planes": [guide.Plane(*plane) for plane in planes],
        "owners": [guide.Owner(_at(at), tailnum, carrier) for tailnum, at, carrier in owners],
        "changes": [guide.OwnerChange(kind, _at(at), tailnum, carrier) for tailnum, kind, at, carrier in changes],
    }


def _patterns(guide: ModuleType) -> dict[str, list[Any]]:
    n1 = [(0, 40.0), (1, 50.0), (2, 60.0), (3, None), (80, 31.0)]
    n2 = [(0, 31.0), (30, 32.0), (31, 20.0)]
    flights = [guide.Flight(_at(at), "N1", "JFK" if at == 2 else "EWR", delay) for at, delay in n1]
    return {"flights": flights + [guide.Flight(_at(at), "N2", "JFK", delay) for at, delay in n2]}


def _changelogs(guide: ModuleType) -> dict[str, list[Any]]:
    bids = [("a", "x", 10), ("a", "y", 20), ("b", "x", 5), ("a", "x", 30), ("b", "y", 5), ("a", "z", 1)]
    changes = [(RowKind.INSERT, "x", 1), (RowKind.INSERT, "y", 2), (RowKind.DELETE, "x", 1)]
    seats = [("a", 1), ("b", 1), ("b", 2), ("a", 3), ("c", 3)]
    return {
        "bids": [guide.Bid(*bid, time) for time, bid in enumerate(bids)],
        "changes": [guide.BidChange(kind, "a", who, price, at) for at, (kind, who, price) in enumerate(changes)],
        "seats": [Seat(*seat) for seat in seats],
    }


def _from_flink(guide: ModuleType) -> dict[str, list[Any]]:
    orders = [("1", "ann", "EUR", 10.0, 0), ("2", "bob", "USD", 20.0, 20), ("3", "ann", "USD", 150.0, 40)]
    orders += [("4", "ann", "EUR", 30.0, 90), ("2", "bob", "USD", 25.0, 60)]
    return {
        "orders": [guide.Order(*order, _at(minutes / 60)) for *order, minutes in orders],
        "payments": [guide.Payment(of, _at(at)) for of, at in (("1", 0.5), ("3", 2), ("4", 80 / 60))],
        "rates": [guide.Rate("USD", 0.5, NOON), guide.Rate("USD", 0.9, _at(0.5)), guide.Rate("EUR", 1.0, NOON)],
        "limits": [guide.Limit("USD", 100.0)],
    }


STREAMS: dict[str, Callable[[ModuleType], dict[str, list[Any]]]] = {
    "windows": _windows,
    "joins": _joins,
    "patterns": _patterns,
    "changelogs": _changelogs,
    "from-flink": _from_flink,
}
FOLDERS = {"path", "url", "table"}
"""Parameters that are not streams."""
ON_SPARK = {"large_by_spark", "large", "above_limit", "with_cities", "with_known_cities", "with_country"}
"""Functions that a harness cannot run."""
FORWARDED = {"bidders", "from_changes"}
PAIRS = {"daily_with_late_flights", "silent_planes"}
"""Functions that return a side output as well."""


@dataclass(frozen=True)
class Guide:
    module: ModuleType
    streams: dict[str, list[Any]]

    def functions(self) -> Iterator[tuple[Callable[..., Any], list[str]]]:
        """The functions that declare streams, with the names of their parameters."""
        for function in vars(self.module).values():
            if inspect.isfunction(function) and function.__module__ == self.module.__name__:
                names = list(inspect.signature(function).parameters)
                if self.streams.keys() & names and not names - self.streams.keys() - FOLDERS:
                    yield function, names


@pytest.fixture(params=STREAMS)
def guide(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guide]:
    name = f"guide_{request.param.replace('-', '_')}"
    module = load_module(tmp_path / f"{name}.py", "\n\n".join(blocks(read(request.param), "python")))
    yield Guide(module, STREAMS[request.param](module))
    sys.modules.pop(name)


def _time(row: Any) -> dict[str, str]:
    return {"event_time": "time"} if hasattr(row, "time") else {}


def test_each_function_can_be_declared(guide: Guide, tmp_path: Path) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(HOUR).with_timestamp_column("time")
    number = 0
    for function, names in guide.functions():
        env, given = StreamExecutionEnvironment(), []
        for name in names:
            rows = guide.streams.get(name)
            stream: Any = rows and env.from_collection(rows, type(rows[0]), uid=name)
            timed = rows and hasattr(rows[0], "time") and function.__name__ not in FORWARDED
            given.append(stream.assign_timestamps_and_watermarks(strategy) if timed else stream or str(tmp_path))
        made = function(*given)
        if not env.graph.operators and not env.graph.sinks:
            made.sink_to(Nowhere(), uid="out")
        env.graph.check()
        number += 1
    assert number >= 5


@pytest.mark.slow(reason="starts a harness for each of some fifty functions")
def test_each_function_emits_what_the_golden_file_has(guide: Guide, tmp_path: Path, golden: SnapshotAssertion) -> None:
    for folder in ("table", "table_history"):
        # A harness neither creates nor commits tables.
        (tmp_path / folder).mkdir()
    shown = ""
    for function, names in guide.functions():
        if function.__name__ not in ON_SPARK:
            for part in range(2 if function.__name__ in PAIRS else 1):
                shown += f"{function.__name__}{' beside' * part}\n{_emitted(guide, function, names, tmp_path, part)}"
    assert shown == golden


def _emitted(guide: Guide, function: Callable[..., Any], names: list[str], folder: Path, part: int) -> str:
    """What a function emits for the rows of its streams in two batches, with the number of equal rows."""
    rows = [guide.streams[name] for name in names if name in guide.streams]
    inputs = [KeyedInput(type(r[0]), _key(r[0]), out_of_orderness=2 * HOUR, **_time(r[0])) for r in rows]

    def declare(*keyed: Any) -> Any:
        streams = [unkeyed(stream) for stream in keyed]
        if function.__name__ in FORWARDED:
            streams = [keyed[0].process(Forward(), output=type(rows[0][0]), uid="forward")]
        made = function(*streams, *[str(folder / "table")] * (len(names) - len(rows)))
        return made[part] if function.__name__ in PAIRS else made

    with KeyedHarness(declare, *inputs) as h:
        for first, second in itertools.pairwise((0, 2, None)):
            batches = [each[first:second] for each in rows]
            h.push_both(*batches) if len(batches) == 2 else h.push(*batches[0])
        h.drain()
        counts = Counter(re.sub(r"datetime.datetime\((.*?)\)", r"<\1>", repr(row)) for row in h.output)
    return "".join(f"  {count} x {row}\n" for row, count in sorted(counts.items()))


def _key(row: Any) -> str:
    return next(str(name) for name in row.__struct_fields__ if type(getattr(row, name)) is str)


# -- late data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def late_data(tmp_path: Path) -> ModuleType:
    return load_module(tmp_path / "guide_late_data.py", "\n\n".join(blocks(read("late-data"), "python")))


def test_the_streams_of_late_data_can_be_declared(late_data: ModuleType, tmp_path: Path) -> None:
    env = StreamExecutionEnvironment()
    readings = env.from_collection([], late_data.Reading, uid="readings")
    late_data.write(late_data.with_event_time(readings), str(tmp_path))
    assert [sink.uid for sink in env.graph.sinks] == ["hours-table", "late-table"]
    stream = late_data.patient(StreamExecutionEnvironment().from_collection([], late_data.Reading, uid="readings"))
    assert stream._node.strategy.idleness == 3_600_000


@pytest.mark.slow(reason="runs the tests of a guide, which start seven harnesses")
def test_the_tests_of_late_data_pass(late_data: ModuleType) -> None:
    tests = [value for name, value in vars(late_data).items() if name.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        test()
