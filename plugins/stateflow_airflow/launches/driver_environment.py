"""The environment of a launched program: the worker's, without what only Airflow needs.

A worker's environment usually contains the address of Airflow's database with its password, the key that encrypts
connections, and connections. A driver runs the code of a job, and Spark passes parts of its environment on.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from airflow.sdk import conf

log = logging.getLogger(__name__)

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME", "COLUMNS"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "MALLOC_*", "OMP_NUM_THREADS", "ARROW_*"),
    *("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_*", "PYSPARK_*", "HADOOP_*", "YARN_*", "HIVE_*"),
    *("KRB5*", "KUBERNETES_*", "STATEFLOW_*", "OTEL_*", "AIRFLOW_CTX_*"),
    *("AWS_*", "AZURE_*", "GOOGLE_*", "WEBHDFS_*"),
    *("SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "*_proxy", "*_PROXY"),
)
"""Patterns of the variables that a program gets. ``*`` matches any characters."""


def passed_environment() -> dict[str, str]:
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
