"""Timeouts of storages and of the Kafka sink that are short, in the process whose environment asks for them."""

from __future__ import annotations

import os
from datetime import timedelta
from unittest.mock import patch

from urllib3 import Retry

from stateflow import http
from stateflow.connectors.kafka import client
from stateflow.storage import hdfs, object_store
from stateflow.storage.hdfs import HdfsStorage

VARIABLE = "STATEFLOW_TEST_TIMEOUT"
_TRIES = 3


def shorten_from_environment() -> None:
    """Gives each request the seconds that the environment names instead of a minute, and few tries."""
    seconds = float(os.environ.get(VARIABLE) or 0)
    if not seconds:
        return
    retries = Retry(
        total=_TRIES, backoff_factor=0.01, status_forcelist=(502, 503, 504), allowed_methods=None, raise_on_status=False
    )
    timeout = timedelta(seconds=seconds)
    backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
    bounded = {"max_retries": _TRIES, "retry_timeout": 5 * timeout, "backoff": backoff}
    for module, name, value in (
        (hdfs, "_TIMEOUT", (seconds, seconds)),
        (http, "_TRANSFER_SECONDS", seconds),
        (object_store, "_CLIENT", {"timeout": timeout, "connect_timeout": timeout}),
        (object_store, "_RETRIES", bounded),
        (client, "TIMEOUT_SECONDS", seconds),
    ):
        patch.object(module, name, value).start()
    patch.object(HdfsStorage.__init__, "__defaults__", (retries,)).start()
