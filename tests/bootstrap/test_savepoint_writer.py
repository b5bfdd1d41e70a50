"""`SavepointWriter`: what it refuses, repeats and leaves, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import (
    CheckpointedFunction,
    FunctionInitializationContext,
    KeyedProcessFunction,
    KeyedStateFrame,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    SavepointWriter,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    read_state,
)
from stateflow.api.functions.process import Context
from stateflow.bootstrap.frames import cast_column
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, DataError, EntryTooLarge, SchemaMismatch, StateError, StateflowError
from stateflow.runtime.restore.new_job_root import InitialSavepoint, create_job_root
from stateflow.types.descriptors import StateDescriptor
from tests.support import root_files
from tests.support.errors import raises
from tests.support.local_jobs import Growing, LocalJobs

TOTAL = ValueStateDescriptor("total", int)


class Stats(msgspec.Struct):
    count: int
    total: float
    last: str | None = None


STATS = ValueStateDescriptor("stats", Stats)


class Sale(msgspec.Struct):
    shop: str | None
    amount: int


class Sum(KeyedProcessFunction[Sale, Sale]):
    """Emits the total of a shop with each sale."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(TOTAL)

    def process_element(self, row: Sale, ctx: Context) -> Any:
        self.total.update((self.total.value() or 0) + row.amount)
        yield Sale(row.shop, self.total.value() or 0)


def _job(jobs: LocalJobs, rows: list[Sale], more: bool = False) -> Callable[[StreamExecutionEnvironment], None]:
    def build(env: StreamExecutionEnvironment) -> None:
        sales = env.from_source(Growing(rows, Sale), uid="sales")
        if more:
            sales = sales.union(env.from_source(Growing(rows, Sale), uid="more"))
        sales.key_by("shop").process(Sum(), output=Sale, uid="sum").sink_to(jobs.sink("out"), uid="out")

    return build


def _writer(frame: object, descriptor: Any = TOTAL, **columns: Any) -> SavepointWriter:
    writer = SavepointWriter.new("job", max_parallelism=16, clock=ManualClock())
    return writer.with_operator("sum", key="shop", states=[KeyedStateFrame(descriptor, frame, **columns)])


def _sums(**columns: Any) -> pa.Table:
    return pa.table({"shop": ["a", "b"], **columns})


# -- a job continues --------------------------------------------------------------------------------------------------


def test_a_job_continues_from_written_values_and_positions(tmp_path: Path) -> None:
    rows = [Sale("a", 1), Sale("b", 2), Sale("a", 3), Sale(None, 4)]
    sums = pa.table({"shop": ["a", "b", None], "value": [100, 200, 300]})
    writer = _writer(sums).with_source("sales", Growing(rows, Sale), {"row": 1})
    path = writer.write(str(tmp_path / "written"))
    jobs = LocalJobs(tmp_path, max_parallelism=16)
    create_job_root(jobs.new_root(_job(jobs, rows)), InitialSavepoint(path))
    jobs.run(_job(jobs, rows))
    assert sorted(jobs.rows(), key=repr) == [("a", 103), ("b", 202), (None, 304)]
    with read_state(str(tmp_path / "root"), "sum", "total", keys=[None]) as stored:
        assert [(row["shop"], row["value"]) for row in stored.read_all().to_pylist()] == [(None, 304)]


def test_a_source_without_a_position_begins_at_its_start_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [Sale("a", 1)]
    path = _writer(_sums(value=[100, 200])).with_source("sales", Growing(rows, Sale), "latest").write(tmp_path / "w")
    jobs = LocalJobs(tmp_path, max_parallelism=16)
    create_job_root(jobs.new_root(_job(jobs, rows, more=True)), InitialSavepoint(path))
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1 and "more" in warned[0].getMessage()
    jobs.run(_job(jobs, rows, more=True))
    assert jobs.rows() == [("a", 101)]


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "given", "options", "error", "facts"),
    [
        (TOTAL, {"shop": pa.nulls(2, pa.string()), "value": [1, 2]}, {}, DataError, {"key": "(None,)"}),
        (TOTAL, {"shop": ["a", "b"], "value": [1, None]}, {}, DataError, {"key": "shop='b'", "state": "total"}),
        (TOTAL, {"shop": ["a", "a"], "value": [1, 2]}, {}, DataError, {"key": "('a',)", "state": "total"}),
        (TOTAL, {"shop": ["a"], "value": ["1"]}, {}, SchemaMismatch, {"key": "shop='a'", "state": "total"}),
        (TOTAL, {"shop": ["a", "b"], "value": [1.0, 1.5]}, {}, SchemaMismatch, {"column": "value"}),
        (STATS, {"shop": ["a"], "count": [1]}, {}, SchemaMismatch, {"key": "shop='a'"}),
        (STATS, {"shop": ["a", "b"], "count": [1, 2], "total": [1.0, None], "last": ["", ""]}, {}, SchemaMismatch,
         {"key": "shop='b'", "field": "total"}),
        (ValueStateDescriptor("s", set[int]), {"shop": ["a"], "value": [["x"]]}, {}, SchemaMismatch, {"state": "s"}),
        (MapStateDescriptor("m", str, int), {"shop": ["a"], "map_key": [1], "value": [1]}, {}, SchemaMismatch, {}),
        (MapStateDescriptor("m", str, int), {"shop": ["a"] * 2, "map_key": ["x"] * 2, "value": [1, 2]}, {}, DataError,
         {"key": "('a',)", "map_key": "'x'", "state": "m"}),
        (ListStateDescriptor("l", int), {"shop": ["a"], "value": [1], "at": [None]}, {"order_by": "at"}, DataError, {}),
        (TOTAL, {"shop": ["a" * 70_000], "value": [1]}, {}, EntryTooLarge, {"setting": "state.max_key_bytes"}),
        (ValueStateDescriptor("t", str), {"shop": ["a"], "value": ["x" * (17 << 20)]}, {}, EntryTooLarge,
         {"state": "t"}),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_stored_is_named(
    tmp_path: Path,
    columns: Any,
    given: dict[str, Any],
    options: dict[str, Any],
    error: type[Any],
    facts: dict[str, Any],
) -> None:
    writer = _writer(pa.table(given), columns, **options)
    with raises(error, operator="sum", **facts):
        writer.write(tmp_path / "w")
    with raises(ConfigError):
        savepoint_at(str(tmp_path / "w"))


def test_what_is_wrong_with_frames_and_names_is_refused_before_anything_is_read() -> None:
    table = _sums(value=[1, 2])
    with raises(ConfigError, column="shop"):
        _writer(table.rename_columns(["key", "value"]))
    with raises(ConfigError, columns=["extra"]):
        _writer(table.append_column("extra", pa.array([1, 2])))
    with raises(ConfigError, missing=["at"]):
        _writer(table, ListStateDescriptor("l", int), order_by="at")
    with raises(ConfigError, state="total"):
        _writer(table.drop_columns("value"))
    with raises(ConfigError, type="list"):
        _writer([("a", 1)])
    with raises(StateError, name="total"):
        SavepointWriter.new("job").with_operator(
            "sum", key="shop", states=[KeyedStateFrame(TOTAL, table), KeyedStateFrame(STATS_AS_TOTAL, table)]
        )
    with raises(ConfigError, uid="sum"):
        _writer(table).with_operator("sum", key={"shop": "string"})
    with raises(ConfigError, uid="other"):
        _writer(table).with_broadcast_state("other", MapStateDescriptor("m", str, int), table)
    with raises(ConfigError, type="array<int>"):
        SavepointWriter.new("job").with_operator("sum", key={"shop": "array<int>"})


STATS_AS_TOTAL = ValueStateDescriptor("total", str)


# -- time to live -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["processing", "event"])
def test_the_time_to_live_counts_from_a_column(tmp_path: Path, domain: str) -> None:
    config = StateTtlConfig.new_builder(timedelta(hours=1))
    config = config.use_event_time() if domain == "event" else config
    written = datetime(2020, 1, 1, tzinfo=UTC)
    frame = _sums(value=[1, 2], written_at=[written, written + timedelta(hours=1)])
    _writer(frame, ValueStateDescriptor("brief", int, ttl=config.build())).write(tmp_path / "w")
    (operator,) = savepoint_at(str(tmp_path / "w")).document.manifest.operators
    (schema,) = operator.states
    # Earlier entries would count from `ttl_since`.
    assert (schema.ttl_time, schema.ttl_index) == (domain, True)
    assert schema.ttl_always if domain == "event" else schema.ttl_since == 0


# -- completion -------------------------------------------------------------------------------------------------------


class Named(msgspec.Struct):
    number: int
    key_group: int | None = None
    map_key: str | None = None
    at: int | None = None
    shop: str | None = None


def test_a_column_that_may_be_a_field_of_the_values_is_never_left_out_of_them(tmp_path: Path) -> None:
    state, items = ValueStateDescriptor("named", Named), ListStateDescriptor("named", Named)
    frame = pa.table({"key": ["a"], "number": [1], "key_group": [9], "map_key": ["b"], "at": [5], "shop": ["c"]})
    SavepointWriter.new("job").with_operator("op", key="key", states=[KeyedStateFrame(state, frame)]).write(
        tmp_path / "w"
    )
    (row,) = read_state(str(tmp_path / "w"), "op", "named").read_all().to_pylist()
    assert row["value"] == {"number": 1, "key_group": 9, "map_key": "b", "at": 5, "shop": "c"}
    for key, given, column in (
        ("shop", KeyedStateFrame(state, frame), "shop"),
        ("key", KeyedStateFrame(items, frame, order_by="at"), "at"),
        ("key", KeyedStateFrame(MapStateDescriptor("named", str, Named), frame), "map_key"),
    ):
        with raises(ConfigError, columns=[column], state="named"):
            SavepointWriter.new("job").with_operator("op", key=key, states=[given])
    rules = MapStateDescriptor("named", str, Named)
    writer = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
    with raises(ConfigError, columns=["map_key"], state="named"):
        writer.with_broadcast_state("op", rules, frame.drop_columns(["key"])).write(tmp_path / "none")


def test_a_repeated_call_without_a_time_has_that_of_its_savepoint(tmp_path: Path) -> None:
    """A time to live counts from it: otherwise the entries would be others."""
    clock = ManualClock()

    def write(value: int, at: datetime | None = None) -> str:
        ttl = StateTtlConfig.new_builder(timedelta(hours=1)).build()
        state = ValueStateDescriptor("brief", int, ttl=ttl)
        frame = KeyedStateFrame(state, pa.table({"key": ["a"], "value": [value]}))
        writer = SavepointWriter.new("job", clock=clock).with_operator("sum", key="key", states=[frame])
        return writer.write(tmp_path / "w", at=at)

    path, before, began = write(1), root_files.digests(tmp_path / "w"), clock.now()
    clock.sleep(timedelta(days=1, microseconds=1))
    assert write(1) == path and root_files.digests(tmp_path / "w") == before
    for value, at in ((2, None), (1, clock.now()), (2, began)):
        with raises(ConfigError, path=path):
            write(value, at)
    assert root_files.digests(tmp_path / "w") == before


def test_operator_state_is_split_over_subtasks_and_broadcast_state_is_stored_once(tmp_path: Path) -> None:
    writer = SavepointWriter.new("job", max_parallelism=16, parallelism=3).with_operator("sum", key={"shop": "string"})
    writer.with_operator_state("sum", ListStateDescriptor("own", int), pa.table({"value": range(7)}))
    writer.with_operator_state("sum", ListStateDescriptor("all", int), pa.table({"value": [1, 2]}), union=True)
    rules = pa.table({"map_key": ["x", "y"], "count": [1, 2], "total": [0.5, 1.0], "last": [None, "z"]})
    writer.with_broadcast_state("sum", MapStateDescriptor("rules", str, Stats), rules)
    writer.write(tmp_path / "w")
    (operator,) = savepoint_at(str(tmp_path / "w")).document.manifest.operators
    parts = [msgspec.msgpack.decode(part.content) for part in operator.parts]
    own = [[msgspec.msgpack.decode(e[1:]) for e in part["lists"]["own"]] for part in parts]
    assert sorted(map(len, own)) == [2, 2, 3] and [e for part in own for e in part] == list(range(7))
    assert [[msgspec.msgpack.decode(e[1:]) for e in p["unions"].get("all", [])] for p in parts] == [[1, 2], [], []]
    assert [len(part["broadcasts"]) for part in parts] == [1, 0, 0]
    assert [(s.name, s.kind) for s in operator.operator_states] == [
        ("all", "union-list"), ("own", "split-list"), ("rules", "broadcast")
    ]  # fmt: skip
    assert (operator.key_types, operator.key_names) == (["string"], ["shop"])


class Raw(CheckpointedFunction, KeyedProcessFunction[Sale, Sale]):
    """Emits the bytes of its raw state, and keeps them."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.pieces = [piece.read() for piece in ctx.get_raw_operator_state_inputs()]
        self.groups = {group: piece.read() for group, piece in ctx.get_raw_keyed_state_inputs()}

    def process_element(self, row: Sale, ctx: Context) -> Any:
        for text in (*self.pieces, *(b"%d:%s" % each for each in self.groups.items())):
            yield Sale(text.decode(), row.amount)


def test_raw_state_has_the_partitions_and_the_bytes_of_key_groups(tmp_path: Path) -> None:
    writer = SavepointWriter.new("job", max_parallelism=16, parallelism=3).with_operator("raw", key={"shop": "string"})
    partitions = pa.table({"value": [b"a", b"b", b"", b"d"]})
    groups = pa.table({"key_group": [15, 0, 5], "value": [b"x", b"y", b"z"]})
    path = writer.with_raw_state("raw", partitions=partitions, key_groups=groups).write(tmp_path / "w")
    table = read_state(path, "raw", "_raw_keyed").read_all()
    assert {(r["subtask"], r["key_group"], r["value"]) for r in table.to_pylist()} == {
        (0, 0, b"y"), (0, 5, b"z"), (2, 15, b"x")
    }  # fmt: skip
    again = SavepointWriter.new("job", max_parallelism=16).with_operator("raw", key={"shop": "string"})
    read = {"partitions": read_state(path, "raw", "_raw"), "key_groups": table}
    path = again.with_raw_state("raw", **read).write(tmp_path / "again")
    assert [r["value"] for r in read_state(path, "raw", "_raw").read_all().to_pylist()] == [b"a", b"b", b"", b"d"]

    def build(env: StreamExecutionEnvironment) -> None:
        sales = env.from_source(Growing([Sale("s", 1)], Sale), uid="sales")
        sales.key_by("shop").process(Raw(), output=Sale, uid="raw").sink_to(jobs.sink("out"), uid="out")

    jobs = LocalJobs(tmp_path, max_parallelism=16, parallelism=1)
    create_job_root(jobs.new_root(build), InitialSavepoint(path))
    jobs.run(build)
    assert sorted(jobs.rows()) == sorted((text, 1) for text in ["a", "b", "", "d", "15:x", "0:y", "5:z"])


@pytest.mark.parametrize(
    ("frames", "error", "facts"),
    [
        ({"key_groups": pa.table({"key_group": [16], "value": [b""]})}, DataError, {"key_group": 16}),
        ({"key_groups": pa.table({"key_group": [3, 3], "value": [b"", b""]})}, DataError, {"key_group": 3}),
        ({"key_groups": pa.table({"value": [b""]})}, ConfigError, {"missing": ["key_group"]}),
        ({"partitions": pa.table({"value": [b"", None]})}, DataError, {"state": "_raw"}),
        ({"partitions": pa.table({"value": ["text"]})}, SchemaMismatch, {"column": "value"}),
    ],
)
def test_raw_state_that_cannot_be_stored_is_refused(
    tmp_path: Path, frames: dict[str, pa.Table], error: type[Any], facts: dict[str, Any]
) -> None:
    writer = SavepointWriter.new("job", max_parallelism=16).with_operator("raw", key={"shop": "string"})
    with raises(error, **facts):
        writer.with_raw_state("raw", **frames).write(tmp_path / "w")
    with raises(ConfigError, uid="raw"):
        writer.with_raw_state("raw", **frames)


# -- values that a conversion would change or leave out ---------------------------------------------------------------


class Item(msgspec.Struct):
    amount: int


class Tagged(msgspec.Struct):
    """Values without a column: they are converted one by one."""

    tags: set[int]
    name: str | None = None


_BRIEF = ValueStateDescriptor("s", int, ttl=StateTtlConfig.new_builder(timedelta(hours=1)).build())
_LIST, _MAP = ListStateDescriptor("s", int), MapStateDescriptor("s", str, int)
_TWICE = pa.map_(pa.string(), pa.int64())
_TIME = pa.timestamp("us")
_ONE_UUID = [(text, 1) for text in (str(UUID(int=10)), str(UUID(int=10)).upper())]
_NULL = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
_NO_TEXT = pa.array([b"a", b"\xff"]).view(pa.string())


def _of(kind: Any) -> StateDescriptor:
    return ValueStateDescriptor("s", kind)


def _write(folder: Path, state: StateDescriptor, **columns: Any) -> list[dict[str, Any]]:
    frame = pa.table({"key": ["k1", "k2"], "value": [1, 2], **columns})
    writer = SavepointWriter.new("job").with_operator("op", key="key", states=[KeyedStateFrame(state, frame)])
    rows: list[dict[str, Any]] = read_state(writer.write(folder / "w"), "op", "s").read_all().to_pylist()
    return sorted(rows, key=lambda row: row["key"])


@pytest.mark.parametrize(
    ("state", "columns", "error", "facts"),
    [
        (_of(list[Item]), {"value": [[], [{"amount": 1, "amonut": 2}]]}, SchemaMismatch, {"column": "value"}),
        (
            _of(dict[str, Item]),
            {
                "value": pa.array(
                    [[], [("a", {"amount": 1, "b": 2})]],
                    pa.map_(pa.string(), pa.struct([("amount", pa.int64()), ("b", pa.int64())])),
                )
            },
            SchemaMismatch,
            {},
        ),
        (_of(Tagged), {"value": [{"tags": [1], "nmae": "x"}] * 2}, SchemaMismatch, {"field": "nmae"}),
        (_of(list[Tagged]), {"value": [[{"tags": [1], "nmae": "x"}]] * 2}, SchemaMismatch, {"field": "nmae"}),
        (_of(dict[str, int]), {"value": pa.array([[], [("a", 1), ("a", 2)]], _TWICE)}, DataError, {"key": "key='k2'"}),
        (
            _of(list[dict[str, int] | None]),
            {"value": pa.array([[None], [[("a", 1)], [("a", 1), ("a", 2)]]], pa.list_(_TWICE))},
            DataError,
            {"key": "key='k2'"},
        ),
        (
            _of(dict[str, set[int]]),
            {"value": pa.array([[], [("a", [1]), ("a", [2])]], pa.map_(pa.string(), pa.list_(pa.int64())))},
            DataError,
            {"key": "key='k2'"},
        ),
        (_of(str), {"value": _NULL}, DataError, {"key": "key='k2'"}),
        (_of(str), {"value": _NO_TEXT}, DataError, {"key": "key='k2'"}),
        (_of(int), {"key": _NO_TEXT}, DataError, {"key": "key=b'\\xff'"}),
        (_MAP, {"map_key": _NO_TEXT}, DataError, {"key": "key='k2'"}),
        (_of(int), {"key": [float("nan")] * 2}, DataError, {"key": "(nan,)"}),
        (_of(int), {"key": [0.0, -0.0]}, DataError, {"key": "(0.0,)"}),
        (_of(float), {"value": [1, (1 << 53) + 1]}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(int), {"value": pa.array([1, 1 << 63], pa.uint64())}, SchemaMismatch, {"key": "key='k2'"}),
        (_LIST, {"key": ["a", "a"], "position": [0.0, float("nan")]}, DataError, {"column": "position"}),
        (_BRIEF, {"written_at": pa.array([1, 1 << 63], pa.uint64())}, SchemaMismatch, {"column": "written_at"}),
        (_BRIEF, {"written_at": pa.array([1, 1 << 60], pa.timestamp("s"))}, SchemaMismatch, {"key": "key='k2'"}),
        (_BRIEF, {"written_at": pa.array([1000, 1_999_999], pa.timestamp("us"))}, DataError, {"key": "key='k2'"}),
        (_BRIEF, {"written_at": pa.array([0, -1], pa.timestamp("ns"))}, DataError, {"column": "written_at"}),
        (_of(set[date]), {"value": pa.array([[], [1 << 30]], pa.list_(pa.date32()))}, SchemaMismatch, {}),
        (_of(datetime), {"value": pa.array([0, 1 << 62], _TIME)}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(date), {"value": pa.array([0, 1 << 30], pa.date32())}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(int), {"key": pa.array([0, 1 << 62], _TIME)}, SchemaMismatch, {"key": f"key=timestamp[us] {1 << 62}"}),
        (_of(int), {"key": pa.array([0, 1 << 30], pa.date32())}, SchemaMismatch, {"key": f"key=date32[day] {1 << 30}"}),
        (_of(dict[UUID, int]), {"value": pa.array([[], _ONE_UUID], _TWICE)}, SchemaMismatch, {"key": "key='k2'"}),
    ],
)
def test_what_a_conversion_would_change_is_an_error(
    tmp_path: Path, state: StateDescriptor, columns: dict[str, Any], error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error, state="s", operator="op", **facts):
        _write(tmp_path, state, **columns)


def test_columns_with_dictionaries_have_the_values_of_plain_ones(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "key": pa.array(["a", "a"]),
        "namespace": pa.array(["x", "x"]),
        "position": pa.array([1, 0]),
        "value": pa.array([{"tags": [1], "name": "b"}, {"tags": [2], "name": None}]),
    }
    state = ListStateDescriptor("s", Tagged)
    names = plain["value"].field("name").dictionary_encode()
    value = pa.StructArray.from_arrays([plain["value"].field("tags"), names], ["tags", "name"])
    encoded = {name: plain[name].dictionary_encode() for name in ("key", "namespace", "position")}
    assert _write(tmp_path / "1", state, **encoded, value=value) == _write(tmp_path / "2", state, **plain)


def test_a_cast_changes_no_value() -> None:
    one = pa.array([{"a": 1, "b": 2}])
    assert cast_column(one, pa.struct([("b", pa.int32()), ("a", pa.int64())]), "x").to_pylist() == [{"b": 2, "a": 1}]
    cases: list[tuple[pa.Array, pa.DataType]] = [
        (one, pa.struct([("a", pa.int64())])),
        (pa.array([[{"a": 1, "b": 2}]]), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.array([0.1]), pa.float32()),
        (pa.array(np.array([1e300])), pa.float32()),
        (pa.array([1 << 60], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([5], pa.date64()), pa.date32()),
    ]
    for column, kind in cases:
        with raises(SchemaMismatch, column="x"):
            cast_column(column, kind, "x")


def test_operator_state_with_an_unknown_column_is_refused(tmp_path: Path) -> None:
    frame = pa.table({"value": [1], "subtask": [0], "kind": ["list"], "more": [2]})
    by_key = frame.append_column("map_key", pa.array(["a"]))
    for is_map in (False, True):
        writer = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
        if is_map:
            writer.with_broadcast_state("op", _MAP, by_key)
        else:
            writer.with_operator_state("op", _LIST, frame)
        with raises(ConfigError, columns=["more"], state="s"):
            writer.write(tmp_path / "w")
    raw = pa.table({"value": [b"a"], "more": [1]})
    writer = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
    with raises(ConfigError, columns=["more"]):
        writer.with_raw_state("op", partitions=raw).write(tmp_path / "w")
