"""Savepoints whose workers are processes, however small the state is, in the process whose environment asks for it."""

from __future__ import annotations

import os
from unittest.mock import patch

from stateflow.checkpoint.savepoints.canonical.worker_pool import SavepointWorkers

VARIABLE = "STATEFLOW_TEST_WORTH_A_WORKER"


def use_workers_from_environment() -> None:
    """Gives each savepoint workers in other processes if its state has more bytes than the environment names."""
    if size := os.environ.get(VARIABLE):
        patch.object(SavepointWorkers, "worth_a_worker", int(size)).start()
