"""Operations on a job root, shared by the command line and the Airflow operators."""

from stateflow.operations.checkpoints import (
    CheckpointDescription,
    CheckpointRequest,
    OperatorDescription,
    Timeline,
    describe_checkpoint,
    history,
    timeline,
    trigger_checkpoint,
    undone,
    verify_history,
)
from stateflow.operations.external_savepoints import create_savepoint_into, list_savepoints_in
from stateflow.operations.forks import ForkReport, ForkRequest, fork
from stateflow.operations.garbage import GarbageReport, can_delete, collect_garbage, explain_files
from stateflow.operations.job_root import JobCode, drop_pin, list_pins, require_job
from stateflow.operations.relocation import FileCheck, Relocation, RelocationReport, relocate_source
from stateflow.operations.restores import (
    Rejection,
    RestoreReport,
    plan_restore,
    record_rejection,
    restore,
    restored_tables,
)
from stateflow.operations.savepoint_disposal import dispose, dispose_path
from stateflow.operations.savepoint_retention import PruneReport, prune_savepoints
from stateflow.operations.savepoints import (
    SavepointReport,
    SavepointRequest,
    create_savepoint,
    describe_savepoint,
    find,
    list_all,
    stop,
    why_no_run,
    withdraw,
)
from stateflow.operations.status import (
    BackgroundFailure,
    JobDescription,
    PendingRestore,
    Quarantined,
    RunFailure,
    describe,
)
from stateflow.operations.verification import Verification, Verified, verify, verify_head, verify_savepoint

__all__ = [
    "BackgroundFailure",
    "CheckpointDescription",
    "CheckpointRequest",
    "FileCheck",
    "ForkReport",
    "ForkRequest",
    "GarbageReport",
    "JobCode",
    "JobDescription",
    "OperatorDescription",
    "PendingRestore",
    "PruneReport",
    "Quarantined",
    "Rejection",
    "Relocation",
    "RelocationReport",
    "RestoreReport",
    "RunFailure",
    "SavepointReport",
    "SavepointRequest",
    "Timeline",
    "Verification",
    "Verified",
    "can_delete",
    "collect_garbage",
    "create_savepoint",
    "create_savepoint_into",
    "describe",
    "describe_checkpoint",
    "describe_savepoint",
    "dispose",
    "dispose_path",
    "drop_pin",
    "explain_files",
    "find",
    "fork",
    "history",
    "list_all",
    "list_pins",
    "list_savepoints_in",
    "plan_restore",
    "prune_savepoints",
    "record_rejection",
    "relocate_source",
    "require_job",
    "restore",
    "restored_tables",
    "stop",
    "timeline",
    "trigger_checkpoint",
    "undone",
    "verify",
    "verify_head",
    "verify_history",
    "verify_savepoint",
    "why_no_run",
    "withdraw",
]
