"""Which file Spark could not read, and whether its content is the reason, from the text of Spark's errors."""

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
PARQUET = "java.io.IOException: can not read class org.apache.parquet.format.FileMetaData: Required field 'version'"


def _text(*causes: str, kind: str = "NO_HINT", file: str = "file:///data/p%202.parquet", more: str = "") -> str:
    return _HEAD.format(kind=kind, file=file, more=more) + "".join(
        f"Caused by: {cause}\n\tat some.Class.method(Class.java:1)\n" for cause in causes
    )


@pytest.mark.parametrize(
    "causes",
    [
        (),
        ("java.lang.RuntimeException: file:/data/p 2.parquet is not a Parquet file. Expected magic number at tail",),
        (PARQUET, "shaded.parquet.org.apache.thrift.protocol.TProtocolException: Required field 'version'"),
        ("org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records",),
        ("java.io.EOFException: Unexpected end of input stream",),
        ("java.util.zip.ZipException: invalid block type",),
    ],
)
def test_a_file_whose_content_cannot_be_decoded_is_corrupt(causes: tuple[str, ...]) -> None:
    error = to_stateflow_error(RuntimeError(_text(*causes)))
    assert type(error) is CorruptInput and not error.retryable
    assert error.facts["file"] == "/data/p 2.parquet"
    assert not causes or error.facts["reason"] == causes[-1]


def test_an_error_of_spark_has_its_first_cause() -> None:
    text = "An error occurred while calling o1.collect.\n: SparkException: [X] An error\n\tat A.b(A:1)\n"
    causes = "Caused by: E: [X] An error\n\tat B.c(B:2)\n\t\tCaused by: ClassCastException: no file system\n\t\t... 3"
    assert to_stateflow_error(RuntimeError(text + causes)).facts["cause"] == "ClassCastException: no file system"
    assert "cause" not in to_stateflow_error(RuntimeError(text)).facts


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
def test_a_failure_of_storage_permissions_or_memory_is_no_corrupt_file(cause: str) -> None:
    error = to_stateflow_error(RuntimeError(_text(PARQUET, cause)))
    assert type(error) is BatchFailed and error.retryable
    assert error.facts["file"] == "/data/p 2.parquet"


def test_a_deleted_file_may_be_tried_again_and_a_column_of_another_type_is_named() -> None:
    found = unreadable_in(_text(kind="FILE_NOT_EXIST", file="s3a://bucket/in/a.json", more="File does not exist."))
    assert found is not None and found.was_deleted and not found.is_corrupt
    error = found.error()
    assert error.retryable and error.facts == {"file": "s3a://bucket/in/a.json"}
    mismatch = "Data type mismatches when reading Parquet column <x>."
    found = unreadable_in(_text(kind="PARQUET_COLUMN_DATA_TYPE_MISMATCH", more=mismatch))
    assert found is not None and found.is_corrupt and "column <x>" in found.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("An error occurred while calling o500.load.\n: java.X: no such format\n\tat a.b", "java.X: no such format"),
        ("An error occurred while calling o500.load.", "An error occurred while calling o500.load."),
        ("\n [PATH_NOT_FOUND] none \nmore", "[PATH_NOT_FOUND] none"),
        ("SparkException: Job aborted. reading file x. done", "SparkException: Job aborted. reading file x. done"),
        ("", ""),
    ],
)
def test_other_errors_of_spark_have_a_reason_and_no_file(text: str, reason: str) -> None:
    assert reason_in(RuntimeError(text)) == reason
    assert unreadable_in(text) is None
