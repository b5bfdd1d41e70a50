"""Starts Spark with the settings that stateflow needs, and checks settings that its guarantees depend on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkConf
from pyspark.sql import SparkSession

from stateflow.api.graph.job_graph import Graph
from stateflow.api.graph.traversal import with_ancestors
from stateflow.api.input_files import reason_in
from stateflow.config.settings import FULL, Settings, default_local_folder
from stateflow.errors import ConfigError, EnvironmentUnsupported, StateflowError
from stateflow.private_files import make_own_folders
from stateflow.runtime.job.modules import send_job_code
from stateflow.runtime.planning.physical_plan import has_transform
from stateflow.runtime.spark.session.java_process import MASTER, is_started, master_of_arguments, start_java
from stateflow.runtime.spark.session.log_settings import (
    is_quiet,
    quiet_accumulators,
    quiet_py4j,
    quiet_pyspark,
    quiet_spark,
    quiet_workers,
)
from stateflow.runtime.spark.session.settings import (
    ARROW_ROWS,
    READING,
    REQUIRED,
    check_master,
    check_reading,
    check_required,
    is_local,
)
from stateflow.runtime.spark.session.versions import check_java, check_python, check_spark

_PROGRESS = "spark.ui.showConsoleProgress"
_DEFAULTS = {
    # The JVM waits 15 s by default for a Python worker to connect, too short at ten times the load.
    "spark.python.authenticate.socketTimeout": "2m",
    # Recovery does not depend on Spark's own directory, so it needs neither syncs nor .crc files.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Uploads of functions that write with Spark: Hadoop's buffers on disk need LocalFileSystem.
    "spark.hadoop.fs.s3a.fast.upload.buffer": "bytebuffer",
    "spark.hadoop.fs.azure.data.blocks.buffer": "bytebuffer",
    # Nor separate checksum files.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    ARROW_ROWS: "100000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.timeType.enabled": "true",
    "spark.ui.enabled": "false",
    _PROGRESS: "false",
    # Spark keeps a thousand batches' plans, jobs and stages for its web interface, even when that is disabled.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Defaults, unless the user, spark-submit or spark-defaults set them."""

_LOCAL = {
    # Local tasks run in the process that waits for their heartbeats. After two minutes without, such as of a host that
    # was suspended, it would drop itself as a lost executor, fail to register again, and exit.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "365d"
}
"""Defaults of a local master."""

_LONGEST_FOLDER = 60
"""Length of the path of a folder for Unix sockets that Spark permits."""

_LEVEL = {"spark.log.level": "ERROR"}
"""Defaults when Spark uses another log configuration, and ``spark.log`` is not ``full``."""

_FIXED_PLAN = {
    # It runs each shuffle as a separate job, and cannot improve the plan: stateflow sets the partitions.
    "spark.sql.adaptive.enabled": "false"
}
"""Defaults for a job without Spark expressions, which could join or aggregate."""

_FIXED_WIDTH_ROWS = {
    # To limit the bytes of an Arrow batch, Spark computes its size after each row, which takes a seventh of a task's
    # time. The number of rows limits such a batch as well.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1)
}
"""Defaults for a job whose rows all have a fixed width."""


@dataclass(frozen=True)
class JobTraits:
    """Properties of a job that its Spark settings depend on.

    Attributes:
        has_expressions: whether the job has Spark expressions.
        has_fixed_rows: whether all columns of all rows have a fixed width.
    """

    has_expressions: bool
    has_fixed_rows: bool


def job_traits(graph: Graph) -> JobTraits:
    """Returns the properties of a job."""
    columns = [column for node in with_ancestors(graph.consumed) for column in node.schema.columns]
    return JobTraits(
        any(map(has_transform, graph.consumed)), all(pa.types.is_primitive(column.arrow_type) for column in columns)
    )


def open_session(settings: Settings, traits: JobTraits) -> SparkSession:
    """Returns the Spark session of a run, and starts Spark if necessary.

    Python workers get the code of the loaded job.

    Raises:
        EnvironmentUnsupported: Java, Python or Spark has an unsupported version.
        ConfigError: Spark did not start, or has a setting that a run does not permit.
    """
    check_reading(settings.spark.conf)
    check_python()
    check_java()
    if is_started():
        # spark-submit determines the master, whatever the settings say.
        start_java({}, settings.local_folder)
    local = is_local(SparkConf().get(MASTER, None) or _master(settings))
    if local:
        # Local workers use this Python, not the first python3 of the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if python := settings.spark.conf.get("spark.pyspark.python"):
        # Only spark-submit applies this setting: a session takes the workers' Python from the driver's environment.
        os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.appName(f"stateflow {settings.name}")
    if settings.spark.log != FULL:
        quiet_py4j()
        quiet_pyspark()
    with quiet_spark(settings) as log_file:
        _start(settings)
        own = defaults(traits) if settings.spark.log == FULL else defaults(traits) | _LEVEL
        if log_file is not None or is_quiet():
            # The log configuration has the levels; Spark would log a message about setting one.
            own.pop("spark.log.level", None)
        if local:
            own |= _LOCAL | _unix_sockets(settings.local_folder)
        if local and settings.spark.log != FULL:
            own |= quiet_workers({**dict(SparkConf().getAll()), **settings.spark.conf})
        session = _started(_with_defaults(builder, own, settings))
    check_spark(session.version)
    check_session(session)
    if settings.spark.log != FULL:
        quiet_accumulators(session)
    send_job_code()
    return session


def defaults(traits: JobTraits) -> dict[str, str]:
    """Returns the Spark settings of a run that apply unless the user sets them."""
    plan = {} if traits.has_expressions else _FIXED_PLAN
    rows = _FIXED_WIDTH_ROWS if traits.has_fixed_rows else {}
    return {**_DEFAULTS, **plan, **rows, **REQUIRED}


def _unix_sockets(local_folder: Path) -> dict[str, str]:
    """Returns the settings for Unix sockets between Java and Python; none without a folder for them.

    Delayed acknowledgements on loopback cost a task 40 ms; a Unix socket avoids them. But Spark asks for no token
    there: who can connect runs code in this process, and the umask decides who can. So they are in a folder of this
    user. If the path of the scratch folder is too long for them, that is in the default one.
    """
    for scratch in (local_folder, default_local_folder()):
        folder = scratch.absolute() / "sockets"
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            continue
        with suppress(ConfigError):  # another user has created it: TCP sockets, with a token, need none
            make_own_folders(scratch.absolute(), folder, "local_dir")
            folder.chmod(0o700)
            return {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": str(folder),
            }
    return {}


def _master(settings: Settings) -> str:
    return master_of_arguments() or settings.spark.conf.get(MASTER, settings.spark.master)


def _start(settings: Settings) -> None:
    # Without a master of its own, spark-submit would choose local[*]; and it shows progress bars, as for a shell.
    own = {MASTER: settings.spark.master, _PROGRESS: _DEFAULTS[_PROGRESS]}
    with _translated_errors():
        start_java({**own, **settings.spark.conf}, settings.local_folder)


def _started(builder: SparkSession.Builder) -> SparkSession:
    with _translated_errors():
        return builder.getOrCreate()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translates errors of starting Spark into ConfigError."""
    try:
        yield
    except StateflowError:
        raise
    except Exception as e:
        # A wrong master or setting, which Spark's own message describes best.
        raise ConfigError(
            "Spark did not start",
            hint="check the master, the spark.conf.* settings and the log above",
            reason=reason_in(e),
        ) from e


def _with_defaults(builder: SparkSession.Builder, own: Mapping[str, str], settings: Settings) -> SparkSession.Builder:
    # Once Java runs, a new SparkConf has the settings of spark-submit, which take precedence.
    given = SparkConf() if SparkSession.getActiveSession() is None else None
    for key, value in own.items():
        if given is None or not given.contains(key):
            builder = builder.config(key, value)
    if given is not None and not given.contains(MASTER):
        builder = builder.master(settings.spark.master)
    for key, value in {**settings.spark.conf, **READING}.items():
        builder = builder.config(key, value)
    return builder


def check_session(session: SparkSession) -> None:
    """Checks the settings of a session. Raises ConfigError or EnvironmentUnsupported."""
    check_required({key: session.conf.get(key, None) for key in REQUIRED})
    if not hasattr(session, "sparkContext"):
        raise EnvironmentUnsupported("Spark Connect is not supported", hint="use a classic session")
    check_master(str(session.sparkContext.master))
