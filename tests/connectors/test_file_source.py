"""The file source: which files it reads, in which batches, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stateflow import precision
from stateflow.api.input_files import CannotRead, FileShare, UnfitFile, file_uri, unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.config.settings import SourceSettings
from stateflow.connectors.column_policy import ColumnPolicy
from stateflow.connectors.files.parquet_files import ParquetFormat
from stateflow.connectors.files.reader_options import READER_OPTIONS
from stateflow.connectors.files.source import FileSource, skip_files
from stateflow.errors import ConfigError, CorruptFile, CorruptInput, SchemaMismatch
from tests.support.errors import raises

_WEEK = 7 * 86400


@dataclass
class Row:
    number: int


def _write(folder: Path, name: str, numbers: list[int], age: float = 0) -> None:
    """A Parquet file whose timestamp is `age` seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    parquet.write_table(pa.table({"number": pa.array(numbers, pa.int64())}), path)
    then = time.time() - age
    os.utime(path, (then, then))


def _read(spark: SparkSession, source: FileSource, location: Path, limits: SourceSettings) -> list[list[int]]:
    """The numbers of each micro-batch since the last call."""
    batches: list[list[int]] = []

    def take(frame: DataFrame, _: int) -> None:
        batches.append(sorted(row.number for row in frame.collect()))

    query = (
        source.stream(spark, limits)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", location.as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


@pytest.mark.spark
@pytest.mark.slow(reason="Spark reads a folder batch by batch")
def test_a_file_that_arrives_late_is_read_whatever_its_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    """As after ``cp -p``, or from a backup. Spark alone would omit it without a warning."""
    folder, location = tmp_path / "files", tmp_path / "location"
    _write(folder, "new.parquet", [1, 2])
    source = FileSource(folder, schema=Row)
    assert _read(spark, source, location, SourceSettings()) == [[1, 2]]
    _write(folder, "old.parquet", [3], age=5 * _WEEK)
    _write(folder, "newer.parquet", [4])
    assert _read(spark, source, location, SourceSettings()) == [[3, 4]]


@pytest.mark.spark
@pytest.mark.slow(reason="Spark reads a folder batch by batch")
def test_batches_are_limited_by_files_or_rows(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    for n in range(6):
        _write(folder, f"{n}.parquet", [10 * n, 10 * n + 1], age=60 - n)
    source = FileSource(folder.as_uri(), schema=Row)
    by_files = _read(spark, source, tmp_path / "a", SourceSettings(max_files_per_batch=4))
    assert [len(b) for b in by_files] == [8, 4]
    by_rows = _read(spark, source, tmp_path / "b", SourceSettings(max_rows_per_batch=4))
    assert [len(b) for b in by_rows] == [4, 4, 4]


def test_files_cannot_be_limited_by_files_and_by_rows() -> None:
    with raises(ConfigError, setting="source.max_rows_per_batch", max_files_per_batch=2):
        FileSource("/", schema=Row).check_settings(SourceSettings(2, 5))


@pytest.mark.spark
def test_a_file_that_cannot_be_read_is_a_permanent_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut off")
    with raises(CorruptInput) as refused:
        FileSource(tmp_path, schema=Row).check(spark)
    assert not refused.value.retryable
    assert str(tmp_path / "a.parquet") in str(refused.value.facts["file"])


def test_a_missing_folder_is_an_error_and_a_relative_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "none", (tmp_path / "none").as_uri()):
        with raises(ConfigError, path=str(path)):
            FileSource(path, schema=Row).check_settings(SourceSettings())
    monkeypatch.chdir(tmp_path)
    assert FileSource("in", schema=Row).description == f"FileSource[parquet:{tmp_path}/in]"


def test_timestamps_in_nanoseconds_are_an_error_with_the_remedy() -> None:
    illegal = "Illegal Parquet type: INT64 (TIMESTAMP(NANOS,false))."
    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/b.parquet. SQLSTATE: KD001\n"
        f"\tat x\nCaused by: org.apache.spark.sql.AnalysisException: {illegal}\n"
    )
    for cause, has_remedy in ((illegal, True), ("not a Parquet file", False)):
        found = unreadable_in(text.replace(illegal, cause))
        assert found is not None and ("datetime64[us]" in found.error().hint) is has_remedy


# -- columns ----------------------------------------------------------------------------------------------------------


@dataclass
class WithNote:
    number: int
    note: str | None = None


@dataclass
class WithName:
    number: int
    name: str = ""


@pytest.mark.spark
def test_columns_that_appeared_or_vanished_follow_the_declared_policy(spark: SparkSession, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _write(old, "a.parquet", [1])
    new.mkdir()
    parquet.write_table(pa.table({"number": pa.array([2], pa.int64()), "more": ["x"]}), new / "b.parquet")
    FileSource(new, schema=Row).check(spark)
    with raises(SchemaMismatch, columns=["more"]):
        FileSource(new, schema=Row, columns=ColumnPolicy(added="refuse")).check(spark)
    with raises(SchemaMismatch, column="note", found=["number"]):
        FileSource(old, schema=WithNote).check(spark)
    null = ColumnPolicy(missing="null")
    with raises(SchemaMismatch, column="name", found=["number"]):
        FileSource(old, schema=WithName, columns=null).check(spark)
    source = FileSource(old, schema=WithNote, columns=null)
    source.check(spark)
    assert [row.note for row in spark.read.schema(source.schema.ddl).parquet(str(old)).collect()] == [None]
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    parquet.write_table(pa.table({"number": pa.array([2], pa.int64()), "label": ["x"]}), renamed / "a.parquet")
    with raises(SchemaMismatch, column="label", renamed_to="note", position=2):
        FileSource(renamed, schema=WithNote, columns=null).check(spark)
    with raises(ConfigError, missing="drop"):
        ColumnPolicy(missing=cast(Any, "drop"))


@pytest.mark.parametrize("format", ["json", "CSV", "text"])
def test_a_policy_for_columns_is_refused_where_files_do_not_name_all_columns(format: str) -> None:
    with raises(ConfigError, format=format):
        FileSource("/in", schema=WithNote, format=format, columns=ColumnPolicy(missing="null"))


@pytest.mark.spark
def test_names_of_orc_columns_are_compared_and_types_are_not(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"number": pa.array([2], pa.int32()), "label": ["x"]})
    orc.write_table(table, tmp_path / "a.orc")
    FileSource(tmp_path, schema=Row, format="orc").check(spark)
    for policy in (None, ColumnPolicy(missing="null")):
        with raises(SchemaMismatch, column="label", renamed_to="note", position=2):
            FileSource(tmp_path, schema=WithNote, format="orc", columns=policy).check(spark)
    with raises(SchemaMismatch, columns=["label"]):
        FileSource(tmp_path, schema=Row, format="orc", columns=ColumnPolicy(added="refuse")).check(spark)
    orc.write_table(table.drop_columns(["label"]), tmp_path / "a.orc")
    with raises(SchemaMismatch, column="note", found=["number"]):
        FileSource(tmp_path, schema=WithNote, format="orc").check(spark)
    source = FileSource(tmp_path, schema=WithNote, format="orc", columns=ColumnPolicy(missing="null"))
    source.check(spark)
    assert [tuple(row) for row in source.read_files(spark, [(tmp_path / "a.orc").as_uri()]).collect()] == [(2, None)]


@dataclass
class Pair:
    number: int
    note: str | None
    label: str | None


@pytest.mark.spark
@pytest.mark.parametrize(
    ("header", "refused"), [("number,label,note", True), ("number,note", True), ("NUMBER,Note,Label", False)]
)
@pytest.mark.slow(reason="Spark reads a folder for each order of columns")
def test_each_csv_file_must_have_the_declared_columns_in_order(
    spark: SparkSession, tmp_path: Path, header: str, refused: bool
) -> None:
    """The start has compared another file; Spark would take the columns of this one by position."""
    (tmp_path / "b.csv").write_text(f"{header}\n" + ",".join(["1", "a", "b"][: header.count(",") + 1]) + "\n")
    rows = FileSource(tmp_path, schema=Pair, format="csv", header="true").read_files(
        spark, [(tmp_path / "b.csv").as_uri()]
    )
    if not refused:
        assert [tuple(row) for row in rows.collect()] == [(1, "a", "b")]
        return
    with pytest.raises(Exception, match="header") as caught:
        rows.collect()
    unreadable = unreadable_in(str(caught.value))
    assert unreadable is not None and unreadable.error().code == "corrupt-input"
    enforced = FileSource(tmp_path, schema=Pair, format="csv", header="true", enforceSchema="true")
    if header.count(",") == 2:
        assert len(enforced.read_files(spark, [(tmp_path / "b.csv").as_uri()]).collect()) == 1


# -- files that were read ----------------------------------------------------------------------------------------------


def _noted(*files: tuple[int, str]) -> bytes:
    """The log of Spark's file source: the batch and the URI of each file that it read."""
    lines = [json.dumps({"path": uri, "timestamp": 1, "batchId": batch}) for batch, uri in files]
    return "\n".join(["v1", *lines]).encode()


def test_a_position_is_held_while_the_files_that_were_read_since_exist(tmp_path: Path) -> None:
    source = FileSource(tmp_path, schema=Row)
    old, new, odd = (tmp_path / name for name in ("old.parquet", "new.parquet", "a b%.parquet"))
    for path in (new, odd):
        path.touch()
    logs = [_noted((3, old.as_uri())), _noted((4, new.as_uri()), (5, odd.as_uri()))]
    at = '{"logOffset": 3}'
    # The old file is not needed: it was read before that position.
    assert source.holds(at, logs) is True
    assert source.holds('{"logOffset": 2}', logs) is False
    assert source.holds(at, []) is True
    odd.unlink()
    assert source.holds(at, logs) is False
    for position, log in (("{}", logs[0]), (at, b"v2\n" + logs[0][3:]), (at, b'v1\n{"path":"a"}')):
        with pytest.raises(CorruptFile):
            source.files_since(position, [log])
    # Files in other storages are not checked.
    source = FileSource("s3a://bucket/in", schema=Row)
    assert source.holds('{"logOffset": 0}', [_noted((1, "s3a://bucket/in/a.parquet"))]) is None


def test_a_name_that_is_not_utf_8_is_refused_since_spark_skips_the_file(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "in", schema=Row, format="json")
    (tmp_path / "in" / "é").mkdir(parents=True)
    (tmp_path / "in" / "é" / "ü.json").touch()
    source.check_settings(SourceSettings())
    name = os.path.join(os.fsencode(tmp_path / "in"), b"caf\xe9.json")
    with open(name, "wb"), raises(ConfigError, file=str(tmp_path / "in" / "caf\\udce9.json")):
        source.check_settings(SourceSettings())


_AT = datetime(2026, 1, 31, tzinfo=UTC)
_Price = Annotated[Decimal, precision(12, scale=2)]


class _Counted(msgspec.Struct):
    n: int


@pytest.mark.parametrize(
    ("format", "declared", "kind", "value"),
    [
        ("orc", int, pa.float64(), 7.5), ("orc", int, pa.string(), "7"),
        ("orc", int, pa.decimal128(5, 2), Decimal("1.50")), ("orc", float, pa.int64(), (1 << 53) + 1),
        ("orc", _Price, pa.decimal128(12, 4), Decimal("1.2345")), ("orc", bool, pa.int32(), 7),
        ("parquet", int, pa.timestamp("us", "UTC"), _AT), ("parquet", int, pa.date32(), _AT.date()),
        ("parquet", int, pa.uint64(), 1 << 63), ("parquet", float, pa.uint32(), 1 << 31),
        ("parquet", _Price, pa.uint32(), 1 << 31), ("parquet", date, pa.uint16(), 7), ("parquet", date, pa.int32(), 7),
        ("parquet", list[float], pa.list_(pa.uint32()), [1 << 31]),
        ("parquet", dict[str, int], pa.map_(pa.string(), pa.uint64()), [("a", 1 << 63)]),
        ("parquet", _Counted, pa.struct([("n", pa.uint64())]), {"n": 1 << 63}),
        ("orc", list[int], pa.list_(pa.float64()), [7.5]),
    ],
)  # fmt: skip
def test_a_type_whose_values_spark_changes_without_an_error_is_corrupt(
    tmp_path: Path, format: str, declared: Any, kind: pa.DataType, value: object
) -> None:
    path = tmp_path / f"a.{format}"
    table = pa.table({"V": pa.array([value], kind)})
    parquet.write_table(table, path) if format == "parquet" else orc.write_table(table, str(path))
    source = FileSource(tmp_path, schema=msgspec.defstruct("Row", [("v", declared | None)]), format=format)
    with pytest.raises(UnfitFile) as caught:
        source.read_files(cast(Any, None), [file_uri(path)])
    found = unreadable_in(str(caught.value))
    assert found is not None and found.is_corrupt and found.path == str(path)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()])
def test_unsigned_numbers_are_read_if_they_fit_whatever_the_files_before_have(
    tmp_path: Path, kind: pa.DataType
) -> None:
    schema, reads = RowSchema.of(_Counted), ParquetFormat()
    largest = {"uint64": (1 << 63) - 1}.get(str(kind), (1 << kind.bit_width) - 1)
    for number, values in enumerate((pa.array([-1]), pa.array([1, largest], kind))):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table({"n": values}), path)
        size = path.stat().st_size
        (batch,) = reads.read(FileShare(str(path), 0, size, size), schema)
        assert batch.column(0).to_pylist() == values.to_pylist()
    parquet.write_table(pa.table({"n": pa.array([1, 1 << 63], pa.uint64())}), path)
    size = path.stat().st_size
    with pytest.raises(CannotRead):
        list(reads.read(FileShare(str(path), 0, size, size), schema))


class Named(msgspec.Struct):
    name: str


class Texts(msgspec.Struct):
    number: int
    text: str | None
    listed: list[str] | None
    named: Named | None
    by_text: dict[str, list[Named]] | None


@pytest.mark.spark
@pytest.mark.parametrize("format", ["orc", pytest.param("parquet", marks=pytest.mark.slow(reason="Spark"))])
def test_a_text_of_a_file_of_spark_that_is_not_utf_8_is_corrupt(
    spark_session: SparkSession, tmp_path: Path, format: str
) -> None:
    """At each place of a value; with the file and the column."""
    right, wrong = (pa.array([text]).view(pa.string()) for text in ("é".encode(), b"caf\xe9"))
    kind = RowSchema.of(Texts).arrow

    def values(text: pa.Array) -> dict[str, pa.Array]:
        named = pa.StructArray.from_arrays([text], ["name"])
        ends = pa.array([0, 1], pa.int32())
        return {
            "text": text,
            "listed": pa.ListArray.from_arrays(ends, text),
            "named": named,
            "by_text": pa.MapArray.from_arrays(ends, text, pa.ListArray.from_arrays(ends, named)),
        }

    source = FileSource(tmp_path, schema=Texts, format=format)
    for name in ("", *values(right)):
        columns = {**values(right), **({name: values(wrong)[name]} if name else {})}
        table = pa.table({"number": pa.array([1]), **columns})
        path = tmp_path / f"of {name}.{format}"
        parquet.write_table(table.cast(kind), path) if format == "parquet" else orc.write_table(table, str(path))
        rows = source.read_files(spark_session, [file_uri(path)])
        if not name:
            assert [row.text for row in rows.collect()] == ["é"]
            continue
        with pytest.raises(PySparkException) as caught:
            rows.collect()
        found = unreadable_in(str(caught.value))
        assert found is not None and found.is_corrupt and found.path == str(path) and name in found.reason


# -- positions of the file source that skip files by their modification times -----------------------------------------


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _touch(path: Path, seconds_after_noon: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    time = (NOON + timedelta(seconds=seconds_after_noon)).timestamp()
    os.utime(path, (time, time))


def _skipped(folder: Path, until: datetime = NOON) -> list[str]:
    found = skip_files(str(folder), folder, until)
    if found.offset == "-":
        assert not found.logs
        return []
    assert found.offset == '{"logOffset":0}' and list(found.logs) == ["0"]
    version, *lines = found.logs["0"].split(b"\n")
    assert version == b"v1"
    files = [msgspec.json.decode(line) for line in lines]
    assert {file["batchId"] for file in files} == {0}
    return [file["path"] for file in files]


def test_files_from_before_the_time_are_skipped_as_spark_lists_them(tmp_path: Path) -> None:
    for name in ("b 1.json", "a.json", "day=1/c.json", "_day=2/d.json"):
        _touch(tmp_path / name, -1)
    for name in (".hidden", "_SUCCESS", "_temporary/e.json", ".f/g.json", "h._COPYING_"):
        _touch(tmp_path / name, -1)
    _touch(tmp_path / "at.json", 0)
    _touch(tmp_path / "after.json", 1)
    listed = ["_day=2/d.json", "a.json", "b%201.json", "day=1/c.json"]
    assert _skipped(tmp_path) == [f"{tmp_path.as_uri()}/{name}" for name in listed]
    assert len(_skipped(tmp_path, NOON + timedelta(seconds=1))) == 5


@pytest.mark.parametrize("local", [None, Path("/data/{a,b}")])
def test_files_that_only_spark_can_list_are_refused(local: Path | None) -> None:
    with raises(ConfigError, path="s3a://bucket/in"):
        skip_files("s3a://bucket/in", local, NOON)


# -- formats, options and columns of a file source --------------------------------------------------------------------


_WRITING = set(
    "compression codec orc.compress parquet.compression ignoreNullFields pretty sortKeys "
    "writeNonAsciiCharacterAsCodePoint quoteAll escapeQuotes extension".split()
)
_CLASSES = {
    "json": "catalyst.json.JSONOptions",
    "csv": "catalyst.csv.CSVOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
    "orc": "execution.datasources.orc.OrcOptions",
    "text": "execution.datasources.text.TextOptions",
}


@dataclass
class Order:
    order_id: int
    customer: str
    note: str | None = None


@pytest.mark.parametrize(
    ("format", "options", "fact", "closest"),
    [
        ("jsn", {}, {"format": "jsn"}, "json"),
        ("parqet", {}, {"format": "parqet"}, "parquet"),
        ("json", {"mod": "FAILFAST"}, {"option": "mod"}, "mode"),
        ("csv", {"headr": "true"}, {"option": "headr"}, "header"),
        ("parquet", {"mergeShema": "true"}, {"option": "mergeShema"}, "mergeSchema"),
        ("orc", {"header": "true"}, {"option": "header"}, None),
    ],
)
def test_a_misspelling_is_refused_with_the_closest_name_or_with_all(
    format: str, options: dict[str, Any], fact: dict[str, Any], closest: str | None
) -> None:
    with raises(ConfigError, **fact) as raised:
        FileSource("/data", schema=Order, format=format, **options)
    (name,) = fact
    known = {"format": READER_OPTIONS}.get(name, READER_OPTIONS.get(format, ()))
    named = set(re.findall(r"\w+", raised.value.hint)) & set(known)
    assert named == ({closest} if closest else set(known))


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JSON", {"mode": "failfast", "MULTILINE": "true"}),
        ("csv", {"header": True, "sep": ";", "pathGlobFilter": "*.csv"}),
        ("parquet", {"fs.s3a.endpoint": "http://localhost:9000", "recursiveFileLookup": "true"}),
        ("text", {"wholetext": "true"}),
    ],
)
def test_names_in_any_case_and_hadoop_settings_are_accepted(format: str, options: dict[str, Any]) -> None:
    assert FileSource("/data", schema=Order, format=format, **options).format == format.lower()


@pytest.mark.parametrize(
    ("format", "option", "value"),
    [
        ("parquet", "datetimeRebaseMode", "JULIAN"), ("parquet", "INT96RebaseMode", ""), ("orc", "mergeSchema", "yes"),
        ("json", "recursiveFileLookup", "1"), ("json", "maxCachedFiles", "-1"),
    ],
)  # fmt: skip
def test_a_value_that_spark_would_refuse_in_each_batch_is_refused(format: str, option: str, value: str) -> None:
    with raises(ConfigError, option=option, value=value):
        FileSource("/data", schema=Order, format=format, **{option: value})  # type: ignore[arg-type]
    FileSource("/data", schema=Order, datetimeRebaseMode="legacy", mergeSchema="TRUE")


@pytest.mark.spark
@pytest.mark.parametrize("format", _CLASSES)
def test_each_option_that_sparks_reader_declares_is_known(spark: SparkSession, format: str) -> None:
    declared: Any = spark._jvm
    for part in f"org.apache.spark.sql.{_CLASSES[format]}".split("."):
        declared = getattr(declared, part)
    names = set(declared.getAllOptions().mkString(" ").split()) - _WRITING
    assert names <= READER_OPTIONS[format]


# -- columns that the first file lacks --------------------------------------------------------------------------------

STRICT: dict[str, Any] = {"mode": "FAILFAST"}
HEADER: dict[str, Any] = {"header": "true"}
FILES: list[tuple[str, str, dict[str, Any], list[list[str]]]] = [
    ("json", '{"order_id": 1, "customer": "a"}\n{"order_id": 2}\n', STRICT, []),
    ("json", '{"order_id": 1, "custmer": "a"}\nno json\n', STRICT, [["customer", "custmer order_id"]]),
    ("json", '{"note": "x"}\n', STRICT, [["order_id", "note"], ["customer", "note"]]), ("json", "", STRICT, []),
    ("csv", "order_id,customer,note\n1,a,b\n", {"header": True}, []), ("csv", "1,a,b\n", {}, []),
    ("csv", "1,a\n", {}, [["2", "3"]]), ("csv", "order_id;customer;note\n", {**HEADER, "sep": ";"}, []),
]  # fmt: skip
HEADERS: list[tuple[str, dict[str, Any], bool]] = [
    ("order_id,customer,note\n1,a,b\n", HEADER, True),
    ("Order_ID;customer;note\n", {**HEADER, "sep": ";"}, True),
    ("customer,order_id,note\na,1,b\n", HEADER, False),
    ("order_id,client,note\na,1,b\n", {"HEADER": "TRUE", "enforceSchema": "false"}, False),
    ("order_id,client,note\na,1,b\n", {**HEADER, "enforceSchema": "true"}, True),
]


def _check(warnings: Sequence[str], file: Path, expected: Sequence[Sequence[str]]) -> None:
    """Each warning has the file, and these rows of column names and these numbers."""
    for warning, lists in zip(warnings, expected, strict=True):
        before, after = warning.split(str(file))
        names = " ".join(re.findall(r"\b(?:order_id|custo?mer|note|\d+)\b", f"{before} {after}"))
        assert all(names_in_order in names for names_in_order in lists), warning


@pytest.mark.spark
def test_declared_columns_that_the_first_file_lacks_are_warnings(spark: SparkSession, tmp_path: Path) -> None:
    """JSON is compared by name, CSV by position."""
    for number, (format, text, options, expected) in enumerate(FILES):
        file = tmp_path / str(number) / f"a.{format}"
        file.parent.mkdir()
        file.write_text(text)
        source = FileSource(file.parent, schema=Order, format=format, **options)
        _check(source.warnings(spark), file, expected)
    file = tmp_path / "dated" / "order_id=abc" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (warning,) = FileSource(tmp_path / "dated", schema=Order, format="json").warnings(spark)
    assert str(file) in warning and "'abc'" in warning


@pytest.mark.spark
def test_a_header_with_other_columns_is_refused_because_spark_takes_them_by_position(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, (text, options, fits) in enumerate(HEADERS):
        file = tmp_path / str(number) / "a.csv"
        file.parent.mkdir()
        file.write_text(text)
        source = FileSource(file.parent, schema=Order, format="csv", **options)
        if fits:
            source.check(spark)
            continue
        with raises(SchemaMismatch, path=str(file), declared=list(source.schema.names)):
            source.check(spark)
