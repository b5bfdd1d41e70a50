"""``--json``: the rules that every output follows, and that each command prints what its schema says."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from reference import API_OUTPUTS, TASK_OUTPUTS

from stateflow import operations
from stateflow.cli.common import FailedCommand, printed_json
from stateflow.cli.main import main
from stateflow.cli.run import LogLine, RunOutcome
from stateflow.operations import RelocationReport
from stateflow.outputs import json_schema, output_classes
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.json_outputs import check


def _commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _commands(below, f"{path} {name}".strip())
    else:
        yield path, command


COMMANDS = dict(_commands(main))
PRINTED = {path: printed for path, command in COMMANDS.items() if (printed := printed_json(command)) is not None}
WITHOUT_JSON = {"run", "serve", "state export", "submit", "ui"}
"""Commands that print no JSON to stdout: the logs and result files of `run` and `submit` are JSON, `serve` and `ui`
answer over HTTP, and `state export` writes a file."""
OUTPUTS: dict[str, object] = {
    **{path: printed.output for path, printed in PRINTED.items()},
    "": FailedCommand,
    "run": RunOutcome,
    "log": LogLine,
    **TASK_OUTPUTS,
    **API_OUTPUTS,
}
CLASSES = {kind for output in OUTPUTS.values() for kind in output_classes(output)}


def test_each_command_prints_json_that_has_a_schema_or_none() -> None:
    assert COMMANDS.keys() - PRINTED.keys() == WITHOUT_JSON
    folder = Path(__file__).parents[2] / "docs" / "reference" / "json"
    for path, printed in PRINTED.items():
        stored = json.loads((folder / f"{path.replace(' ', '-')}.json").read_text())
        # The page has the meanings of fields as well.
        assert _without_texts(stored) == _without_texts(json_schema(printed.output)), path
    for name, output in {**TASK_OUTPUTS, **API_OUTPUTS}.items():
        stored = json.loads((folder / f"{name.replace(' ', '-')}.json").read_text())
        assert _without_texts(stored) == _without_texts(json_schema(output)), name


def test_the_page_names_the_commands_whose_exit_code_tells_what_they_have_found() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    said = page.partition("A command that reports findings")[2].partition("\n\n")[0]
    named = set(re.findall(r"`stateflow ([a-z -]+)`", said))
    assert named == {path for path, printed in PRINTED.items() if printed.has_findings} | {"verify"}
    # Those that exit by themselves; `get` says on stderr that there is no value.
    exiting = {path for path in PRINTED if re.search(r"\bsys\.exit\(|Exit\(", _source(COMMANDS[path]))}
    assert exiting - {"query get", "state get"} == named - {"verify"}


def _source(command: click.Command) -> str:
    assert command.callback is not None
    return inspect.getsource(inspect.unwrap(command.callback))


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A field may have the name, too: then it is a schema.
    return {k: _without_texts(v) for k, v in schema.items() if k != "description" or isinstance(v, dict)}


# -- names ------------------------------------------------------------------------------------------------------------

NAME = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
UNITS = (
    "_ms",
    "_bytes",
    "_id",
    "_seq",
    "_count",
    "_percent",
    "_parallelism",
    "_version",
    "_key_group",
    "_per_second",
    "_ratio",
    "_generation",
    "_run",
)
"""Endings of the names of numbers."""
COUNTS = {
    "aborted", "added", "attempts", "batches", "changed", "checkpoints", "checkpoints_after", "entries", "failures",
    "files", "keys", "late_rows_dropped", "new_keys", "old_keys", "pairs", "removed", "restarts", "rows", "rows_again",
    "rows_in", "rows_filtered", "rows_late", "rows_dropped", "dead_letters", "state_entries", "rows_out",
    "storage_requests", "rows_removed", "rows_returned", "rows_written_since", "states", "subtasks", "tasks",
}  # fmt: skip
"""Numbers of things, named by them; also with a word before, such as `new_files`."""
PLAIN = {
    "branch",
    "exit_code",
    "generation",
    "max_parallelism",
    "number",
    "ordinal",
    "parallelism",
    "run",
    "seq",
    "subtask",
    "try_number",
    "version",
}
PERCENTILES = {"min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max"}
"""In units of the field that has them."""


def _numbers(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be a number."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return bool({"integer", "number"} & set(kinds)) or any(map(_numbers, schema.get("anyOf", ())))


def _times(schema: Mapping[str, Any]) -> bool:
    return schema.get("format") == "date-time" or any(map(_times, schema.get("anyOf", ())))


def _fields() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for kind in CLASSES:
        schema: Any = json_schema(kind)["$defs"]
        for name, field in schema[kind.__name__]["properties"].items():
            yield kind.__name__, name, field


def test_names_are_in_snake_case_and_classes_have_different_names() -> None:
    assert [f"{kind}.{name}" for kind, name, _ in _fields() if not NAME.fullmatch(name)] == []
    assert len({kind.__name__ for kind in CLASSES}) == len(CLASSES)


def test_names_of_numbers_have_units() -> None:
    without = {
        f"{kind}.{name}"
        for kind, name, schema in _fields()
        if _numbers(schema) and not name.endswith(UNITS) and name not in PLAIN | PERCENTILES
        if name not in COUNTS and name.rpartition("_")[2] not in COUNTS
    }
    assert without == set()


def test_times_and_only_times_are_named_as_such() -> None:
    differing = {f"{kind}.{name}" for kind, name, schema in _fields() if _times(schema) != name.endswith("_at")}
    assert differing == set()


def test_schemas_are_valid() -> None:
    for output in OUTPUTS.values():
        jsonschema.Draft202012Validator.check_schema(json_schema(output))


# -- values -----------------------------------------------------------------------------------------------------------


def check_printed(path: str, *words: str, code: int = 0) -> Any:
    """Runs a command with ``--json``, and returns the values that it prints."""
    ended = invoke(*path.split(), *words, "--json")
    assert ended.exit_code == code, ended.output
    values = [json.loads(line) for line in ended.stdout.splitlines()]
    assert values and (PRINTED[path].lines or len(values) == 1 or "--table" in words)
    for value in values:
        check(PRINTED[path].output, value)
    return values if PRINTED[path].lines else values[0]


BUILD = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(HERE.parent / "all"), uid="all")
"""


def _relocated(job: str, *_: object) -> RelocationReport:
    return RelocationReport(job, "rows", "files of /new", 3, 1, 7, dry_run=True)


class _Printer:
    """Runs commands of a job with ``--json``, and notes which."""

    def __init__(self, job: CliFixture) -> None:
        self.job, self.seen = job, set[str]()
        self.root, self.file, self.sets = ("--job-root", job.root), str(job.job), job.command()[4:]
        self.who = ("--by", "anna", "--reason", "wrong rows")
        self.folder = job.folder

    def __call__(self, path: str, *words: str, code: int = 0) -> Any:
        self.seen.add(path)
        return check_printed(path, *words, code=code)


@pytest.mark.long(reason="runs every command")
def test_each_command_prints_what_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.write(BUILD)
    result = tmp_path / "result.json"
    ended = invoke(*job.command("--result-file", str(result)))
    assert ended.exit_code == 0, ended.output
    check(RunOutcome, json.loads(result.read_text()))
    do = _Printer(job)
    made = _check_savepoints(do)
    _check_state(do)
    _check_restore(do, made)
    _check_files(do)
    # These need a run, and a folder that moved.
    monkeypatch.setattr(operations, "trigger_checkpoint", lambda *_: 7)
    monkeypatch.setattr(operations, "relocate_source", partial(_relocated, "job"))
    do("checkpoints trigger", *do.root)
    do("source relocate", *do.root, "--source", "rows", "--from", "/old", "--to", "/new")
    # Commands of `query` need a server: tests/cli/test_query.py checks them.
    assert do.seen == {path for path in PRINTED if not path.startswith("query ")}


def _check_savepoints(do: _Printer) -> Any:
    made = do("savepoint create", *do.root, "--name", "early", *do.who)
    assert (made["made_from"], made["offsets"]) == ("head", {"rows": {"row": 12}})
    do("savepoint show", "early", *do.root)
    do("savepoint verify", "early", *do.root)
    into = str(do.folder / "into")
    do("savepoint rekey", "early", "--max-parallelism", "64", "--into", into, *do.root, *do.who)
    do("savepoint change", "early", *do.root, "--remove", "sum", "--output", str(do.folder / "changed"))
    rows = do.folder / "rows.jsonl"
    rows.write_text('{"key": "a", "value": 5}\n')
    states = ("--state", f"sum.total={rows}", "--source", 'rows={"row": 4}')
    do("savepoint write", do.file, *do.sets, "--output", str(do.folder / "written"), *states)
    return made


def _check_state(do: _Printer) -> None:
    uri = do.job.root
    do("explain", do.file, *do.root, *do.sets)
    do("check", do.file, "--against", uri, *do.sets)
    do("checkpoints show", "3", *do.root)
    do("checkpoints history", *do.root)
    do("replay", do.file, *do.root, *do.sets, "--batch", "3", "--key", "a")
    do("diff", f"{uri}@2", uri, "--keys")
    do("state show", uri)
    for table in ("snapshots", "operators", "states", "files"):
        do("state show", uri, "--table", table)
    do("state get", uri, "--operator", "sum", "--state", "total", "--key", "a")


def _check_restore(do: _Printer, made: Any) -> None:
    plan = str(do.folder / "plan.json")
    planned = do("restore", do.file, *do.root, *do.sets, "--plan", "early", "--out", plan)
    assert planned["sources"][0]["target_offset"] == {"row": 12} and planned["parent_job"] is None
    # Both are the same document, which --execute and an operator read.
    assert json.loads(Path(plan).read_text()) == planned
    do("restore", do.file, *do.root, *do.sets, "--execute", plan, *do.who)
    found = do("status", *do.root, "--job", do.file, *do.sets)
    # The restore has given the state of a checkpoint a second id.
    assert found["checkpoint_id"] > found["restored_checkpoint_id"] == made["checkpoint_id"]
    assert found["points"][-1]["kind"] == "restore"
    assert (found["points"][-1]["checkpoint_id"], found["points"][-1]["retained"]) == (found["checkpoint_id"], True)
    assert do("checkpoints list", *do.root) == found["points"]
    (restore,) = [entry for entry in do("history", *do.root) if entry["kind"] == "restore"]
    assert restore["by"]["name"] == "anna" and isinstance(restore["facts"]["undone_checkpoint_ids"], list)
    do("fork", "latest", *do.root, "--into", str(do.folder / "fork"), *do.who)


def _check_files(do: _Printer) -> None:
    do("tables optimize", do.file, *do.root, *do.sets)
    do("tables vacuum", do.file, *do.root, *do.sets, "--older-than", "0s")
    do("gc", *do.root, "--dry-run", "--files")
    do("can-delete", "FORMAT", *do.root, code=6)
    do("verify", *do.root, "--deep")
    do("doctor", *do.root, code=invoke("doctor", *do.root).exit_code)
    with operations_pin(do.job.root):
        assert do("pins", *do.root)[0]["owner"]["name"] == "anna"
    do("savepoint list", *do.root)
    do("savepoint dispose", "early", *do.root, *do.who)
    do("savepoint prune", *do.root, "--keep", "1")
    do("stop", *do.root, "--savepoint", "--name", "last", "--job", do.file, *do.sets)


def operations_pin(uri: str) -> Any:
    """Keeps the newest checkpoint pinned in a block."""
    from contextlib import contextmanager

    from stateflow.checkpoint.log.job_root import JobRoot
    from stateflow.clock import SystemClock
    from stateflow.storage import open_storage

    @contextmanager
    def pinned() -> Iterator[None]:
        root = JobRoot.open(open_storage(uri), SystemClock())
        checkpoint = root.head().checkpoint
        assert checkpoint is not None
        pin = root.admin.pin(checkpoint, "claim:ann@host:anna", "looking at it")
        yield
        root.admin.unpin(pin.id)

    return pinned()


def test_the_result_that_tests_of_airflow_expect_follows_the_schema() -> None:
    check(RunOutcome, json.loads((Path(__file__).parents[1] / "airflow" / "data" / "report.json").read_text()))


# -- errors -----------------------------------------------------------------------------------------------------------


def _error(*words: str) -> Any:
    ended = invoke(*words)
    found = json.loads(ended.stderr.splitlines()[-1])
    check(FailedCommand, found)
    assert ended.exit_code == found["error"]["exit_code"] != 0 and ended.stdout == ""
    return found["error"]


def test_an_error_has_code_message_typed_facts_and_hint(cli: CliFixture) -> None:
    cli.run()
    nowhere = _error("savepoint", "list", "--job-root", f"{cli.root}-of-another", "--json")
    assert nowhere["code"] == "config"
    missing = _error("checkpoints", "show", "99", "--job-root", cli.root, "--json")
    assert (missing["code"], missing["facts"]["checkpoint_id"], missing["retryable"]) == ("config", 99, False)
    assert missing["hint"] and "99" not in missing["message"]


@pytest.mark.parametrize("words", ["status --json", "gc --json --retain 0", "--job-root x checkpoints list --json"])
def test_a_wrong_command_line_is_an_error_in_json(words: str) -> None:
    assert _error(*words.split())["code"] == "usage"


def test_a_failed_run_has_the_same_error_in_its_result_file(cli: CliFixture) -> None:
    cli.write("def build(env):\n    raise KeyError('k')\n")
    file = cli.folder / "result.json"
    assert invoke(*cli.command("--result-file", str(file))).exit_code != 0
    found = json.loads(file.read_text())
    check(RunOutcome, found)
    assert (found["status"], found["result"]) == ("failed", None) and found["error"]["code"]
