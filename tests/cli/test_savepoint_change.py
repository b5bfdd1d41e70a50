"""``savepoint change --transform``: rows that functions return, functions by name, and options."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

import stateflow
from stateflow.errors import ConfigError, JobDefinitionError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.errors import raises
from tests.support.screens import normalized

_CHANGES = """
import pyarrow as pa
import pyarrow.compute as pc


def in_hours(batch):
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, "value", pc.divide(batch.column("value").cast(pa.float64()), 60))


def later(batch):
    at = batch.schema.get_field_index("time")
    return batch.set_column(at, "time", pc.add(batch.column("time").cast(pa.int64()), 1000))


def broken(batch):
    raise KeyError("nothing")


def nothing(batch):
    return None
"""


class Changes:
    """A savepoint, a job for its copy, in which a total is a float, and a file of functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cli = CliFixture(folder)
        self.functions = folder / "changes_of_state.py"
        self.functions.write_text(_CHANGES)
        pq.write_table(pa.table({"key": ["a", "b"], "value": [60, 90]}), folder / "totals.parquet")
        pq.write_table(pa.table({"key": ["a"], "time": pa.array([5000], pa.int64())}), folder / "timers.parquet")
        states = (f"sum.total={folder}/totals.parquet", f"sum._timers={folder}/timers.parquet")
        self.base = write_savepoint(WriteRequest(self.cli.job, str(folder / "base"), states)).path
        self.cli.write(
            BUILD + "\n\ndef of_the_job(batch):\n    return batch\n", JOB.replace('"total", int', '"total", float')
        )

    def change(self, *transforms: str, output: str = "none", job: Path | None = None) -> WrittenSavepoint:
        request = ChangeRequest(self.base, str(self.folder / output), (), transforms, job or self.cli.job)
        return change_savepoint(request)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return Changes(tmp_path_factory.mktemp("changes"))


def test_functions_replace_the_rows_of_a_copy(changes: Changes, golden: SnapshotAssertion) -> None:
    before, copy, file = root_files.digests(changes.folder / "base"), changes.folder / "copy", changes.functions
    words = ["savepoint", "change", changes.base, "--job", str(changes.cli.job), "--output", str(copy)]
    words += [
        "--name",
        "later",
        "--transform",
        f"sum.total={file}:in_hours",
        "--transform",
        f"sum._timers={file}:later",
    ]
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    assert normalized(ended.output, folder=changes.folder) == golden
    found = stateflow.read_state(str(copy), "sum", "total").read_all().to_pylist()
    assert {row["key"]: row["value"] for row in found} == {"a": 1.0, "b": 1.5}
    (timer,) = stateflow.read_state(str(copy), "sum", "_timers").read_all().to_pylist()
    assert (timer["key"], timer["time"], timer["domain"]) == ("a", 6000, "event")
    complete = root_files.digests(copy)
    assert invoke(*words).exit_code == 0
    assert root_files.digests(copy) == complete and root_files.digests(changes.folder / "base") == before


def test_functions_of_modules_and_of_the_job_file_are_found(changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(changes.folder))
    job = changes.cli.job
    functions = (f"{changes.functions.stem}:later", f"{job}:of_the_job", f"{job.stem}:of_the_job")
    for number, function in enumerate(functions):
        made = changes.change(f"sum._timers={function}", output=f"module-{number}")
        assert stateflow.read_state(made.path, "sum", "_timers").read_all().num_rows == 1


@pytest.mark.parametrize(
    ("transform", "error", "facts"),
    [
        ("sum._timers", ConfigError, {"transform": "sum._timers"}),
        ("sum.total=", ConfigError, {"transform": "sum.total="}),
        ("sum.totel={file}:later", ConfigError, {"state": "sum.totel"}),
        ("sum._raw={file}:later", ConfigError, {"state": "sum._raw"}),
        ("sum._timers={file}", ConfigError, {"function": "{file}"}),
        ("sum._timers={file}:latest", ConfigError, {"function": "latest"}),
        ("sum._timers=nowhere.py:later", JobDefinitionError, {"path": "nowhere.py"}),
        (f"sum._timers={'a' * 300}.py:later", JobDefinitionError, {"path": f"{'a' * 300}.py"}),
        ("sum._timers=no_such_module:later", ConfigError, {"module": "no_such_module"}),
        ("sum._timers={file}:broken", UserCodeError, {"operator": "sum"}),
        ("sum._timers={file}:nothing", SchemaMismatch, {"type": "NoneType"}),
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
    transform, none = f"sum.total={changes.functions}:in_hours", str(changes.folder / "none")
    with raises(ConfigError, operator="sum", state="total"):
        change_savepoint(ChangeRequest(changes.base, none, (), (transform,)))
    with raises(ConfigError, uid="sum", state="_timers"):
        changes.change(*[f"sum._timers={changes.functions}:later"] * 2)


def test_wrong_options_are_refused(changes: Changes, tmp_path: Path) -> None:
    words = ["savepoint", "change", changes.base, "--output", str(tmp_path / "none")]
    assert invoke(*words).exit_code == ConfigError.exit_code
    with raises(ConfigError, savepoint="before"):
        change_savepoint(ChangeRequest("before", str(tmp_path / "none"), ("sum",)))
    output = str(tmp_path / "root" / "copy")
    with raises(ConfigError, output=output):
        change_savepoint(ChangeRequest(changes.base, output, ("sum",), job_root=str(tmp_path / "root")))
