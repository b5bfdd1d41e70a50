"""Where Spark's own log goes: by default errors in one line each to standard error, all else to a file."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stateflow.settings import QUIET, Settings
from stateflow.state.transfer import private_folder

_DAEMON = Path(__file__).with_name("worker_daemon") / "stateflow_worker_daemon.py"
_MODULE, _PATH = "spark.python.daemon.module", "spark.executorEnv.PYTHONPATH"
CONFIGURATION = Path(__file__).with_name("log4j2-quiet.properties")
_OPTIONS = "SPARK_SUBMIT_OPTS"
_FILE = "-Dstateflow.spark.log="
_KEPT = 10


@contextmanager
def quiet_spark(settings: Settings) -> Iterator[Path | None]:
    """Around a start of Spark: gives it our log configuration, unless ``spark.log`` is ``full`` or the user has one.

    Yields the log file, None when Spark's log is not ours.
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
        # Of this start alone: what else the process starts is none of ours.
        if before is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = before


def options(file: Path) -> list[str]:
    """What Java is started with so that Spark logs to `file`."""
    return [f"-Dlog4j2.configurationFile={CONFIGURATION.as_uri()}", f"{_FILE}{file}"]


def is_quiet() -> bool:
    """Whether the running Spark was started with our log configuration, by this process or by Airflow's operator."""
    return _FILE in os.environ.get(_OPTIONS, "")


def log_file(local: Path, name: str) -> Path:
    """A new log file below the scratch folder; older ones are removed but for the newest."""
    folder = local / "spark-logs"
    private_folder(local)
    private_folder(folder)
    # Another run may remove one at the same time.
    known = sorted((p.stat().st_mtime, p) for p in folder.iterdir() if p.exists())
    for _, path in known[: max(0, len(known) - _KEPT)]:
        path.unlink(missing_ok=True)
    return folder / f"{name}-{os.getpid()}.log"


def quiet_py4j() -> None:
    """Drops what py4j logs when a connection to Spark ends; it raises the same, and the run reports it."""
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    # Some of its lines are logged by the root logger itself, whose first line configures logging to standard error.
    return Path(record.pathname).parent.name != "py4j"


def quiet_accumulators(session: SparkSession) -> None:
    """Drops the traceback that the server of accumulators prints when Spark's process dies."""
    server = session.sparkContext._accumulatorServer  # noqa: SLF001 - there is no public way
    if "handle_error" in vars(server):  # by an earlier run of this session
        return
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def quiet_workers(given: Mapping[str, str]) -> dict[str, str]:
    """Spark settings for Python workers that print no traceback when Spark closes their connection.

    Args:
        given: the user's Spark settings; nothing is set when they have a daemon or a Python path of their own.
    """
    if _MODULE in given or _PATH in given:
        return {}
    return {_MODULE: _DAEMON.stem, _PATH: str(_DAEMON.parent)}


def _is_configured(settings: Settings) -> bool:
    given = f"{os.environ.get(_OPTIONS, '')} {settings.spark.conf.get('spark.driver.extraJavaOptions', '')}"
    homes = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    return "log4j" in given or any(h and (Path(h) / "log4j2.properties").is_file() for h in homes)
