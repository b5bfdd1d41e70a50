"""The command line over a small job without Spark: what it prints, writes and returns."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, cast

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow import operations
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.cli.main import main
from stateflow.cli.run import LogLine
from stateflow.clock import SystemClock
from stateflow.errors import StorageError
from stateflow.operations import (
    CheckpointRequest,
    ForkRequest,
    RekeyRequest,
    Relocation,
    SavepointRequest,
    VacuumRequest,
)
from stateflow.operations.changed_savepoints import ChangeRequest
from stateflow.operations.written_savepoints import WriteRequest
from stateflow.replay.run import ReplayRequest
from stateflow.runtime.driver.job_run import JobRun
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents, invoke
from tests.support.errors import ReportedError, reported_error, reported_errors
from tests.support.json_outputs import check
from tests.support.screens import normalized

FAILING = JOB.replace("yield Total(", "raise KeyError('k')\n        yield Total(")
JSON_LOG = ("--log-format", "json")
XML_LOG = "run job.py --job-root x --log-format xml"


def _json_lines(text: str) -> list[dict[str, Any]]:
    """The events of a log; without the steps that take time."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        check(LogLine, line)
        assert line["logger"].startswith("stateflow")
    return [line for line in lines if line["event"] != "step"]


def _result(cli: CliFixture, *more: str) -> dict[str, Any]:
    file = cli.folder / "result.json"
    shown = invoke(*cli.command("--result-file", str(file), *more))
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(file.read_text())
    assert (found["status"], found["error"]) == ("finished", None)
    return cast("dict[str, Any]", found["result"])


def _data(cli: CliFixture, *words: str) -> Any:
    return json.loads(invoke(*words, "--job-root", cli.root, "--json").output)


def _history(cli: CliFixture) -> list[dict[str, Any]]:
    lines = invoke("history", "--job-root", cli.root, "--json").output.splitlines()
    return [json.loads(line) for line in lines]


# -- help and wrong command lines -------------------------------------------------------------------------------------


def _commands(name: str, command: click.Command) -> dict[str, click.Command]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return {name: command} | {k: v for sub in below for k, v in _commands(f"{name} {sub.name}", sub).items()}


COMMANDS = _commands("stateflow", main)


@pytest.mark.slow(reason="starts two processes for each way")
@pytest.mark.parametrize("redirected", ["<&- >&- 2>&-", "2>&-", "2>/dev/full", "2> >(true)"])
def test_a_run_does_not_depend_on_its_standard_streams(tmp_path: Path, redirected: str) -> None:
    job = CliFixture(tmp_path)
    command = shlex.join([sys.executable, "-m", "stateflow", *job.command(), "--log-format", "text"])
    assert subprocess.run(["bash", "-c", f"{command} {redirected}"], stdout=subprocess.DEVNULL).returncode == 0
    failing = f"{command} --set no.such=1 {redirected}"
    assert subprocess.run(["bash", "-c", failing], stdout=subprocess.DEVNULL).returncode == 2


@pytest.mark.long(reason="starts a process for each command")
def test_output_that_cannot_be_written_is_an_error_of_the_storage(tmp_path: Path) -> None:
    job = CliFixture(tmp_path)
    job.run()
    command = [sys.executable, "-m", "stateflow", "status", "--job-root", job.root]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, reported_error(ended.stderr).code) == (5, "storage"), ended.stderr


@pytest.mark.slow(reason="starts two processes")
def test_a_path_that_python_s_encoding_lacks_is_reported_as_such(tmp_path: Path) -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    folder = tmp_path / "B\xfccher"
    folder.mkdir()
    job = CliFixture(folder)
    words = [sys.executable, "-m", "stateflow", *job.command(), "--log-format", "text"]
    refused = subprocess.run(words, env=ascii_only, capture_output=True)
    assert (refused.returncode, reported_error(refused.stderr.decode()).code) == (2, "environment-unsupported")
    subprocess.run(words, env={**ascii_only, "PYTHONUTF8": "1"}, check=True, capture_output=True)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.removeprefix("stateflow ").replace(" ", "-"))
def test_the_help_of_each_command_matches_the_golden_file(words: str, golden: SnapshotAssertion) -> None:
    command, path = COMMANDS[words], words.split()[1:]
    shown = invoke(*path, "--help")
    assert shown.exit_code == 0 and command.help
    assert normalized(shown.output, exact=True) == golden
    assert invoke(*path, "-h").output == shown.output
    assert all(getattr(option, "help", None) for option in command.params if isinstance(option, click.Option))


REQUESTS: dict[str, tuple[str, Any]] = {
    "checkpoints trigger": ("--job-root r", CheckpointRequest),
    "fork": ("--job-root r latest --into x", ForkRequest),
    "replay": ("--job-root r job.py --batch 1", ReplayRequest),
    "savepoint change": ("s --output x", ChangeRequest),
    "savepoint create": ("--job-root r", SavepointRequest),
    "savepoint rekey": ("s --into x --max-parallelism 4", RekeyRequest),
    "savepoint write": ("job.py --output x", WriteRequest),
    "source relocate": ("--job-root r --source s --from x --to y", Relocation),
    "tables vacuum": ("--job-root r job.py", VacuumRequest),
}


@pytest.mark.parametrize("words", REQUESTS)
def test_an_option_that_is_not_given_leaves_the_default_of_the_request(words: str) -> None:
    needed, request_class = REQUESTS[words]
    given = COMMANDS[f"stateflow {words}"].make_context(words, needed.split()).params
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(request_class)
        if field.name in given and field.default is not dataclasses.MISSING
    }
    assert defaults
    assert {name: given[name] for name in defaults if given[name] is not None}.items() <= defaults.items()


def test_the_help_of_run_names_settings_that_exist() -> None:
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


_TOO_FEW = [f"{words} {n}" for words in ("gc --retain", "savepoint prune --keep") for n in (0, -3)]


@pytest.mark.parametrize("words", ["run", "run job.py", "status", "gc", "no-such", *_TOO_FEW, XML_LOG])
def test_a_wrong_command_line_is_a_configuration_error(words: str) -> None:
    shown = invoke(*words.split())
    assert shown.exit_code == 2 and "Usage: " in shown.output


@pytest.mark.parametrize(
    ("command", "address", "fact"),
    [
        ("run", "memory://x", "root"),
        ("status", "<folder>/none", "storage"),
        *product(("run", "status"), ("", "file://"), ("uri",)),
    ],
)
def test_what_is_no_job_root_is_refused_and_none_is_made(
    cli: CliFixture, command: str, address: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.run()
    # An empty address is not the present folder.
    monkeypatch.chdir(cli.root)
    before = contents(cli.folder)
    address = address.replace("<folder>", cli.folder.as_uri())
    shown = invoke(command, *[str(cli.job)] * (command == "run"), "--job-root", address)
    assert shown.exit_code == 2
    assert reported_error(shown.stderr) == ReportedError("config", {fact: address})
    assert contents(cli.folder) == before


@pytest.mark.parametrize(
    ("raised", "codes", "exit_code"),
    [
        (StorageError("out of order", path="x"), ["storage"], 5),
        (KeyboardInterrupt(), ["interrupted"], 130),
        (SystemError("odd"), ["internal"], 1),
        # ``stateflow pins … | head`` ends as other commands do.
        (BrokenPipeError(errno.EPIPE, "closed"), [], 1),
    ],
)
def test_each_command_reports_its_error_and_ends_with_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, codes: list[str], exit_code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(operations, "list_pins", fail)
    monkeypatch.setattr(operations, "list_all", fail)
    for command in (("pins",), ("savepoint", "list")):
        shown = invoke(*command, "--job-root", "anywhere")
        assert (shown.exit_code, [e.code for e in reported_errors(shown.stderr)]) == (exit_code, codes)
        assert shown.stdout == "" and bool(shown.stderr) == bool(codes)


# -- run --------------------------------------------------------------------------------------------------------------


def test_a_run_shows_each_batch_and_its_result_and_the_next_run_continues(
    cli: CliFixture, golden: SnapshotAssertion
) -> None:
    cli.write("""
    def build(env):
        totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
        totals.sink_to(sink(), uid="all")
        totals.filter(lambda row: row.total > 20).sink_to(FolderSink(HERE.parent / "large"), uid="large")
    """)
    first = invoke(*cli.command("--set", "run.max_batches=2"))
    assert first.exit_code == 0
    # Before each step that takes time, what it is; then where it starts from, and each batch once.
    assert normalized(first.stderr, folder=cli.folder) == golden(name="log")
    assert normalized(first.stdout) == golden(name="result")
    second = invoke(*cli.command())
    assert normalized(second.output, folder=cli.folder) == golden(name="second")
    rows = {name: len(FolderSink(cli.folder / name).rows()) for name in ("table", "large")}
    assert rows == {"table": 12, "large": 2}


def test_an_interrupted_run_is_continued_from_its_checkpoint(cli: CliFixture, golden: SnapshotAssertion) -> None:
    """Ctrl-C in the second batch; the same command continues from the first."""
    stops = """if row.number == 6 and not (HERE / "interrupted").exists():
            (HERE / "interrupted").touch()
            raise KeyboardInterrupt
        """
    cli.write(BUILD, JOB.replace("self.total.update", f"{stops}self.total.update"))
    file = cli.folder / "result.json"
    shown = invoke(*cli.command("--result-file", str(file)))
    assert (shown.exit_code, reported_error(shown.stderr).code) == (130, "interrupted")
    assert normalized(shown.output, folder=cli.folder) == golden
    result = json.loads(file.read_text())
    assert (result["status"], result["error"]["code"]) == ("failed", "interrupted")
    assert result["error"]["retryable"] is True
    assert invoke(*cli.command()).exit_code == 0
    assert max(row["total"] for row in FolderSink(cli.folder / "table").rows()) == 2 + 5 + 8 + 11


def test_the_command_line_wins_over_a_file_and_a_file_over_the_job(cli: CliFixture) -> None:
    cli.write("""
    def build(env):
        env.configure(run__max_batches=3, source__max_rows_per_batch=3)
        assert env.parameter("who") == "line"
        env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    """)
    config = cli.folder / "settings.toml"
    config.write_text('job.who = "file"\n[run]\nmax_batches = 2\n')
    result = _result(cli, "--config", str(config), "--set", "job.who=line")
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (2, 6, {})
    assert result["stopped_because"] == "batches"


# -- logs -------------------------------------------------------------------------------------------------------------


def test_json_logs_are_one_object_a_line_with_job_run_batch_and_checkpoint(cli: CliFixture) -> None:
    ended = invoke(*cli.command("--run-id", "nightly/run/1", *JSON_LOG))
    assert ended.exit_code == 0 and len(ended.stdout.splitlines()) == 1
    first, *batches = _json_lines(ended.stderr)
    assert (first["event"], first["level"]) == ("restored", "INFO")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["logged_at"])
    assert first["facts"].pop("label")
    assert first["facts"] == {"job": "job", "generation": 1, "checkpoint_id": 0, "matched": [], "new": ["sum"]}
    found = [(b["event"], b["facts"]["ordinal"], b["facts"]["rows_in"]) for b in batches]
    assert found == [("committed", n, 4) for n in (1, 2, 3)]
    run = {"job": "job", "run_id": "nightly/run/1", "generation": 1}
    assert first["context"] == {**run, "ordinal": None, "checkpoint_id": None}
    assert [b["context"] for b in batches] == [{**run, "ordinal": n, "checkpoint_id": n + 1} for n in (1, 2, 3)]


def test_text_logs_have_times_in_utc_the_context_and_each_batch_once(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.settings["checkpoints.asynchronous"] = "yes"
    before = datetime.now(UTC).replace(microsecond=0)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        ended = invoke(*cli.command("--run-id", "nightly/run/2", "--log-format", "text"))
    time.tzset()
    lines = ended.stderr.splitlines()
    times = [line.partition(" ")[0] for line in lines]
    assert times and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each) for each in times)
    assert all(before <= datetime.fromisoformat(each) <= datetime.now(UTC) for each in times)
    assert re.search(r" \| job=job run_id=nightly/run/2 generation=\d+ ordinal=3 checkpoint_id=\d+$", lines[-1])
    found = re.findall(r" checkpoint_id=(\d+) ordinal=(\d+) rows_in=(\d+) ", ended.stderr)
    # Two batches may share a checkpoint.
    assert len(found) == sum(" rows_in=" in line for line in lines) <= 3
    assert (found[-1][1], sum(int(rows) for _, _, rows in found)) == ("3", 12)


def test_asynchronous_checkpoints_have_events_of_their_own(cli: CliFixture) -> None:
    cli.settings["checkpoints.asynchronous"] = "yes"
    file = cli.folder / "result.json"
    shown = invoke(*cli.command(*JSON_LOG, "--result-file", str(file)))
    assert shown.exit_code == 0
    _, *events = _json_lines(shown.stderr)
    processed = [e["facts"] for e in events if e["event"] == "processed"]
    committed = [e["facts"] for e in events if e["event"] == "committed"]
    assert len(processed) + len(committed) == len(events)
    # Two batches may share a checkpoint, when the one before is still on its way.
    assert [f["ordinal"] for f in processed] == [1, 2, 3] and committed[-1]["ordinal"] == 3
    assert sum(f["rows_out"]["totals"] for f in committed) == 12
    assert [f["rows_out"] for f in processed] == [{"totals": 4}] * 3
    assert sum(f["rows_in"] for f in committed) == sum(f["rows_in"] for f in processed) == 12
    result = json.loads(file.read_text())["result"]
    assert (result["checkpoint_id"], result["stopped_because"]) == (committed[-1]["checkpoint_id"], "caught-up")


def test_a_checkpoint_committed_before_its_batch_is_reported_has_one_event(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.settings["checkpoints.asynchronous"] = "yes"
    run_batch = JobRun.run_batch

    def committed_at_once(run: JobRun, rows: Any, capture: Any) -> Any:
        result = run_batch(run, rows, capture)
        run.commit_pending()
        return result

    monkeypatch.setattr(JobRun, "run_batch", committed_at_once)
    _, *events = _json_lines(invoke(*cli.command(*JSON_LOG)).stderr)
    found = [(e["event"], e["facts"]["ordinal"]) for e in events]
    assert found == [(event, batch) for batch in (1, 2, 3) for event in ("committed", "processed")]


def test_json_logs_stay_json_when_something_unexpected_happens(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object) -> None:
        raise SystemError("odd")

    monkeypatch.setattr(JobRun, "run_batch", odd)
    shown = invoke(*cli.command(*JSON_LOG))
    assert shown.exit_code == 1
    unexpected, last = _json_lines(shown.stderr)[-2:]
    assert "SystemError: odd" in unexpected["traceback"]
    assert last["facts"]["code"] == "internal"


# -- results and failures ---------------------------------------------------------------------------------------------


def test_a_result_file_has_how_a_run_ended(cli: CliFixture) -> None:
    (cli.folder / "result.json").write_text("from before")
    result = _result(cli, "--run-id", "dag run 1")
    assert result["stopped_because"] == "caught-up"
    assert (result["job"], result["generation"], result["start_checkpoint_id"]) == ("job", 1, None)
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (3, 12, {"totals": 12})
    assert result["offsets"] == {"rows": {"row": 12}}
    assert sorted(p.name for p in cli.folder.glob("result*")) == ["result.json"]

    root = JobRoot.open(open_storage(cli.root), SystemClock())
    assert result["checkpoint_id"] == root.head().checkpoint_id and result["job_uuid"] == root.job.job_uuid
    assert {record["reason"] for record in _history(cli)} == {"dag run 1"}


def test_a_failed_run_is_in_its_result_file_the_log_the_status_and_the_history(
    cli: CliFixture, golden: SnapshotAssertion
) -> None:
    cli.write(BUILD, FAILING)
    file = cli.folder / "result.json"
    shown = invoke(*cli.command("--result-file", str(file)))
    assert shown.exit_code == 4
    assert normalized(shown.output, folder=cli.folder) == golden(name="run")
    result = json.loads(file.read_text())
    error = result["error"]
    assert (result["status"], error["code"], error["retryable"]) == ("failed", "user-code", False)
    assert error["facts"]["operator"] == "sum" and "KeyError" in error["message"] and error["hint"]
    assert f"error [user-code]: {error['message']} operator=" in shown.stderr

    found = _data(cli, "status")
    failure = found["failure"]
    assert (failure["code"], failure["generation"]) == ("user-code", found["generation"])
    assert found["run_open"] and failure["message"].startswith(error["message"])
    assert normalized(invoke("status", "--job-root", cli.root).output, folder=cli.folder) == golden(name="status")

    *_, last = _json_lines(invoke(*cli.command(*JSON_LOG)).stderr)
    assert (last["event"], last["level"], last["facts"]["code"]) == ("failed", "ERROR", "user-code")
    assert "KeyError" in last["facts"]["error"] and "job.py:" in last["facts"]["error"]

    cli.write(BUILD)
    cli.run()
    found = _data(cli, "status")
    assert (found["failure"], found["run_open"]) == (None, False)
    failures = [record for record in _history(cli) if record.get("kind") == "failure"]
    assert [(r["facts"], r["reason"]) for r in failures] == [
        ({"code": "user-code", "run": run}, failure["message"]) for run in (1, 2)
    ]


def test_a_start_that_fails_before_the_claim_is_in_the_status_and_the_history_until_a_run_begins(
    cli: CliFixture,
) -> None:
    cli.write(BUILD)
    cli.run()
    for _ in range(2):  # such as two tries of a task
        assert invoke(*cli.command("--set", "parallelism=x")).exit_code == 2
    for text in ("import sys\nsys.exit(3)\n", "import sys\ndef build(env):\n    sys.exit(3)\n"):
        cli.write(text)
        assert invoke(*cli.command()).exit_code == 2
        assert "SystemExit: 3" in _data(cli, "status")["failed_start"]["message"]
    # As a sink whose server does not answer, which is not the storage of the job root.
    away = "raise StorageError('the broker is away')"
    cli.write(f"from stateflow.errors import StorageError\ndef build(env):\n    {away}\n")
    assert invoke(*cli.command()).exit_code == 5
    found = _data(cli, "status")
    assert found["failure"] is None and "the broker is away" in found["failed_start"]["message"]
    assert "the broker is away" in invoke("status", "--job-root", cli.root).output
    failed = [record for record in _history(cli) if record["kind"] == "failed-start"]
    # Once in an hour, which may have ended between the two.
    assert {record["facts"]["code"] for record in failed} == {"config", "job-definition", "storage"}
    assert 4 <= len(failed) <= 5
    cli.write(BUILD)
    cli.run()
    assert _data(cli, "status")["failed_start"] is None


def test_verification_and_history_name_the_code_that_made_a_checkpoint(cli: CliFixture) -> None:
    codes = []
    for head in (JOB, JOB.replace("range(12)", "range(20)")):
        cli.write(BUILD, head)
        cli.run()
        codes.append(_data(cli, "status")["code_hash"])
        assert _data(cli, "verify")[-1]["code_hash"] == codes[-1]
        assert codes[-1] in invoke("verify", "--job-root", cli.root).output
        recorded = [record["code_hash"] for record in _history(cli) if record["kind"] == "checkpoint"]
        assert recorded[-1] == codes[-1] and set(recorded) == set(codes)
    assert all(codes) and codes[0] != codes[1]


@pytest.mark.parametrize(
    ("file", "code", "exit_code", "has_run"),
    [("none/result.json", "config", 2, False), ("result.json", "storage", 5, True)],
)
def test_a_result_file_that_cannot_be_written_is_an_error_if_possible_before_the_run(
    cli: CliFixture, file: str, code: str, exit_code: int, has_run: bool
) -> None:
    (cli.folder / "result.json.partial").mkdir()
    shown = invoke(*cli.command("--result-file", str(cli.folder / file)))
    error = reported_error(shown.stderr)
    assert (shown.exit_code, error.code, error.facts["path"]) == (exit_code, code, str(cli.folder / file))
    assert Path(cli.root).exists() is has_run


# -- status, gc, pins -------------------------------------------------------------------------------------------------


def test_status_of_a_run_that_was_killed_or_works(cli: CliFixture, golden: SnapshotAssertion) -> None:
    root = JobRoot.create_or_open(open_storage(cli.root), SystemClock(), NewJob("job", 128, {}), "host:1")
    root.claim("killed before it did anything")
    found = _data(cli, "status")
    assert (found["failure"], found["run_open"]) == (None, True)
    assert normalized(invoke("status", "--job-root", cli.root).output) == golden


def test_pins_are_listed_and_dropped(cli: CliFixture, golden: SnapshotAssertion) -> None:
    cli.run()
    root = JobRoot.open(open_storage(cli.root), SystemClock())
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    pin = root.admin.pin(checkpoint, "me", "looking at it")
    where = ("--job-root", cli.root)
    (line,) = invoke("pins", *where).output.splitlines()
    assert all(datum in line for datum in (pin.id, str(checkpoint.id), "me", "looking at it"))
    assert invoke("pins", *where, "--drop", "other").exit_code == 2
    assert normalized(invoke("pins", *where, "--drop", pin.id).output) == golden
    assert root.head().entry.pinned == []


BROADCAST = """
from stateflow import KeyedBroadcastProcessFunction, MapStateDescriptor

PRICES = MapStateDescriptor("prices", str, int)


class AddPrice(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        yield Total(row.key, row.number)

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(PRICES).put(row.key, row.number)


def build(env):
    rows = env.from_source(source(), uid="rows")
    rows.key_by("key").connect(rows.broadcast()).process(AddPrice(), output=Total, uid="price").sink_to(
        sink(), uid="totals"
    )
"""


def test_a_checkpoint_shows_the_names_of_its_broadcast_states(cli: CliFixture) -> None:
    cli.write(BROADCAST)
    made = str(cli.run().checkpoint_id)
    shown = json.loads(invoke("checkpoints", "show", "--job-root", cli.root, made, "--json").output)
    assert [(o["uid"], o["states"], o["operator_states"]) for o in shown["operators"]] == [("price", [], ["prices"])]
    text = invoke("checkpoints", "show", "--job-root", cli.root, made).output
    assert re.search(r"operator price: .* states prices$", text, re.MULTILINE)
