"""The command line over a small job without Spark: what it prints, writes and returns."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow import operations
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.cli.main import main
from stateflow.clock import SystemClock
from stateflow.errors import StorageError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents, stateflow
from tests.support.commands import invoke
from tests.support.errors import ReportedError, reported_error
from tests.support.screens import normalized


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    yield CliFixture(tmp_path)
    store_cache.close_all()


def _root(bench: CliFixture, *more: str) -> list[str]:
    return ["--job-root", bench.root, *more]


# -- help ---------------------------------------------------------------------------------------------------------


def _commands() -> dict[str, click.Command]:
    """The program, its groups and commands, with the words that each is called by."""
    found: dict[str, click.Command] = {"stateflow": main}
    for name, command in main.commands.items():
        found[name] = command
        if isinstance(command, click.Group):
            found.update({f"{name} {sub}": leaf for sub, leaf in command.commands.items()})
    return found


@pytest.mark.parametrize("words", sorted(_commands()), ids=lambda words: words.replace(" ", "-"))
def test_help(words: str, golden: SnapshotAssertion) -> None:
    command, path = _commands()[words], words.removeprefix("stateflow").split()
    shown = invoke(*path, "--help")
    assert shown.exit_code == 0 and command.help
    assert normalized(shown.output, exact=True) == golden
    for option in command.params:
        if isinstance(option, click.Argument):
            assert (option.metavar or option.human_readable_name) in shown.output
        else:
            assert max(option.opts, key=len) in shown.output
            assert getattr(option, "help", None), option.name
    for name in command.commands if isinstance(command, click.Group) else ():
        assert re.search(rf"^  {name}  ", shown.output, re.M)


def test_help_has_a_short_form() -> None:
    assert invoke("-h").output == invoke("--help").output


def test_the_help_of_run_names_settings_that_there_are() -> None:
    shown = invoke("run", "--help").output
    assert "docs/settings.md" in shown
    named = set(re.findall(r"(?<![/\w.])(?:[a-z_]+\.)+[A-Za-z_]+", shown))
    listed = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert named and {name for name in named if f"| `{name}` |" not in listed} == set()


def test_the_version_is_the_package_s() -> None:
    shown = invoke("--version")
    assert shown.exit_code == 0
    try:
        assert metadata.version("stateflow") in shown.output
    except metadata.PackageNotFoundError:
        assert shown.output


# -- errors -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_interrupted_goes_on_from_its_checkpoint(bench: CliFixture, golden: SnapshotAssertion) -> None:
    """Ctrl-C in the second batch; the same command goes on from the first."""
    update = "ctx):\n        self.total.update"
    bench.write(BUILD, JOB.replace(update, update.replace("\n", "\n        stop(row)\n")) + STOP)
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file), *SYNCHRONOUS))
    assert shown.exit_code == 130
    assert reported_error(shown.stderr).code == "interrupted"
    assert normalized(shown.output, folder=bench.folder) == golden
    result = json.loads(file.read_text())
    assert (result["status"], result["error"]["code"]) == ("failed", "interrupted")
    assert result["error"]["retryable"] is True
    assert invoke(*bench.command()).exit_code == 0
    assert sorted(row["total"] for row in FolderSink(bench.folder / "table").rows())[-1] == 2 + 5 + 8 + 11


STOP = """
def stop(row):
    marker = HERE.parent / "interrupted"
    if row.number == 6 and not marker.exists():
        marker.touch()
        raise KeyboardInterrupt


"""


def test_a_job_root_in_memory_is_refused(bench: CliFixture) -> None:
    bench.root = "memory://x"
    shown = invoke(*bench.command())
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {"root": "memory://x"})


def test_a_result_that_cannot_be_written_is_an_error(bench: CliFixture) -> None:
    file = bench.folder / "result.json"
    (bench.folder / "result.json.partial").mkdir()
    shown = invoke(*bench.command("--result-file", str(file)))
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code, error.facts["path"]) == (5, "storage", str(file))
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "job.py"],
        ["status"],
        ["gc"],
        ["no-such"],
        ["gc", "--job-root", "x", "--retain", "0"],
        ["run", "job.py", "--job-root", "x", "--log-format", "xml"],
    ],
)
def test_a_wrong_command_line_is_a_configuration_error(arguments: list[str]) -> None:
    shown = invoke(*arguments)
    assert shown.exit_code == 2 and "Usage: " in shown.output


@pytest.mark.parametrize("command", ["status", "gc", "pins"])
def test_where_there_is_no_job_none_is_made(bench: CliFixture, command: str) -> None:
    shown = invoke(command, *_root(bench))
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {"storage": f"file://{bench.root}"})
    assert not Path(bench.root).exists()


@pytest.mark.parametrize("address", ["", " ", "file://"])
@pytest.mark.parametrize("command", ["run", "status", "gc", "pins"])
def test_an_empty_job_root_is_not_the_present_folder(
    bench: CliFixture, command: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    monkeypatch.chdir(bench.root)
    before = contents(bench.folder)
    job = [str(bench.job)] if command == "run" else []
    shown = invoke(command, *job, "--job-root", address)
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {"uri": address})
    assert contents(bench.folder) == before


# -- run ----------------------------------------------------------------------------------------------------------


SYNCHRONOUS = ("--set", "checkpoints.asynchronous=no")


def _result(bench: CliFixture, *more: str) -> dict[str, Any]:
    """Runs the job; returns its result file."""
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file), *more))
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_run_shows_each_batch_and_its_result(bench: CliFixture, golden: SnapshotAssertion) -> None:
    shown = invoke(*bench.command(*SYNCHRONOUS))
    assert shown.exit_code == 0
    # Before each step that takes time, what it is; then where it starts from, and each batch once.
    assert normalized(shown.stderr, folder=bench.folder) == golden(name="log")
    assert normalized(shown.stdout) == golden(name="result")
    assert len(FolderSink(bench.folder / "table").rows()) == 12


def test_a_run_goes_on_where_the_last_one_ended(bench: CliFixture, golden: SnapshotAssertion) -> None:
    first = _result(bench, "--set", "run.max_batches=1", *SYNCHRONOUS)
    assert (first["batches"], first["rows_in"], first["rows_out"]) == (1, 4, {"totals": 4})
    assert first["stopped_because"] == "batches"
    second = invoke(*bench.command(*SYNCHRONOUS))
    assert normalized(second.output, folder=bench.folder) == golden
    assert len(FolderSink(bench.folder / "table").rows()) == 12


def test_checkpoints_beside_the_batches_have_events_of_their_own(bench: CliFixture) -> None:
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--log-format", "json", "--result-file", str(file)))
    assert shown.exit_code == 0
    _, *events = _json_lines(shown.stderr)
    processed = [e["facts"] for e in events if e["event"] == "processed"]
    committed = [e["facts"] for e in events if e["event"] == "committed"]
    assert len(processed) + len(committed) == len(events)
    # Two batches may share a checkpoint, when the one before is still on its way.
    assert [f["batch"] for f in processed] == [1, 2, 3] and committed[-1]["batch"] == 3
    assert sum(f["rows_out"]["totals"] for f in committed) == 12
    assert [f["rows_out"] for f in processed] == [{"totals": 4}] * 3
    assert sum(f["rows"] for f in committed) == sum(f["rows"] for f in processed) == 12
    result = json.loads(file.read_text())
    assert (result["checkpoint_id"], result["stopped_because"]) == (committed[-1]["checkpoint"], "caught-up")


def test_a_checkpoint_committed_before_its_batch_is_reported_has_one_event(
    bench: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_batch = JobRun.run_batch

    def committed_at_once(run: JobRun, rows: Any, capture: Any) -> Any:
        result = run_batch(run, rows, capture)
        run.settle()
        return result

    monkeypatch.setattr(JobRun, "run_batch", committed_at_once)
    shown = invoke(*bench.command("--log-format", "json"))
    _, *events = _json_lines(shown.stderr)
    assert [(e["event"], e["facts"]["batch"]) for e in events] == [
        (event, batch) for batch in (1, 2, 3) for event in ("committed", "processed")
    ]


def test_the_command_line_wins_over_a_file_and_a_file_over_the_job(bench: CliFixture) -> None:
    bench.write("""
    def build(env):
        env.configure(run__max_batches=3, source__max_rows_per_batch=3)
        assert env.parameter("who") == "line"
        env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    """)
    config = bench.folder / "settings.toml"
    config.write_text('job.who = "file"\n[run]\nmax_batches = 2\n')
    result = _result(bench, "--config", str(config), "--set", "job.who=line")
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (2, 6, {})


def _json_lines(text: str) -> list[dict[str, Any]]:
    """The events of a log; without the steps that take time."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert set(line) >= {"time", "level", "logger", "event", "facts"} and line["logger"].startswith("stateflow")
    return [line for line in lines if line["event"] != "step"]


def test_a_run_of_asynchronous_checkpoints_shows_people_each_batch_once(bench: CliFixture) -> None:
    shown = invoke(*bench.command())
    assert shown.exit_code == 0
    found = re.findall(r" checkpoint=(\d+) batch=(\d+) rows=(\d+) ", shown.stderr)
    # Two batches may share a checkpoint.
    assert len(found) == sum(" batch=" in line for line in shown.stderr.splitlines()) <= 3
    assert (found[-1][1], sum(int(rows) for _, _, rows in found)) == ("3", 12)


def test_the_rows_of_each_sink_are_in_the_closing_line(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.write("""
    def build(env):
        totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
        totals.sink_to(sink(), uid="all")
        totals.filter(lambda row: row.total > 20).sink_to(FolderSink(HERE.parent / "large"), uid="large")
    """)
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file), *SYNCHRONOUS))
    large = len(FolderSink(bench.folder / "large").rows())
    assert large
    assert json.loads(file.read_text())["rows_out"] == {"all": 12, "large": large}
    assert normalized(shown.stdout) == golden


def test_times_of_text_logs_are_in_utc(bench: CliFixture) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    ended = stateflow(bench.command(), bench.folder, {"TZ": "America/New_York"})
    times = [line.partition(" ")[0] for line in ended.stderr.splitlines()]
    assert times and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert all(before <= datetime.fromisoformat(time) <= datetime.now(UTC) for time in times)


def test_json_logs_are_one_object_a_line(bench: CliFixture) -> None:
    shown = invoke(*bench.command("--log-format", "json", *SYNCHRONOUS))
    first, *batches = _json_lines(shown.stderr)
    assert (first["event"], first["level"]) == ("restored", "INFO")
    assert first["facts"].pop("at")
    assert first["facts"] == {"job": "job", "run": 1, "checkpoint": 0, "matched": [], "new": ["sum"]}
    assert [(b["event"], b["facts"]["batch"], b["facts"]["rows"]) for b in batches] == [
        ("committed", 1, 4),
        ("committed", 2, 4),
        ("committed", 3, 4),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])


def test_every_line_has_its_job_run_batch_and_checkpoint(bench: CliFixture) -> None:
    shown = invoke(*bench.command("--run-id", "nightly/run/1", "--log-format", "json", *SYNCHRONOUS))
    first, *batches = [line["context"] for line in _json_lines(shown.stderr)]
    run = {"job": "job", "run": "nightly/run/1", "generation": 1}
    assert first == {**run, "batch": 0, "checkpoint": 0}
    assert batches == [{**run, "batch": n, "checkpoint": n + 1} for n in (1, 2, 3)]
    again = invoke(*bench.command("--run-id", "nightly/run/2"))
    *_, line = again.stderr.splitlines()
    assert re.search(r" \| job=job run=nightly/run/2 generation=\d+ checkpoint=\d+$", line)


def test_json_logs_stay_json_when_a_run_fails(bench: CliFixture) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "1 / 0\n        yield Total("))
    shown = invoke(*bench.command("--log-format", "json"))
    assert shown.exit_code == 4
    *_, last = _json_lines(shown.stderr)
    assert (last["event"], last["level"], last["facts"]["code"]) == ("failed", "ERROR", "user-code")
    assert "ZeroDivisionError" in last["facts"]["error"] and "job.py:" in last["facts"]["error"]


def test_json_logs_stay_json_when_something_unexpected_happens(
    bench: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object) -> None:
        raise SystemError("odd")

    monkeypatch.setattr(JobRun, "run_batch", odd)
    shown = invoke(*bench.command("--log-format", "json"))
    assert shown.exit_code == 1
    unexpected, last = _json_lines(shown.stderr)[-2:]
    assert "SystemError: odd" in unexpected["traceback"]
    assert last["facts"]["code"] == "internal"


# -- the result file ----------------------------------------------------------------------------------------------


def test_a_result_file_has_how_a_run_ended(bench: CliFixture) -> None:
    (bench.folder / "result.json").write_text("from before")
    result = _result(bench, "--run-id", "dag run 1")
    assert (result["status"], result["error"], result["stopped_because"]) == ("finished", None, "caught-up")
    assert (result["job"], result["generation"], result["started_from"]) == ("job", 1, 0)
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (3, 12, {"totals": 12})
    assert result["offsets"] == {"rows": '{"row": 12}'}
    assert sorted(p.name for p in bench.folder.glob("result*")) == ["result.json"]

    root = JobRoot.open(open_storage(bench.root), SystemClock())
    assert result["checkpoint_id"] == root.head().checkpoint_id and result["job_uuid"] == root.job.job_uuid
    records = map(json.loads, invoke("history", *_root(bench, "--json")).output.splitlines())
    assert {record["reason"] for record in records} == {"dag run 1"}


def test_a_result_file_has_why_a_run_failed(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "raise KeyError('k')\n        yield Total("))
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file)))
    assert shown.exit_code == 4
    assert normalized(shown.output, folder=bench.folder) == golden
    result = json.loads(file.read_text())
    assert result["status"] == "failed"
    error = result["error"]
    assert (error["code"], error["retryable"]) == ("user-code", False)
    assert error["facts"]["operator"] == "sum" and "KeyError" in error["message"] and error["hint"]
    assert f"error [user-code]: {error['message']}" in shown.stderr


def test_a_result_file_that_cannot_be_written_is_refused_before_anything_runs(bench: CliFixture) -> None:
    file = bench.folder / "none" / "result.json"
    shown = invoke(*bench.command("--result-file", str(file)))
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {"path": str(file)})
    assert not Path(bench.root).exists()


# -- status, gc, pins ---------------------------------------------------------------------------------------------


def _status(bench: CliFixture) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke("status", *_root(bench, "--json")).output)
    return found


def test_status_has_where_a_job_stands_and_changes_nothing(bench: CliFixture) -> None:
    bench.settings["checkpoints.asynchronous"] = "no"
    bench.run()
    before = contents(bench.folder)
    assert invoke("status", *_root(bench)).exit_code == 0
    root = JobRoot.open(open_storage(bench.root), SystemClock())
    head, found = root.head(), _status(bench)
    assert (found["job"], found["job_uuid"], found["generation"]) == ("job", root.job.job_uuid, 1)
    assert (found["checkpoint_id"], found["head_seq"]) == (head.checkpoint_id, head.entry.seq)
    rows = [(c["checkpoint_id"], c["generation"], c["rows_in"]) for c in found["checkpoints"]]
    assert rows == [(head.checkpoint_id - n, 1, 4) for n in (2, 1, 0)]
    assert contents(bench.folder) == before


def test_status_shows_the_error_of_the_newest_run_and_history_those_of_all(
    bench: CliFixture, golden: SnapshotAssertion
) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "raise KeyError('k')\n        yield Total("))
    assert invoke(*bench.command()).exit_code == 4
    found = _status(bench)
    failure = found["failure"]
    assert (failure["code"], failure["generation"]) == ("user-code", found["generation"])
    assert found["run_open"]
    shown = invoke("status", *_root(bench)).output
    assert failure["message"] in shown
    assert normalized(shown, folder=bench.folder) == golden

    bench.write(BUILD, JOB)
    bench.run()
    found = _status(bench)
    assert (found["failure"], found["run_open"]) == (None, False)
    records = [json.loads(line) for line in invoke("history", *_root(bench, "--json")).output.splitlines()]
    (kept,) = [record for record in records if record.get("kind") == "failure"]
    assert (kept["facts"], kept["reason"]) == ({"code": "user-code", "run": "1"}, failure["message"])


def test_status_of_a_run_that_was_killed_or_works(bench: CliFixture, golden: SnapshotAssertion) -> None:
    root = JobRoot.create_or_open(open_storage(bench.root), SystemClock(), NewJob("job", 128, {}), "host:1")
    root.claim("killed before it did anything")
    found = _status(bench)
    assert (found["failure"], found["run_open"]) == (None, True)
    assert normalized(invoke("status", *_root(bench)).output) == golden


def test_gc_counts_with_dry_run_and_deletes_without(bench: CliFixture) -> None:
    bench.run()
    before = contents(bench.folder)
    would = json.loads(invoke("gc", *_root(bench, "--retain", "1", "--dry-run", "--json")).output)
    assert would["dry_run"] and would["files"] > 0 and contents(bench.folder) == before
    did = json.loads(invoke("gc", *_root(bench, "--retain", "1", "--json")).output)
    assert (did["dry_run"], did["bytes_freed"] >= would["bytes_freed"]) == (False, True)
    assert len(did["retained"]) == 1
    assert contents(bench.folder).items() < {**before, **contents(bench.folder)}.items()
    again = json.loads(invoke("gc", *_root(bench, "--json")).output)
    assert (again["files"], again["bytes_freed"], again["retained"]) == (0, 0, did["retained"])
    assert bench.run().started_from == did["retained"][0]


def test_gc_names_what_is_not_ours(bench: CliFixture) -> None:
    bench.run()
    (Path(bench.root) / "data" / "notes.txt").write_text("mine")
    found = json.loads(invoke("gc", *_root(bench, "--json")).output)
    assert found["unknown"] == ["data/notes.txt"]
    assert (Path(bench.root) / "data" / "notes.txt").exists()


def test_pins_are_listed_and_dropped(bench: CliFixture, golden: SnapshotAssertion) -> None:
    bench.run()
    root = JobRoot.open(open_storage(bench.root), SystemClock())
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    pin = root.admin.pin(checkpoint, "me", "looking at it")
    shown = invoke("pins", *_root(bench))
    assert len(shown.output.splitlines()) == 1
    assert all(datum in shown.output for datum in (pin.id, str(checkpoint.id), "me", "looking at it"))
    assert invoke("pins", *_root(bench, "--drop", "other")).exit_code == 2
    assert normalized(invoke("pins", *_root(bench, "--drop", pin.id)).output) == golden
    assert root.head().entry.pinned == []


# -- as a process -------------------------------------------------------------------------------------------------


def test_a_process_ends_with_the_code_and_keeps_its_streams_apart(bench: CliFixture) -> None:
    ended = stateflow(bench.command("--log-format", "json"), bench.folder)
    assert ended.returncode == 0 and len(ended.stdout.splitlines()) == 1
    _json_lines(ended.stderr)


@pytest.mark.parametrize(
    ("raised", "code", "exit_code"),
    [
        (StorageError("out of order", path="x"), "storage", 5),
        (KeyboardInterrupt(), "interrupted", 130),
        (SystemError("odd"), "internal", 1),
    ],
)
def test_each_command_reports_what_it_ends_with(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: str, exit_code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(operations, "list_pins", fail)
    monkeypatch.setattr(operations, "list_all", fail)
    for command in (("pins",), ("savepoint", "list")):
        shown = invoke(*command, "--job-root", "anywhere")
        assert (shown.exit_code, reported_error(shown.stderr).code, shown.stdout) == (exit_code, code, "")


def test_a_closed_pipe_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """``stateflow pins … | head`` ends as other commands do."""

    def closed(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "closed")

    monkeypatch.setattr(operations, "list_pins", closed)
    shown = invoke("pins", "--job-root", "anywhere")
    assert (shown.exit_code, shown.stderr) == (1, "")
