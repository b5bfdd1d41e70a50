"""Checks of Spark's settings and master, and of the installed versions, that do not need a running Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

from stateflow.api.graph import SinkNode
from stateflow.errors import ConfigError, EnvironmentUnsupported
from stateflow.storage import Storage

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
REQUIRED = {
    # Without them, after an executor is lost, the tasks of a level may read different attempts of an earlier task.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""Required values, which are checked at start."""
READING = {
    # A declared column with a time zone is a timestamp, whatever the word means elsewhere.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    # A column of this name would have the text of records that do not parse.
    "spark.sql.columnNameOfCorruptRecord": "_sf_corrupt_record",
    # Rows would be missing without a message.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Writers of Parquet store checksums of pages, which its readers do not look at by default.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A column in another case would be null.
    "spark.sql.caseSensitive": "false",
    # Old dates of other writers than Spark would move by days.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    # The same statement of SQL has one meaning, before an operator, where Spark computes, and after it.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.session.timeZone": "UTC",
    # The literals and names of generated expressions are quoted for these.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # Tasks take columns of these Arrow types.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""Settings that decide the meaning of rows and expressions. They override ``spark-defaults.conf``."""


def check_reading(given: Mapping[str, str]) -> None:
    """Raises ConfigError when a setting of the job would change the meaning of rows or expressions."""
    for key, value in READING.items():
        if key in given and str(given[key]).lower() != value.lower():
            raise ConfigError(
                "a Spark setting would change the meaning of rows or expressions",
                setting=key,
                hint="remove it. Use an option of the source, such as datetimeRebaseMode or on_corrupt_file, or a "
                "function in a transform, such as try_cast, try_divide or from_utc_timestamp",
                found=given[key],
                required=value,
            )


def check_required(given: Mapping[str, str | None]) -> None:
    """Raises ConfigError when a setting of `given` does not have its required value."""
    for key, value in REQUIRED.items():
        if key in given and str(given[key]).lower() != value:
            raise ConfigError(
                "a Spark setting would permit results from two attempts of one task",
                setting=key,
                hint=f"set it to {value}",
                found=given[key],
            )


def check_master(master: str) -> None:
    """Raises ConfigError for a local master that does not retry tasks."""
    if master == "local" or (master.startswith("local[") and "," not in master):
        raise ConfigError(
            "a local master without retries fails a batch at the first lost task",
            hint="use local[N,4] instead of local[N]",
            master=master,
        )


def is_local(master: str) -> bool:
    """Returns whether all tasks run on this host, in this process's JVM."""
    return master == "local" or master.startswith("local[")


def check_sinks(sinks: Iterable[SinkNode], master: str, shared: bool) -> None:
    """Checks that all tasks write to the same tables.

    Raises:
        ConfigError: tasks on other hosts would write a sink's files to their own disks.
    """
    local = [node.uid for node in sinks if node.sink.host_local]
    in_memory = [node.uid for node in sinks if node.sink.location.startswith("memory:")]
    if in_memory:
        raise ConfigError("tasks of Spark cannot write to a table in memory", hint="use a path", sinks=in_memory)
    if local and not is_local(master) and not shared:
        raise ConfigError(
            "a sink's table is on this host only, but tasks run on other hosts",
            hint="use a path that all hosts share, and set storage.shared=true",
            sinks=local,
            master=master,
        )


def check_root(storage: Storage, master: str, shared: bool) -> None:
    """Raises ConfigError for a job root that the tasks, or Spark's driver, cannot read."""
    if storage.local_path("x") is None and storage.host_local:
        raise ConfigError("Spark cannot use a job root in memory", hint="use a path", root=storage.uri)
    if storage.host_local and not is_local(master) and not shared:
        raise ConfigError(
            "the job root is on this host only, but tasks run on other hosts",
            hint="use a storage that all hosts share; if they share this path, set storage.shared=true",
            root=storage.uri,
            master=master,
        )


PYTHON = ((3, 11), (3, 13))
SPARK = "4.2"
JAVA = (17, 21)


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raises EnvironmentUnsupported for an unsupported version of Python."""
    found = version or sys.version_info[:2]
    if not PYTHON[0] <= found <= PYTHON[1]:
        raise EnvironmentUnsupported(
            "this version of Python is not supported",
            hint="use Python 3.11, 3.12 or 3.13",
            found=".".join(map(str, found)),
        )


def find_spark_version() -> str:
    """Returns the version of PySpark. Raises EnvironmentUnsupported if it is not installed."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError as e:
        raise EnvironmentUnsupported(
            "PySpark is not installed", hint="pip install 'stateflow[spark]'", package="pyspark"
        ) from e


def check_spark(version: str) -> None:
    """Raises EnvironmentUnsupported for an unsupported version of Spark."""
    if version != SPARK and not version.startswith(f"{SPARK}."):
        raise EnvironmentUnsupported(
            "this version of Spark is not supported", hint="install pyspark==4.2.0", found=version
        )


def check_java() -> str:
    """Returns version and path of the Java that Spark would use.

    Raises:
        EnvironmentUnsupported: Java is not installed, or has an unsupported version.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise EnvironmentUnsupported(
            "Java was not found",
            hint="install Java 17 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME",
            java_home=home or "",
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    major = java_major(text)
    if major not in JAVA:
        raise EnvironmentUnsupported(
            "this version of Java is not supported",
            hint="use Java 17 or 21; JAVA_HOME chooses it",
            found=major,
            java=java,
        )
    return f"{major}, {java}"


def java_major(text: str) -> int:
    """Returns the major version in the output of ``java -version``; 0 when it cannot be parsed."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])
