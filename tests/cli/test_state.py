"""``stateflow state``: screens of checkpoints and savepoints, and the errors of wrong names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.support.cli_fixture import CliFixture
from tests.support.commands import invoke
from tests.support.screens import normalized

_HEAD = """
from datetime import date
from stateflow import (
    CheckpointedFunction, FileSource, KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, StateTtlConfig,
    StreamExecutionEnvironment, Time, ValueStateDescriptor,
)
from pathlib import Path
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
import msgspec

HERE = Path(__file__).parent
DAY = StateTtlConfig.new_builder(Time.days(1)).build()


class Row(msgspec.Struct):
    key: str
    number: int


class Total(msgspec.Struct):
    key: str
    total: int


class Last(msgspec.Struct):
    number: int
    on: date | None = None


class Everything(KeyedProcessFunction, CheckpointedFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))
        self.last = ctx.get_state(ValueStateDescriptor("last", Last, ttl=DAY))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", int, str))
        self.numbers = ctx.get_list_state(ListStateDescriptor("numbers", int))

    def initialize_state(self, context):
        self.buffer = context.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", int))

    def snapshot_state(self, context):
        self.buffer.update([1, 2])

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.number)
        self.last.update(Last(row.number, date(2026, 1, 1 + row.number)))
        self.seen.put(row.number, f"n{row.number}")
        self.numbers.add(row.number)
        ctx.timer_service().register_processing_time_timer(4_000_000_000_000)
        yield Total(row.key, self.total.value())

    def on_timer(self, timestamp, ctx):
        return []


ROWS = [Row("abc"[n % 3], n) for n in range(12)]


def build(env):
    rows = env.from_source(ScriptedSource(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4), uid="rows")
    rows.key_by("key").process(Everything(), output=Total, uid="sum").sink_to(FolderSink(HERE.parent / "t"), uid="t")
    by_both = rows.key_by("key", "number").process(Everything(), output=Total, uid="by-both")
    by_both.sink_to(FolderSink(HERE.parent / "u"), uid="u")
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CliFixture:
    """A job with every kind of state, three checkpoints, and a savepoint."""
    job = CliFixture(tmp_path_factory.mktemp("state"))
    job.settings["checkpoints.asynchronous"] = "no"
    job.write("", _HEAD)
    job.run()
    assert invoke("savepoint", "create", "--job-root", job.root, "--name", "before", "--from-head").exit_code == 0
    return job


def _shown(job: CliFixture, *words: str) -> str:
    ended = invoke("state", *words)
    assert ended.exit_code == 0, ended.output
    (folder,) = Path(job.root).glob("savepoints/before-*")
    return normalized(ended.output, root=job.root, folder=folder)


def _error(*words: str) -> Any:
    ended = invoke("state", *words)
    assert ended.exit_code == 2, ended.output
    return ended.output


def test_the_screen_of_operators_and_states_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    (folder,) = Path(job.root).glob("savepoints/before-*")
    assert _shown(job, "show", job.root) == golden(name="checkpoint")
    assert _shown(job, "show", job.root, "--snapshot", "before") == golden(name="savepoint")
    assert _shown(job, "show", str(folder)) == golden(name="savepoint")
    shown = json.loads(invoke("state", "show", job.root, "--json").output)
    assert (shown["job"], shown["name"], [o["operator"] for o in shown["operators"]]) == ("job", "", ["by-both", "sum"])
    assert {(s["state"], s["kind"]) for s in shown["states"] if s["operator"] == "sum"} == {
        ("total", "value"),
        ("last", "value"),
        ("seen", "map"),
        ("numbers", "list"),
        ("_timers", "timers"),
        ("_operator/buffer", "split-list"),
    }


def test_errors_of_wrong_names_name_the_existing_ones(job: CliFixture) -> None:
    assert "before" in _error("show", job.root, "--snapshot", "befor")
    assert "FORMAT" in _error("show", str(job.folder))
