"""Files in buckets: which ones a source lists and plans, once each, and what tasks read of them."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow import DeltaSource, FileSink, FileSource, precision
from stateflow.api.file_log import BatchLimits, BatchPlanner, FilePattern, StoredFiles
from stateflow.api.input_files import CorruptContent, FileShare, LostFile, unreadable_in
from stateflow.api.source import FROM_START, StartKind, StartPosition
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.column_policy import ColumnPolicy
from stateflow.errors import BatchFailed, ConfigError, CorruptInput, SchemaMismatch
from stateflow.runtime.spark.checkpoint_location import QuerySource, SparkLocation
from stateflow.runtime.spark.inputs import BatchFiles, FileReader, FileSearch
from stateflow.storage import BlobInfo, MemoryStorage, open_storage, register_memory, unregister_memory
from tests.servers.faults import BUSY, LOST_ANSWER, LOST_REQUEST, Faults, fault_proxy
from tests.servers.running import s3_server
from tests.support.delta_tables import context, put, write
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count()
NAMES = ("a b.json", "a[1].json", "100%.json", "a%20b.json", "é😀.json", "day=1/x.json", "deep/er/y+z.json", "#?.json")


class Row(msgspec.Struct):
    name: str
    number: int


class Bucket(MemoryStorage):
    """Objects whose times can be set."""

    def __init__(self) -> None:
        super().__init__(f"memory://bucket-{next(_numbers)}")
        self.times: dict[str, int] = {}

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        found = super().list(prefix, start_after)
        return [replace(blob, modified_ms=self.times.get(blob.key, blob.modified_ms)) for blob in found]

    def put(self, key: str, content: bytes = b"x") -> None:
        """As S3 does: another object of the name is replaced."""
        self.delete([key])
        self.put_new(key, content)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    storage = Bucket()
    register_memory(storage)
    yield storage
    unregister_memory(storage.uri)


def _keys(bucket: Bucket, address: str = "in", names: str = "") -> list[str]:
    """The keys of the files that the address means, as the bucket has them."""
    listed = {file.path for file in StoredFiles(f"{bucket.uri}/{address}", names).list()}
    known = {f"{bucket.uri}/{_encoded(blob.key)}": blob.key for blob in bucket.list("")}
    return sorted(known[path] for path in listed)


def _encoded(key: str) -> str:
    """Percent-encoding as RFC 3986 defines it, of all but the characters that never need it."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/="
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in key.encode())


# -- which files there are --------------------------------------------------------------------------------------------


def test_every_name_is_listed_but_hidden_ones_and_objects_without_content(bucket: Bucket) -> None:
    for name in NAMES:
        bucket.put(f"in/{name}")
    for name in ("_SUCCESS", ".a", "_temporary/0/a", ".b/c", "x._COPYING_", "_metadata", "d/_committed_1"):
        bucket.put(f"in/{name}")
    bucket.put("in/marker", b"")
    bucket.put("input/other.json")
    assert _keys(bucket) == sorted(f"in/{name}" for name in NAMES)


@pytest.mark.parametrize(
    ("address", "names", "wanted"),
    [
        ("in/*", "", {"a.json", "b.csv", "day=1/c.json", "day=2/d.json", "_x/e.json"}),
        ("in/day=*/*.json", "", {"day=1/c.json", "day=2/d.json"}),
        ("in/day=[^1]", "", {"day=2/d.json"}),
        ("in/{day=1,_x}", "", {"day=1/c.json", "_x/e.json"}),
        ("{in/a.json,in/day=2}", "", {"a.json", "day=2/d.json"}),
        ("in/?.csv", "", {"b.csv"}),
        ("in/a.json", "", {"a.json"}),
        ("in", "*.{csv,txt}", {"b.csv"}),
        ("in/nothing", "", set()),
    ],
)
def test_patterns_are_hadoop_s(bucket: Bucket, address: str, names: str, wanted: set[str]) -> None:
    for name in ("a.json", "b.csv", "day=1/c.json", "day=2/d.json", "_x/e.json"):
        bucket.put(f"in/{name}")
    assert _keys(bucket, address, names) == sorted(f"in/{name}" for name in wanted)


def test_a_folder_whose_name_has_special_characters_is_not_a_pattern_if_they_are_escaped(bucket: Bucket) -> None:
    bucket.put("in [1]/a.json")
    bucket.put("in 1/b.json")
    assert _keys(bucket, "in \\[1\\]") == ["in [1]/a.json"]


@pytest.mark.long(reason="commits to a server some forty times")
def test_a_file_source_reads_what_a_file_sink_in_the_store_has_committed(each_store: str) -> None:
    about = context(Row)
    for format in ("json", "csv", "parquet"):
        address = f"{each_store}/{format}"
        sink = FileSink(address, format=cast(Any, format), partition_by="name")
        sink.prepare(about)
        for token in range(1, 14):
            put(sink, about, token, [Row("é /%41", token), Row("b=[1]", -token)])
        write(sink, about, [Row("not committed", 0)])
        source = FileSource(address, schema=Row, format=format, **cast(Any, _options(format)))
        wanted = [(name, number * sign) for number in range(1, 14) for name, sign in (("é /%41", 1), ("b=[1]", -1))]
        assert Counter((row["name"], row["number"]) for row in _rows(source)) == Counter(wanted)
        # A restore undoes the last commit.
        table = sink.open_table(about)
        assert table.version is not None and table.rewind(table.version - 1, 20) is not None
        assert {row["number"] for row in _rows(source)} == {number for _, number in wanted if abs(number) < 13}


def _options(format: str) -> dict[str, str]:
    """The options with which a source reads the files of a sink of a format."""
    return {"header": "true"} if format == "csv" else {}


def test_of_the_folder_of_sparks_sink_only_files_in_its_log_are_listed(bucket: Bucket) -> None:
    # Next to files that no log has. Another program may name the storage in another way.
    bucket.put("all/plain.json", _json([{"name": "plain", "number": 20}]))
    for name, number in (("x", 21), ("undone", 22), ("not committed", 23)):
        bucket.put(f"all/a b/{name}.json", _json([{"name": name, "number": number}]))
    lines = [
        {"path": f"s3a://other/all/a%20b/{name}.json", "size": 1, "modificationTime": 5, "action": action}
        for name, action in (("x", "add"), ("undone", "add"), ("undone", "delete"))
    ]
    bucket.put("all/a b/_spark_metadata/0", b"v1\n" + b"\n".join(map(msgspec.json.encode, lines)))
    found = _rows(FileSource(f"{bucket.uri}/all", schema=Row, format="json"))
    assert {row["number"] for row in found} == {20, 21}


# -- which files a batch has ------------------------------------------------------------------------------------------


def _planner(bucket: Bucket, log: Path, limits: BatchLimits | None = None) -> BatchPlanner:
    return BatchPlanner(StoredFiles(f"{bucket.uri}/in"), limits or BatchLimits(), log)


def _entry(log: Path, number: int) -> list[str]:
    """The names of the files of an entry, read as Spark's log is defined."""
    name = next(path for path in log.iterdir() if path.name in (str(number), f"{number}.compact"))
    version, *lines = name.read_text().split("\n")
    assert version == "v1"
    files = [json.loads(line) for line in lines]
    return [file["path"].rpartition("/")[2] for file in files if file["batchId"] == number]


def test_a_file_that_becomes_visible_late_is_read_by_the_next_batch(bucket: Bucket, tmp_path: Path) -> None:
    planner = _planner(bucket, tmp_path / "log")
    bucket.put("in/b")
    assert planner.next_entry(-1) == 0 and planner.next_entry(0) == 0
    # Its upload began before the other one's, and ended later.
    bucket.put("in/a")
    bucket.times["in/a"] = 1
    assert planner.next_entry(0) == 1
    assert [_entry(tmp_path / "log", n) for n in (0, 1)] == [["b"], ["a"]]


def test_a_run_that_ends_reads_what_its_start_has_found(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a")
    planner = _planner(bucket, tmp_path / "log")
    planner.end_with_present_files()
    bucket.put("in/b")
    assert planner.next_entry(-1) == 0 and planner.next_entry(0) == 0
    assert _planner(bucket, tmp_path / "log").next_entry(0) == 1


def test_batches_have_the_oldest_files_up_to_a_limit_and_at_least_one(bucket: Bucket, tmp_path: Path) -> None:
    for at, name in enumerate("edcba"):
        bucket.put(f"in/{name}", b"x" * (at + 1))
        bucket.times[f"in/{name}"] = at // 2
    for name, limits, wanted in (
        ("files", BatchLimits(files=2), [["d", "e"], ["b", "c"], ["a"]]),
        ("size", BatchLimits(size=4), [["d", "e"], ["b"], ["c"], ["a"]]),
        ("small", BatchLimits(size=1), [["d"], ["e"], ["b"], ["c"], ["a"]]),
    ):
        planner, log = _planner(bucket, tmp_path / name, limits), tmp_path / name
        assert [planner.next_entry(n - 1) for n in range(len(wanted) + 1)] == [*range(len(wanted)), len(wanted) - 1]
        assert [_entry(log, n) for n in range(len(wanted))] == wanted


def test_a_batch_that_was_planned_and_not_run_is_planned_again(bucket: Bucket, tmp_path: Path) -> None:
    log = tmp_path / "log"
    bucket.put("in/a")
    assert _planner(bucket, log).next_entry(-1) == 0
    bucket.put("in/b")
    # The process of the planner was killed before Spark knew the entry; while it wrote one; and after it was renamed.
    (log / ".1.tmp").write_bytes(b"v1\n{")
    other = _planner(bucket, log)
    assert other.next_entry(-1) == 0 and other.next_entry(0) == 1
    assert [_entry(log, n) for n in (0, 1)] == [["a"], ["b"]]
    with raises(BatchFailed, folder=str(log)):
        other.next_entry(2)


def test_every_tenth_entry_has_all_files_and_a_checkpoint_gets_each_batch_from_it(
    bucket: Bucket, tmp_path: Path
) -> None:
    location = SparkLocation(tmp_path, MemoryStorage("memory://x"))
    for number in range(23):
        bucket.put(f"in/{number:02}", b"x" * (number + 1))
        # Each batch by another process.
        assert _planner(bucket, location.log_folder(0)).next_entry(number - 1) == number
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"logOffset":{number}}}')
        (file,) = location.batch_files(number, 0)
        assert (file.path, file.size) == (f"{bucket.uri}/in/{number:02}", number + 1) and file.version
    captured = location.capture(22, "data/")
    assert [file.path for file in captured.source_files] == ["0/19.compact", "0/20", "0/21", "0/22"]
    # Another run gets the log from the checkpoint, with sizes and versions, and reads nothing again.
    source = FileSource(f"{bucket.uri}/in", schema=Row, format="json")
    seeded = SparkLocation(tmp_path / "other", MemoryStorage("memory://x"))
    seeded.create(captured, "id", [QuerySource("files", FilePattern(source.files_address))])
    assert seeded.batch_files(22, 0) == location.batch_files(22, 0) != []
    assert _planner(bucket, seeded.log_folder(0)).next_entry(22) == 22
    logs = list(seeded.source_logs(0).values())
    assert source.has_new_input('{"logOffset":22}', logs) is False and source.holds('{"logOffset":3}', logs) is True
    bucket.put("in/late", _json(WANTED[:4]))
    bucket.times["in/late"] = 5_000
    waiting = source.backlog('{"logOffset":22}', logs)
    assert (waiting.files, waiting.rows, waiting.size_bytes) == (1, 4, len(_json(WANTED[:4])))
    assert waiting.oldest_at == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert source.has_new_input('{"logOffset":22}', logs) is True
    bucket.put("in/05")
    assert (source.holds('{"logOffset":3}', logs), source.holds('{"logOffset":5}', logs)) == (False, True)


def test_files_from_before_a_time_are_skipped(bucket: Bucket, tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for name, minutes in (("b", -1), ("a", -1), ("c", 0), ("d", 1)):
        bucket.put(f"in/{name}")
        bucket.times[f"in/{name}"] = int((noon + timedelta(minutes=minutes)).timestamp() * 1000)
    source = FileSource(f"{bucket.uri}/in", schema=Row, format="json")
    found = source.initial_position(StartPosition(StartKind.TIMESTAMP, noon))
    assert found.offset == '{"logOffset":0}'
    log = tmp_path / "log"
    log.mkdir()
    (log / "0").write_bytes(found.logs["0"])
    assert _planner(bucket, log).next_entry(0) == 1
    assert [_entry(log, n) for n in (0, 1)] == [["a", "b"], ["c", "d"]]


# -- what tasks read --------------------------------------------------------------------------------------------------


def _rows(source: FileSource, partitions: int = 3) -> list[dict[str, object]]:
    """The rows of all files in order, read by tasks that each have a part of the bytes."""
    files = StoredFiles(source.files_address, "").list()
    uris = [file.path for file in files]
    objects = {file.path: (file.size, file.version) for file in files}
    batch = BatchFiles(uris, source.file_format(uris), lambda: pytest.fail("Spark reads objects"), objects)
    reader = FileReader.of(batch, source.schema, partitions)
    numbers = [pa.RecordBatch.from_pydict({"id": [n]}) for n in range(partitions)]
    return [row for read in reader.read(iter(numbers)) for row in read.to_pylist()]


WANTED = [{"name": f"é\n{n}" if n % 5 == 0 else f"n{n}", "number": n} for n in range(300)]


def _json(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "".join('"{name}",{number}\r\n'.format(**row) for row in rows).encode()


def _parquet(rows: Sequence[Mapping[str, object]], **options: int) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(list(rows)), sink, **options)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("format", "end", "write"),
    [
        ("json", ".json", _json),
        ("json", ".json.gz", lambda rows: gzip.compress(_json(rows))),
        ("csv", ".csv", _csv),
        ("parquet", ".parquet", lambda rows: _parquet(rows, row_group_size=7)),
    ],
)
def test_rows_of_all_formats_are_read_once_and_in_order(
    bucket: Bucket, format: str, end: str, write: Callable[[Sequence[Mapping[str, object]]], bytes]
) -> None:
    for at, begin in enumerate(range(0, 300, 60)):
        bucket.put(f"in/day=1/{4 - at} %é{end}", write(WANTED[begin : begin + 60]))
        bucket.times[f"in/day=1/{4 - at} %é{end}"] = at
    source = FileSource(f"{bucket.uri}/in", schema=Row, format=format)
    for partitions in (1, 3, 40):
        assert _rows(source, partitions) == WANTED


def test_names_of_folders_have_values_of_columns(bucket: Bucket) -> None:
    class Dated(msgspec.Struct):
        name: str
        number: int

    for number in (7, 8):
        bucket.put(f"in/number={number}/name=a%20b/x.parquet", _parquet([{"other": 1}] * 2))
    found = _rows(FileSource(f"{bucket.uri}/in/number=*", schema=Dated))
    assert found == [{"name": "a b", "number": 7}] * 2 + [{"name": "a b", "number": 8}] * 2


@pytest.mark.parametrize("spelled", ["{}/in/", "{}//in", "{}/./in", "{}/x/../in", "MEMORY{}/in"])
def test_folders_have_values_however_the_address_is_spelled(bucket: Bucket, spelled: str) -> None:
    bucket.put("in/name=a/x.parquet", _parquet([{"number": 1}]))
    address = spelled.format(bucket.uri if spelled.startswith("{") else bucket.uri.removeprefix("memory"))
    assert _rows(FileSource(address, schema=Row)) == [{"name": "a", "number": 1}]


def test_an_object_that_is_deleted_or_replaced_before_it_is_read_fails_the_batch_with_its_name(bucket: Bucket) -> None:
    changes: list[Callable[[str], None]] = [
        lambda key: bucket.delete([key]),
        lambda key: bucket.put(key, _json(WANTED[:2])),
    ]
    for change in changes:
        bucket.put("in/a b.json", _json(WANTED[:3]))
        source = FileSource(f"{bucket.uri}/in", schema=Row, format="json")
        (file,) = StoredFiles(source.files_address).list()
        format = source.file_format([file.path])
        assert format is not None
        for size in (file.size, 5 << 20):
            change("in/a b.json")
            with pytest.raises(LostFile) as lost:
                list(format.read(FileShare(file.path, 0, size, size, file.version), source.schema))
            # Spark forwards only the text.
            found = unreadable_in(f"org.apache.spark.SparkException: {lost.value}")
            assert found is not None and not found.is_corrupt
            with raises(BatchFailed, file=f"{bucket.uri}/in/a b.json"):
                raise found.error()


def test_a_corrupt_object_is_named_with_line_and_reason(bucket: Bucket) -> None:
    bucket.put("in/a b.json", _json(WANTED[:3]) + b'{"name": "x", "number": "y"}\n')
    with pytest.raises(CorruptContent) as corrupt:
        _rows(FileSource(f"{bucket.uri}/in", schema=Row, format="json"))
    found = unreadable_in(str(corrupt.value))
    assert found is not None and found.is_corrupt and found.path == f"{bucket.uri}/in/a b.json"
    assert found.reason.startswith("line 4")


# -- Parquet without Spark --------------------------------------------------------------------------------------------


class Wide(msgspec.Struct):
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    ratio: float
    total: Annotated[Decimal, precision(12, scale=2)]
    tags: list[int]
    note: str | None = None


NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
STORED = {
    "at": pa.array([NOON], pa.timestamp("us", "UTC")),
    "ratio": pa.array([1.5], pa.float32()),
    "total": pa.array([Decimal("1.50")], pa.decimal128(5, 1)),
    "tags": pa.array([[1, 2]], pa.list_(pa.int32())),
}


def _wide(**columns: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.table({**STORED, **columns}), sink, use_deprecated_int96_timestamps="int96" in columns, store_schema=False
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def test_narrower_and_missing_columns_and_the_times_that_spark_writes_are_read_as_declared(bucket: Bucket) -> None:
    integers = {"total": pa.array([3], pa.int32()), "ratio": pa.array([2], pa.int16())}
    bucket.put("in/a", _wide())
    bucket.put("in/b", _wide(int96=pa.array([0]), **integers))
    bucket.put("in/c", _wide(note=pa.array(["n"]).dictionary_encode(), extra=pa.array([1])))
    first = {"at": NOON, "ratio": 1.5, "total": Decimal("1.50"), "tags": [1, 2], "note": None}
    second = {**first, "ratio": 2.0, "total": Decimal("3.00")}
    bucket.times.update({"in/a": 1, "in/b": 2, "in/c": 3})
    assert _rows(FileSource(f"{bucket.uri}/in", schema=Wide)) == [first, second, {**first, "note": "n"}]


@pytest.mark.parametrize(
    "column",
    [
        {"ratio": pa.array([1], pa.int64())},
        {"ratio": pa.array(["1"])},
        {"at": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))},
        {"total": pa.array([Decimal("1.505")])},
        {"tags": pa.array([[1.5]])},
        {"total": pa.array([10**11], pa.int64())},
    ],
    ids=lambda column: next(iter(column)),
)
def test_a_value_that_would_change_makes_the_file_corrupt_and_the_type_is_refused_at_the_start(
    bucket: Bucket, column: dict[str, pa.Array]
) -> None:
    bucket.put("in/a", _wide(**column))
    source = FileSource(f"{bucket.uri}/in", schema=Wide)
    with pytest.raises(CorruptContent):
        _rows(source)
    if column.get("total", pa.array([None])).type != pa.int64():
        with raises(SchemaMismatch, column=next(iter(column))):
            source.check(cast("SparkSession", None))


def test_a_start_names_a_column_that_files_lack_and_a_file_without_a_footer(bucket: Bucket) -> None:
    class More(Wide):
        more: int = 0

    bucket.put("in/a", _wide())
    no_spark = cast("SparkSession", None)
    FileSource(f"{bucket.uri}/in", schema=Wide, columns=ColumnPolicy(missing="null")).check(no_spark)
    with raises(SchemaMismatch, column="note"):
        FileSource(f"{bucket.uri}/in", schema=Wide).check(no_spark)
    with raises(SchemaMismatch, column="more"):
        FileSource(f"{bucket.uri}/in", schema=More, columns=ColumnPolicy(missing="null")).check(no_spark)
    bucket.put("in/0", b"PAR1 is not the end")
    bucket.times["in/0"] = 0
    with raises(CorruptInput, file=f"{bucket.uri}/in/0"):
        FileSource(f"{bucket.uri}/in", schema=Wide).check(no_spark)
    skipping = FileSource(f"{bucket.uri}/in", schema=Wide, on_corrupt_file="quarantine")
    with raises(SchemaMismatch, column="note"):
        skipping.check(no_spark)


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("s3://bucket/in", {"format": "orc"}),
        ("az://container/in", {"format": "parquet", "mergeSchema": "true"}),
        ("gs://bucket/in", {"format": "json", "recursiveFileLookup": "false"}),
        ("webhdfs://host:9870/in", {"format": "csv", "fs.s3a.endpoint": "http://host"}),
    ],
)
def test_what_only_spark_can_read_is_refused_with_the_way_out(address: str, options: dict[str, str]) -> None:
    with raises(ConfigError) as refused:
        FileSource(address, schema=Row, **cast(Any, options))
    assert refused.value.hint


class Followed(msgspec.Struct):
    name: str
    deleted: bool


@pytest.mark.parametrize("address", ["s3://key:secret@bucket/in", "s3:/bucket/in", "dbfs:/in", "arn:aws:s3:::bucket"])
@pytest.mark.parametrize(
    "source",
    [
        lambda address: FileSource(address, schema=Row, format="json"),
        lambda address: DeltaSource(address, schema=Row),
        lambda address: BatchTable(address, schema=Followed, refresh=timedelta(minutes=1)),
    ],
    ids=["files", "delta", "followed table"],
)
def test_an_address_that_is_not_valid_is_refused_when_it_is_declared(
    source: Callable[[str], object], address: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        source(address)
    assert "secret" not in str(refused.value)


# -- a server ---------------------------------------------------------------------------------------------------------


def test_names_of_every_kind_are_listed_and_read_on_every_server(each_store: str) -> None:
    storage, names = open_storage(each_store), [f"in/{name}" for name in NAMES]
    for number, name in enumerate(names):
        storage.put_new(name, _json([{"name": name, "number": number}]))
    for name in ("in/_SUCCESS", "in/.a.json", "input/b.json", "in/empty.json"):
        storage.put_new(name, b"" if "empty" in name else b"no row")
    source = FileSource(f"{each_store}/in", schema=Row, format="json")
    found = _rows(source)
    assert {row["name"]: row["number"] for row in found} == {name: at for at, name in enumerate(names)}
    assert len(found) == len(names)
    # An object is another one when it is written again.
    (file,) = StoredFiles(f"{each_store}/in/day=1").list()
    share = FileShare(file.path, 0, file.size, file.size, f"{file.version}-other")
    format = source.file_format([file.path])
    assert format is not None
    with pytest.raises(LostFile):
        list(format.read(share, source.schema))


_BROKEN = {
    "json": b'{"name": "x", "number": 1}\n{"name": "x", "numb',
    "csv": b'"x",1\r\n"x",one\r\n',
    "parquet": b"PAR1 and no footer",
}


@pytest.mark.parametrize(("format", "encode"), [("json", _json), ("csv", _csv), ("parquet", _parquet)])
def test_files_of_each_format_that_a_pattern_names_are_read_and_corrupt_ones_found_on_every_server(
    each_store: str, format: str, encode: Callable[[Sequence[Mapping[str, object]]], bytes]
) -> None:
    storage = open_storage(each_store)
    files = {"day=1/a b": WANTED[:40], "day=2/é": WANTED[40:90], "day=3/not": WANTED[90:], "other/not": WANTED[90:]}
    for name, rows in files.items():
        storage.put_new(f"in/{name}.{format}", encode(rows))
    source = FileSource(f"{each_store}/in/day=[12]", schema=Row, format=format, on_corrupt_file="quarantine")
    assert Counter(row["number"] for row in _rows(source)) == Counter(range(90))
    waiting = source.backlog(FROM_START, ())
    assert (waiting.files, waiting.size_bytes) == (2, sum(len(encode(rows)) for rows in [WANTED[:40], WANTED[40:90]]))
    # An estimate counts the lines of a text, of which some names have two.
    assert waiting.rows == pytest.approx(90, rel=0.25) and waiting.oldest_at is not None
    # Of quarantined files, tasks tell the number and the reason.
    storage.put_new(f"in/day=2/broken.{format}", _BROKEN[format])
    listed = StoredFiles(source.files_address).list()
    reader = source.file_format([file.path for file in listed])
    assert reader is not None
    objects = {file.path: (file.size, file.version) for file in listed}
    search = FileSearch({"rows": reader}, {"rows": source.schema}, [("rows", file.path) for file in listed], objects)
    numbers = pa.RecordBatch.from_pydict({"id": [*range(len(listed))]})
    ((broken, error),) = [
        (row["number"], row["error"]) for found in search.errors(iter([numbers])) for row in found.to_pylist()
    ]
    corrupt = unreadable_in(error)
    assert corrupt is not None and corrupt.is_corrupt and corrupt.path == listed[broken].path
    assert listed[broken].path.endswith(f"broken.{format}")


@pytest.mark.slow(reason="starts a server, and lists ten thousand objects")
def test_ten_thousand_objects_are_listed_in_spite_of_busy_servers_and_lost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path, "bucket") as variables:
        folder = tmp_path / "data" / "bucket" / "in"
        for at in range(100):
            (folder / f"a [{at}]%é").mkdir(parents=True)
            for number in range(100):
                (folder / f"a [{at}]%é" / f"{number}.json").write_bytes(_json([{"name": "n", "number": number}]))
        faults = Faults(random.Random(5), 0.2, (*BUSY, LOST_REQUEST, LOST_ANSWER))
        with fault_proxy(variables["AWS_ENDPOINT_URL"], faults) as address:
            for name, value in {**variables, "AWS_ENDPOINT_URL": address}.items():
                monkeypatch.setenv(name, value)
            source = FileSource("s3://bucket/in", schema=Row, format="json")
            assert len(StoredFiles(source.files_address).list()) == 10_000
            found = _rows(FileSource("s3://bucket/in/a \\[7\\]*", schema=Row, format="json"))
            assert {row["number"] for row in found} == {*range(100)} and len(found) == 100
            assert sum(faults.injected.values()) > 10
