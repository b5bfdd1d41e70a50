"""Operations on a job root, shared by the command line and the Airflow operators.

- `status`, `health`, `checkpoints`, `partitions`, `job_root`: reading a job: its description, its state in a word, its
  history and complete days
- `job_savepoints`, `external_savepoints`, `written_savepoints`, `changed_savepoints`: creation, listing and copies
- `savepoint_disposal`, `savepoint_retention`, `savepoint_differences`: deletion of savepoints, and which periodic ones
  stay; comparison of two
- `restores`, `restore_previews`, `forks`: restores of a job, plans without its job file, and new jobs from its state
- `garbage`, `tables`, `relocation`: unreferenced files, Delta tables of sinks, moved sources
- `verification`, `doctor`, `compatibility`: checks of stored files, of the machine, and of a job's code
- `state_export`: the state of a checkpoint as files
"""

from stateflow.operations.checkpoints import (
    ActionEntry,
    CheckpointDescription,
    CheckpointEntry,
    CheckpointRequest,
    Entry,
    OperatorDescription,
    Timeline,
    describe_checkpoint,
    history,
    list_points,
    timeline,
    trigger_checkpoint,
    verify_history,
)
from stateflow.operations.external_savepoints import (
    RekeyRequest,
    create_savepoint_into,
    initial_savepoint,
    list_savepoints_in,
    rekey_savepoint,
)
from stateflow.operations.forks import ForkReport, ForkRequest, fork
from stateflow.operations.garbage import GarbageReport, can_delete, collect_garbage, explain_files
from stateflow.operations.job_root import JobCode, drop_pin, require_job
from stateflow.operations.job_savepoints import (
    SavepointDescription,
    SavepointReport,
    SavepointRequest,
    create_savepoint,
    describe_contents,
    describe_savepoint,
    find,
    list_all,
    stop,
    why_no_run,
    withdraw,
)
from stateflow.operations.relocation import FileCheck, Relocation, RelocationReport, relocate_source
from stateflow.operations.restores import (
    Rejection,
    RestoreReport,
    plan_restore,
    read_restored_tables,
    record_rejection,
    restore,
)
from stateflow.operations.savepoint_disposal import dispose, dispose_path
from stateflow.operations.savepoint_retention import PruneReport, prune_savepoints
from stateflow.operations.status import (
    BackgroundFailure,
    Claimed,
    JobDescription,
    NewestCheckpoint,
    PendingRestore,
    PinReport,
    ReadInput,
    RunFailure,
    describe,
    list_pins,
    measure_backlog,
    newest_checkpoint,
    read_input,
    run_name,
)
from stateflow.operations.tables import VacuumRequest, optimize_tables, vacuum_tables
from stateflow.operations.verification import Verification, Verified, verify, verify_head, verify_savepoint

__all__ = [
    "ActionEntry",
    "BackgroundFailure",
    "CheckpointDescription",
    "CheckpointEntry",
    "CheckpointRequest",
    "Claimed",
    "Entry",
    "FileCheck",
    "ForkReport",
    "ForkRequest",
    "GarbageReport",
    "JobCode",
    "JobDescription",
    "NewestCheckpoint",
    "OperatorDescription",
    "PendingRestore",
    "PinReport",
    "PruneReport",
    "ReadInput",
    "Rejection",
    "RekeyRequest",
    "Relocation",
    "RelocationReport",
    "RestoreReport",
    "RunFailure",
    "SavepointDescription",
    "SavepointReport",
    "SavepointRequest",
    "Timeline",
    "VacuumRequest",
    "Verification",
    "Verified",
    "can_delete",
    "collect_garbage",
    "create_savepoint",
    "create_savepoint_into",
    "describe",
    "describe_checkpoint",
    "describe_contents",
    "describe_savepoint",
    "dispose",
    "dispose_path",
    "drop_pin",
    "explain_files",
    "find",
    "fork",
    "history",
    "initial_savepoint",
    "list_all",
    "list_pins",
    "list_points",
    "list_savepoints_in",
    "measure_backlog",
    "newest_checkpoint",
    "optimize_tables",
    "plan_restore",
    "prune_savepoints",
    "read_input",
    "read_restored_tables",
    "record_rejection",
    "rekey_savepoint",
    "relocate_source",
    "require_job",
    "restore",
    "run_name",
    "stop",
    "timeline",
    "trigger_checkpoint",
    "vacuum_tables",
    "verify",
    "verify_head",
    "verify_history",
    "verify_savepoint",
    "why_no_run",
    "withdraw",
]
