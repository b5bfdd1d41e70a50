"""Checks of Spark's settings and master, and of the installed versions, that do not need a running Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stateflow.api.graph import SinkNode
from stateflow.config.spark_versions import find_release, running_version, version_of
from stateflow.errors import ConfigError, EnvironmentUnsupported
from stateflow.storage import Storage

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
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
    """Raises ConfigError when a setting of `given` does not have the value that this version of Spark needs."""
    for key, value in version_of(find_release()).required.items():
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
"""The first and the last version of Python that was tested; older ones are refused."""
JAVA = (17, 21, 25)
"""The versions of Java that were tested, 21 once, with Spark 4.2; those before the first one are refused."""


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raises EnvironmentUnsupported for a version of Python that is too old."""
    found = version or sys.version_info[:2]
    if found < PYTHON[0]:
        raise EnvironmentUnsupported(
            "this version of Python is not supported",
            hint="use Python 3.11, 3.12 or 3.13",
            found=".".join(map(str, found)),
        )


def check_spark(release: str) -> None:
    """Raises EnvironmentUnsupported for an unsupported version of Spark; see `stateflow.config.spark_versions`."""
    version_of(release)


def check_same_spark(release: str) -> None:
    """Raises EnvironmentUnsupported when Spark's Java process is of another minor version than the imported PySpark."""
    python = running_version()
    if version_of(release).minor != python.minor:
        raise EnvironmentUnsupported(
            "PySpark and the Spark that it has started have different versions",
            hint="unset SPARK_HOME, or install the version of PySpark that belongs to it",
            pyspark=python.text,
            spark=release,
        )


def check_classic(conf: Mapping[str, str]) -> None:
    """Raises EnvironmentUnsupported when PySpark would connect to a server by Spark Connect.

    Args:
        conf: the job's Spark settings.
    """
    master = conf.get("spark.master", "")
    found = {
        "SPARK_REMOTE": os.environ.get("SPARK_REMOTE"),
        "SPARK_CONNECT_MODE_ENABLED": os.environ.get("SPARK_CONNECT_MODE_ENABLED"),
        "PYSPARK_SUBMIT_ARGS": _connect_argument(os.environ.get("PYSPARK_SUBMIT_ARGS", "")),
        "spark.remote": conf.get("spark.remote"),
        "spark.api.mode": conf.get("spark.api.mode") if conf.get("spark.api.mode", "").lower() == "connect" else None,
        "spark.master": master if master.startswith("sc://") else None,
    }
    for name, value in found.items():
        if value:
            raise connect_is_unsupported(name)


def _connect_argument(text: str) -> str | None:
    return next((w for w in text.split() if w.partition("=")[0] == "--remote" or w.startswith("sc://")), None)


def connect_is_unsupported(where: str) -> EnvironmentUnsupported:
    """Returns the error for a Spark Connect session.

    Args:
        where: name of the setting or variable that asks for it.
    """
    return EnvironmentUnsupported(
        "Spark Connect is not supported: a run needs the driver's own JVM",
        hint="remove the setting, and give a master instead: spark.master=local[N,4], yarn, k8s://… or spark://…",
        setting=where,
    )


def warn_of_untested(java: int | None = None, python: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Returns a warning for each version of this machine that is supported, and with which no test has run.

    Args:
        java: its major version; None if it is not known.
        python: by default this process's.
    """
    found = python or sys.version_info[:2]
    warnings = []
    if found > PYTHON[1]:
        tested = f"{PYTHON[0][0]}.{PYTHON[0][1]} to {PYTHON[1][0]}.{PYTHON[1][1]}"
        warnings.append(f"Python {found[0]}.{found[1]} was not tested with this version of stateflow; tested: {tested}")
    if java is not None and java not in JAVA:
        tested = ", ".join(map(str, JAVA))
        warnings.append(f"Java {java} was not tested with this version of stateflow; tested: {tested}")
    return tuple(warnings)


@dataclass(frozen=True)
class Java:
    """The Java that Spark would use: its major version and the path of its command."""

    major: int
    path: str

    def __str__(self) -> str:
        return f"{self.major}, {self.path}"


def check_java() -> Java:
    """Returns the Java that Spark would use.

    Raises:
        EnvironmentUnsupported: Java is not installed, or too old.
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
    if major < JAVA[0]:
        raise EnvironmentUnsupported(
            "this version of Java is not supported",
            hint="use Java 17, 21 or 25; JAVA_HOME chooses it",
            found=major,
            java=java,
        )
    return Java(major, java)


def java_major(text: str) -> int:
    """Returns the major version in the output of ``java -version``; 0 when it cannot be parsed."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])
