"""``--json``: the rules that every output follows, and that each command prints what its schema says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from stateflow import operations
from stateflow.cli.common import FailedCommand, JsonOption
from stateflow.cli.main import main
from stateflow.cli.run import RunOutcome
from stateflow.operations import RelocationReport
from stateflow.outputs import json_schema, output_classes
from tests.support.cli_fixture import CliFixture, invoke


def _options(command: click.Command, path: str = "") -> Iterator[tuple[str, JsonOption]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _options(below, f"{path} {name}".strip())
    for option in command.params:
        if isinstance(option, JsonOption):
            yield path, option


OPTIONS = dict(_options(main))
OUTPUTS: dict[str, object] = {**{path: o.output for path, o in OPTIONS.items()}, "": FailedCommand, "run": RunOutcome}
CLASSES = {kind for output in OUTPUTS.values() for kind in output_classes(output)}

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
)
"""Endings of the names of numbers."""
COUNTS = {
    "aborted", "added", "attempts", "batches", "changed", "checkpoints", "checkpoints_after", "entries", "failures",
    "files", "keys", "late_rows_dropped", "new_keys", "old_keys", "pairs", "removed", "restarts", "rows", "rows_again",
    "rows_in", "rows_filtered", "rows_late", "rows_dropped", "dead_letters", "state_entries", "rows_out",
    "storage_requests", "rows_removed", "rows_returned", "states", "subtasks", "tasks",
}  # fmt: skip
"""Numbers of things, named by them; also with a word before, such as `new_files`."""
PLAIN = {
    "exit_code",
    "generation",
    "max_parallelism",
    "number",
    "ordinal",
    "parallelism",
    "run",
    "seq",
    "subtask",
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

ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*")
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def _closed(schema: Any) -> Any:
    """The schema without fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    return {**closed, "additionalProperties": False} if "required" in schema else closed


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


def check(output: object, value: Any) -> None:
    """Fails unless a value follows the schema of an output and the rules for all of them."""
    jsonschema.validate(value, _closed(json_schema(output)), format_checker=jsonschema.FormatChecker())
    for text in _texts(value):
        assert not ZONED.fullmatch(text) or UTC.fullmatch(text), text
        assert not text.startswith(("{", '["', "[{")), text


def check_printed(path: str, *words: str, code: int = 0) -> Any:
    """Runs a command with ``--json``, and returns the values that it prints."""
    ended = invoke(*path.split(), *words, "--json")
    assert ended.exit_code == code, ended.output
    values = [json.loads(line) for line in ended.stdout.splitlines()]
    assert values and (OPTIONS[path].lines or len(values) == 1 or "--table" in words)
    for value in values:
        check(OPTIONS[path].output, value)
    return values if OPTIONS[path].lines else values[0]


BUILD = """
from stateflow.connectors import DeltaSink

def build(env):
    totals = env.from_source(source(), uid="rows").key_by("key").process(Sum(), output=Total, uid="sum")
    totals.sink_to(DeltaSink(HERE.parent / "all"), uid="all")
"""


def _relocated(job: str, *_: object) -> RelocationReport:
    return RelocationReport(job, "rows", "files of /new", 3, 1, 7, dry_run=True)


@pytest.mark.long(reason="runs every command")
def test_each_command_prints_what_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.write(BUILD)
    result = tmp_path / "result.json"
    ended = invoke(*job.command("--result-file", str(result)))
    assert ended.exit_code == 0, ended.output
    check(RunOutcome, json.loads(result.read_text()))

    seen = set[str]()

    def do(path: str, *words: str, code: int = 0) -> Any:
        seen.add(path)
        return check_printed(path, *words, code=code)

    root, file, sets = ("--job-root", job.root), str(job.job), job.command()[4:]
    who = ("--by", "anna", "--reason", "wrong rows")
    made = do("savepoint create", *root, "--name", "early", *who)
    assert (made["made_from"], made["offsets"]) == ("head", {"rows": {"row": 12}})
    do("savepoint show", "early", *root)
    do("savepoint verify", "early", *root)
    do("savepoint rekey", "early", "--max-parallelism", "64", "--into", str(tmp_path / "into"), *root, *who)
    changed = tmp_path / "changed"
    do("savepoint change", "early", *root, "--remove", "sum", "--output", str(changed))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"key": "a", "value": 5}\n')
    states = ("--state", f"sum.total={rows}", "--source", 'rows={"row": 4}')
    do("savepoint write", file, *sets, "--output", str(tmp_path / "written"), *states)
    do("explain", file, *root, *sets)
    do("check", file, "--against", job.root, *sets)
    do("checkpoints show", "3", *root)
    do("checkpoints history", *root)
    do("replay", file, *root, *sets, "--batch", "3", "--key", "a")
    do("diff", f"{job.root}@2", job.root, "--keys")
    do("state show", job.root)
    for table in ("snapshots", "operators", "states", "files"):
        do("state show", job.root, "--table", table)
    do("state get", job.root, "--operator", "sum", "--state", "total", "--key", "a")
    plan = str(tmp_path / "plan.json")
    planned = do("restore", file, *root, *sets, "--plan", "early", "--out", plan)
    assert planned["sources"][0]["target_offset"] == {"row": 12} and planned["parent_job"] is None
    # Both are the same document, which --execute and an operator read.
    assert json.loads(Path(plan).read_text()) == planned
    do("restore", file, *root, *sets, "--execute", plan, *who)
    found = do("status", *root, "--job", file, *sets)
    # The restore has given the state of a checkpoint a second id.
    assert found["checkpoint_id"] > found["restored_checkpoint_id"] == made["checkpoint_id"]
    assert found["points"][-1]["kind"] == "restore"
    assert (found["points"][-1]["checkpoint_id"], found["points"][-1]["retained"]) == (found["checkpoint_id"], True)
    assert do("checkpoints list", *root) == found["points"]
    (restore,) = [entry for entry in do("history", *root) if entry["kind"] == "restore"]
    assert restore["by"]["name"] == "anna" and isinstance(restore["facts"]["undone_checkpoint_ids"], list)
    do("fork", "latest", *root, "--into", str(tmp_path / "fork"), *who)
    do("tables optimize", file, *root, *sets)
    do("tables vacuum", file, *root, *sets, "--older-than", "0s")
    do("gc", *root, "--dry-run", "--files")
    do("can-delete", "FORMAT", *root, code=6)
    do("verify", *root, "--deep")
    do("doctor", *root, code=invoke("doctor", *root).exit_code)
    with operations_pin(job.root):
        assert do("pins", *root)[0]["owner"]["name"] == "anna"
    do("savepoint list", *root)
    do("savepoint dispose", "early", *root, *who)
    do("savepoint prune", *root, "--keep", "1")
    do("stop", *root, "--savepoint", "--name", "last", "--job", file, *sets)
    # These need a run, and a folder that moved.
    monkeypatch.setattr(operations, "trigger_checkpoint", lambda *_: 7)
    monkeypatch.setattr(operations, "relocate_source", partial(_relocated, "job"))
    do("checkpoints trigger", *root)
    do("source relocate", *root, "--source", "rows", "--from", "/old", "--to", "/new")
    assert seen == set(OPTIONS)


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
    missing = _error("checkpoints", "show", "99", "--job-root", cli.root, "--json")
    assert (missing["code"], missing["facts"]["checkpoint"], missing["retryable"]) == ("config", 99, False)
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
