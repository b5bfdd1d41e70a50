"""The documents stored below a job root, field by field; ``docs/format.md`` describes each.

The documents are frozen. Readers ignore unknown fields, and new fields have defaults.
"""

from stateflow.checkpoint.log.documents.job_format import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.documents.log_entry import (
    Ancestry,
    ClaimedSavepoint,
    EntryKind,
    EntryRef,
    LogEntry,
    OutputPart,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreFacts,
    RestoreStep,
    RetainedLink,
    RetainedSegment,
    Rewind,
    SinkIntent,
    SinkMode,
)
from stateflow.checkpoint.log.documents.manifest import (
    NOT_BEGUN,
    BatchRecord,
    Manifest,
    OperatorState,
    QuarantinedFile,
    SourceFile,
    SourcePosition,
    SourceWatermark,
    SparkPosition,
    SplitWatermark,
)
from stateflow.checkpoint.log.documents.request import Answer, Request, RequestKind
from stateflow.checkpoint.log.documents.savepoint import ClaimState, Origin, Savepoint, SavepointClaim, SavepointFormat

__all__ = [
    "FORMAT_VERSION",
    "NOT_BEGUN",
    "Ancestry",
    "Answer",
    "BatchRecord",
    "ClaimState",
    "ClaimedSavepoint",
    "EntryKind",
    "EntryRef",
    "JobFormat",
    "LogEntry",
    "Manifest",
    "OperatorState",
    "Origin",
    "OutputPart",
    "PendingOutput",
    "Pin",
    "PublishedOutput",
    "QuarantinedFile",
    "Request",
    "RequestKind",
    "RestoreFacts",
    "RestoreStep",
    "RetainedLink",
    "RetainedSegment",
    "Rewind",
    "Savepoint",
    "SavepointClaim",
    "SavepointFormat",
    "SinkIntent",
    "SinkMode",
    "SourceFile",
    "SourcePosition",
    "SourceWatermark",
    "SparkPosition",
    "SplitWatermark",
]
