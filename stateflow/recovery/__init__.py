"""Savepoints, checkpoints out of turn, stops, restores, forks: one implementation for command line and Airflow."""

from stateflow.recovery.checkpoints import CheckpointAsk, trigger_checkpoint
from stateflow.recovery.elsewhere import create_savepoint_into, dispose_path, list_savepoints_in
from stateflow.recovery.forks import ForkAsk, ForkReport, fork
from stateflow.recovery.job_roots import JobCode
from stateflow.recovery.relocation import Check, Relocation, RelocationReport, relocate_source
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
    "Check",
    "CheckpointAsk",
    "ForkAsk",
    "ForkReport",
    "JobCode",
    "Rejection",
    "Relocation",
    "RelocationReport",
    "RestoreReport",
    "SavepointAsk",
    "SavepointReport",
    "create_savepoint",
    "create_savepoint_into",
    "describe_savepoint",
    "dispose",
    "dispose_path",
    "find",
    "fork",
    "list_all",
    "list_savepoints_in",
    "plan_restore",
    "record_rejection",
    "relocate_source",
    "restore",
    "stop",
    "tables_back",
    "trigger_checkpoint",
    "why_no_run",
    "withdraw",
]
