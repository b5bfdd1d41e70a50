"""Processes whose environment asks for wrong clocks, short timeouts, workers for savepoints of any size, or uploads of
small files in parts."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta
from unittest.mock import patch

from urllib3 import Retry

from stateflow import http
from stateflow.checkpoint.savepoints.canonical.worker_pool import SavepointWorkers
from stateflow.clock import SystemClock
from stateflow.connectors import table_folder
from stateflow.connectors.kafka import client
from stateflow.storage import hdfs, object_store
from stateflow.storage.hdfs import HdfsStorage

CLOCK, TIMEOUT, WORTH_A_WORKER = "STATEFLOW_TEST_CLOCK", "STATEFLOW_TEST_TIMEOUT", "STATEFLOW_TEST_WORTH_A_WORKER"
IN_PARTS = "STATEFLOW_TEST_IN_PARTS"
"""Variables: a seed, seconds, bytes, and bytes."""
_MOST = timedelta(hours=2)
_JUMPS = 0.2
_TRIES = 3


def patch_from_environment() -> None:
    """Changes this process as its environment asks for."""
    if seed := os.environ.get(CLOCK):
        _skew(random.Random(int(seed)))
    if seconds := float(os.environ.get(TIMEOUT) or 0):
        _shorten(seconds)
    if size := os.environ.get(WORTH_A_WORKER):
        # Savepoints have workers in other processes if their state has more bytes than these.
        patch.object(SavepointWorkers, "worth_a_worker", int(size)).start()
    if size := os.environ.get(IN_PARTS):
        # A file with more bytes is uploaded in parts.
        patch.object(object_store, "_SINGLE_PUT", int(size)).start()
        patch.object(table_folder, "_IN_MEMORY", int(size)).start()


def _skew(rng: random.Random) -> None:
    """Makes `SystemClock.now` wrong by up to two hours; it jumps periodically, also back."""
    right, wrong_by = SystemClock.now, [rng.uniform(-1, 1) * _MOST]

    def now(self: SystemClock) -> datetime:
        if rng.random() < _JUMPS:
            wrong_by[0] = rng.uniform(-1, 1) * _MOST
        return right(self) + wrong_by[0]

    patch.object(SystemClock, "now", now).start()


def _shorten(seconds: float) -> None:
    """Gives each request so many seconds instead of a minute, and few tries."""
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
