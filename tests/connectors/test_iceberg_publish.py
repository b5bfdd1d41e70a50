"""Publishing to Iceberg: one snapshot for each checkpoint, once, by one driver, whatever the catalog answers."""

from __future__ import annotations

import copy
import datetime
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from stateflow.api.sink import Sink
from stateflow.connectors.iceberg import table as iceberg_table
from stateflow.connectors.iceberg import target as sink_settings
from stateflow.connectors.iceberg.sink import IcebergSink
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    JobDefinitionError,
    SchemaMismatch,
    SinkDiverged,
    SinkRefused,
    StorageError,
)
from stateflow.testing.conformance.sink import SinkConformance
from tests.servers.running import CANARY
from tests.support import staged_tables
from tests.support.delta_tables import Every, Inner, Pair, every_row, pairs
from tests.support.errors import raises
from tests.support.job_fixture import KILLED
from tests.support.restores import go_back
from tests.support.staged_tables import IcebergTable, catalog_in, create_catalog, expire_all_but_current
from tests.support.table_jobs import IcebergJob


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair).prepare()


def test_a_checkpoint_is_one_snapshot_with_the_token_in_its_summary(table: IcebergTable) -> None:
    files = table.stage(1, pairs(0, 3), pairs(3, 2))
    handle, late = table.sink.open_table(table.about), table.sink.open_table(table.about)
    before = len(table.table.snapshots())
    version = handle.commit(7, files)
    assert (handle.commit(7, files), late.commit(7, files), late.commit(8, files)) == (None, None, None)
    [*earlier, snapshot] = table.table.snapshots()
    assert (len(earlier), snapshot.sequence_number) == (before, version)
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    assert summary["stateflow.application"] == table.about.application
    assert (summary["stateflow.token"], summary["added-records"]) == ("7", "5")
    assert table.table.properties[f"stateflow.token.{table.about.application}"] == "7"
    assert (table.ids(), table.token) == ([0, 1, 2, 3, 4], 7)


def test_a_commit_is_not_repeated_after_a_commit_of_another_writer(table: IcebergTable) -> None:
    """PyIceberg's own transactions would append the rows to whatever the table is by then."""
    table.table.transaction().set_properties({"commit.retry.num-retries": "10"}).commit_transaction()
    files = table.stage(1, pairs(0, 2))
    handle = table.sink.open_table(table.about)
    _before_commit(lambda: table.append(10), handle, files)
    assert table.ids() == [10]
    assert len(table.data_files()) == 1
    assert table.sink.open_table(table.about).commit(1, files) is not None
    assert (table.ids(), table.token) == ([0, 1, 10], 1)


def _before_commit(action: Callable[[], object], handle: Any, files: list[Any]) -> None:
    """Lets another process do something after the handle has written its files, just before its request."""
    commit = SqlCatalog.commit_table

    def late(self: SqlCatalog, *arguments: Any) -> Any:
        patch.undo()
        action()
        return commit(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", late)
        assert handle.commit(1, files) is None


def test_a_table_that_is_dropped_before_the_commit_is_not_created_again(table: IcebergTable) -> None:
    handle, files = table.sink.open_table(table.about), table.stage(1, pairs(0, 1))
    _before_commit(lambda: table.table.catalog.drop_table(table.name), handle, files)
    assert not table.table_exists()
    with raises(SinkDiverged, table=table.sink.location):
        table.sink.open_table(table.about)


@pytest.mark.parametrize(
    "lost",
    [CommitStateUnknownException("502"), ConnectionError("reset"), CommitFailedException("409 of a repeated request")],
    ids=lambda e: type(e).__name__,
)
def test_a_lost_answer_to_a_commit_that_was_made_is_resolved(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    files = table.stage(1, pairs(0, 2))
    with monkeypatch.context() as patch:
        _answer(patch, lost, made=True)
        version = table.sink.open_table(table.about).commit(1, files)
    opened = table.sink.open_table(table.about)
    assert (version, opened.token) == (opened.version, 1)
    assert table.ids() == [0, 1]


@pytest.mark.parametrize("error", [CommitStateUnknownException("500"), OSError("refused")], ids=lambda e: str(e))
def test_a_commit_that_was_not_made_is_worth_a_retry(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    files = table.stage(1, pairs(0, 2))
    with monkeypatch.context() as patch:
        _answer(patch, error, made=False)
        with raises(StorageError, table=table.sink.location):
            table.sink.open_table(table.about).commit(1, files)
    assert (table.ids(), table.token) == ([], 0)
    assert table.sink.open_table(table.about).commit(1, files) is not None
    assert table.ids() == [0, 1]


def _answer(patch: pytest.MonkeyPatch, error: Exception, made: bool) -> None:
    commit = SqlCatalog.commit_table

    def answered(self: SqlCatalog, *arguments: Any) -> Any:
        if made:
            commit(self, *arguments)
        raise error

    patch.setattr(SqlCatalog, "commit_table", answered)


def test_a_token_outlives_its_snapshot(table: IcebergTable) -> None:
    table.put(1, pairs(0, 1))
    table.put(2, pairs(1, 1))
    table.append(10)
    table.append(11)
    handle = table.sink.open_table(table.about)
    assert handle.plan_rewind(1).rows_removed == 3
    expire_all_but_current(table.table)
    assert (table.ids(), table.token) == ([0, 1, 10, 11], 2)
    table.put(3, pairs(2, 1))
    opened = table.sink.open_table(table.about)
    assert (opened.token, opened.plan_rewind(2).rows_removed) == (3, 1)
    with raises(SinkDiverged, checkpoint_id=1):
        opened.plan_rewind(1)


def test_changes_whose_snapshots_have_expired_count_as_those_of_another_writer(table: IcebergTable) -> None:
    seen = table.sink.open_table(table.about).version
    table.put(1, pairs(0, 1))
    table.append(10)
    changes = table.sink.open_table(table.about).changes_since(seen)
    assert (changes.published, [c.rows for c in changes.others]) == (True, [1])
    expire_all_but_current(table.table)
    changes = table.sink.open_table(table.about).changes_since(seen)
    assert (changes.published, [c.rows for c in changes.others]) == (False, [None, 1])


def test_a_plan_counts_rows_that_other_writers_deleted(table: IcebergTable) -> None:
    table.put(1, pairs(0, 3))
    table.table.delete("id = 1")
    table.put(2, pairs(5, 1))
    table.put(3, pairs(6, 1))
    handle = table.sink.open_table(table.about)
    assert handle.plan_rewind(2).others == ()
    # Before token 2: with the deletion, as the version before the first one of a later checkpoint.
    plan = handle.plan_rewind(1)
    assert (plan.rows_removed, plan.rows_returned, plan.others) == (2, 0, ())
    plan = handle.plan_rewind(0)
    assert plan.rows_removed is not None and plan.rows_returned is not None
    assert plan.rows_returned - plan.rows_removed == -4
    [commit] = plan.others
    assert (commit.operation, commit.rows, commit.applications) == ("overwrite", -1, frozenset())
    assert handle.rewind(plan.to_version, 4) is not None
    assert table.ids() == []


def test_a_rewind_by_another_sink_of_the_table_is_listed(table: IcebergTable) -> None:
    other = table.of(Pair, uid="other")
    other.put(1, pairs(10, 1))
    table.put(1, pairs(0, 1))
    table.put(2, pairs(1, 1))
    seen = table.sink.open_table(table.about).version
    undone = other.sink.open_table(other.about)
    assert undone.rewind(undone.plan_rewind(0).to_version, 2) is not None
    assert (table.ids(), table.token, other.token) == ([], 2, 2)
    handle = table.sink.open_table(table.about)
    [commit] = handle.changes_since(seen).others
    assert (commit.applications, commit.rows) == (frozenset({other.about.application}), None)
    plan = handle.plan_rewind(1)
    assert [c.version for c in plan.others] == [commit.version]
    assert (plan.rows_removed, plan.rows_returned) == (0, 2)
    assert handle.rewind(plan.to_version, 3) is not None
    assert (table.ids(), other.token) == ([0, 10], 2)


def test_manifests_are_merged_and_settings_of_the_branch_are_kept(table: IcebergTable) -> None:
    found = table.table
    found.transaction().set_properties({"commit.manifest.min-count-to-merge": "3"}).commit_transaction()
    head = found.current_snapshot()
    assert head is not None
    table.table.manage_snapshots().create_branch(head.snapshot_id, "main", min_snapshots_to_keep=5).commit()
    for token in range(1, 9):
        table.put(token, pairs(token, 1))
    found, snapshot = table.table, table.table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(found.io)) <= 3
    assert found.refs()["main"].min_snapshots_to_keep == 5
    assert table.ids() == list(range(1, 9))
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(4).to_version, 9) is not None
    assert table.ids() == [1, 2, 3, 4]


# -- a job whose tables are iceberg's ---------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Iterator[IcebergJob]:
    job = IcebergJob.create(tmp_path)
    job.settings = {**job.settings, "checkpoints__retained": 100}
    yield job
    job.end_all()


@pytest.mark.slow(reason="a job in processes, killed and restored")
def test_a_job_that_is_killed_during_a_publication_is_continued_and_restored(job: IcebergJob) -> None:
    job.run_to(30)
    job.create_savepoint("early")
    job.deliver(60)
    # Both tables pass this point in turn.
    assert job.run("iceberg.before-commit:3").code == KILLED
    job.finish()
    job.check()
    planned = go_back(job, "early")
    assert {(s["uid"], s["rows_removed"] > 0) for s in planned["sinks"]} == {("movements", True), ("totals", True)}
    job.replace_events(since=30)
    job.finish()
    job.check()


# -- the contract of sinks --------------------------------------------------------------------------------------------


def iceberg_sink(address: str) -> Sink:
    return IcebergSink("db.conforming", catalog="tests", properties=staged_tables.iceberg_properties(Path(address)))


@pytest.mark.long(reason="draws many histories of a table")
class TestIcebergSink(SinkConformance):
    factory = staticmethod(iceberg_sink)
    sweeps = False
    has_slow_drivers = True
    steps = 2
    actions = 12
    failpoints: ClassVar[tuple[str, ...]] = (*SinkConformance.failpoints, "iceberg.before-commit")

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        staged_tables.create_catalog(tmp_path / "lake")
        return str(tmp_path / "lake")

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        table = staged_tables.catalog_in(_folder(sink)).load_table(sink.location.removeprefix("tests."))
        return staged_tables.iceberg_rows(table)


def _folder(sink: Sink) -> Path:
    assert isinstance(sink, IcebergSink)
    return Path(dict(sink._settings.properties)["warehouse"].removeprefix("file://")).parent


# -- columns ----------------------------------------------------------------------------------------------------------

_ROWS = every_row(st.text(max_size=8), st.floats(allow_nan=False))


class Wider(msgspec.Struct):
    id: int
    text: str | None = None
    inner: Inner | None = None
    tags: list[str] | None = None


class Renamed(msgspec.Struct):
    id: int
    note: str | None = None


@pytest.fixture
def empty(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair)


def _stored(value: Any) -> Any:
    """A value as Iceberg has it."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if isinstance(value, dict):
        return [(key, _stored(item)) for key, item in value.items()]
    if isinstance(value, msgspec.Struct):
        return {name: _stored(getattr(value, name)) for name in value.__struct_fields__}
    return value


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> IcebergTable:
    return IcebergTable.create(tmp_path_factory.mktemp("every"), Every).prepare()


@pytest.mark.long(reason="draws many rows, each in a table of its own")
@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rows=st.lists(_ROWS, min_size=1, max_size=4, unique_by=lambda row: row.id))
@example(rows=[Every(id=7)])
def test_every_type_comes_back(every: IcebergTable, rows: list[Every]) -> None:
    """As another library reads the files: PyIceberg reads a map that is null as an empty one."""
    token = (every.token or 0) + 1
    every.put(token, rows)
    [file] = [path for path in (every.folder / "lake").rglob("*.parquet") if f"-{token}-" in path.name]
    found = sorted(pq.read_table(file).to_pylist(), key=lambda row: row["id"])
    assert found == sorted((_stored(row) for row in rows), key=lambda row: row["id"])


def test_columns_have_the_nearest_types(every: IcebergTable) -> None:
    types = {field.name: str(field.field_type) for field in every.table.schema().fields}
    assert types["named"].startswith("map<string, struct<") and types["numbers"] == "list<double>"
    assert [types[name] for name in ("id", "time", "lasting", "local", "instant", "exact", "uid", "colour")] == [
        "long", "time", "long", "timestamp", "timestamptz", "decimal(38, 4)", "string", "string",
    ]  # fmt: skip


def test_columns_of_files_have_the_ids_of_the_table(empty: IcebergTable) -> None:
    catalog = empty.prepare().table.catalog
    catalog.drop_table(empty.name)
    fields = [
        NestedField(1, "text", StringType()),
        NestedField(2, "more", LongType()),
        NestedField(3, "id", LongType()),
    ]
    catalog.create_table(empty.name, Schema(*fields))
    empty.prepare().put(1, pairs(0, 2))
    [file] = (empty.folder / "lake").rglob("*.parquet")
    ids = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in pq.read_schema(file)}
    schema = empty.table.schema()
    assert ids == {name: schema.find_field(name).field_id for name in ("id", "text")}
    with empty.table.update_schema() as update:
        update.rename_column("text", "said")
    assert empty.rows() == [{"said": f"row {n}", "more": None, "id": n} for n in range(2)]


def test_missing_columns_are_added_where_that_is_allowed(empty: IcebergTable) -> None:
    empty.prepare().put(1, pairs(0, 1))
    pending = empty.stage(2, pairs(1, 1))
    with raises(SchemaMismatch, table=empty.sink.location):
        empty.of(Wider).prepare()
    wider = empty.of(Wider, schema_evolution="add-columns")
    # Output of the version before is published first.
    assert wider.sink.open_table(wider.about).commit(2, pending) is None
    assert wider.sink.open_table(wider.about).commit(2, pending) is not None
    wider.prepare().put(3, [Wider(2, "row 2", Inner(7), ["a"])])
    inner: dict[str, object] = {"number": 7, "price": None, "lasting": []}
    missing: dict[str, object] = {"inner": None, "tags": None}
    assert wider.rows() == [
        {"id": 0, "text": "row 0", **missing},
        {"id": 1, "text": "row 1", **missing},
        {"id": 2, "text": "row 2", "inner": inner, "tags": ["a"]},
    ]
    # A rewind keeps the columns.
    handle = wider.sink.open_table(wider.about)
    assert handle.rewind(handle.plan_rewind(1).to_version, 4) is not None
    assert wider.rows() == [{"id": 0, "text": "row 0", **missing}]
    with raises(SchemaMismatch, column="text", renamed_to="note"):
        empty.of(Renamed, schema_evolution="add-columns").prepare()


_ID, _TEXT_FIELD = NestedField(1, "id", LongType()), NestedField(2, "text", StringType())


def test_a_required_column_that_rows_lack_is_refused(empty: IcebergTable) -> None:
    more = NestedField(3, "more", LongType(), required=True)
    _catalog(empty).create_table(empty.name, Schema(_ID, _TEXT_FIELD, more))
    with raises(SinkRefused, table=empty.sink.location, column="more"):
        empty.sink.check(empty.about)


def test_another_format_version_is_refused(empty: IcebergTable) -> None:
    _catalog(empty).create_table(empty.name, Schema(_ID, _TEXT_FIELD), properties={"format-version": "1"})
    with raises(SinkRefused, format_version=1):
        empty.prepare()


def test_a_table_that_had_another_format_version_is_rewound_to_its_newest_snapshot(empty: IcebergTable) -> None:
    _catalog(empty).create_table(empty.name, Schema(_ID, _TEXT_FIELD), properties={"format-version": "1"})
    for first in (10, 20):
        empty.append(first)
    with empty.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    empty.prepare().put(1, pairs(0, 1))
    handle = empty.sink.open_table(empty.about)
    assert handle.rewind(handle.plan_rewind(0).to_version, 2) is not None
    assert empty.ids() == [10, 20]


def _catalog(empty: IcebergTable) -> Any:
    return catalog_in(empty.folder / "lake")


# -- settings ---------------------------------------------------------------------------------------------------------


def test_arguments_are_checked() -> None:
    for name in ("t", "db.", ".t", "db. t"):
        with raises(JobDefinitionError, table=name):
            IcebergSink(name)
    with pytest.raises(ConfigError):
        IcebergSink("db.t", schema_evolution="drop-columns")  # type: ignore[arg-type]


def test_a_missing_namespace_is_refused(empty: IcebergTable) -> None:
    other = IcebergSink("other.t", catalog="tests", properties=dict(empty.sink._settings.properties))
    with raises(SinkRefused, table="tests.other.t"):
        other.check(empty.about)


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(sink_settings, "find_spec", find_spec)
    with raises(EnvironmentUnsupported, package="pyiceberg") as caught:
        IcebergSink("db.t")
    assert "stateflow[iceberg]" in str(caught.value.hint)


def test_secrets_stay_on_the_driver(empty: IcebergTable, tmp_path: Path) -> None:
    uri = f"sqlite://user:{CANARY}@host/{tmp_path}/none.db"
    sink = IcebergSink("db.t", catalog="tests", properties={"type": "sql", "uri": uri, "s3.secret-access-key": CANARY})
    assert CANARY not in repr(sink) + repr(sink._settings) + sink.location
    assert CANARY.encode() not in pickle.dumps(sink)
    assert copy.deepcopy(sink)._settings == sink._settings
    sent = pickle.loads(pickle.dumps(sink))
    assert (sent.location, sent._settings.properties) == (sink.location, ())
    with pytest.raises(StorageError) as caught:
        sink.check(empty.about)
    assert CANARY not in str(caught.value) + repr(caught.value.facts)


# -- partitioned iceberg tables ---------------------------------------------------------------------------------------


class Event(msgspec.Struct):
    id: int
    at: datetime.datetime | None = None
    place: str | None = None
    weight: float | None = None
    named: dict[str, Inner] | None = None


_DAY = datetime.datetime.fromisoformat("2017-11-16T22:31:08")
_EVENTS = [
    Event(34, _DAY, "iceberg", 0.5, {"a": Inner(1)}),
    Event(35, _DAY + datetime.timedelta(hours=2), "a/b=c é", None, None),
    Event(36, None, None, 1.5, {}),
    Event(37, datetime.datetime.fromisoformat("1969-12-31T23:59:59"), "", None, None),
    Event(34, _DAY, "iceberg", 2.5, None),
]


def _partitions(empty: IcebergTable) -> dict[tuple[object, ...], list[int]]:
    """The ids of each partition, as the files have them, which another library reads."""
    found: dict[tuple[object, ...], list[int]] = {}
    width = len(empty.table.spec().fields)
    for task in empty.table.scan().plan_files():
        values = tuple(task.file.partition[at] for at in range(width))
        ids = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        found.setdefault(values, []).extend(ids)
    return {values: sorted(ids) for values, ids in found.items()}


def _create(folder: Path, partition_by: str | Sequence[str]) -> IcebergTable:
    return IcebergTable.create(folder, Event, partition_by=partition_by).prepare()


@pytest.mark.parametrize(
    ("term", "name", "expected"),
    [
        ("place", "place", {("iceberg",): [34, 34], ("a/b=c é",): [35], (None,): [36], ("",): [37]}),
        ("day(at)", "at_day", {(17486,): [34, 34], (17487,): [35], (None,): [36], (-1,): [37]}),
        ("year(at)", "at_year", {(47,): [34, 34, 35], (None,): [36], (-1,): [37]}),
        ("truncate(3, place)", "place_trunc", {("ice",): [34, 34], ("a/b",): [35], (None,): [36], ("",): [37]}),
    ],
)
def test_each_row_is_in_its_partition(
    tmp_path: Path, term: str, name: str, expected: dict[tuple[object, ...], list[int]]
) -> None:
    """The numbers are those of Iceberg's specification: days and years since 1970."""
    empty = _create(tmp_path, term)
    empty.put(1, _EVENTS[:3], _EVENTS[3:])
    assert [field.name for field in empty.table.spec().fields] == [name]
    assert _partitions(empty) == expected
    assert empty.table.scan("at >= '2017-11-17T00:00:00'").to_arrow()["id"].to_pylist() == [35]
    assert len(empty.table.scan("id = 34").to_arrow()) == 2


def test_buckets_are_those_of_the_specification(tmp_path: Path) -> None:
    """It has the hashes of 34 (2017239379) and of "iceberg" (1210000089)."""
    empty = _create(tmp_path, ["bucket(16, id)", "bucket(16, place)"])
    empty.put(1, [_EVENTS[0]])
    assert _partitions(empty) == {(2017239379 % 16, 1210000089 % 16): [34]}


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_table, "_OPEN_FILES", 2)
    monkeypatch.setattr(iceberg_table, "_ROW_GROUP_BYTES", 1)
    empty = _create(tmp_path, "place")
    rows = [Event(n, place=f"p{n % 5}") for n in range(40)]
    empty.put(1, rows[:20], rows[20:])
    assert _partitions(empty) == {(f"p{k}",): [n for n in range(40) if n % 5 == k] for k in range(5)}
    assert Counter(row["id"] for row in empty.rows()) == Counter(range(40))
    assert len(empty.table.snapshots()) == 2


def test_a_table_keeps_its_own_partitions_and_those_of_columns_that_rows_lack(tmp_path: Path) -> None:
    catalog = create_catalog(tmp_path / "lake")
    inner = StructType(NestedField(5, "number", LongType()))
    fields = [NestedField(1, "id", LongType()), NestedField(2, "text", StringType()), NestedField(3, "more", inner)]
    spec = PartitionSpec(
        PartitionField(5, 1000, IdentityTransform(), "number"), PartitionField(1, 1001, BucketTransform(2), "half")
    )
    catalog.create_table("db.t", Schema(*fields), partition_spec=spec)
    empty = IcebergTable.existing(tmp_path, Pair, partition_by="text").prepare()
    empty.put(1, pairs(0, 6))
    found = _partitions(empty)
    assert {values[0] for values in found} == {None} and sorted(chain(*found.values())) == list(range(6))
    # Partitions can be replaced at any time.
    with empty.table.update_spec() as update:
        update.remove_field("number")
    empty.put(2, pairs(6, 2))
    handle = empty.sink.open_table(empty.about)
    assert empty.ids() == list(range(8))
    assert handle.rewind(handle.plan_rewind(1).to_version, 3) is not None
    assert empty.ids() == list(range(6))


@pytest.mark.parametrize(
    "term", ["days(at)", "bucket(0, id)", "day(id)", "missing", "named", "day(place)", "place, id", ["place", "place"]]
)
def test_malformed_partitions_are_refused_before_a_run(tmp_path: Path, term: str | list[str]) -> None:
    empty = IcebergTable.create(tmp_path, Event, partition_by=term)
    with pytest.raises(JobDefinitionError):
        empty.sink.check(empty.about)
