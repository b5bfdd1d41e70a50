"""Which file Spark could not read, and whether its bytes are the reason: from the text of Spark's errors."""

from __future__ import annotations

import pytest

from stateflow.api.input_files import reason_in, unreadable_in
from stateflow.errors import BatchFailed, CorruptInput
from stateflow.runtime.spark.errors import to_stateflow_error

_HEAD = (
    "An error occurred while calling o129.collectToPython.\n"
    ": org.apache.spark.SparkException: [FAILED_READ_FILE.{kind}] Encountered error while reading file {file}. {more}"
    " SQLSTATE: KD001\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(Q.scala:940)\n"
)


def _text(*causes: str, kind: str = "NO_HINT", file: str = "file:///data/p%202.parquet", more: str = "") -> str:
    return _HEAD.format(kind=kind, file=file, more=more) + "".join(
        f"Caused by: {cause}\n\tat some.Class.method(Class.java:1)\n" for cause in causes
    )


@pytest.mark.parametrize(
    "causes",
    [
        ("java.lang.RuntimeException: file:/data/p 2.parquet is not a Parquet file. Expected magic number at tail",),
        (
            "java.io.IOException: can not read class org.apache.parquet.format.FileMetaData: Required field 'version'",
            "shaded.parquet.org.apache.thrift.protocol.TProtocolException: Required field 'version'",
        ),
        ("org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records",),
        ("java.io.EOFException: Unexpected end of input stream",),
        ("java.util.zip.ZipException: invalid block type",),
        (),
    ],
)
def test_bytes_that_do_not_decode_are_a_corrupt_file(causes: tuple[str, ...]) -> None:
    error = to_stateflow_error(RuntimeError(_text(*causes)))
    assert type(error) is CorruptInput and not error.retryable
    assert error.facts["file"] == "/data/p 2.parquet"
    assert not causes or error.facts["reason"] == causes[-1]


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.SocketTimeoutException: Read timed out",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=x",
        "java.io.FileNotFoundException: /data/p 2.parquet (Permission denied)",
        "java.io.IOException: Input/output error",
        "org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block",
        "org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus on s3a://b/k",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_storage_rights_and_memory_are_no_corrupt_file(cause: str) -> None:
    # Whatever is wrapped around it.
    error = to_stateflow_error(RuntimeError(_text("java.io.IOException: can not read class", cause)))
    assert type(error) is BatchFailed and error.retryable
    assert error.facts["file"] == "/data/p 2.parquet"


def test_a_file_that_vanished_after_it_was_listed_is_tried_again() -> None:
    text = _text(kind="FILE_NOT_EXIST", file="s3a://bucket/in/a.json", more="File does not exist.")
    found = unreadable_in(text)
    assert found is not None and found.was_deleted and not found.is_corrupt
    error = found.error()
    assert error.retryable and error.facts == {"file": "s3a://bucket/in/a.json"}


def test_another_type_than_declared_is_named() -> None:
    text = _text(kind="PARQUET_COLUMN_DATA_TYPE_MISMATCH", more="Data type mismatches when reading Parquet column <x>.")
    found = unreadable_in(text)
    assert found is not None and found.is_corrupt and "column <x>" in found.reason


def test_other_errors_name_no_file() -> None:
    assert unreadable_in("org.apache.spark.SparkException: Job aborted. reading file x. done") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("An error occurred while calling o500.load.\n: java.X: no such format\n\tat a.b", "java.X: no such format"),
        ("An error occurred while calling o500.load.", "An error occurred while calling o500.load."),
        ("\n [PATH_NOT_FOUND] none \nmore", "[PATH_NOT_FOUND] none"),
        ("", ""),
    ],
)
def test_the_reason_of_an_error_of_spark(text: str, reason: str) -> None:
    assert reason_in(RuntimeError(text)) == reason
