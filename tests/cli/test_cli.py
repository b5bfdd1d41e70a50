"""The command line over a small job without Spark: what it says, writes and returns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from stateflow.checkpoint.jobroot import JobRoot
from stateflow.cli import main
from stateflow.clock import SystemClock
from stateflow.runtime import stores
from stateflow.runtime.run import JobRun
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.errors.kit import BUILD, JOB, Bench, contents, stateflow


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)
    stores.close_all()


def invoke(*arguments: str) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(main, list(arguments))


def _root(bench: Bench, *more: str) -> list[str]:
    return ["--job-root", bench.root, *more]


# -- help ---------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands() -> None:
    for flag in ("-h", "--help"):
        shown = invoke(flag)
        assert shown.exit_code == 0
        assert set(re.findall(r"^  ([a-z][a-z-]*)  ", shown.output, re.M)) == set(main.commands)


def _commands() -> dict[str, click.Command]:
    """Every command that does something, with the words that it is called by."""
    found = {}
    for name, command in main.commands.items():
        if isinstance(command, click.Group):
            assert command.help and set(command.commands) <= set(invoke(name, "--help").output.split())
            found.update({f"{name} {sub}": leaf for sub, leaf in command.commands.items()})
        else:
            found[name] = command
    return found


_WITHOUT_ROOT = {"plan", "doctor"} | {f"savepoint {sub}" for sub in ("dispose", "list", "show", "verify")}


@pytest.mark.parametrize("words", sorted(_commands()))
def test_each_command_says_what_it_does_and_takes(words: str) -> None:
    shown, command = invoke(*words.split(), "--help"), _commands()[words]
    assert shown.exit_code == 0
    # A job file alone is looked at without a root, and so are a machine, and a savepoint that is named by its path.
    where = {"check": "--against URI", "plan": "JOB"}.get(words, "--job-root URI")
    assert where in shown.output and ("[required]" in shown.output) == (words not in _WITHOUT_ROOT)
    for option in command.params:
        if isinstance(option, click.Argument):
            assert (option.metavar or option.human_readable_name) in shown.output
        else:
            assert max(option.opts, key=len) in shown.output
            assert getattr(option, "help", None), option.name
    assert command.help


def test_the_help_of_run_leads_to_the_settings() -> None:
    shown = " ".join(invoke("run", "--help").output.split())
    named = re.search(r"Settings such as (\S+), (\S+) or (\S+) come", shown)
    assert named and "docs/settings.md" in shown
    listed = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert [name for name in named.groups() if f"| `{name}` |" not in listed] == []


def test_a_run_that_is_interrupted_says_that_nothing_is_lost(bench: Bench) -> None:
    """Ctrl-C in the second batch; the same command goes on from the first."""
    update = "ctx):\n        self.total.update"
    bench.write(BUILD, JOB.replace(update, update.replace("\n", "\n        stop(row)\n")) + STOP)
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file)))
    assert shown.exit_code == 130
    assert "error [interrupted]" in shown.output and "goes on from it" in shown.output
    told = json.loads(file.read_text())
    assert (told["status"], told["error"]["code"], told["error"]["retryable"]) == (
        "failed",
        "interrupted",
        True,
    )
    assert invoke(*bench.command()).exit_code == 0
    assert sorted(row["total"] for row in FolderSink(bench.folder / "table").rows())[-1] == 2 + 5 + 8 + 11


STOP = """
def stop(row):
    marker = HERE.parent / "interrupted"
    if row.number == 6 and not marker.exists():
        marker.touch()
        raise KeyboardInterrupt


"""


def test_a_job_root_in_memory_is_refused(bench: Bench) -> None:
    bench.root = "memory://x"
    shown = invoke(*bench.command())
    assert shown.exit_code == 2 and "error [config]" in shown.output and "memory" in shown.output


def test_a_result_that_cannot_be_written_is_told(bench: Bench) -> None:
    file = bench.folder / "result.json"
    (bench.folder / "result.json.partial").mkdir()
    shown = invoke(*bench.command("--result-file", str(file)))
    assert shown.exit_code == 5 and "could not be written down" in shown.output
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


def test_the_version_is_the_package_s() -> None:
    shown = invoke("--version")
    assert shown.exit_code == 0
    try:
        wanted = metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        wanted = "of a checkout"
    assert wanted in shown.output


@pytest.mark.parametrize("arguments", [
    ["run"], ["run", "job.py"], ["status"], ["gc"], ["no-such"], ["gc", "--job-root", "x", "--retain", "0"],
    ["run", "job.py", "--job-root", "x", "--log-format", "xml"],
])  # fmt: skip
def test_a_wrong_command_line_is_a_configuration_error(arguments: list[str]) -> None:
    shown = invoke(*arguments)
    assert shown.exit_code == 2 and "Usage: " in shown.output


# -- run ----------------------------------------------------------------------------------------------------------


SYNCHRONOUS = ("--set", "checkpoints.asynchronous=no")


def test_a_run_tells_what_it_did(bench: Bench) -> None:
    shown = invoke(*bench.command(*SYNCHRONOUS))
    assert shown.exit_code == 0
    assert re.fullmatch(
        r"job: 3 batches, 12 rows in, 12 out, from the beginning to checkpoint \d+, caught-up, [\d.]+ s\n",
        shown.stdout,
    )
    assert len(FolderSink(bench.folder / "table").rows()) == 12
    lines = shown.stderr.splitlines()
    # Before anything that takes time, what it is; then where it starts from, and each batch once.
    assert len(lines) == 6 and "INFO loading" in lines[0] and lines[0].endswith("job.py")
    assert "INFO starts from the beginning; new sum" in lines[2]
    committed = r"INFO committed checkpoint=\d+ batch=(\d) rows=4 rows_out=totals:4 "
    assert [re.findall(committed, line) for line in lines[3:]] == [["1"], ["2"], ["3"]]


def test_checkpoints_beside_the_batches_are_told_of_by_themselves(bench: Bench) -> None:
    shown = invoke(*bench.command("--log-format", "json"))
    assert shown.exit_code == 0
    _, *told = _json_lines(shown.stderr)
    worked_off = [t["facts"] for t in told if t["event"] == "worked off"]
    committed = [t["facts"] for t in told if t["event"] == "committed"]
    assert len(worked_off) + len(committed) == len(told)
    # Two batches may share a checkpoint, when the one before is still on its way.
    assert [f["batch"] for f in worked_off] == [1, 2, 3] and committed[-1]["batch"] == 3
    assert sum(f["rows_out"]["totals"] for f in committed) == 12
    assert [f["rows_out"] for f in worked_off] == [{"totals": 4}] * 3
    assert sum(f["rows"] for f in committed) == sum(f["rows"] for f in worked_off) == 12
    assert f"to checkpoint {committed[-1]['checkpoint']}, caught-up" in shown.stdout


def test_a_checkpoint_committed_before_its_batch_is_told_of_is_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = JobRun._checkpoint_if_due

    def committed_at_once(run: JobRun) -> None:
        due(run)
        run.settle()

    monkeypatch.setattr(JobRun, "_checkpoint_if_due", committed_at_once)
    shown = invoke(*bench.command("--log-format", "json"))
    _, *told = _json_lines(shown.stderr)
    assert [(t["event"], t["facts"]["batch"]) for t in told] == [
        (event, batch) for batch in (1, 2, 3) for event in ("committed", "worked off")
    ]


def test_a_run_goes_on_where_the_last_one_ended(bench: Bench) -> None:
    first = invoke(*bench.command("--set", "run.max_batches=1"))
    assert "1 batches, 4 rows in, 4 out" in first.stdout and ", batches, " in first.stdout
    second = invoke(*bench.command())
    assert (
        "2 batches, 8 rows in, 8 out" in second.stdout
        and "resumes from checkpoint 2; state of sum" in second.stderr
    )
    assert len(FolderSink(bench.folder / "table").rows()) == 12


def test_the_command_line_wins_over_a_file_and_a_file_over_the_job(bench: Bench) -> None:
    bench.write("""
    def build(env):
        env.configure(run__max_batches=3, source__max_rows_per_batch=3)
        assert env.parameter("who") == "line"
        env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    """)
    config = bench.folder / "settings.toml"
    config.write_text('job.who = "file"\n[run]\nmax_batches = 2\n')
    shown = invoke(*bench.command("--config", str(config), "--set", "job.who=line"))
    assert shown.exit_code == 0, shown.output
    assert "2 batches, 6 rows in, from" in shown.stdout


def _json_lines(text: str) -> list[dict[str, Any]]:
    """What happened; without what the run was about to do."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert set(line) >= {"time", "level", "logger", "event", "facts"} and line["logger"].startswith(
            "stateflow"
        )
    return [line for line in lines if line["event"] != "step"]


def test_a_run_of_asynchronous_checkpoints_shows_people_each_batch_once(bench: Bench) -> None:
    lines = invoke(*bench.command()).stderr.splitlines()
    # Two batches may share a checkpoint.
    assert all("committed" in line for line in lines[3:]) and 1 <= len(lines[3:]) <= 3
    rows = sum(int(found) for line in lines for found in re.findall(r" rows=(\d+)", line))
    assert rows == 12


def test_each_sink_s_rows_are_in_the_closing_line(bench: Bench) -> None:
    bench.write("""
    def build(env):
        totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
        totals.sink_to(sink(), uid="all")
        totals.filter(lambda row: row.total > 20).sink_to(FolderSink(HERE.parent / "large"), uid="large")
    """)
    shown = invoke(*bench.command())
    large = len(FolderSink(bench.folder / "large").rows())
    assert large
    assert f", 12 rows in, {12 + large} out (all 12, large {large}), from " in shown.stdout


def test_times_of_text_logs_are_in_utc(bench: Bench) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    ended = stateflow(bench.command(), bench.folder, {"TZ": "America/New_York"})
    times = [line.partition(" ")[0] for line in ended.stderr.splitlines()]
    assert times and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert all(before <= datetime.fromisoformat(time) <= datetime.now(UTC) for time in times)


def test_json_logs_are_one_object_a_line(bench: Bench) -> None:
    shown = invoke(*bench.command("--log-format", "json", *SYNCHRONOUS))
    first, *batches = _json_lines(shown.stderr)
    assert (first["event"], first["level"]) == ("restored", "INFO")
    assert first["facts"] == {
        "job": "job", "run": 1, "at": "the beginning", "checkpoint": 0, "matched": [], "new": ["sum"],
    }  # fmt: skip
    assert [(b["event"], b["facts"]["batch"], b["facts"]["rows"]) for b in batches] == [
        ("committed", 1, 4), ("committed", 2, 4), ("committed", 3, 4),
    ]  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])


def test_every_line_says_which_job_run_batch_and_checkpoint_it_is_about(bench: Bench) -> None:
    shown = invoke(*bench.command("--run-id", "nightly/run/1", "--log-format", "json", *SYNCHRONOUS))
    first, *batches = [line["context"] for line in _json_lines(shown.stderr)]
    run = {"job": "job", "run": "nightly/run/1", "generation": 1}
    assert first == {**run, "batch": 0, "checkpoint": 0}
    assert batches == [{**run, "batch": n, "checkpoint": n + 1} for n in (1, 2, 3)]
    again = invoke(*bench.command("--run-id", "nightly/run/2"))
    *_, line = again.stderr.splitlines()
    assert re.search(r" \| job=job run=nightly/run/2 generation=\d+ checkpoint=\d+$", line)


def test_json_logs_stay_json_when_a_run_fails(bench: Bench) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "1 / 0\n        yield Total("))
    shown = invoke(*bench.command("--log-format", "json"))
    assert shown.exit_code == 4
    *_, last = _json_lines(shown.stderr)
    assert (last["event"], last["level"], last["facts"]["code"]) == ("failed", "ERROR", "user-code")
    assert "ZeroDivisionError" in last["facts"]["error"] and "job.py:" in last["facts"]["error"]


def test_json_logs_stay_json_when_something_unexpected_happens(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
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


def test_a_result_file_tells_how_a_run_ended(bench: Bench) -> None:
    file = bench.folder / "result.json"
    file.write_text("from before")
    shown = invoke(*bench.command("--result-file", str(file), "--run-id", "dag run 1"))
    assert shown.exit_code == 0
    result = json.loads(file.read_text())
    assert (result["status"], result["error"], result["stopped_because"]) == ("finished", None, "caught-up")
    assert (result["job"], result["generation"], result["started_from"]) == ("job", 1, 0)
    assert (result["batches"], result["rows_in"], result["rows_out"]) == (3, 12, {"totals": 12})
    assert result["offsets"] == {"rows": '{"row": 12}'}
    assert sorted(p.name for p in bench.folder.glob("result*")) == ["result.json"]

    root = JobRoot.open(open_storage(bench.root), SystemClock())
    assert result["checkpoint_id"] == root.head().checkpoint_id and result["job_uuid"] == root.job.job_uuid
    claim = root.log._read(1)
    assert claim is None or claim.entry.note == "dag run 1"


def test_a_result_file_tells_why_a_run_failed(bench: Bench) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "raise KeyError('k')\n        yield Total("))
    file = bench.folder / "result.json"
    shown = invoke(*bench.command("--result-file", str(file)))
    assert shown.exit_code == 4
    result = json.loads(file.read_text())
    assert result["status"] == "failed"
    error = result["error"]
    assert (error["code"], error["retryable"]) == ("user-code", False)
    assert "process_element of an operator raised KeyError" in error["message"] and error["hint"]
    assert f"error [user-code]: {error['message']}" in shown.stderr


def test_a_result_file_that_cannot_be_written_is_told_before_anything_runs(bench: Bench) -> None:
    shown = invoke(*bench.command("--result-file", str(bench.folder / "none" / "result.json")))
    assert shown.exit_code == 2 and "error [config]" in shown.stderr and "none/result.json" in shown.stderr
    assert not Path(bench.root).exists()


# -- status, gc, pins ---------------------------------------------------------------------------------------------


def test_status_shows_where_a_job_stands_and_changes_nothing(bench: Bench) -> None:
    bench.settings["checkpoints.asynchronous"] = "no"
    bench.run()
    before = contents(bench.folder)
    shown = invoke("status", *_root(bench))
    assert shown.exit_code == 0
    root = JobRoot.open(open_storage(bench.root), SystemClock())
    head = root.head()
    assert f"job job ({root.job.job_uuid})" in shown.output
    assert f"checkpoint {head.checkpoint_id}, generation 1" in shown.output
    assert all(word in shown.output for word in ("committed (UTC)", "increment", "files"))
    assert len(shown.output.splitlines()) == 2 + 1 + 1 + 3

    found = json.loads(invoke("status", *_root(bench, "--json")).output)
    assert (found["job"], found["checkpoint_id"], found["head_seq"]) == (
        "job",
        head.checkpoint_id,
        head.entry.seq,
    )
    rows = [(c["checkpoint_id"], c["generation"], c["rows_in"]) for c in found["checkpoints"]]
    assert rows == [(head.checkpoint_id - n, 1, 4) for n in (2, 1, 0)]
    assert contents(bench.folder) == before


def test_status_shows_the_error_of_the_newest_run_and_history_those_of_all(bench: Bench) -> None:
    bench.write(BUILD, JOB.replace("yield Total(", "raise KeyError('k')\n        yield Total("))
    assert invoke(*bench.command()).exit_code == 4
    found = json.loads(invoke("status", *_root(bench, "--json")).output)
    failure = found["failure"]
    assert (failure["code"], failure["generation"]) == ("user-code", found["generation"]) and found[
        "run_open"
    ]
    (line,) = [line for line in invoke("status", *_root(bench)).output.splitlines() if "user-code" in line]
    assert failure["message"] in line

    bench.write(BUILD, JOB)
    bench.run()
    found = json.loads(invoke("status", *_root(bench, "--json")).output)
    assert (found["failure"], found["run_open"]) == (None, False)
    records = [json.loads(line) for line in invoke("history", *_root(bench, "--json")).output.splitlines()]
    (kept,) = [record for record in records if record.get("kind") == "failure"]
    assert (kept["facts"], kept["reason"]) == ({"code": "user-code", "run": "1"}, failure["message"])


def test_status_says_that_a_run_was_killed_or_works(bench: Bench) -> None:
    bench.run()
    root = JobRoot.open(open_storage(bench.root), SystemClock())
    root.claim("killed before it did anything")
    found = json.loads(invoke("status", *_root(bench, "--json")).output)
    assert (found["failure"], found["run_open"]) == (None, True)
    assert "has not ended" in invoke("status", *_root(bench)).output


@pytest.mark.parametrize("command", ["status", "gc", "pins"])
def test_where_no_job_is_nothing_is_made(bench: Bench, command: str) -> None:
    shown = invoke(command, *_root(bench))
    assert shown.exit_code == 2
    assert "error [config]: there is no job here" in shown.output and "hint: check --job-root" in shown.output
    assert not Path(bench.root).exists()


@pytest.mark.parametrize("address", ["", " ", "file://"])
@pytest.mark.parametrize("command", ["run", "status", "gc", "pins"])
def test_an_empty_job_root_is_not_the_present_folder(
    bench: Bench, command: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    monkeypatch.chdir(bench.root)
    before = contents(bench.folder)
    job = [str(bench.job)] if command == "run" else []
    shown = invoke(command, *job, "--job-root", address)
    assert shown.exit_code == 2 and "error [config]: the address of a storage is empty" in shown.stderr
    assert "was a variable not set?" in shown.stderr
    assert contents(bench.folder) == before


def test_gc_says_first_and_deletes_then(bench: Bench) -> None:
    bench.run()
    before = contents(bench.folder)
    would = json.loads(invoke("gc", *_root(bench, "--retain", "1", "--dry-run", "--json")).output)
    assert would["dry_run"] and would["files"] > 0 and contents(bench.folder) == before
    shown = invoke("gc", *_root(bench, "--retain", "1", "--dry-run"))
    assert f"job: would delete {would['files']} files" in shown.output

    did = json.loads(invoke("gc", *_root(bench, "--retain", "1", "--json")).output)
    assert (did["dry_run"], did["bytes_freed"] >= would["bytes_freed"]) == (False, True)
    assert len(did["retained"]) == 1
    assert contents(bench.folder).items() < {**before, **contents(bench.folder)}.items()
    again = invoke("gc", *_root(bench))
    assert "job: deleted 0 files, 0 B; kept checkpoints" in again.output
    assert bench.run().started_from == did["retained"][0]


def test_gc_names_what_is_not_ours(bench: Bench) -> None:
    bench.run()
    (Path(bench.root) / "data" / "notes.txt").write_text("mine")
    shown = invoke("gc", *_root(bench))
    assert "  not ours, left alone: data/notes.txt" in shown.output
    assert (Path(bench.root) / "data" / "notes.txt").exists()


def test_pins_are_listed_and_dropped(bench: Bench) -> None:
    bench.run()
    assert invoke("pins", *_root(bench)).output == "no pins\n"
    root = JobRoot.open(open_storage(bench.root), SystemClock())
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    pin = root.pin(checkpoint, "me", "looking at it")
    shown = invoke("pins", *_root(bench))
    assert re.match(rf"{pin.id}  checkpoint {checkpoint.id}  me: looking at it  since \d{{4}}-", shown.output)
    assert invoke("pins", *_root(bench, "--drop", "other")).exit_code == 2
    assert invoke("pins", *_root(bench, "--drop", pin.id)).output == f"dropped {pin.id}\n"
    assert root.head().entry.pinned == []


# -- as a process -------------------------------------------------------------------------------------------------


def test_a_process_ends_with_the_code_and_keeps_its_streams_apart(bench: Bench) -> None:
    ended = stateflow(bench.command("--log-format", "json"), bench.folder)
    assert ended.returncode == 0 and ended.stdout.startswith("job: 3 batches")
    _json_lines(ended.stderr)


# -- plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_shows_the_job_and_starts_nothing(bench: Bench) -> None:
    before = bench.on_disk()
    shown = invoke("plan", str(bench.job), "--set", "parallelism=3")
    assert shown.exit_code == 0, shown.output
    lines = [line.strip() for line in shown.output.splitlines()]
    assert lines[0].endswith("without Spark, parallelism 3, 4096 key groups")
    assert "source rows: ScriptedSource[Row]" in lines and "shuffle 1, to 3 tasks" in lines
    assert "takes rows, keyed by key string" in lines and "sink totals: FolderSink of sum" in lines
    assert bench.on_disk() == before


def test_a_plan_for_programs_has_the_same_facts(bench: Bench) -> None:
    told = json.loads(invoke("plan", str(bench.job), "--json").output)
    (level,) = told["levels"]
    (unit,) = level["units"]
    assert (unit["uid"], unit["inputs"][0]["key"], unit["states"][0]["kind"]) == (
        "sum",
        ["key string"],
        "value",
    )
    assert unit["sinks"] == [{"uid": "totals", "sink": "FolderSink", "rows": "sum"}]


def test_a_plan_tells_the_mistake_of_a_job(bench: Bench) -> None:
    bench.write("def build(env):\n    pass\n")
    shown = invoke("plan", str(bench.job))
    assert shown.exit_code == 2 and "error [job-definition]: the job reads nothing" in shown.output
