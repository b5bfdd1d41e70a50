"""Savepoints whose Spark files are forged: which input a run reads, and which settings Spark gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateflow.checkpoint.log.documents import SourceFile, SparkPosition
from stateflow.errors import CorruptFile
from stateflow.runtime.spark.checkpoint_location import FilePattern, QuerySource, SparkLocation
from stateflow.storage import MemoryStorage
from tests.support.errors import raises

QUERY = "0d4c1b2a-0000-4000-8000-000000000000"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}'
FOLDER = QuerySource("lines", FilePattern("/data/in"))
UNKNOWN = QuerySource("topic", None)


def _line(path: str, batch: int = 0) -> str:
    return f'{{"path":"{path}","timestamp":1700000000000,"batchId":{batch}}}'


def _entry(*lines: str) -> bytes:
    return "\n".join(["v1", *lines]).encode()


GOOD = _entry(_line("file:///data/in/a=1/x%20y.txt"))


def _position(
    files: dict[str, bytes], offsets: tuple[str, ...] = ('{"logOffset":0}',), metadata: str = METADATA
) -> SparkPosition:
    return SparkPosition(
        batch_id=0,
        offsets="\n".join(["v1", metadata, *offsets]).encode(),
        previous_offsets=None,
        commit=b'v1\n{"nextBatchWatermarkMs":9}',
        source_files=[SourceFile(path=path, content=content) for path, content in files.items()],
    )


def _created(folder: Path, position: SparkPosition, *sources: QuerySource) -> dict[str, str]:
    """Returns what Spark reads, by path below the location."""
    location = SparkLocation(folder / "location", MemoryStorage())
    location.create(position, QUERY, sources or [FOLDER])
    return {
        str(p.relative_to(location.folder)): p.read_bytes().decode()
        for p in location.folder.rglob("*")
        if p.is_file() and p.name != "metadata"
    }


def test_spark_reads_what_the_previous_run_wrote(tmp_path: Path) -> None:
    assert _created(tmp_path, _position({"0/0": GOOD})) == {
        "offsets/0": f'v1\n{METADATA}\n{{"logOffset":0}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "sources/0/0": GOOD.decode(),
    }


# -- files of others --------------------------------------------------------------------------------------------------

ELSEWHERE = [
    "file:///etc/passwd",
    "file:///data/in-private/x.txt",
    "file:///data/in/../in-private/x.txt",
    "file:///data/in/%2e%2e/in-private/x.txt",
    "file:///data/in%2F..%2Fin-private%2Fx.txt",
    "file:///data/in/./x.txt",
    "file:///data/in//x.txt",
    "file:////data/in/x.txt",
    "file:///data/private?/../in/x.txt",
    "file:///data/private#/../in/x.txt",
    "file://other/data/in/x.txt",
    "hdfs:///data/in/x.txt",
    "s3a://data/in/x.txt",
    "/data/in/x.txt",
    "data/in/x.txt",
    "",
]


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_a_file_outside_of_the_source_s_folder_is_refused(tmp_path: Path, uri: str) -> None:
    """It would be read by a later run: Spark compacts the log, and reads the newest entry's files again."""
    with raises(CorruptFile, source="lines", file=uri, path="/data/in"):
        _created(tmp_path, _position({"0/0": _entry(_line("file:///data/in/good"), _line(uri))}))


PASSWD = _line("file:///etc/passwd")
PARSED_DIFFERENTLY = {
    "white space before it": _entry(f" {PASSWD}"),
    "a carriage return": _entry(f"{_line('file:///data/in/x')}\r{PASSWD}"),
    "two paths": _entry('{"path":"file:///etc/passwd",' + _line("file:///data/in/x")[1:]),
    "another version": b"v2" + GOOD[2:],
    "no version": GOOD[3:],
    "a later batch": _entry(_line("file:///data/in/x", 1)),
    "no batch": _entry('{"path":"file:///data/in/x","timestamp":1}'),
    "deep": _entry("[" * 100_000),
    "not UTF-8": GOOD + b'\n{"path":"file:///data/in/\xff"}',
}


@pytest.mark.parametrize("name", PARSED_DIFFERENTLY)
def test_spark_s_parser_does_not_find_another_file_than_the_check(tmp_path: Path, name: str) -> None:
    try:
        written = _created(tmp_path, _position({"0/0": PARSED_DIFFERENTLY[name]}))
    except CorruptFile:
        return
    assert name == "two paths"
    assert written["sources/0/0"] == _entry(_line("file:///data/in/x")).decode()


LATER = ["0/1", "0/01", "0/+1", "0/1.compact", "0/\u0661", "0/-1", "0/x", "0/.0.crc", "0/0.tmp", "0/0/1", "1/0", "00/1"]


@pytest.mark.parametrize("path", LATER)
def test_an_entry_that_spark_would_take_for_unread_input_is_refused(tmp_path: Path, path: str) -> None:
    with raises(CorruptFile):
        _created(tmp_path, _position({"0/0": GOOD, path: _entry(_line("file:///data/in/again"))}))


@pytest.mark.parametrize(
    "offset", ["-", '{"logOffset":-1}', "0", '{"logOffset":0,"x":1}', '{"logOffset":"0"}', '{"logOffset":true}', "["]
)
def test_entries_without_a_position_of_their_source_are_refused(tmp_path: Path, offset: str) -> None:
    with raises(CorruptFile, source="lines"):
        _created(tmp_path, _position({"0/0": GOOD}, (offset,)))


def test_a_source_with_unknown_files_has_no_entry_after_its_position(tmp_path: Path) -> None:
    elsewhere = _entry(PASSWD)
    assert _created(tmp_path, _position({"0/0": elsewhere}), UNKNOWN)["sources/0/0"] == elsewhere.decode()
    with raises(CorruptFile, source="topic", entry="1"):
        _created(tmp_path / "later", _position({"0/0": elsewhere, "0/1": elsewhere}), UNKNOWN)
    first_offset = _position({"0/0": b"first"}, ('{"topic":{"0":3}}',))
    assert _created(tmp_path / "topic", first_offset, UNKNOWN)["sources/0/0"] == "first"


@pytest.mark.parametrize(
    ("address", "uri", "default"),
    [
        ("/data/in", "file:///data/in/x", None),
        ("/data/in", "file:/data/in/x", None),
        ("/data/in", "file:///data/in/year=2026/a%20b/%25%C3%BC.json", None),
        ("/", "file:///etc/x", None),
        ("/data/a b%41", "file:///data/a%20b%2541/x", None),
        ("file:///data/../data//in/", "file:///data/in/x", None),
        ("/data/in", "hdfs://nn:8020/data/in/x", "hdfs://nn:8020"),
        ("hdfs:///data/in", "hdfs://nn:8020/data/in/x", "hdfs://nn:8020/"),
        ("hdfs://other/data/in", "hdfs://other/data/in/x", "hdfs://nn"),
        ("file:///data/in", "file:///data/in/x", "hdfs://nn"),
        ("s3a://bucket/in", "s3a://bucket/in/d/x.json", None),
        ("s3a://bucket", "s3a://bucket/x.json", None),
        ("abfs://container@account.net/in", "abfs://container@account.net/in/x", None),
        ("/data/*.txt", "file:///data/x.txt", None),
        ("/data/*.txt", "file:///data/folder.txt/x", None),
        ("/data/20??/[0-9]/[^a]*/{a,b{c,d}/e}.txt", "file:///data/2026/7/b1/bd/e.txt", None),
        ("/data/\\*/x", "file:///data/*/x", None),
    ],
)
def test_the_files_that_spark_lists_are_the_source_s(address: str, uri: str, default: str | None) -> None:
    assert FilePattern(address, default or "file:///").matches(uri)


@pytest.mark.parametrize(
    ("address", "uri", "default"),
    [
        ("/data/in", "file:///data/in/x", "hdfs://nn"),
        ("hdfs:///data/in", "hdfs://evil/data/in/x", "hdfs://nn"),
        ("s3a://bucket/in", "s3a://other/in/x", None),
        ("s3a://bucket/in", "s3a://bucket/in-private/x", None),
        ("/data/*.txt", "file:///data/x.csv", None),
        ("/data/*.txt", "file:///data/a/x.txt", None),
        ("/data/*.txt", "file:///etc/passwd", None),
        ("/data/[^a]/x", "file:///data/a/x", None),
        ("/data/{a,b}/x", "file:///data/c/x", None),
        ("/data/\\*/x", "file:///data/y/x", None),
        ("/data/a+(b)", "file:///data/aab/x", None),
    ],
)
def test_other_files_are_not(address: str, uri: str, default: str | None) -> None:
    assert not FilePattern(address, default or "file:///").matches(uri)


# -- settings ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "max",
    "spark.sql.streaming.stateStore.providerClass": "org.attacker.Provider",
    "spark.sql.shuffle.partitions": "2000000000",
}


def test_settings_of_a_savepoint_do_not_reach_spark(tmp_path: Path) -> None:
    metadata = json.dumps({"batchWatermarkMs": 2**62, "batchTimestampMs": 7, "conf": SETTINGS, "more": {}})
    assert _created(tmp_path, _position({"0/0": GOOD}, metadata=metadata))["offsets/0"].split("\n")[1] == METADATA


@pytest.mark.parametrize("metadata", ["", "[]", '{"batchTimestampMs":"x"}', "{" * 100_000, METADATA + "\r{}"])
def test_an_offset_log_that_is_not_spark_s_is_refused(tmp_path: Path, metadata: str) -> None:
    with raises(CorruptFile):
        _created(tmp_path, _position({"0/0": GOOD}, metadata=metadata))


@pytest.mark.parametrize("offsets", [(), ('{"logOffset":0}', "-")])
def test_an_offset_log_of_another_number_of_sources_is_refused(tmp_path: Path, offsets: tuple[str, ...]) -> None:
    with raises(CorruptFile, sources=1, offsets=len(offsets)):
        _created(tmp_path, _position({"0/0": GOOD}, offsets))
