"""Flink's results of Nexmark's queries are equal to those of plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.flink_environment import is_set_up
from benchmarks.nexmark.flink import UNSUPPORTED, FlinkInputs, result
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.rules import Stream

pytestmark = [
    pytest.mark.slow(reason="each query is a job of Flink"),
    pytest.mark.skipif(not is_set_up(), reason="Flink is not set up: the benchmarks do this at their first run"),
]
# Few events of a long time: several windows, and sessions that end.
FEW = Slices(Stream(events_per_second=40), 3_000, 1_000)
MANY = Slices(Stream(), 60_000, 20_000)


def write(slices: Slices, folder: Path) -> tuple[Events, FlinkInputs]:
    (folder / "events").mkdir()
    for number in range(slices.files):
        write_slice(slices, folder / "events", number)
    events = Events(generate(slices.stream, 0, slices.events))
    return events, FlinkInputs.write(folder / "events", folder, folder / "events")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Events, FlinkInputs]:
    return write(FEW, tmp_path_factory.mktemp("few"))


@pytest.mark.parametrize("query", [query for query in RESULTS if query not in (*UNSUPPORTED, "q23")])
def test_final_rows_of_flink_are_those_of_plain_python(few: tuple[Events, FlinkInputs], query: str) -> None:
    events, inputs = few
    expected = RESULTS[query](events)
    assert expected
    assert result(query, inputs) == expected


def test_final_rows_are_equal_for_bids_of_sellers(tmp_path: Path) -> None:
    """q23 has rows only when there are more than a thousand persons."""
    events, inputs = write(MANY, tmp_path)
    expected = RESULTS["q23"](events)
    assert expected
    assert result("q23", inputs) == expected
