"""``stateflow replay --key``: one key's calls and state, and a debugger that stops in the first of them."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.errors import ConfigError, Interrupted, WrongKeyType
from stateflow.replay.key_trace import KeyDebugger, KeyRequest
from stateflow.replay.run import ReplayRequest, replay
from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.errors import raises
from tests.support.screens import normalized

SECOND = 3
"""The checkpoint of the second batch, whose rows are 4 to 7: of the keys b, c, a, b."""

TIMERS = """
from stateflow import OnTimerContext, OutputTag

ODD = OutputTag("odd", Row)

class Sum(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.number)
        ctx.timer_service().register_processing_time_timer(0)
        if row.number % 2:
            ctx.output(ODD, row)
        return [Total(row.key, self.total.value())]

    def on_timer(self, timestamp, ctx):
        yield Total("timer", self.total.value())
"""
WITH_TIMERS = """
def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(sink(), uid="totals")
    totals.get_side_output(ODD).sink_to(FolderSink(HERE.parent / "odd"), uid="odd")
"""


@pytest.fixture
def job(cli: CliFixture) -> CliFixture:
    cli.run()
    return cli


def _request(job: CliFixture, *key: str, debugger: KeyDebugger | None = None) -> ReplayRequest:
    return ReplayRequest(job.job, job.root, SECOND, (dict(job.settings),), key=KeyRequest(key), debugger=debugger)


def _shown(job: CliFixture, *words: str) -> str:
    command = ("replay", str(job.job), "--job-root", job.root, "--batch", str(SECOND), *job.command()[4:], *words)
    ended = invoke(*command)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_only_the_calls_and_the_state_of_the_key_are_shown(job: CliFixture) -> None:
    (key,) = json.loads(_shown(job, "--key", "b", "--json"))["keys"]
    assert (key["operator"], key["key"]) == ("sum", ["b"])
    calls = [(call["given"]["number"], [row["total"] for row in call["emitted"]]) for call in key["calls"]]
    assert calls == [(4, [5]), (7, [12])]
    assert [(each["state"], each["before"], each["after"]) for each in key["state"]] == [("total", 1, 12)]


def test_the_screen_of_a_key_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    assert normalized(_shown(job, "--key", "b"), folder=job.folder) == golden


def test_timers_side_outputs_and_state_that_does_not_change_are_shown(cli: CliFixture) -> None:
    cli.write(TIMERS + WITH_TIMERS, JOB)
    cli.settings["checkpoints.retained"] = "10"
    cli.run()
    (key,) = replay(_request(cli, "b")).keys
    # The timer of the batch before fires first.
    assert [call.method for call in key.calls] == ["on_timer", "process_element", "process_element"]
    assert [call.given.get("number") for call in key.calls] == [None, 4, 7]
    odd = [[row["number"] for row in (call.side_outputs or {}).get("odd", ())] for call in key.calls]
    assert odd == [[], [], [7]]
    assert [row["total"] for row in key.calls[0].emitted] == [1]
    # Fired, and registered again at the same time.
    assert {(each.state, each.before, each.after) for each in key.state} == {("total", 1, 12), ("_timers", 0, 0)}


POSITIONAL = """
from stateflow import ListStateDescriptor

class Seen(msgspec.Struct, array_like=True):
    number: int

class Sum(KeyedProcessFunction):
    def open(self, ctx):
        self.last = ctx.get_state(ValueStateDescriptor("last", Seen))
        self.all = ctx.get_list_state(ListStateDescriptor("all", Seen))

    def process_element(self, row, ctx):
        self.last.update(Seen(row.number))
        self.all.add(Seen(row.number))
        return [Total(row.key, row.number)]
"""


def test_values_have_the_names_of_their_fields_and_elements_of_lists_are_in_order(cli: CliFixture) -> None:
    cli.write(POSITIONAL + BUILD, JOB)
    cli.run()
    (key,) = replay(_request(cli, "b")).keys
    assert [(each.state, each.map_key, each.before, each.after) for each in key.state] == [
        ("last", None, {"number": 1}, {"number": 7}),
        ("all", None, {"number": 1}, {"number": 1}),
        ("all", None, None, {"number": 4}),
        ("all", None, None, {"number": 7}),
    ]


def test_a_key_without_rows_and_state_has_no_calls(job: CliFixture) -> None:
    (key,) = replay(_request(job, "z")).keys
    assert (key.calls, key.state) == ((), ())


@pytest.mark.parametrize("options", [("--pdb",), ("--operator", "sum")])
def test_options_for_a_key_need_one(job: CliFixture, options: tuple[str, ...]) -> None:
    ended = invoke("replay", str(job.job), "--job-root", job.root, "--batch", "3", *options)
    assert ended.exit_code == ConfigError.exit_code


def test_values_that_are_no_key_of_the_operator_are_refused(job: CliFixture) -> None:
    with raises(WrongKeyType, given=2, types=["string"], columns=["key"]):
        replay(_request(job, "b", "c"))


def _debugged(job: CliFixture, *typed: str) -> str:
    output = io.StringIO()
    debugger = KeyDebugger(stdin=io.StringIO("".join(f"{line}\n" for line in typed)), stdout=output)
    report = replay(_request(job, "b", debugger=debugger))
    assert report.is_same
    return output.getvalue()


def test_the_debugger_stops_in_the_first_line_of_the_function_with_the_row_of_the_key(job: CliFixture) -> None:
    shown = _debugged(job, "p row.key, row.number", "p self.total.value()", "n", "p self.total.value()", "c")
    assert "('b', 4)" in shown
    assert "self.total.update" in shown
    values = [line.removeprefix("(Pdb) ") for line in shown.splitlines()]
    assert values.count("1") == 1 and values.count("5") == 1
    assert "('b', 7)" not in shown and shown.count("job.py") == 2, "after c, no other call stops"


def test_breakpoints_stop_in_later_calls_for_the_key(job: CliFixture) -> None:
    line = job.job.read_text().splitlines().index("        yield Total(row.key, self.total.value())") + 1
    shown = _debugged(job, f"b {line}", "c", "p row.number", "c", "p row.number", "c")
    assert [text.removeprefix("(Pdb) ") for text in shown.splitlines()].count("4") == 1
    assert [text.removeprefix("(Pdb) ") for text in shown.splitlines()].count("7") == 1


def test_a_call_that_was_left_step_by_step_is_followed_by_a_stop_in_the_next(job: CliFixture) -> None:
    shown = _debugged(job, "r", "n", "p row.number", "c")
    assert "7" in [text.removeprefix("(Pdb) ") for text in shown.splitlines()]


def test_quitting_the_debugger_ends_the_replay(job: CliFixture) -> None:
    debugger = KeyDebugger(stdin=io.StringIO("q\n"), stdout=io.StringIO())
    with raises(Interrupted):
        replay(_request(job, "b", debugger=debugger))


def test_the_command_has_the_debugger_on_its_terminal(job: CliFixture) -> None:
    command = ["replay", str(job.job), "--job-root", job.root, "--batch", str(SECOND), *job.command()[4:]]
    controller, terminal = pty.openpty()
    try:
        os.write(controller, b"p row.number + 1000\nc\n")
        ended = subprocess.run(
            [sys.executable, "-m", "stateflow", *command, "--key", "b", "--pdb"],
            stdin=terminal,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        os.close(terminal)
        os.close(controller)
    assert ended.returncode == 0, ended.stderr
    assert "1004" in ended.stdout and "1 -> 12" in ended.stdout


def test_a_function_that_calls_breakpoint_stops_there(job: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[int] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(1))
    job.write(BUILD, JOB.replace("        yield Total", "        breakpoint()\n        yield Total"))
    assert replay(_request(job, "b")).is_same
    assert len(stops) == 4


def test_calls_rows_and_lines_are_limited_and_no_escape_sequence_reaches_the_terminal(cli: CliFixture) -> None:
    head = JOB.replace("    key: str\n    total: int", "    key: str\n    total: int\n    note: str", 1)
    note = 'note = "\\x1b[2J\\u202e" + "x" * 1_000_000'
    rows = 'yield from [Total(row.key, 1, note), Total(row.key, 2, "")]'
    head = head.replace("        yield Total(row.key, self.total.value())", f"        {note}\n        {rows}")
    cli.write(BUILD, head)
    cli.run()
    shown = _shown(cli, "--key", "b", "--rows", "1")
    assert "\x1b" not in shown and "\u202e" not in shown
    assert max(map(len, shown.splitlines())) < 5_000
    (key,) = json.loads(_shown(cli, "--key", "b", "--rows", "1", "--json"))["keys"]
    (call,) = key["calls"]
    (row,) = call["emitted"]
    assert (key["call_count"], call["count"], len(row["note"])) == (2, 2, 1_000_005)
