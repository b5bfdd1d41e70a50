"""Files of a folder: what Spark sees of them, their formats, and their log."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stateflow.connectors.files import sink as file_sink
from stateflow.connectors.files.sink import FileSink
from stateflow.connectors.table_folder import DiskFolder, TableFolder
from stateflow.errors import ConfigError, CorruptFile, JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused
from tests.docs.pages import blocks, load_module, read
from tests.support import file_tables
from tests.support.delta_tables import Every, Instant, context, put, snapshot, write
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Reading(msgspec.Struct, kw_only=True):
    """A row whose columns all formats have."""

    id: int
    place: str | None = None
    value: float | None = None
    good: bool | None = None
    day: datetime.date | None = None
    text: str | None = None
    local: datetime.datetime | None = None
    instant: Instant | None = None


_ABOUT = context(Reading)
_TIME = datetime.datetime.fromisoformat("2026-01-05T23:59:59.500000")
_PLACES = ["A", None, "a b/ä%=:{}", "日本", "__HIVE", "50%41", 'q"\\', "~_^[]#*?'"]
_NUMBERS = [1.5, None, float("nan"), float("inf"), float("-inf"), 1e300, -0.0, 5e-324]
_TEXTS = ["", None, 'say "hi"', "two\nlines", "a,b", "back\\slash", "ä", " space "]
_ROWS = [
    Reading(
        id=n, place=place, value=value, good=n % 2 == 0, day=datetime.date(2026, 1, 1 + n), text=text,
        local=_TIME + datetime.timedelta(microseconds=n),
        instant=(_TIME - datetime.timedelta(microseconds=n)).replace(tzinfo=datetime.UTC),
    )
    for n, (place, value, text) in enumerate(zip(_PLACES, _NUMBERS, _TEXTS, strict=True))
]  # fmt: skip


def _sink(folder: Path, **more: Any) -> FileSink:
    sink = FileSink(folder, **more)
    sink.prepare(_ABOUT)
    return sink


def _fill(sink: FileSink, upto: int, first: int = 1) -> None:
    for token in range(first, upto + 1):
        put(sink, _ABOUT, token, [Reading(id=token)])


def _ids(sink: FileSink) -> list[int]:
    return sorted(int(row["id"]) for row in file_tables.rows(Path(sink.path)))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.slow(reason="Spark reads each version of a folder as a stream")
def test_spark_sees_the_rows_of_committed_checkpoints(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    sink = _sink(tmp_path / "t", format=kind, partition_by=["place", "day"])
    put(sink, _ABOUT, 1, _ROWS)
    _fill(sink, 13, first=2)
    handle = sink.open_table(_ABOUT)
    assert handle.rewind(handle.plan_rewind(1).to_version, 14) == 19
    put(sink, _ABOUT, 15, [Reading(id=100, place="B", day=datetime.date(2026, 2, 1))])
    write(sink, _ABOUT, [Reading(id=99)])
    columns = "id long, value double, good boolean, text string, local timestamp_ntz, instant timestamp"
    schema = f"{columns}, place string, day date"
    from pyspark.sql.functions import expr

    options = {"header": "true", "escape": '"', "multiLine": "true"} if kind == "csv" else {}
    expected = [*_ROWS, Reading(id=100, place="B", day=datetime.date(2026, 2, 1))]
    reader = spark.read.schema(schema).options(**options).format(kind)
    found = [
        row.asDict() for row in reader.load(sink.path).withColumn("instant", expr("cast(instant as string)")).collect()
    ]
    if kind == "csv":
        # Spark reads an empty text as null.
        expected = [msgspec.structs.replace(row, text=row.text or None) for row in expected]
    assert _comparable(found) == _comparable(
        [{**msgspec.structs.asdict(row), "instant": _shown(row.instant)} for row in expected]
    )
    stream = spark.readStream.schema(schema).options(**options).format(kind).load(sink.path)
    query = stream.writeStream.format("memory").queryName(f"seen_{kind}").trigger(availableNow=True)
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    started.awaitTermination()
    assert sorted(row.id for row in spark.table(f"seen_{kind}").collect()) == sorted(row.id for row in expected)


def _shown(instant: datetime.datetime | None) -> str | None:
    return instant.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0") if instant else None


def _comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


class ByDay(msgspec.Struct):
    id: int
    nested: list[dict[datetime.date, int]]


def test_columns_that_spark_would_not_read_back_are_refused(tmp_path: Path) -> None:
    with raises(JobDefinitionError, format="json", columns=["nested"]):
        FileSink(tmp_path / "t", format="json").check(context(ByDay))
    with raises(JobDefinitionError, format="csv", columns=["raw", "inner", "numbers", "named"]):
        FileSink(tmp_path / "t", format="csv").check(context(Every))


def test_an_interrupted_rewind_changes_nothing_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = _sink(tmp_path / "t")
    _fill(sink, 12)
    append = file_sink.append

    def interrupted(root: TableFolder, version: int, *rest: Any) -> bool:
        if version == 16:
            raise KeyboardInterrupt
        return append(root, version, *rest)

    monkeypatch.setattr(file_sink, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.open_table(_ABOUT).rewind(3, 20)
    monkeypatch.undo()
    opened = sink.open_table(_ABOUT)
    assert (opened.version, opened.token, _ids(sink)) == (15, 12, [*range(1, 13)])
    assert opened.plan_rewind(3).to_version == 3
    assert opened.rewind(3, 20) == 19
    assert _ids(sink) == [1, 2, 3]


def test_old_entries_are_deleted_and_a_restore_to_before_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_KEPT_VERSIONS", 20)
    sink = _sink(tmp_path / "t")
    _fill(sink, 63)
    assert file_sink.versions(DiskFolder(tmp_path / "t")) == [*range(39, 64)]
    assert _ids(sink) == [*range(1, 64)]
    with raises(SinkDiverged, version=38):
        sink.open_table(_ABOUT).plan_rewind(38)
    handle = sink.open_table(_ABOUT)
    assert handle.rewind(handle.plan_rewind(45).to_version, 70) == 69
    assert _ids(sink) == [*range(1, 46)]
    assert sink.sweep(_ABOUT, lambda *_: True) == []


def test_the_code_of_the_guide_finds_the_files_that_spark_sees(tmp_path: Path) -> None:
    guide = load_module(tmp_path / "guide_write_files.py", "\n".join(blocks(read("write-files"), "python")))
    folder = tmp_path / "a folder"
    sink = _sink(folder, partition_by=["place"])
    assert guide.visible_files(str(folder)) == []
    put(sink, _ABOUT, 1, _ROWS)
    _fill(sink, 8, first=2)
    # Before the first entry that lists all files, with it, and after it.
    assert sorted(guide.visible_files(str(folder))) == sorted(file_tables.visible(folder))
    _fill(sink, 12, first=9)
    assert sorted(guide.visible_files(str(folder))) == sorted(file_tables.visible(folder))
    handle = sink.open_table(_ABOUT)
    handle.rewind(handle.plan_rewind(1).to_version, 13)
    write(sink, _ABOUT, [Reading(id=99)])
    found = guide.visible_files(str(folder))
    assert sorted(found) == sorted(file_tables.visible(folder)) and len(found) == len(_PLACES)
    assert all(file.is_file() for file in found)


def test_a_version_whose_files_are_gone_is_refused_in_the_plan(tmp_path: Path) -> None:
    sink = _sink(tmp_path / "t")
    [file] = put(sink, _ABOUT, 1, [Reading(id=1)])
    sink.open_table(_ABOUT).rewind(0, 2)
    (tmp_path / "t" / file.path).unlink()
    before = snapshot(tmp_path / "t")
    with raises(SinkDiverged, version=1, files=[file.path]):
        sink.open_table(_ABOUT).rewind(1, 3)
    assert snapshot(tmp_path / "t") == before


@pytest.mark.parametrize("lead", ["../", "%2e%2e/", "a=1/../../", "a%00", "https://example.org"])
def test_a_log_that_names_a_file_outside_of_the_folder_is_damaged(tmp_path: Path, lead: str) -> None:
    sink = _sink(tmp_path / "t")
    [file] = put(sink, _ABOUT, 1, [Reading(id=1)])
    entry, uri = tmp_path / "t" / "_spark_metadata" / "1", (tmp_path / "t" / file.path).as_uri()
    forged = uri.replace("file://", lead) if "://" in lead else uri.replace(file.path, lead + file.path)
    entry.write_text(entry.read_text().replace(uri, forged))
    with raises(CorruptFile, file=str(entry)):
        sink.open_table(_ABOUT)


@pytest.mark.parametrize("target", ["FIFO", "/dev/zero", "entry"])
def test_an_entry_of_the_log_that_is_not_a_file_is_an_error_at_once(tmp_path: Path, target: str) -> None:
    sink = _sink(tmp_path / "t")
    entry = tmp_path / "t" / "_spark_metadata" / "0"
    entry.rename(tmp_path / "entry")
    if target == "FIFO":
        os.mkfifo(entry)
    else:
        entry.symlink_to(tmp_path / target)
    for act in (sink.check, sink.open_table):
        with raises(CorruptFile, file=str(entry)):
            act(_ABOUT)


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.parquet").touch()
    with raises(SinkRefused, found=["x.parquet"]):
        FileSink(tmp_path / "full").check(_ABOUT)
    log = tmp_path / "spark" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text("v1\n")
    with raises(SinkRefused, path=str(tmp_path / "spark")):
        FileSink(tmp_path / "spark").check(_ABOUT)
    sink = _sink(tmp_path / "t")
    for other in (FileSink(sink.path, format="json"), FileSink(sink.path, partition_by="place")):
        with raises(SinkRefused, format="parquet"):
            other.check(_ABOUT)
    with raises(SchemaMismatch, path=sink.path):
        sink.check(context(Every))
    (Path(sink.path) / "_spark_metadata" / "0").write_text("v1\n{")
    with pytest.raises(CorruptFile):
        sink.open_table(_ABOUT)
    shutil.rmtree(sink.path)
    with pytest.raises(SinkDiverged):
        sink.open_table(_ABOUT)


@pytest.mark.parametrize("columns", ["value", "missing", ["place", "place"], list(Reading.__struct_fields__)])
def test_partition_columns_are_checked(tmp_path: Path, columns: Any) -> None:
    with pytest.raises(JobDefinitionError):
        FileSink(tmp_path / "t", partition_by=columns).check(_ABOUT)


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError):
        FileSink("s3://bucket/x?y")
    with pytest.raises(ConfigError):
        FileSink("x", format="orc")  # type: ignore[arg-type]
