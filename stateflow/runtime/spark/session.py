"""Starting Spark with what stateflow needs, and refusing a Spark that would not keep its promises."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkConf
from pyspark.sql import SparkSession

from stateflow.api.graph import Graph, all_before
from stateflow.api.input_files import reason_in
from stateflow.errors import ConfigError, EnvironmentUnsupported
from stateflow.runtime.local import has_transform
from stateflow.runtime.spark_log import is_quiet, quiet_accumulators, quiet_py4j, quiet_spark, quiet_workers
from stateflow.runtime.spark_settings import REQUIRED, check_master, check_required, is_local
from stateflow.runtime.versions import check_java, check_python, check_spark
from stateflow.settings import FULL, Settings

_DEFAULTS = {
    # Delayed acknowledgements on loopback cost a task 40 ms; a Unix socket has none.
    "spark.python.unix.domain.socket.enabled": "true",
    # How long the JVM waits for a Python worker to connect: 15 s by default, too short at ten times the load.
    "spark.python.authenticate.socketTimeout": "2m",
    # Spark's own directory is not the truth, so it need not be synced, nor have .crc files.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Nor checksums in files of their own.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps them for its web interface, also without one: a thousand plans of batches, their jobs and stages.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
"""Ours unless the user, spark-submit or spark-defaults set them."""

_LEVEL = {"spark.log.level": "ERROR"}
"""Likewise, where Spark's log is neither ours nor wanted in full."""

_FIXED_PLAN = {
    # It runs each shuffle as a job of its own, and has nothing to decide: number and sizes of partitions are ours.
    "spark.sql.adaptive.enabled": "false",
}
"""Likewise, for a job without Spark expressions of its own, which may join or aggregate."""


_UNWEIGHED_ROWS = {
    # To keep an Arrow batch below a number of bytes, Spark asks for its size behind each row: a seventh of a task's
    # time. The number of rows bounds it as well.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
"""Likewise, for a job whose rows all have a fixed width."""


@dataclass(frozen=True)
class Traits:
    """What a job's session depends on.

    Attributes:
        has_expressions: it has Spark expressions of its own.
        has_fixed_rows: no row has a column of varying width.
    """

    has_expressions: bool
    has_fixed_rows: bool


def traits_of(graph: Graph) -> Traits:
    """Those of a job."""
    columns = [column for node in all_before(graph.consumed) for column in node.schema.columns]
    return Traits(
        any(map(has_transform, graph.consumed)),
        all(pa.types.is_primitive(column.arrow_type) for column in columns),
    )


def open_session(settings: Settings, job_file: Path, traits: Traits) -> SparkSession:
    """The Spark session of a run, started when there is none; the job file can be imported wherever it runs Python.

    Raises EnvironmentUnsupported for a Java, Python or Spark that is not supported, and ConfigError for a setting of
    Spark that a run cannot accept.
    """
    check_python()
    check_java()
    local = is_local(SparkConf().get("spark.master", settings.spark.master))
    if local:
        # Local workers are this very Python, not whichever python3 comes first on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if python := settings.spark.conf.get("spark.pyspark.python"):
        # By itself only spark-submit heeds it: a session takes the Python of workers from the driver's environment.
        os.environ["PYSPARK_PYTHON"] = python
    # Python processes that Spark starts on the driver's side, for sources in Python, know nothing of addPyFile.
    paths = [str(job_file.resolve().parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    builder = SparkSession.builder.appName(f"stateflow {settings.name}")
    if settings.spark.log != FULL:
        quiet_py4j()
    with quiet_spark(settings) as log_file:
        ours = defaults(traits) if settings.spark.log == FULL else defaults(traits) | _LEVEL
        if log_file is not None or is_quiet():
            # Our log configuration has the levels; setting one would let Spark announce it.
            ours.pop("spark.log.level", None)
        if local and settings.spark.log != FULL:
            ours |= quiet_workers({**dict(SparkConf().getAll()), **settings.spark.conf})
        session = _started(_with_defaults(builder, ours, settings))
    check_spark(session.version)
    _check(session)
    if settings.spark.log != FULL:
        quiet_accumulators(session)
    session.sparkContext.addPyFile(str(job_file))
    return session


def defaults(traits: Traits) -> dict[str, str]:
    """Spark's settings of a run, unless somebody else set them."""
    plan = {} if traits.has_expressions else _FIXED_PLAN
    rows = _UNWEIGHED_ROWS if traits.has_fixed_rows else {}
    return {**_DEFAULTS, **plan, **rows, **REQUIRED}


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as e:
        # A wrong master or a wrong setting; Spark's own words are the best that there are.
        raise ConfigError("Spark did not start", hint="look at the master, at spark.conf.* settings and at the lines "
                          "above", reason=reason_in(e)) from e  # fmt: skip


def _with_defaults(
    builder: SparkSession.Builder, ours: Mapping[str, str], settings: Settings
) -> SparkSession.Builder:
    # A fresh SparkConf holds what spark-submit was given; ours must not override it.
    given = SparkConf() if SparkSession.getActiveSession() is None else None
    for key, value in ours.items():
        if given is None or not given.contains(key):
            builder = builder.config(key, value)
    if given is not None and not given.contains("spark.master"):
        builder = builder.master(settings.spark.master)
    for key, value in settings.spark.conf.items():
        builder = builder.config(key, value)
    return builder


def _check(session: SparkSession) -> None:
    check_required({key: session.conf.get(key, None) for key in REQUIRED})
    if not hasattr(session, "sparkContext"):
        raise EnvironmentUnsupported("Spark Connect is not supported", hint="use a classic session")
    check_master(str(session.sparkContext.master))
