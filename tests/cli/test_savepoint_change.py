"""``savepoint change --transform``: rows that functions return, functions by name, repeated and concurrent calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

import stateflow
from stateflow.errors import ConfigError, JobDefinitionError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
from tests.support import root_files
from tests.support.cli_fixture import invoke
from tests.support.cli_fixture import stateflow as run_command
from tests.support.errors import raises
from tests.support.screens import normalized

_JOB = """
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    KeyedBroadcastProcessFunction, KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, StateTtlConfig,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HERE = Path(__file__).parent
RATES = MapStateDescriptor("rates", str, int)


class Row(msgspec.Struct):
    key: str
    number: int


class Stats(msgspec.Struct):
    count: int
    total: TOTAL


class Kept(KeyedProcessFunction):
    def open(self, ctx):
        ttl = StateTtlConfig.new_builder(timedelta(days=9)).build()
        self.stats = ctx.get_state(ValueStateDescriptor("a.b=c", Stats))
        self.brief = ctx.get_state(ValueStateDescriptor("brief", int, ttl=ttl))

    def process_element(self, row, ctx):
        yield row


class Rated(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        yield Row(row.key, ctx.get_broadcast_state(RATES).get("x") or 0)

    def process_broadcast_element(self, row, ctx):
        pass


def build(env):
    rows = env.from_source(ScriptedSource(Row, [], HERE / "ledger.json"), uid="rows")
    kept = rows.key_by("key").process(Kept(), output=Row, uid="kept")
    kept.sink_to(FolderSink(HERE / "kept"), uid="kept-out")
    rated = rows.key_by("key").connect(rows.broadcast()).process(Rated(), output=Row, uid="rated")
    rated.sink_to(FolderSink(HERE / "rated"), uid="rated-out")


def of_the_job(batch):
    return batch
"""
_CHANGES = """
import pyarrow as pa
import pyarrow.compute as pc


def in_hours(batch):
    rows = batch.to_pylist()
    for row in rows:
        row["value"] = {"count": row["value"]["count"], "total": row["value"]["total"] / 60}
    return pa.RecordBatch.from_pylist([{name: row[name] for name in ("key", "value")} for row in rows])


def later(batch):
    at = batch.schema.get_field_index("time")
    return batch.set_column(at, "time", pc.add(batch.column("time").cast(pa.int64()), 1000))


def doubled(batch):
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, "value", pc.multiply(batch.column("value"), 2))


def without_times(batch):
    return batch.select(["key", "value"])


def broken(batch):
    raise KeyError("nothing")


def nothing(batch):
    return None
"""


class Changes:
    """A savepoint, a job for its copy, in which a total is a float, and a file of functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "changing.py"
        self.functions = folder / "changes_of_state.py"
        self.functions.write_text(_CHANGES)
        self.declare("int")
        rows = {
            "kept.a.b=c": {"key": ["a", "b"], "count": [1, 2], "total": [60, 90]},
            "kept._timers": {"key": ["a"], "time": pa.array([5000], pa.int64())},
            "rated._operator/rates": {"map_key": ["x"], "value": [42]},
        }
        given = []
        for number, (name, columns) in enumerate(rows.items()):
            pq.write_table(pa.table(columns), folder / f"{number}.parquet")
            given.append(f"{name}={folder / f'{number}.parquet'}")
        self.base = write_savepoint(WriteRequest(self.job, str(folder / "base"), tuple(given))).path
        self.declare("float")

    def declare(self, total: str) -> None:
        self.job.write_text(_JOB.replace("TOTAL", total))

    def change(self, *transforms: str, output: str = "none", job: Path | None = None) -> WrittenSavepoint:
        request = ChangeRequest(self.base, str(self.folder / output), (), transforms, job or self.job)
        return change_savepoint(request)

    def rows(self, path: str, operator: str, state: str) -> list[dict[str, Any]]:
        return list(stateflow.read_state(path, operator, state).read_all().to_pylist())


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return Changes(tmp_path_factory.mktemp("changes"))


def test_functions_replace_the_rows_of_a_copy(changes: Changes, golden: SnapshotAssertion) -> None:
    before, copy, file = root_files.digests(Path(changes.folder / "base")), changes.folder / "copy", changes.functions
    words = ["savepoint", "change", changes.base, "--job", str(changes.job), "--output", str(copy), "--name", "later"]
    words += ["--transform", f"kept.a.b=c={file}:in_hours", "--transform", f"kept._timers={file}:later"]
    words += ["--transform", f"rated._operator/rates={file}:doubled"]
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    assert normalized(ended.output, folder=changes.folder) == golden
    found = changes.rows(str(copy), "kept", "a.b=c")
    assert {row["key"]: row["value"] for row in found} == {
        "a": {"count": 1, "total": 1.0},
        "b": {"count": 2, "total": 1.5},
    }
    (timer,) = changes.rows(str(copy), "kept", "_timers")
    assert (timer["key"], timer["time"], timer["domain"]) == ("a", 6000, "event")
    assert [row["value"] for row in changes.rows(str(copy), "rated", "_operator/rates")] == [84]
    complete = root_files.digests(copy)
    assert invoke(*words).exit_code == 0
    assert root_files.digests(copy) == complete and root_files.digests(changes.folder / "base") == before


def test_a_killed_command_leaves_no_copy_and_its_repetition_completes_the_copy(changes: Changes) -> None:
    copy = changes.folder / "killed"
    words = ["savepoint", "change", changes.base, "--job", str(changes.job), "--output", str(copy)]
    words += ["--transform", f"kept.a.b=c={changes.functions}:in_hours"]
    killed = run_command(words, changes.folder, {"STATEFLOW_FAILPOINT": "write.stored"})
    assert killed.returncode < 0 and any((copy / "files").iterdir()) and not (copy / "_savepoint").exists()
    assert invoke(*words).exit_code == 0
    assert {row["key"] for row in changes.rows(str(copy), "kept", "a.b=c")} == {"a", "b"}


def test_functions_of_modules_and_of_the_job_file_are_found(changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(changes.folder))
    functions = (f"{changes.functions.stem}:later", f"{changes.job}:of_the_job", f"{changes.job.stem}:of_the_job")
    for number, function in enumerate(functions):
        made = changes.change(f"kept._timers={function}", output=f"module-{number}")
        assert len(changes.rows(made.path, "kept", "_timers")) == 1
    # Timers have no type that a job declares.
    request = ChangeRequest(
        changes.base, str(changes.folder / "no-job"), ("rated",), (f"kept._timers={changes.functions}:later",)
    )
    assert change_savepoint(request).operators == ["kept"]


@pytest.mark.parametrize(
    ("transform", "error", "facts"),
    [
        ("kept._timers", ConfigError, {"transform": "kept._timers"}),
        ("kept.a.b=c=", ConfigError, {"state": "kept.a.b"}),
        ("kept.totel={file}:later", ConfigError, {"state": "kept.totel"}),
        ("kept._raw={file}:later", ConfigError, {"state": "kept._raw"}),
        ("kept._timers={file}", ConfigError, {"function": "{file}"}),
        ("kept._timers={file}:latest", ConfigError, {"function": "latest"}),
        ("kept._timers=nowhere.py:later", JobDefinitionError, {"path": "nowhere.py"}),
        (f"kept._timers={'a' * 300}.py:later", JobDefinitionError, {"path": f"{'a' * 300}.py"}),
        ("kept._timers=no_such_module:later", ConfigError, {"module": "no_such_module"}),
        ("kept._timers={file}:broken", UserCodeError, {"operator": "kept"}),
        ("kept._timers={file}:nothing", SchemaMismatch, {"type": "NoneType"}),
        ("kept.brief={file}:later", ConfigError, {"state": "kept.brief"}),
    ],
)
def test_what_cannot_be_transformed_is_refused_with_its_name(
    changes: Changes, transform: str, error: type[StateflowError], facts: dict[str, str]
) -> None:
    wanted = {name: value.format(file=changes.functions) for name, value in facts.items()}
    with raises(error, **wanted):
        changes.change(transform.format(file=changes.functions))
    assert not (changes.folder / "none" / "_savepoint").exists()


def test_a_state_is_transformed_only_if_a_job_declares_the_state(changes: Changes) -> None:
    transform, none = f"kept.a.b=c={changes.functions}:in_hours", str(changes.folder / "none")
    with raises(ConfigError, operator="kept", state="a.b=c"):
        change_savepoint(ChangeRequest(changes.base, none, (), (transform,)))
    other = changes.folder / "renamed.py"
    other.write_text(changes.job.read_text().replace('uid="kept"', 'uid="held"'))
    with raises(ConfigError, operator="kept", state="a.b=c", job_file=str(other)):
        changes.change(transform, job=other)
    with raises(ConfigError, uid="kept", state="_timers"):
        changes.change(*[f"kept._timers={changes.functions}:later"] * 2)


def test_wrong_options_are_refused(changes: Changes, tmp_path: Path) -> None:
    words = ["savepoint", "change", changes.base, "--output", str(tmp_path / "none")]
    assert invoke(*words).exit_code == ConfigError.exit_code
    with raises(ConfigError, savepoint="before"):
        change_savepoint(ChangeRequest("before", str(tmp_path / "none"), ("kept",)))
    with raises(ConfigError, output=str(tmp_path / "root" / "copy")):
        output = str(tmp_path / "root" / "copy")
        change_savepoint(ChangeRequest(changes.base, output, ("kept",), job_root=str(tmp_path / "root")))


def test_of_two_calls_that_begin_together_both_return_the_savepoint(changes: Changes, tmp_path: Path) -> None:
    """Their times differ, and so would the times from which the entries live."""
    pq.write_table(pa.table({"key": ["a"], "value": [1]}), tmp_path / "rows.parquet")
    states, output = (f"kept.brief={tmp_path / 'rows.parquet'}",), str(tmp_path / "w")
    others: list[WrittenSavepoint] = []

    def other(step: str) -> None:
        if step.startswith("reading") and not others:
            others.append(write_savepoint(WriteRequest(changes.job, output, states)))

    made = write_savepoint(WriteRequest(changes.job, output, states, on_step=other))
    assert [made.path] == [each.path for each in others] and len(others) == 1
    complete = root_files.digests(tmp_path / "w")
    pq.write_table(pa.table({"key": ["a"], "value": [2]}), tmp_path / "rows.parquet")
    others.clear()
    with raises(ConfigError, path=made.path):
        write_savepoint(WriteRequest(changes.job, output, states, on_step=other))
    assert root_files.digests(tmp_path / "w") == complete
    assert os.listdir(tmp_path / "w" / "files")
