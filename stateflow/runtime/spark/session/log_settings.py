"""Configures Spark's own log: by default, errors go to standard error in one line each, and all else to a file."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import socket

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from stateflow.config.settings import QUIET, Settings
from stateflow.private_files import make_own_folder

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
