"""``savepoint write`` and ``savepoint change``: screens, positions, values without a column, and errors."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

import stateflow
from stateflow.bootstrap.encoded_entries import StateEncoder
from stateflow.bootstrap.spark_checkpoint import SparkCheckpoint
from stateflow.bootstrap.state_files import RowFile
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.errors import ConfigError, DataError, SchemaMismatch, StateflowError
from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
from stateflow.runtime.task import store_cache
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.testing.sinks import FolderSink
from tests.support.cli_fixture import CliFixture, invoke
from tests.support.errors import raises
from tests.support.screens import normalized
from tests.support.stored_state import keyed_content

_HEAD = """
from pathlib import Path
from typing import NamedTuple

import msgspec

from stateflow import (
    FileSource, KeyedBroadcastProcessFunction, KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor,
    Serializer, ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HERE = Path(__file__).parent


class Row(msgspec.Struct):
    key: str
    number: int


class Stats(msgspec.Struct):
    count: int
    total: float
    last: str | None = None


class Point(NamedTuple):
    x: int
    y: str


class Named(msgspec.Struct):
    number: int
    position: int | None = None
    namespace: str | None = None
    written_at: str | None = None
    key_group: int | None = None
    map_key: str | None = None


class Keyed(msgspec.Struct):
    number: int
    key: str | None = None


class Reversed(Serializer[str]):
    name, version = "reversed", 2

    def encode(self, value):
        return value[::-1].encode()

    def decode(self, data, version):
        return data.decode()[::-1]


class Odd(KeyedProcessFunction):
    def open(self, ctx):
        self.stats = ctx.get_state(ValueStateDescriptor("stats", Stats))
        self.union = ctx.get_state(ValueStateDescriptor("union", int | str))
        self.point = ctx.get_state(ValueStateDescriptor("point", dict[str, Point]))
        self.mine = ctx.get_state(ValueStateDescriptor("mine=me", str, serializer=Reversed()))
        self.numbers = ctx.get_list_state(ListStateDescriptor("numbers", int))
        self.named = ctx.get_list_state(ListStateDescriptor("named", Named))
        self.named_map = ctx.get_map_state(MapStateDescriptor("named map", str, Named))
        self.keyed = ctx.get_state(ValueStateDescriptor("keyed", Keyed))
        self.mixed = ctx.get_map_state(MapStateDescriptor("mixed", int | str, int))

    def process_element(self, row, ctx):
        self.stats.update(Stats(row.number, 1.5))
        self.union.update(row.number if row.number % 2 else str(row.number))
        self.point.update({row.key: Point(row.number, "y")})
        self.mine.update(row.key * 3)
        self.numbers.add(row.number)
        self.mixed.put(row.number if row.number % 2 else str(row.number), 1)
        yield Row(row.key, sum(self.numbers.get()))


RATES = MapStateDescriptor("rates", str, int)


class Rated(KeyedBroadcastProcessFunction):
    def open(self, ctx):
        self.limits = MapStateDescriptor("limits", str, int)

    def process_element(self, row, ctx):
        yield Row(row.key, ctx.get_broadcast_state(RATES).get("x") or 0)

    def process_broadcast_element(self, row, ctx):
        pass


ROWS = [Row("abc"[n % 3], n) for n in range(9)]


def build(env):
    rows = env.from_source(ScriptedSource(Row, ROWS, HERE.parent / "ledger.json", slice_rows=4), uid="rows")
    more = env.from_source(ScriptedSource(Row, ROWS[:1], HERE.parent / "more.json"), uid="more")
    totals = rows.key_by("key").process(Odd(), output=Row, uid="odd.one")
    totals.sink_to(FolderSink(HERE.parent / "totals"), uid="totals")
    rated = more.key_by("key").connect(rows.broadcast()).process(Rated(), output=Row, uid="rated")
    rated.sink_to(FolderSink(HERE.parent / "rated"), uid="rates")
"""


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


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CliFixture:
    """A job that has run, with a savepoint."""
    job = CliFixture(tmp_path_factory.mktemp("write"))
    job.write("", _HEAD)
    job.run()
    made = invoke("savepoint", "create", "--job-root", job.root, "--name", "before", "--from-head")
    assert made.exit_code == 0, made.output
    return job


@pytest.fixture
def total(tmp_path: Path) -> CliFixture:
    """A job with one sum for each key, which has not run."""
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
        "bytes": sum(file.stat().st_size for file in (total.folder / "written" / "files").iterdir()),
        "operators": ["sum"],
        "states": [{"operator": "sum", "state": "total", "files": 1, "rows": 2, "imported_from": ""}],
        "sources": {"rows": '{"row": 4}'},
        "without_position": [],
    }
    run = invoke(*total.command("--from-savepoint", str(total.folder / "written")))
    store_cache.close_all()
    assert run.exit_code == 0, run.output
    newest = {row["key"]: row["total"] for row in FolderSink(total.folder / "table").rows()}
    assert newest == {"a": 1000 + 6 + 9, "b": 2000 + 4 + 7 + 10, "c": 5 + 8 + 11}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_values_without_a_column_of_their_type_are_written_again(job: CliFixture, tmp_path: Path, kind: str) -> None:
    states = []
    for name in ("stats", "union", "point", "mine=me", "numbers", "mixed"):
        file = str(tmp_path / f"{name}.{kind}")
        which = ["--operator", "odd.one", "--state", name]
        ended = invoke("state", "export", job.root, *which, "--snapshot", "before", "--output", file)
        assert ended.exit_code == 0, ended.output
        states.append(f"odd.one.{name}={file}")
    made = _write(job, *states, output=f"written-{kind}")
    assert [state.rows for state in made.states] == [3, 3, 3, 3, 9, 9] and made.without_position == ["more", "rows"]
    (before,) = Path(job.root).glob("savepoints/before-*")
    found = stateflow.diff(str(before), made.path)
    assert found.keys == 0 and {state.state for state in found.states} >= {"stats", "union", "point", "mine=me"}
    # Two values that are equal may have other bytes, such as a field that is null and one that is absent.
    content = (keyed_content(path) for path in (before, Path(made.path.removeprefix("file://"))))
    old, new = ({entry: n for entry, n in each.items() if entry[0] == "odd.one"} for each in content)
    assert old == new and old


def test_columns_may_be_fields_of_values_and_lines_may_lack_nulls(job: CliFixture, tmp_path: Path) -> None:
    lines = ({"key": "a", "count": 1, "total": 2.5}, {"key": "b", "count": 2, "total": 1.0, "last": "x"})
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _file(tmp_path, "2.parquet", key=["c"], count=pa.array([3], pa.int8()), total=[0.5], last=["y"])
    made = _write(job, f"odd.one.stats={tmp_path}", output="fields")
    found = stateflow.read_state(made.path, "odd.one", "stats").read_all()
    assert {row["key"]: row["value"] for row in found.to_pylist()} == {
        "a": {"count": 1, "total": 2.5, "last": None},
        "b": {"count": 2, "total": 1.0, "last": "x"},
        "c": {"count": 3, "total": 0.5, "last": "y"},
    }


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_without_a_column_value_a_field_of_the_value_may_have_the_name_of_another_column(
    job: CliFixture, tmp_path: Path, kind: str
) -> None:
    rows: list[dict[str, Any]] = [
        {"key": "a", "number": 1, "position": 7, "namespace": "x", "written_at": "y", "key_group": 3, "map_key": "z"},
        {"key": "a", "number": 2, "position": 0, "namespace": None, "written_at": "", "key_group": 0, "map_key": "z"},
    ]
    file = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    made = _write(job, f"odd.one.named={file}", output=f"named-{kind}")
    found = stateflow.read_state(made.path, "odd.one", "named").read_all().to_pylist()
    assert [{"key": row["key"], **row["value"]} for row in found] == rows
    assert [(row["position"], row["namespace"]) for row in found] == [(0, None), (1, None)]
    for state, column in (("named map", "map_key"), ("keyed", "key")):
        with raises(ConfigError, columns=[column], state=state):
            _write(job, f"odd.one.{state}={_file(tmp_path, key=['a'], map_key=['b'], number=[1])}", output="none")


def test_positions_that_are_no_integers_are_refused(job: CliFixture, tmp_path: Path) -> None:
    for position in (["0"], [0.0], [b"0"]):
        file = _file(tmp_path, key=["a"], position=position, value=[1])
        with raises(SchemaMismatch, column="position", operator="odd.one", state="numbers"):
            _write(job, f"odd.one.numbers={file}", output="none")
    file = _file(tmp_path, key=["a"], position=pa.array([1 << 63], pa.uint64()), value=[1])
    with raises(SchemaMismatch, column="position", operator="odd.one", state="numbers"):
        _write(job, f"odd.one.numbers={file}", output="none")


def test_elements_of_a_list_are_in_the_order_of_positions_or_else_of_rows(job: CliFixture, tmp_path: Path) -> None:
    sorted_rows = _file(tmp_path, "1.parquet", key=["a", "a", "b"], position=[0, 1, 0], value=[7, 5, 1])
    mixed = _file(tmp_path, "2.parquet", key=["b", "a", "a"], position=[0, 1, 0], value=[1, 5, 7])
    plain = _file(tmp_path, "3.parquet", key=["a", "b", "a"], value=[7, 1, 5])
    for number, file in enumerate((sorted_rows, mixed, plain)):
        made = _write(job, f"odd.one.numbers={file}", output=f"list-{number}")
        found = stateflow.read_state(made.path, "odd.one", "numbers").read_all().to_pylist()
        assert sorted((row["key"], row["position"], row["value"]) for row in found) == [
            ("a", 0, 7),
            ("a", 1, 5),
            ("b", 0, 1),
        ]


def test_sorted_lists_are_written_while_they_are_read_and_others_after_all_is_read(
    job: CliFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    encode, local_copy = StateEncoder.encode, RowFile.local_copy

    def encoded(encoder: StateEncoder, batch: pa.RecordBatch) -> EntryColumns:
        steps.append("write")
        return encode(encoder, batch)

    def opened(file: RowFile) -> AbstractContextManager[Path]:
        steps.append(file.key)
        return local_copy(file)

    monkeypatch.setattr(StateEncoder, "encode", encoded)
    monkeypatch.setattr(RowFile, "local_copy", opened)
    for number, (key, positions) in enumerate((("a", [0, 1]), ("a", [2, 3]), ("b", [0, 1]))):
        _file(tmp_path, f"{number}", key=[key] * 2, position=positions, value=[number] * 2)
    read = ["0", "1", "2"]
    _write(job, f"odd.one.numbers={tmp_path}/?", output="sorted")
    assert steps == ["0", *read, "0", "write", "1", "write", "2", "write"]
    steps.clear()
    _file(tmp_path, "1", key=["a"] * 2, position=[2, 4], value=[1, 1])
    _write(job, f"odd.one.numbers={tmp_path}/?", output="unsorted")
    assert steps == ["0", "0", "1", *read, "write"]


def test_broadcast_state_is_found_without_a_row(job: CliFixture, tmp_path: Path) -> None:
    file = _file(tmp_path, map_key=["x"], value=[42])
    made = _write(job, f"rated._operator/rates={file}", f"rated._operator/limits={file}", output="rates")
    assert stateflow.read_state(made.path, "rated", "_operator/limits").read_all()["value"].to_pylist() == [42]
    settings = {**job.settings, "local_dir": str(tmp_path / "scratch")}
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    words = ["run", str(job.job), "--job-root", str(tmp_path / "root"), "--from-savepoint", made.path]
    run = invoke(*words, *sets, "--tables", "keep")
    store_cache.close_all()
    assert run.exit_code == 0, run.output
    assert list(FolderSink(job.folder / "rated").rows())[-1]["number"] == 42


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


def test_files_that_cannot_be_read_or_differ_are_named(job: CliFixture, tmp_path: Path) -> None:
    good = _file(tmp_path, "1.parquet", key=["a"], value=pa.array([1], pa.int64()))
    (tmp_path / "2.parquet").write_bytes(Path(good).read_bytes()[:-9])
    (tmp_path / "3.jsonl").write_text("key,value\na,1\n")
    for name in ("2.parquet", "3.jsonl"):
        with raises(DataError, file=(tmp_path / name).as_uri(), state="numbers"):
            _write(job, f"odd.one.numbers={tmp_path / name}", output="none")
        with raises(DataError, file=(tmp_path / name).as_uri()):
            _write(job, f"odd.one.numbers={tmp_path}/[1{name[0]}].*", output="none")
    for columns in ({"key": ["a"]}, {"key": ["a"], "value": [1], "position": [0]}):
        _file(tmp_path, "4.parquet", **columns)
        with raises(ConfigError, file=(tmp_path / "4.parquet").as_uri()):
            _write(job, f"odd.one.numbers={tmp_path}/[14].*", output="none")
    _file(tmp_path, "5.parquet", key=["a"], value=["text"])
    with raises(SchemaMismatch, file=(tmp_path / "5.parquet").as_uri(), column="value"):
        _write(job, f"odd.one.numbers={tmp_path}/[15].*", output="none")
    text = _file(tmp_path, "6.parquet", key=["a"], value=["no JSON"])
    with raises(SchemaMismatch, value="no JSON", state="union"):
        _write(job, f"odd.one.union={text}", output="none")


def test_positions_of_a_query_of_spark_are_taken_without_spark(tmp_path: Path) -> None:
    queries = Path(__file__).parents[1] / "bootstrap" / "spark_checkpoints"
    (tmp_path / "orders.py").write_text(_ORDERS)
    both = SparkCheckpoint(queries / "both")
    files = next(at for at, offset in enumerate(both.offsets) if "logOffset" in offset)
    sources = (f"files=spark:{queries / 'files'}", f"again=spark:{queries / 'both'}#{files}")
    made = write_savepoint(WriteRequest(tmp_path / "orders.py", str(tmp_path / "w"), sources=sources))
    assert made.sources == {"files": '{"logOffset":0}', "again": '{"logOffset":0}'} and made.without_position == []
    spark = savepoint_at(made.path).document.manifest.spark
    assert spark is not None and [file.path for file in spark.source_files] == ["0/0", "1/0"]
    with raises(ConfigError, number=None):
        source = f"files=spark:{queries / 'both'}"
        write_savepoint(WriteRequest(tmp_path / "orders.py", str(tmp_path / "none"), sources=(source,)))


def test_another_savepoint_in_the_folder_is_not_replaced(total: CliFixture) -> None:
    first = _file(total.folder, "1.parquet", key=["a"], value=[1])
    second = _file(total.folder, "2.parquet", key=["a"], value=[2])
    made = _write(total, f"sum.total={first}")
    with raises(ConfigError, path=made.path):
        _write(total, f"sum.total={second}")
    assert stateflow.read_state(made.path, "sum", "total").read_all()["value"].to_pylist() == [1]


def test_wrong_options_are_refused(total: CliFixture) -> None:
    words = ["savepoint", "write", str(total.job), "--output", str(total.folder / "w")]
    assert invoke(*words).exit_code == ConfigError.exit_code
    assert invoke(*words, "--source", "rows=earliest", "--at", "noon").exit_code == ConfigError.exit_code
    assert invoke("savepoint", "change", "before", "--remove", "x", "--output", "y").exit_code == ConfigError.exit_code


def test_an_operator_is_left_out_of_a_copy(job: CliFixture, golden: SnapshotAssertion) -> None:
    copy = str(job.folder / "copy")
    words = ["savepoint", "change", "--job-root", job.root, "before", "--remove", "odd.one", "--output", copy]
    ended = invoke(*words)
    assert ended.exit_code == 0, ended.output
    assert normalized(ended.output, folder=job.folder) == golden
    before = {s["operator"] for s in stateflow.read_metadata(job.root, "states", "before").to_pylist()}
    after = {s["operator"] for s in stateflow.read_metadata(copy, "states").to_pylist()}
    assert after == before - {"odd.one"}
    with raises(ConfigError, uid="odd.two"):
        change_savepoint(ChangeRequest(copy, str(job.folder / "none"), ("odd.two",)))
