"""``savepoint write`` and ``savepoint change``: screens, positions, functions that return rows, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

import stateflow
from stateflow.bootstrap.spark_checkpoint import SparkCheckpoint
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.errors import ConfigError, DataError, JobDefinitionError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
from stateflow.runtime.task import store_cache
from stateflow.testing.sinks import FolderSink
from tests.support import root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.errors import raises
from tests.support.screens import normalized

_ORDERS = """
import msgspec

from stateflow import FileSource


class Order(msgspec.Struct):
    shop: str
    amount: int


def build(env):
    for uid in ("files", "again"):
        orders = env.from_source(FileSource("/tmp/orders/in", schema=Order, format="json"), uid=uid)
        orders.print(uid=f"print-{uid}")
"""


@pytest.fixture
def lists(total: CliFixture) -> CliFixture:
    numbers = 'self.numbers = ctx.get_list_state(ListStateDescriptor("numbers", int))\n        self.total = '
    head = JOB.replace("import FileSource", "import FileSource, ListStateDescriptor").replace("self.total = ", numbers)
    total.write(BUILD, head)
    return total


@pytest.fixture
def total(tmp_path: Path) -> CliFixture:
    return CliFixture(tmp_path)


def _file(folder: Path, name: str = "rows.parquet", **columns: Any) -> str:
    path = folder / name
    pq.write_table(pa.table(columns), path)
    return str(path)


def _write(job: CliFixture, *states: str, output: str = "written", **options: Any) -> WrittenSavepoint:
    layers = (dict(job.settings),)
    return write_savepoint(WriteRequest(job.job, str(job.folder / output), states, layers=layers, **options))


def test_a_savepoint_is_written_shown_and_started_from(total: CliFixture, golden: SnapshotAssertion) -> None:
    file = _file(total.folder, key=["a", "b"], value=pa.array([1000, 2000], pa.int32()))
    settings = [part for name, value in total.settings.items() for part in ("--set", f"{name}={value}")]
    words = ["savepoint", "write", str(total.job), "--output", str(total.folder / "written"), *settings]
    words += ["--state", f"sum.total={file}", "--source", 'rows={"row": 4}', "--reason", "moved"]
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    assert normalized(ended.output, folder=total.folder) == golden
    again = invoke(*words, "--json")
    assert json.loads(again.stdout) == {
        "path": (total.folder / "written").as_uri(),
        "name": "written",
        "job": "job",
        "max_parallelism": 128,
        "size_bytes": sum(file.stat().st_size for file in (total.folder / "written" / "files").iterdir()),
        "operators": ["sum"],
        "states": [{"operator": "sum", "state": "total", "files": 1, "rows": 2, "imported_from": None}],
        "offsets": {"rows": {"row": 4}},
        "without_position": [],
    }
    run = invoke(*total.command("--from-savepoint", str(total.folder / "written")))
    store_cache.close_all()
    assert run.exit_code == 0, run.output
    newest = {row["key"]: row["total"] for row in FolderSink(total.folder / "table").rows()}
    assert newest == {"a": 1000 + 6 + 9, "b": 2000 + 4 + 7 + 10, "c": 5 + 8 + 11}


def test_elements_of_a_list_are_in_the_order_of_positions_or_else_of_rows(lists: CliFixture, tmp_path: Path) -> None:
    sorted_rows = _file(tmp_path, "1.parquet", key=["a", "a", "b"], position=[0, 1, 0], value=[7, 5, 1])
    mixed = _file(tmp_path, "2.parquet", key=["b", "a", "a"], position=[0, 1, 0], value=[1, 5, 7])
    plain = _file(tmp_path, "3.parquet", key=["a", "b", "a"], value=[7, 1, 5])
    for number, file in enumerate((sorted_rows, mixed, plain)):
        made = _write(lists, f"sum.numbers={file}", output=f"list-{number}")
        found = stateflow.read_state(made.path, "sum", "numbers").read_all().to_pylist()
        assert sorted((row["key"], row["position"], row["value"]) for row in found) == [
            ("a", 0, 7),
            ("a", 1, 5),
            ("b", 0, 1),
        ]


@pytest.mark.parametrize(
    ("states", "sources", "facts"),
    [
        (["sum"], [], {"state": "sum"}),
        (["sum.total="], [], {"state": "sum.total="}),
        (["sun.total={file}"], [], {"operator": "sun", "known": ["sum"]}),
        (["sum.totel={file}"], [], {"operator": "sum", "state": "totel"}),
        (["sum.total=none.parquet"], [], {"location": "none.parquet", "operator": "sum", "state": "total"}),
        (["sum.total={file}", "sum.total={file}"], [], {"state": "sum.total"}),
        (["sum._timers={file}"], [], {"missing": ["time"], "unknown": ["value"]}),
        ([], ["row=earliest"], {"uid": "row", "known": ["rows"]}),
        ([], ["rows=first"], {"source": "rows=first"}),
        ([], ["rows=keep"], {"source": "rows=keep"}),
        ([], ["rows=earliest", "rows=latest"], {"uid": "rows"}),
        ([], ["rows=spark:nowhere"], {"path": (Path.cwd() / "nowhere").as_uri()}),
        ([], [f"rows=spark:nowhere#{'9' * 5000}"], {"path": "nowhere"}),
        ([], [f"rows=spark:nowhere#batch={'9' * 5000}"], {"path": "nowhere"}),
    ],
)
def test_what_does_not_exist_is_refused_with_its_name(
    total: CliFixture, states: list[str], sources: list[str], facts: dict[str, Any]
) -> None:
    file = _file(total.folder, key=["a"], value=[1])
    given = [state.format(file=file) for state in states]
    with raises(ConfigError, **facts):
        _write(total, *given, sources=tuple(sources))
    assert not (total.folder / "written").exists()


@pytest.mark.parametrize(
    ("columns", "error", "facts"),
    [
        ({"key": ["a"], "valeu": [1]}, ConfigError, {"missing": ["value"], "unknown": ["valeu"]}),
        ({"value": [1]}, ConfigError, {"missing": ["key"], "unknown": []}),
        ({"key": [1], "value": [1]}, SchemaMismatch, {"column": "key", "state": "total"}),
        ({"key": ["a"], "value": ["1"]}, SchemaMismatch, {"key": "key='a'", "state": "total"}),
        ({"key": ["a", "a"], "value": [1, 1]}, DataError, {"key": "('a',)"}),
    ],
)
def test_rows_that_are_not_of_the_state_are_refused(
    total: CliFixture, columns: dict[str, Any], error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error, **facts):
        _write(total, f"sum.total={_file(total.folder, **columns)}")
    assert not list((total.folder / "written").glob("_savepoint"))


def test_a_file_with_two_columns_of_one_name_is_refused(total: CliFixture) -> None:
    columns = [pa.array(["a"]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.table(columns, names=["key", "value", "value"]), total.folder / "twice.parquet")
    with raises(ConfigError, columns=["value"], file=(total.folder / "twice.parquet").as_uri()):
        _write(total, f"sum.total={total.folder / 'twice.parquet'}")


def test_rows_of_empty_files_and_keys_of_two_files(total: CliFixture) -> None:
    rows = total.folder / "rows"
    rows.mkdir()
    _file(rows, "1.parquet", key=pa.array([], pa.string()), value=pa.array([], pa.null()))
    (rows / "2.jsonl").touch()
    _file(rows, "3.parquet", key=pa.array(["a", "b"]).dictionary_encode(), value=pa.array([1, 2]).dictionary_encode())
    made = _write(total, f"sum.total={rows}")
    found = stateflow.read_state(made.path, "sum", "total").read_all().to_pylist()
    assert {row["key"]: row["value"] for row in found} == {"a": 1, "b": 2} and made.states[0].rows == 2
    (rows / "4.jsonl").write_text('{"key": "b", "value": 2}\n')
    with raises(DataError, key="('b',)", state="total"):
        _write(total, f"sum.total={rows}", output="twice")
    (rows / "4.jsonl").unlink()
    (rows / "5.parquet").touch()
    with raises(DataError, file=(rows / "5.parquet").as_uri()):
        _write(total, f"sum.total={rows}", output="empty")


def test_files_that_cannot_be_read_or_differ_are_named(lists: CliFixture, tmp_path: Path) -> None:
    good = _file(tmp_path, "1.parquet", key=["a"], value=pa.array([1], pa.int64()))
    (tmp_path / "2.parquet").write_bytes(Path(good).read_bytes()[:-9])
    (tmp_path / "3.jsonl").write_text("key,value\na,1\n")
    for name in ("2.parquet", "3.jsonl"):
        with raises(DataError, file=(tmp_path / name).as_uri(), state="numbers"):
            _write(lists, f"sum.numbers={tmp_path / name}", output="none")
        with raises(DataError, file=(tmp_path / name).as_uri()):
            _write(lists, f"sum.numbers={tmp_path}/[1{name[0]}].*", output="none")
    for columns in ({"key": ["a"]}, {"key": ["a"], "value": [1], "position": [0]}):
        _file(tmp_path, "4.parquet", **columns)
        with raises(ConfigError, file=(tmp_path / "4.parquet").as_uri()):
            _write(lists, f"sum.numbers={tmp_path}/[14].*", output="none")
    _file(tmp_path, "5.parquet", key=["a"], value=["text"])
    with raises(SchemaMismatch, file=(tmp_path / "5.parquet").as_uri(), column="value"):
        _write(lists, f"sum.numbers={tmp_path}/[15].*", output="none")


def test_positions_of_a_query_of_spark_are_taken_without_spark(tmp_path: Path) -> None:
    queries = Path(__file__).parents[1] / "bootstrap" / "spark_checkpoints"
    (tmp_path / "orders.py").write_text(_ORDERS)
    both = SparkCheckpoint(queries / "both")
    files = next(at for at, offset in enumerate(both.offsets) if "logOffset" in offset)
    sources = (f"files=spark:{queries / 'files'}", f"again=spark:{queries / 'both'}#{files}")
    made = write_savepoint(WriteRequest(tmp_path / "orders.py", str(tmp_path / "w"), sources=sources))
    assert made.offsets == {"files": '{"logOffset":0}', "again": '{"logOffset":0}'} and made.without_position == []
    spark = savepoint_at(made.path).document.manifest.spark
    assert spark is not None and [file.path for file in spark.source_files] == ["0/0", "1/0"]
    with raises(ConfigError, number=None):
        source = f"files=spark:{queries / 'both'}"
        write_savepoint(WriteRequest(tmp_path / "orders.py", str(tmp_path / "none"), sources=(source,)))


def test_wrong_options_of_a_new_savepoint_are_refused(total: CliFixture) -> None:
    words = ["savepoint", "write", str(total.job), "--output", str(total.folder / "w")]
    assert invoke(*words).exit_code == ConfigError.exit_code
    assert invoke(*words, "--source", "rows=earliest", "--at", "noon").exit_code == ConfigError.exit_code
    assert invoke("savepoint", "change", "before", "--remove", "x", "--output", "y").exit_code == ConfigError.exit_code


def test_an_operator_is_left_out_of_a_copy(total: CliFixture, golden: SnapshotAssertion) -> None:
    total.run()
    assert invoke("savepoint", "create", "--job-root", total.root, "--name", "before", "--from-head").exit_code == 0
    copy = str(total.folder / "copy")
    words = ["savepoint", "change", "--job-root", total.root, "before", "--remove", "sum", "--output", copy]
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    assert normalized(ended.output, folder=total.folder) == golden
    assert stateflow.read_metadata(copy, "states").num_rows == 0
    with raises(ConfigError, uid="summ"):
        change_savepoint(ChangeRequest(copy, str(total.folder / "none"), ("summ",)))


# -- functions that return rows ---------------------------------------------------------------------------------------


_FUNCTIONS = """
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
        self.functions.write_text(_FUNCTIONS)
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
    words += f"--name later --transform sum.total={file}:in_hours --transform sum._timers={file}:later".split()
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


def test_wrong_options_of_a_change_are_refused(changes: Changes, tmp_path: Path) -> None:
    words = ["savepoint", "change", changes.base, "--output", str(tmp_path / "none")]
    assert invoke(*words).exit_code == ConfigError.exit_code
    with raises(ConfigError, savepoint="before"):
        change_savepoint(ChangeRequest("before", str(tmp_path / "none"), ("sum",)))
    output = str(tmp_path / "root" / "copy")
    with raises(ConfigError, output=output):
        change_savepoint(ChangeRequest(changes.base, output, ("sum",), job_root=str(tmp_path / "root")))
