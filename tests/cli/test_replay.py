"""``stateflow replay``: what a batch did is shown again, nothing else changes, and what prevents it is reported."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.errors import ConfigError, IncompatibleState, Interrupted, StateflowError
from stateflow.replay.key_trace import KeyDebugger, KeyRequest
from stateflow.replay.run import ReplayRequest, replay
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents, invoke
from tests.support.errors import raises
from tests.support.screens import normalized

FIRST, SECOND, THIRD = 2, 3, 4
"""The checkpoints of the job's three batches."""


@pytest.fixture
def job(cli: CliFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliFixture:
    cli.run()
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return cli


def _request(job: CliFixture, batch: int) -> ReplayRequest:
    return ReplayRequest(job.job, job.root, batch, (dict(job.settings),))


def _shown(job: CliFixture, *words: str) -> str:
    ended = invoke("replay", str(job.job), "--job-root", job.root, *job.command()[4:], *words)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def _json(job: CliFixture, *words: str) -> Any:
    return json.loads(_shown(job, *words, "--json"))


def test_rows_beyond_the_limit_are_counted(job: CliFixture) -> None:
    found = _json(job, "--batch", str(SECOND), "--rows", "1")
    assert [(e["row_count"], len(e["rows"])) for e in found["emitted"]] == [(4, 1)]
    assert sum(each["entries"] for each in found["state"]["counts"]) == 3
    assert len(found["state"]["changes"]) == 1


def test_the_screen_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    assert normalized(_shown(job, "--batch", str(SECOND)), folder=job.folder) == golden


def test_a_replay_changes_nothing_but_the_log_and_leaves_no_pin_and_no_scratch_file(
    job: CliFixture, tmp_path: Path
) -> None:
    def outside_of_the_log() -> dict[str, str]:
        return {name: text for name, text in contents(tmp_path).items() if not name.startswith("root/log/")}

    before, head = outside_of_the_log(), root_files.head(Path(job.root))
    _shown(job, "--batch", str(THIRD))
    assert outside_of_the_log() == before
    newest = root_files.head(Path(job.root))
    assert (newest.doc["generation"], newest.checkpoint, newest.doc["pinned"]) == (head.doc["generation"], THIRD, [])


def test_code_that_has_changed_leads_to_a_difference_that_is_shown(job: CliFixture) -> None:
    job.write(BUILD, JOB.replace("+ row.number", "+ 2 * row.number"))
    found = _json(job, "--batch", str(SECOND))
    assert found["same"] is False
    assert sorted(change["key"][0] for change in found["difference"]["changes"]) == ["a", "b", "c"]


def test_a_failing_row_fails_the_replay_as_a_run_would_fail(job: CliFixture) -> None:
    job.write(BUILD, JOB.replace("yield Total", "assert row.number != 6\n        yield Total"))
    with pytest.raises(StateflowError) as caught:
        replay(_request(job, SECOND))
    assert caught.value.code == "user-code"
    assert replay(_request(job, THIRD)).is_same


def test_a_job_without_the_operator_or_with_another_type_is_refused(job: CliFixture) -> None:
    job.write(BUILD.replace('uid="sum"', 'uid="other"'))
    with raises(ConfigError, uids=["sum"]):
        replay(_request(job, SECOND))
    job.write(BUILD, JOB.replace('"total", int', '"total", str'))
    with raises(IncompatibleState):
        replay(_request(job, SECOND))


# -- one key, and a debugger that stops in its calls ------------------------------------------------------------------

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


def _keyed(job: CliFixture, *key: str, debugger: KeyDebugger | None = None) -> ReplayRequest:
    return ReplayRequest(job.job, job.root, SECOND, (dict(job.settings),), key=KeyRequest(key), debugger=debugger)


def test_the_screen_of_a_key_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    assert normalized(_shown(job, "--batch", str(SECOND), "--key", "b"), folder=job.folder) == golden


def test_timers_side_outputs_and_state_that_does_not_change_are_shown(cli: CliFixture) -> None:
    cli.write(TIMERS + WITH_TIMERS, JOB)
    cli.settings["checkpoints.retained"] = "10"
    cli.run()
    (key,) = replay(_keyed(cli, "b")).keys
    # The timer of the batch before fires first.
    assert [call.method for call in key.calls] == ["on_timer", "process_element", "process_element"]
    assert [call.given.get("number") for call in key.calls] == [None, 4, 7]
    odd = [[row["number"] for row in (call.side_outputs or {}).get("odd", ())] for call in key.calls]
    assert odd == [[], [], [7]]
    assert [row["total"] for row in key.calls[0].emitted] == [1]
    # Fired, and registered again at the same time.
    assert {(each.state, each.before, each.after) for each in key.state} == {("total", 1, 12), ("_timers", 0, 0)}


@pytest.mark.parametrize("options", [("--pdb",), ("--operator", "sum")])
def test_options_for_a_key_need_one(job: CliFixture, options: tuple[str, ...]) -> None:
    ended = invoke("replay", str(job.job), "--job-root", job.root, "--batch", "3", *options)
    assert ended.exit_code == ConfigError.exit_code


def _debugged(job: CliFixture, *typed: str) -> str:
    output = io.StringIO()
    debugger = KeyDebugger(stdin=io.StringIO("".join(f"{line}\n" for line in typed)), stdout=output)
    report = replay(_keyed(job, "b", debugger=debugger))
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


def test_quitting_the_debugger_ends_the_replay(job: CliFixture) -> None:
    debugger = KeyDebugger(stdin=io.StringIO("q\n"), stdout=io.StringIO())
    with raises(Interrupted):
        replay(_keyed(job, "b", debugger=debugger))


@pytest.mark.slow(reason="starts a process on a terminal")
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
    assert replay(_keyed(job, "b")).is_same
    assert len(stops) == 4


def test_calls_rows_and_lines_are_limited_and_no_escape_sequence_reaches_the_terminal(cli: CliFixture) -> None:
    head = JOB.replace("    key: str\n    total: int", "    key: str\n    total: int\n    note: str", 1)
    note = 'note = "\\x1b[2J\\u202e" + "x" * 1_000_000'
    rows = 'yield from [Total(row.key, 1, note), Total(row.key, 2, "")]'
    head = head.replace("        yield Total(row.key, self.total.value())", f"        {note}\n        {rows}")
    cli.write(BUILD, head)
    cli.run()
    shown = _shown(cli, "--batch", str(SECOND), "--key", "b", "--rows", "1")
    assert "\x1b" not in shown and "\u202e" not in shown
    assert max(map(len, shown.splitlines())) < 5_000
    (key,) = json.loads(_shown(cli, "--batch", str(SECOND), "--key", "b", "--rows", "1", "--json"))["keys"]
    (call,) = key["calls"]
    (row,) = call["emitted"]
    assert (key["call_count"], call["row_count"], len(row["note"])) == (2, 2, 1_000_005)
