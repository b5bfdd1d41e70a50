"""Starts Spark's Java process, with settings in a private file: its arguments are visible to all users of the host."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext

from stateflow.config.submit_options import CONF, PROPERTIES_FILE, hide_conf, option
from stateflow.errors import ConfigError
from stateflow.private_files import make_own_folder

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"
MASTER = "spark.master"


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
