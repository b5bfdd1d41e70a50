"""Options of spark-submit, and the environment and the files that a launched program gets.

A worker's environment usually contains the address of Airflow's database with its password, the key that encrypts
connections, and connections. A driver runs the code of a job, and Spark passes parts of its environment on, so it gets
only what it needs. Settings go to files of the launch folder: all users see a program's arguments.

DAG files import this module, so it imports nothing slow.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from airflow.sdk import conf

from stateflow_airflow.failures import config_failure

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SparkSubmit:
    """Options of spark-submit.

    Args:
        conn_id: Airflow connection of type `spark`; its host is the master, such as ``local[2,4]``.
        conf: Spark settings (``--conf``). The operator renders templates in it.
        env_vars: environment variables of the driver. The operator renders templates in it.
        options: further arguments of SparkSubmitHook by name, such as ``driver_memory`` or ``jars``.
    """

    conn_id: str = "spark_default"
    conf: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_rendered(self, conf: object, env_vars: object) -> SparkSubmit:
        """Returns these options with the rendered settings and variables. Raises PermanentFailure for other values."""
        from stateflow_airflow.operators.template_values import to_settings, to_text

        texts = (
            {key: to_text(value) for key, value in to_settings(name, given).items()}
            for name, given in (("conf", conf), ("env_vars", env_vars))
        )
        return replace(self, conf=next(texts), env_vars=next(texts))


PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME", "COLUMNS"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "MALLOC_*", "OMP_NUM_THREADS", "ARROW_*"),
    *("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_*", "PYSPARK_*", "HADOOP_*", "YARN_*", "HIVE_*"),
    *("KRB5*", "KUBERNETES_*", "STATEFLOW_*", "OTEL_*", "AIRFLOW_CTX_*"),
    *("AWS_*", "AZURE_*", "GOOGLE_*", "GCE_METADATA_*", "SERVICE_ACCOUNT", "WEBHDFS_*"),
    *("SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "*_proxy", "*_PROXY"),
)
"""Patterns of the variables that a program gets. ``*`` matches any characters."""


def collect_environment() -> dict[str, str]:
    """Returns the variables of this worker that a program gets, with those that Airflow's configuration adds."""
    further = conf.get("stateflow", "passed_environment", fallback=None) or ""
    passed = driver_environment(os.environ, parse_patterns(further))
    log.info(
        "The job gets %d of the worker's %d environment variables; [stateflow] passed_environment passes others",
        len(passed),
        len(os.environ),
    )
    return passed


def driver_environment(of_the_worker: Mapping[str, str], further: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables of the worker that a program gets.

    Args:
        of_the_worker: the worker's environment.
        further: patterns in addition to `PASSED`.
    """
    patterns = (*PASSED, *further)
    return {
        name: value for name, value in of_the_worker.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def parse_patterns(text: str) -> list[str]:
    """Returns the patterns in a text, where whitespace or commas separate them."""
    return [pattern for pattern in re.split(r"[\s,]+", text) if pattern]


_NAME = "spark.conf"
SETTINGS = "settings.toml"
"""Name of the file with a job's settings."""


def hide_conf(options: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Moves Spark's settings from the options of spark-submit to a file.

    Args:
        options: the options, without the executable and the program.
        folder: the folder of the launch, in which the program finds the file.

    Returns:
        The options, and the file's content by its name; no file without settings.

    Raises:
        PermanentFailure: the options have a file of settings that cannot be read.
    """
    from stateflow.config import submit_options

    try:
        kept, content = submit_options.hide_conf(options, folder / _NAME)
    except (OSError, UnicodeDecodeError) as error:
        path = submit_options.option(options, submit_options.PROPERTIES_FILE)
        raise config_failure(
            f"the file of Spark settings {path!r} cannot be read on this worker",
            "check the option properties_file",
            properties_file=path,
            reason=str(error),
        ) from error
    return kept, {} if content is None else {_NAME: content}


def settings_file(settings: Mapping[str, str]) -> str:
    """Returns settings by dotted name as TOML."""
    return "".join(f"{_toml(name)} = {_toml(value)}\n" for name, value in settings.items())


def _toml(text: str) -> str:
    # A string of JSON is one of TOML, except for DEL, which TOML does not permit as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
