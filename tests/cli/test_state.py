"""``stateflow state``: screens of checkpoints and savepoints, and the errors of wrong names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

import stateflow
from stateflow.errors import ConfigError, MissingFile, WrongKeyType
from stateflow.query.metadata import SCHEMAS
from tests.support.cli_fixture import JOB, CliFixture, invoke
from tests.support.screens import normalized

_HEAD = JOB.replace(
    "import FileSource,",
    "import CheckpointedFunction, FileSource, ListStateDescriptor, MapStateDescriptor, StateTtlConfig, Time,",
)
_BUILD = """
from datetime import date

DAY = StateTtlConfig.new_builder(Time.days(1)).build()


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


def build(env):
    rows = env.from_source(source(), uid="rows")
    rows.key_by("key").process(Everything(), output=Total, uid="sum").sink_to(sink(), uid="t")
    by_both = rows.key_by("key", "number").process(Everything(), output=Total, uid="by-both")
    by_both.sink_to(FolderSink(HERE.parent / "u"), uid="u")
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CliFixture:
    job = CliFixture(tmp_path_factory.mktemp("state"))
    job.settings["checkpoints.asynchronous"] = "no"
    job.write(_BUILD, _HEAD)
    job.run()
    assert invoke("savepoint", "create", "--job-root", job.root, "--name", "before", "--from-head").exit_code == 0
    return job


def _shown(job: CliFixture, *words: str) -> str:
    ended = invoke("state", *words)
    assert ended.exit_code == 0, ended.output
    (folder,) = Path(job.root).glob("savepoints/before-*")
    return normalized(ended.output, root=job.root, folder=folder)


def _error(*words: str, exit_code: int = ConfigError.exit_code) -> Any:
    ended = invoke("state", *words)
    assert ended.exit_code == exit_code, ended.output
    return ended.output


def test_the_screen_of_operators_and_states_matches_the_golden_file(job: CliFixture, golden: SnapshotAssertion) -> None:
    (folder,) = Path(job.root).glob("savepoints/before-*")
    assert _shown(job, "show", job.root) == golden(name="checkpoint")
    assert _shown(job, "show", job.root, "--snapshot", "before") == golden(name="savepoint")
    assert _shown(job, "show", str(folder)) == golden(name="savepoint")
    shown = json.loads(invoke("state", "show", job.root, "--json").output)
    assert (shown["job"], shown["name"], [o["operator"] for o in shown["operators"]]) == (
        "job",
        None,
        ["by-both", "sum"],
    )
    assert {(s["state"], s["kind"]) for s in shown["states"] if s["operator"] == "sum"} == {
        ("total", "value"),
        ("last", "value"),
        ("seen", "map"),
        ("numbers", "list"),
        ("_timers", "timers"),
        ("_operator/buffer", "split-list"),
    }


def test_tables_of_metadata_are_printed(job: CliFixture, golden: SnapshotAssertion) -> None:
    for table in SCHEMAS:
        shown = invoke("state", "show", job.root, "--table", table, "--json")
        lines = [json.loads(line) for line in shown.output.splitlines()]
        rows = stateflow.read_metadata(job.root, table).to_pylist()
        assert [list(line) for line in lines] == [list(row) for row in rows]
        assert [line.get("file") for line in lines] == [row.get("file") for row in rows]
    for table in ("snapshots", "states"):
        assert _shown(job, "show", job.root, "--table", table) == golden(name=table)
    assert "leave the snapshot out" in _error("show", job.root, "--table", "snapshots", "--snapshot", "2")


def _get(job: CliFixture, state: str, key: str, *more: str, operator: str = "sum") -> list[Any]:
    words = ("state", "get", job.root, "--operator", operator, "--state", state, "--key", key, *more)
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    return [json.loads(line) for line in ended.output.splitlines()]


def test_the_entries_of_one_key_are_printed_as_json(job: CliFixture, golden: SnapshotAssertion) -> None:
    numbers = [0, 3, 6, 9]
    assert [row["value"] for row in _get(job, "total", "a")] == [sum(numbers)]
    assert [row["value"] for row in _get(job, "total", "a", "--snapshot", "3")] == [sum(numbers[:3])]
    assert [row["value"] for row in _get(job, "last", "a", "--snapshot", "before")] == [
        {"number": 9, "on": "2026-01-10"}
    ]
    assert [row["value"] for row in _get(job, "numbers", "a")] == numbers
    assert [(row["map_key"], row["value"]) for row in _get(job, "seen", "a")] == [(n, f"n{n}") for n in numbers]
    assert [row["time"] for row in _get(job, "_timers", "a")] == [4_000_000_000_000]
    for key in ('["b", 4]', '{"number": 4, "key": "b"}'):
        assert [row["value"] for row in _get(job, "total", key, operator="by-both")] == [4]
    words = ("get", job.root, "--operator", "sum", "--state", "seen", "--key", "b")
    assert _shown(job, *words) == golden(name="text")
    assert _shown(job, *words, "--json") == golden(name="json")


def test_a_key_without_an_entry_has_an_exit_code_of_its_own(job: CliFixture) -> None:
    words = ("state", "get", job.root, "--operator", "sum", "--state", "total", "--key", "z")
    ended = invoke(*words)
    assert (ended.exit_code, ended.stdout) == (6, "")
    ended = invoke(*words, "--json")
    assert (ended.exit_code, json.loads(ended.stdout)["rows"]) == (6, [])


def test_all_rows_are_exported_as_json_lines_and_parquet(job: CliFixture, tmp_path: Path) -> None:
    words = ("state", "export", job.root, "--operator", "sum", "--state", "seen")
    lines = [json.loads(line) for line in invoke(*words).stdout.splitlines()]
    wanted = {("abc"[n % 3], n): f"n{n}" for n in range(12)}
    assert {(row["key"], row["map_key"]): row["value"] for row in lines} == wanted
    jsonl, parquet = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    jsonl.write_text("of an earlier export")
    for output in (jsonl, parquet):
        ended = invoke(*words, "--output", str(output))
        assert ended.exit_code == 0 and "12 rows" in ended.output
    assert [json.loads(line) for line in jsonl.read_text().splitlines()] == lines
    table = pq.read_table(parquet)
    assert table.equals(pa.Table.from_batches(stateflow.read_state(job.root, "sum", "seen")))
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "rows.parquet"}


def test_rows_are_exported_to_a_storage(job: CliFixture, tmp_path: Path) -> None:
    words = ("state", "export", job.root, "--operator", "sum", "--state", "total", "--output")
    for _ in range(2):
        ended = invoke(*words, (tmp_path / "a b" / "rows.jsonl").as_uri())
        assert ended.exit_code == 0 and "3 rows" in ended.output
    rows = [json.loads(line) for line in (tmp_path / "a b" / "rows.jsonl").read_text().splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [("a", 18), ("b", 22), ("c", 26)]
    for refused in (f"file://{job.root}/log/1", "s3://bucket/", "ftp://host/rows"):
        assert invoke(*words, refused).exit_code == ConfigError.exit_code


def test_a_location_may_have_blanks_and_any_letters(job: CliFixture, tmp_path: Path) -> None:
    root = tmp_path / "a job ü"
    shutil.copytree(job.root, root)
    (savepoint,) = root.glob("savepoints/before-*")
    for location in (str(root), root.as_uri(), str(savepoint), savepoint.as_uri(), f"{savepoint}/"):
        words = ("state", "get", location, "--operator", "sum", "--state", "total", "--key", "a")
        assert json.loads(invoke(*words).stdout) == {"value": 18}
    ended = invoke("diff", str(root), f"{root.as_uri()}@before", "--json")
    assert ended.exit_code == 0 and json.loads(ended.stdout)["keys"] == 0


def test_a_failed_export_leaves_the_earlier_output(job: CliFixture, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(job.root, root)
    for file in root.glob("data/*/*/*"):
        if file.suffix != ".json":
            file.unlink()
    output = tmp_path / "rows.jsonl"
    output.write_text("of an earlier export")
    words = ("state", "export", str(root), "--operator", "sum", "--state", "seen", "--output", str(output))
    assert invoke(*words).exit_code == MissingFile.exit_code
    assert output.read_text() == "of an earlier export"
    assert {path.name for path in tmp_path.iterdir()} == {"damaged", "rows.jsonl"}


def test_errors_of_wrong_names_name_the_existing_ones(job: CliFixture) -> None:
    assert "before" in _error("show", job.root, "--snapshot", "befor")
    assert "FORMAT" in _error("show", str(job.folder))
    get = ("get", job.root, "--operator", "sum", "--state", "total", "--key", "a")
    assert "'sum'" in _error(*get, "--operator", "sums")
    assert "'total'" in _error(*get, "--state", "totals")
    assert "_operator/buffer" in _error(*get, "--state", "_operator/buffers")
    assert "no keys" in _error(*get, "--state", "_operator/buffer")
    export = ("export", job.root, "--operator", "sum", "--state", "total")
    assert "--output" in _error(*export, "--format", "parquet")
    assert "nowhere" in _error(*export, "--output", str(job.folder / "nowhere" / "rows.jsonl"))


@pytest.mark.parametrize("key", ['"a"', '["a", 1.5]', '["a", true]', '{"key": "a"}', "a", "[" * 9999])
def test_keys_that_do_not_have_the_types_of_their_columns_are_errors(job: CliFixture, key: str) -> None:
    words = ("get", job.root, "--operator", "by-both", "--state", "total", "--key", key)
    shown = _error(*words, exit_code=WrongKeyType.exit_code)
    assert f"[{WrongKeyType.code}]" in shown and "number" in shown and "hint" in shown
