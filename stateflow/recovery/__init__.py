"""Savepoints, checkpoints out of turn, stops, restores, forks: one implementation for command line and Airflow."""

from stateflow.recovery.checkpoints import CheckpointAsk, trigger_checkpoint
from stateflow.recovery.forks import ForkAsk, ForkReport, fork
from stateflow.recovery.job_roots import JobCode
from stateflow.recovery.restores import (
    Rejection,
    RestoreReport,
    plan_restore,
    record_rejection,
    restore,
    tables_back,
)
from stateflow.recovery.savepoints import (
    SavepointAsk,
    SavepointReport,
    create_savepoint,
    describe_savepoint,
    dispose,
    find,
    list_all,
    stop,
    why_no_run,
    withdraw,
)

__all__ = [
    "CheckpointAsk",
    "ForkAsk",
    "ForkReport",
    "JobCode",
    "Rejection",
    "RestoreReport",
    "SavepointAsk",
    "SavepointReport",
    "create_savepoint",
    "describe_savepoint",
    "dispose",
    "find",
    "fork",
    "list_all",
    "plan_restore",
    "record_rejection",
    "restore",
    "stop",
    "tables_back",
    "trigger_checkpoint",
    "why_no_run",
    "withdraw",
]
