"""Starts Spark: its Java process, the settings that stateflow needs, and Spark's own log."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from stateflow.api.graph import Graph, with_ancestors
from stateflow.api.input_files import reason_in
from stateflow.config.settings import FULL, QUIET, Settings, default_local_folder
from stateflow.config.spark_versions import running_version
from stateflow.config.submit_options import (
    CONF,
    PROPERTIES_FILE,
    copied_credentials,
    hide_conf,
    hide_credentials,
    option,
)
from stateflow.errors import ConfigError, StateflowError
from stateflow.private_files import make_own_folder, make_own_folders
from stateflow.runtime.job_loader import send_job_code
from stateflow.runtime.planning.physical_plan import has_transform
from stateflow.runtime.spark.errors import note_log_file
from stateflow.runtime.spark.session.requirements import (
    ARROW_ROWS,
    READING,
    check_java,
    check_master,
    check_python,
    check_reading,
    check_required,
    check_same_spark,
    check_spark,
    connect_is_unsupported,
    is_local,
)

_PROGRESS = "spark.ui.showConsoleProgress"
_LOCAL_FILES = "spark.hadoop.fs.file.impl"
_DEFAULTS = {
    # The JVM waits 15 s by default for a Python worker to connect, too short at ten times the load.
    "spark.python.authenticate.socketTimeout": "2m",
    # Recovery does not depend on Spark's own directory, so it needs neither syncs nor .crc files, as `defaults` says.
    _LOCAL_FILES: "org.apache.hadoop.fs.RawLocalFileSystem",
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


_YARN_CLIENT = {
    # Spark asks the file system of each file that it stages for its scheme, which the raw one refuses to tell. This
    # matters if the staging folder is in the same file system: a folder that all hosts mount.
    _LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem"
}
"""Defaults of YARN with a driver on this host."""


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
    master = SparkConf().get(MASTER, None) or _master(settings)
    if is_local(master):
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
        session = _started(_with_defaults(builder, own | _defaults_of(master, settings), settings))
    note_log_file(_log_file_of(session))
    _pass_credentials(session)
    check_spark(session.version)
    check_same_spark(session.version)
    check_session(session)
    if settings.spark.log != FULL:
        quiet_accumulators(session)
    send_job_code()
    return session


def defaults(traits: JobTraits) -> dict[str, str]:
    """Returns the Spark settings of a run that apply unless the user sets them."""
    plan = {} if traits.has_expressions else _FIXED_PLAN
    rows = _FIXED_WIDTH_ROWS if traits.has_fixed_rows else {}
    version = running_version()
    manager = {"spark.sql.streaming.checkpointFileManagerClass": version.checkpoint_manager}
    return {**_DEFAULTS, **manager, **plan, **rows, **version.required}


def _defaults_of(master: str, settings: Settings) -> dict[str, str]:
    """Returns the Spark settings of a run that depend on the master, unless the user sets them."""
    if master == _YARN:
        in_cluster = SparkConf().get("spark.submit.deployMode", None) == "cluster"
        return hide_credentials(os.environ) | ({} if in_cluster else _YARN_CLIENT)
    if not is_local(master):
        return {}
    given = {**dict(SparkConf().getAll()), **settings.spark.conf}
    quiet = {} if settings.spark.log == FULL else quiet_workers(given)
    return _LOCAL | _unix_sockets(settings.local_folder) | quiet


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


def _pass_credentials(session: SparkSession) -> None:
    """Gives Hadoop's S3 client the credentials of the environment, which the configuration on YARN does not have.

    Executors get the configuration from the driver, with each task that needs it.
    """
    if session.sparkContext.master != _YARN:
        return
    hadoop = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark has no public access to it
    for name, value in copied_credentials(os.environ).items():
        if not hadoop.get(name):
            hadoop.set(name, value)


def _master(settings: Settings) -> str:
    return master_of_arguments() or settings.spark.conf.get(MASTER, settings.spark.master)


def _start(settings: Settings) -> None:
    # Without a master of its own, spark-submit would choose local[*]; and it shows progress bars, as for a shell.
    own = {MASTER: settings.spark.master, _PROGRESS: _DEFAULTS[_PROGRESS]}
    with _translate_errors():
        start_java({**own, **settings.spark.conf}, settings.local_folder)


def _started(builder: SparkSession.Builder) -> SparkSession:
    with _translate_errors():
        return builder.getOrCreate()


@contextmanager
def _translate_errors() -> Iterator[None]:
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
    if not hasattr(session, "sparkContext"):
        raise connect_is_unsupported("session")
    check_required({key: _setting(session, key) for key in running_version().required})
    check_master(str(session.sparkContext.master))


def _setting(session: SparkSession, key: str) -> str | None:
    """Returns a setting as it takes effect: what is not SQL is fixed when Spark starts, whatever a session has."""
    if key.startswith("spark.sql."):
        return session.conf.get(key, None)
    return session.sparkContext.getConf().get(key, None)


_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"
MASTER = "spark.master"
_YARN = "yarn"


def is_started() -> bool:
    """Returns whether this process is connected to a Java process, or spark-submit has started one for it."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001 - no public access


def start_java(conf: Mapping[str, str], local_folder: Path) -> None:
    """Starts Spark's Java process, or connects to the one that spark-submit has started.

    Afterwards a SparkConf has all settings of spark-submit; before, it is empty.

    Args:
        conf: Spark's settings for a process that this call starts; options in ``PYSPARK_SUBMIT_ARGS`` take precedence.
        local_folder: the scratch folder, in which the file with the settings exists until Spark has read it.

    Raises:
        ConfigError: a file of settings in ``PYSPARK_SUBMIT_ARGS`` cannot be read.
        Exception: Java did not start.
    """
    if is_started():
        _connect()
        return
    with _hidden(conf, local_folder), _names_in_utf_8():
        _connect()


def master_of_arguments() -> str | None:
    """Returns the master in ``PYSPARK_SUBMIT_ARGS``."""
    return option(_options(), "--master")


def _connect() -> None:
    # Any system property will do: PySpark starts Java, or connects to it, before it reads one.
    SparkContext.getSystemProperty(MASTER)


def _options() -> list[str]:
    words = shlex.split(os.environ.get(_ARGUMENTS, _SHELL))
    return words[:-1] if words[-1:] == [_SHELL] else words


@contextmanager
def _names_in_utf_8() -> Iterator[None]:
    """Lets Java, started by the body, take names of files for UTF-8, as Python does: in the locale C it reads ASCII."""
    before = os.environ.get("LC_ALL")
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    if "utf" in locale.lower():
        yield
        return
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


@contextmanager
def _hidden(conf: Mapping[str, str], local_folder: Path) -> Iterator[None]:
    """Makes PySpark start Java with a file that has the settings, while the body runs; removes the file afterwards."""
    before = os.environ.get(_ARGUMENTS)
    make_own_folder(local_folder)
    given = [word for name, value in conf.items() for word in (CONF, f"{name}={value}")]
    # Only this user can read it.
    with tempfile.NamedTemporaryFile("w", dir=local_folder, prefix="spark-", suffix=".conf", encoding="utf-8") as file:
        try:
            options, content = hide_conf([*given, *_options()], Path(file.name))
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(
                "the file of Spark's settings cannot be read",
                hint=f"check {PROPERTIES_FILE} in {_ARGUMENTS}",
                path=option(_options(), PROPERTIES_FILE),
                reason=str(e),
            ) from e
        file.write(content or "")
        file.flush()
        os.environ[_ARGUMENTS] = shlex.join([*options, _SHELL])
        try:
            yield
        finally:
            # For this start only, as the file is.
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


_DAEMON = Path(__file__).with_name("worker_daemon") / "stateflow_worker_daemon.py"
_MODULE, _PATH = "spark.python.daemon.module", "spark.executorEnv.PYTHONPATH"
CONFIGURATION = Path(__file__).with_name("log4j2-quiet.properties")
_OPTIONS = "SPARK_SUBMIT_OPTS"
_FILE = "-Dstateflow.spark.log="
_KEPT = 10


@contextmanager
def quiet_spark(settings: Settings) -> Iterator[Path | None]:
    """Starts Spark, in its body, with stateflow's log configuration.

    Changes nothing when ``spark.log`` is ``full``, or when the user has a log configuration. Yields the log file; None
    when Spark uses another configuration.
    """
    before = os.environ.get(_OPTIONS)
    if settings.spark.log != QUIET or _is_configured(settings):
        yield None
        return
    file = log_file(settings.local_folder, settings.name)
    os.environ[_OPTIONS] = " ".join(filter(None, [before, *map(shlex.quote, options(file))]))
    try:
        yield file
    finally:
        # For this start only: other programs that the process starts are not affected.
        if before is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = before


def _log_file_of(session: SparkSession) -> Path | None:
    """Returns the log file of Spark's process, which may have been started before; None if it has another log."""
    jvm = session._jvm  # noqa: SLF001 - only the JVM has its properties
    assert jvm is not None
    name = jvm.java.lang.System.getProperty(_FILE.removeprefix("-D").removesuffix("="))
    return Path(name) if name else None


def options(file: Path) -> list[str]:
    """Returns the options of Java that make Spark log to `file`."""
    return [f"-Dlog4j2.configurationFile={CONFIGURATION.as_uri()}", f"{_FILE}{file}"]


def is_quiet() -> bool:
    """Returns whether this process, or Airflow's operator, started Spark with stateflow's log configuration."""
    return _FILE in os.environ.get(_OPTIONS, "")


def log_file(local: Path, name: str) -> Path:
    """Returns the path of a new log file below the scratch folder, and removes all but the newest older files."""
    folder = local / "spark-logs"
    make_own_folder(local)
    make_own_folder(folder)
    # Another run may remove one at the same time.
    known = sorted((p.stat().st_mtime, p) for p in folder.iterdir() if p.exists())
    for _, path in known[: max(0, len(known) - _KEPT)]:
        path.unlink(missing_ok=True)
    return folder / f"{name}-{os.getpid()}.log"


def quiet_py4j() -> None:
    """Drops py4j's log messages about lost connections to Spark: py4j also raises them, and the run reports them."""
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_of_py4j)


def quiet_pyspark() -> None:
    """Drops PySpark's log lines of 15 kB, with all frames of the JVM, about exceptions that it raises as well."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _not_of_py4j(record: logging.LogRecord) -> bool:
    # py4j also logs through the root logger, whose first message configures logging to standard error.
    return Path(record.pathname).parent.name != "py4j"


def quiet_accumulators(session: SparkSession) -> None:
    """Drops the traceback that PySpark's accumulator server prints when Spark's process dies."""
    server = session.sparkContext._accumulatorServer  # noqa: SLF001 - PySpark has no public access to it
    if "handle_error" in vars(server):  # by an earlier run of this session
        return
    report = server.handle_error

    def handle_error(request: socket | tuple[bytes, socket], client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    vars(server)["handle_error"] = handle_error


def quiet_workers(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark settings for Python workers that print no traceback when Spark closes their connection.

    Args:
        given: the user's Spark settings; the result is empty when they set a daemon or a Python path.
    """
    if _MODULE in given or _PATH in given:
        return {}
    return {_MODULE: _DAEMON.stem, _PATH: str(_DAEMON.parent)}


def _is_configured(settings: Settings) -> bool:
    java_options = f"{os.environ.get(_OPTIONS, '')} {settings.spark.conf.get('spark.driver.extraJavaOptions', '')}"
    homes = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    return "log4j" in java_options or any(h and (Path(h) / "log4j2.properties").is_file() for h in homes)
