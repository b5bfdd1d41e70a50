"""The documents stored below a job root, field by field; ``docs/format.md`` describes each.

In order: FORMAT, the manifest of a checkpoint, the entry of the log, savepoints, requests to a run, and the records of
the history. The documents are frozen. Readers ignore unknown fields, and new fields have defaults.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import takewhile
from typing import Annotated

import msgspec
from msgspec.structs import replace

from stateflow.clock import parse_timestamp
from stateflow.outputs import EventTime, OptionalId, OptionalText, Person, Timestamp
from stateflow.state.handles import (
    Committable,
    Document,
    FileHandle,
    Int64,
    OperatorPart,
    Parallelism,
    StateSchema,
    SubtaskState,
)

FORMAT_VERSION = 1


class JobFormat(Document, frozen=True, kw_only=True):
    """`FORMAT`: the job that a job root belongs to; created once, never changed."""

    version: int
    job: str
    job_uuid: str
    max_parallelism: Parallelism
    key_types: dict[str, list[str]]
    """Spark type names of the key columns, by uid of each keyed operator that the job had when it was created."""
    forked_from: str = ""
    """Origin of a fork: a savepoint's id, or job uuid and checkpoint. Empty for any other job."""
    begun_with: str = ""
    """URI of the savepoint that the job root was created from; empty for any other job."""
    shadow: bool
    """Whether every run publishes to shadow tables instead of the tables that the job file names."""


_SHOWN = 12
"""Digits of a hash that messages show."""
NOT_BEGUN = "-"
"""The offset of a source that had no data yet, as in Spark's offset log."""


class OperatorState(Document, frozen=True, kw_only=True):
    """The state of one keyed operator at a barrier."""

    uid: str
    parallelism: Parallelism
    key_types: list[str]
    key_names: list[str]
    """Names of the key columns in their order."""
    states: list[StateSchema]
    subtasks: list[SubtaskState]
    operator_states: list[StateSchema] = []
    """Schemas of the declared operator state."""
    parts: list[OperatorPart] = []
    """Operator state by subtask, without subtasks that have none."""
    watermark: Int64 | None = None
    """Watermark of its batch, in milliseconds since 1970; None before the first watermark."""

    def __post_init__(self) -> None:
        if len(self.key_names) != len(self.key_types):
            raise ValueError("an operator does not have a name for each key column")

    @property
    def files(self) -> list[FileHandle]:
        """The state files; one file may occur several times."""
        keyed = [f.handle for s in self.subtasks for f in s.files]
        return keyed + [part.handle for part in self.parts if part.handle]

    @property
    def has_state(self) -> bool:
        """Whether any subtask has keyed or operator state."""
        return bool(self.subtasks or self.parts)


class SourceFile(Document, frozen=True, kw_only=True):
    """A file of Spark's ``sources/`` log; the manifest contains small files inline."""

    path: str
    content: bytes | None = None
    handle: FileHandle | None = None


class SourcePosition(Document, frozen=True, kw_only=True):
    """The position up to which one source has been read."""

    uid: str
    description: str
    offset: str
    """The source's own JSON, as in Spark's offset log; ``-`` when the source had no data yet."""


class SplitWatermark(Document, frozen=True, kw_only=True):
    """The watermark of one split of a source, such as a partition of Kafka; fields as in `SourceWatermark`."""

    name: str
    watermark: Int64 | None = None
    active_at: Int64
    idle: bool = False


class SourceWatermark(Document, frozen=True, kw_only=True):
    """The watermark of one source, and whether the source is idle."""

    uid: str
    watermark: Int64 | None = None
    """In milliseconds since 1970; None before the first row."""
    active_at: Int64
    """Processing time, in milliseconds, of the last batch with rows of this source; of the first batch if none had."""
    idle: bool = False
    splits: list[SplitWatermark] = []
    """Of a source whose splits have a watermark each: the source's is the lowest of those that are not idle."""


class TimeSpan(Document, frozen=True, kw_only=True):
    """How many rows have an event time in a span, in milliseconds since 1970."""

    first: Int64
    last: Int64
    rows: Int64


class HoldingSource(Document, frozen=True, kw_only=True):
    """A source that holds a watermark back."""

    uid: str
    split: str = ""
    """Name of the split that does; empty if its splits have no watermarks."""


class WaitingRows(Document, frozen=True, kw_only=True):
    """Rows that an operator has taken, with event times above its watermark after the batch."""

    operator: str
    """Uid of the operator."""
    inputs: list[str]
    """Uid of the source that the rows come from; of rows of several sources, or of operators, all uids in order."""
    rows: Int64
    exact: bool = True
    """Whether `rows` is exact. Else a span reaches from below to above the watermark, and all of its rows count."""
    waits_for: list[HoldingSource] = []
    """The sources that hold the watermark back. Empty if none does: then the rows only wait for later ones of their own
    source."""
    watermark: Int64 | None = None
    """The operator's watermark in the next batch, in milliseconds since 1970; None before the first one."""
    spans: list[TimeSpan] = []
    """The event times of the rows, so that the rows that the watermark passes later are known."""


class SparkPosition(Document, frozen=True, kw_only=True):
    """Content of a new Spark checkpoint location that continues after this checkpoint."""

    batch_id: int
    offsets: bytes
    previous_offsets: bytes | None
    commit: bytes
    source_files: list[SourceFile]


class QuarantinedFile(Document, frozen=True, kw_only=True):
    """An input file that could not be read and was skipped as a whole: none of its rows was processed."""

    source: str
    """Uid of the source."""
    file: str
    """Path of a local file, otherwise its URI."""
    error: str
    """Spark's error message."""
    at: str
    generation: int
    """Generation of the run that skipped the file."""


class BatchRecord(Document, frozen=True, kw_only=True):
    """One batch of a checkpoint: what determines its result, apart from the state before it and the rows."""

    ordinal: Int64
    processing_time: str
    """In UTC, with microseconds."""
    checkpoint_id: Int64
    """The newest checkpoint when the batch started, of which functions were notified; 0 without one."""
    offsets: list[str] = []
    """The position of each source at its end, in the order of `Manifest.sources`; empty for the last batch of a
    checkpoint, whose positions are those of the manifest."""
    spark_time: Int64 | None = None
    """Spark's time of the batch, in milliseconds since 1970; None without Spark, and for the last batch, whose offset
    log is in the manifest."""
    watermarks: dict[str, Int64 | None] = {}
    """The watermark of each operator in this batch, by uid; empty if they follow from the batch before."""


class Manifest(Document, frozen=True, kw_only=True):
    """Everything that one checkpoint consists of, except for what its log entry contains."""

    job_uuid: str
    generation: int
    ordinal: int
    operators: list[OperatorState]
    sources: list[SourcePosition]
    spark: SparkPosition | None = None
    watermarks: list[SourceWatermark] = []
    """Of the sources with a watermark strategy; the next batch's watermark is computed from them."""
    waiting: list[WaitingRows] = []
    """Of operators whose watermark comes from several sources, or splits of one."""
    output_watermark: Int64 | None = None
    """Lowest watermark of the operators that have one, in milliseconds since 1970: what they emit for earlier event
    times is in the output of this checkpoint and those before it. None before the first one."""
    increment_bytes: int = 0
    """Bytes of state written for this checkpoint alone, without compactions."""
    compaction_bytes: int = 0
    """Bytes of state that compactions wrote for it: old data in new files."""
    full_bytes: int = 0
    """Bytes of all state that it refers to."""
    epoch: int = 0
    """One more than the epoch of the checkpoint that its batch started from, across restores and forks. State that a
    batch appends to has the epoch in its keys, which keeps its order."""
    columns: dict[str, dict[str, str]] = {}
    """By source uid: the columns that the job declared, with their Spark types."""
    record: CheckpointRecord | None = None
    """Record of this checkpoint, as known before the COMMIT; None in manifests that a restore imported."""
    history: list[CheckpointRecord] = []
    """Pending records: of earlier checkpoints that no object of the history contains yet."""
    quarantined: list[QuarantinedFile] = []
    """Input files skipped up to this checkpoint, oldest first; only the newest when there are many."""
    quarantined_count: int = 0
    """Number of input files skipped up to this checkpoint, including those that `quarantined` no longer lists."""
    drained: bool = False
    """Whether every event-time timer was fired, whatever the watermark, and no row was processed since."""
    parent: Int64 | None = None
    """Id of the checkpoint from whose state its first batch started, 0 for none; None in
    manifests that a restore imported."""
    batches: list[BatchRecord] = []
    """The batches since `parent`, oldest first; empty where they were too many."""
    code: str = ""
    """Hash of the job file and the modules next to it that made the checkpoint; empty for state that no run made."""

    def code_difference(self, code: str) -> str:
        """Returns a sentence if other code made the checkpoint than the code with this hash; empty if none is known."""
        if not self.code or not code or self.code == code:
            return ""
        return f"the job's code ({code[:_SHOWN]}) is not the code of the checkpoint ({self.code[:_SHOWN]})"

    def pending_records(self, checkpoint_id: int) -> list[CheckpointRecord]:
        """Returns the checkpoint records that only this manifest contains, oldest first, including its own.

        Args:
            checkpoint_id: id of the manifest's own checkpoint, which the manifest does not contain.
        """
        own = [replace(self.record, checkpoint_id=checkpoint_id)] if self.record else []
        return [*self.history, *own]


class PendingOutput(Document, frozen=True, kw_only=True):
    """Output of one checkpoint in one sink that is not known to be published."""

    checkpoint_id: int
    """0 in the COMMIT that adds it, where it means the COMMIT's own sequence number."""
    sink: str
    committables: list[Committable]
    """Empty when they are in `parts`."""
    parts: list[FileHandle] = []
    """Objects with the committables, each an `OutputPart`, when there are too many for a log entry."""


class OutputPart(Document, frozen=True, kw_only=True):
    """Committables of one checkpoint in one sink, stored as an object that log entries refer to."""

    committables: list[Committable]


class PublishedOutput(Document, frozen=True, kw_only=True):
    """The position of a sink's table, as known to the log."""

    table_id: str
    version: int
    checkpoint_id: int
    """The last checkpoint whose output was published there; 0 when there is none."""

    @property
    def known_version(self) -> int | None:
        """Its version; None if it is not known, as after a restore."""
        return self.version if self.version >= 0 else None


class EntryRef(Document, frozen=True, kw_only=True, eq=False):
    """A reference to a checkpoint: sequence number and hash of its log entry, and what readers need of that entry.

    Number and hash identify it; the other fields follow from them.
    """

    id: int
    sha256: str
    manifest: FileHandle
    at: str
    """When it was committed."""
    savepoint: str = ""
    """Label of the savepoint that its state came from, for display; empty for a COMMIT."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryRef) and (self.id, self.sha256) == (other.id, other.sha256)

    def __ne__(self, other: object) -> bool:
        # Without this, msgspec's own `__ne__` would compare every field.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.id, self.sha256))


class RetainedLink(Document, frozen=True, kw_only=True):
    """A link to a `RetainedSegment` and, through it, to the segments before."""

    handle: FileHandle
    newest: int
    """Id of the newest checkpoint of the segment that is retained; a restore may have dropped later ones."""


class RetainedSegment(Document, frozen=True, kw_only=True):
    """A list of retained checkpoints, stored as an immutable object that log entries refer to."""

    refs: list[EntryRef]
    """Oldest first."""
    before: RetainedLink | None = None
    """The segment with older checkpoints."""


class Pin(Document, frozen=True, kw_only=True):
    """A lock that keeps a checkpoint from garbage collection while a reader uses it."""

    id: str
    checkpoint: EntryRef
    owner: str
    reason: str
    since: str
    generation: int = 0
    """Generation of the run that reads; its pins end with the next CLAIM. 0 for other readers, whose pins stay until
    they are removed."""
    until: str = ""
    """The end of a lease, by the owner's clock, which its owner renews: the first entry that is written after it drops
    the pin. Empty for a pin without an end."""


class ClaimedSavepoint(Document, frozen=True, kw_only=True):
    """A savepoint that the job owns, or has begun to claim, until the log records that it is deleted or released."""

    folder: str
    """Key prefix of its folder in the job root; for any other savepoint, the URI of its folder."""
    id: str
    name: str
    generation: int
    """The generation that claims it; 0 for the savepoint that a job root begins with."""
    checkpoint: int = 0
    """Id of the job's checkpoint that adopted its state: the savepoint is deleted once this is no longer kept. 0 while
    no entry adopts it: the claim is undone once a newer run has claimed the job."""


class SinkMode(StrEnum):
    """Actions of a restore on a sink's table."""

    RESTORE = "restore"
    KEEP = "keep"


class SinkIntent(Document, frozen=True, kw_only=True):
    """The change that a restore must make to one table before the job continues."""

    table_id: str
    mode: SinkMode
    to_version: int | None = None
    """The table version to restore, or the newest version when there was nothing to undo; None for a kept table."""
    seen_version: int | None
    """The newest version that the plan saw; later commits of other writers are never undone. None for a kept table."""
    takes_over: dict[str, int | None] = {}
    """The applications of other job roots that must no longer write to the table, with the token that each may have;
    None for any."""

    def __post_init__(self) -> None:
        if self.to_version is not None and self.seen_version is None:
            raise ValueError("a table is restored, and the newest version that the plan saw is missing")

    @property
    def is_checked(self) -> bool:
        """Whether the applications of `takes_over` may only have the tokens of the plan."""
        return None not in self.takes_over.values()


class RestoreFacts(Document, frozen=True, kw_only=True):
    """Requester, reason, start and target of a restore, for display."""

    request: str
    """Id of the request; empty when a start rewinds without a request."""
    by: str
    requested_by: str = ""
    """Who requested it, if `by` is another person, who approved it."""
    reason: str = ""
    note: str = ""
    """What the person entered who approved it."""
    label: str
    """The restored checkpoint or savepoint."""
    base: int
    """The restored checkpoint's id; 0 for another job's."""
    left: int
    """The job's checkpoint before the restore."""
    undone: list[int] = []
    """Retained checkpoints that can no longer be restored."""
    at: str
    bytes: int = 0
    """Size of the restored state, without dropped state."""
    rows_removed: int | None = None
    """Rows that the plan removes from tables; None if a table does not tell, and without a plan."""
    of_job: str = ""
    """Name and uuid of the other job whose savepoint it was; empty otherwise."""
    savepoint_path: str = ""
    """Path of another job's savepoint."""
    is_claimed: bool = False
    """Whether the savepoint was claimed: the job deletes it."""
    is_imported: bool = False
    """Whether the state was imported: then the restore's CLAIM is a checkpoint itself, with an id of its own."""
    sinks_left: list[str] = []
    """Sinks that the job lacks and that have output after the target: the restore keeps their tables."""


class Rewind(Document, frozen=True, kw_only=True):
    """The intent of a restore: every later start completes it before anything else."""

    seq: int
    """Sequence number of the CLAIM that added it. It becomes the token of every table, so that a paused driver finds a
    higher token."""
    sinks: dict[str, SinkIntent]
    restore: RestoreFacts | None = None
    """Written into the history by the start that completes the restore."""


class RestoreStep(Document, frozen=True, kw_only=True):
    """One restore in the ancestry of the current state."""

    seq: int
    """Sequence number of the restore's CLAIM."""
    base: int
    """Id of the restored checkpoint; 0 for another job's."""
    watermark: Int64 | None = None
    """`output_watermark` of the restored state; None before the first one."""


class Ancestry(Document, frozen=True, kw_only=True):
    """The restores that determine which checkpoints the current state descends from."""

    restores: list[RestoreStep] = []
    """Oldest first."""


class EntryKind(StrEnum):
    """The kind of a log entry: CLAIM by a starting run, COMMIT of a checkpoint, ADMIN by commands and ending runs."""

    CLAIM = "claim"
    COMMIT = "commit"
    ADMIN = "admin"


class LogEntry(Document, frozen=True, kw_only=True):
    """`log/<seq>`: one step of the job's history. The newest entry is the complete current state of the job."""

    job_uuid: str
    seq: int
    kind: EntryKind
    generation: int
    ordinal: int
    writer: str
    nonce: str
    parent: str
    """SHA-256 of the previous entry; empty in the first."""
    at: str
    """When it was written, by the writer's clock; for display only."""
    note: str = ""
    checkpoint: EntryRef | None = None
    """The checkpoint that a start continues from; None in an entry that is a checkpoint itself, and in a job without
    checkpoints."""
    manifest: FileHandle | None = None
    """The state and positions that a start continues from."""
    savepoint: str = ""
    """Label of the savepoint that they came from, for display; empty when they are a checkpoint's."""
    run: str
    """Nonce of the generation's CLAIM, which identifies the run."""
    retained: list[EntryRef] = []
    """Older retained checkpoints, oldest first; without `checkpoint`, and without those in `retained_before`."""
    retained_before: RetainedLink | None = None
    """Retained checkpoints before those in `retained`; None when there are few."""
    oldest_retained: int = 0
    """No checkpoint below this number is retained, whatever `retained_before` contains."""
    pinned: list[Pin] = []
    claimed_savepoints: list[ClaimedSavepoint] = []
    sources: list[SourcePosition] = []
    pending: list[PendingOutput] = []
    published: dict[str, PublishedOutput] = {}
    requests: list[str] = []
    """Ids of restore requests that were carried out, so that a retry of one does not restore twice."""
    claimed_for: str = ""
    """Id of the restore request that claimed the job last and may not have proceeded; a retry of that request finds its
    own CLAIM, and the job as its plan saw it."""
    rewind: Rewind | None = None
    """A restore whose tables are not all known to be rewound."""
    ended: bool = False
    """Whether the run ended cleanly, so that no run works on the job."""
    ancestry: Ancestry
    collected: int = 0
    """The newest entry when a run last looked through all data for garbage; 0 when none did."""
    runs: int
    """How many runs have claimed the job, including this one."""
    history: FileHandle | None = None
    """The index of the history, with the hashes of its objects; None before the first. No step of a run depends on
    it."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether the entry is a checkpoint itself: a COMMIT, or a CLAIM that imported state from a savepoint."""
        adopts = self.kind is EntryKind.CLAIM and self.checkpoint is None and self.manifest is not None
        return adopts or self.kind is EntryKind.COMMIT


class Origin(StrEnum):
    """Why a savepoint was taken. Retention by age and number applies to periodic savepoints only."""

    MANUAL = "manual"
    PERIODIC = "periodic"
    STOP = "stop"
    UPGRADE = "upgrade"


class SavepointFormat(StrEnum):
    """How a savepoint stores keyed state."""

    NATIVE = "native"
    """As the state backend stored it."""
    CANONICAL = "canonical"
    """In a format that is independent of the state backend."""


class ClaimState(StrEnum):
    """The state of a savepoint's owner according to a slot in ``claims/``."""

    CLAIMED = "claimed"
    """A job owns it, and deletes it."""
    RELEASED = "released"
    """A claim was undone: the user owns it, and any job may claim it."""
    DELETED = "deleted"
    """A user is deleting it: no job may claim it."""


class SavepointClaim(Document, frozen=True, kw_only=True):
    """``claims/<number>`` in a savepoint's folder; the slot with the highest number counts."""

    state: ClaimState
    job: str = ""
    job_uuid: str = ""
    """The job that has claimed or released it; empty for a deletion."""
    job_root: str = ""
    """URI of that job's root, for information."""
    generation: Int64 = 0
    """The job's generation that wrote the slot; 0 in a job root that begins with the savepoint."""
    by: str
    at: str
    """When it was written, by the writer's clock; for information."""


class Savepoint(Document, frozen=True, kw_only=True):
    """`_savepoint` in a savepoint's folder. It is written last: a folder without it is not a savepoint."""

    version: int
    id: str
    name: str
    origin: Origin
    made_at: str
    committed_at: str
    """When its checkpoint was committed, according to the log."""
    by: str
    requested_by: str = ""
    """Who requested it, if `by` is another person, who approved it."""
    reason: str = ""
    note: str = ""
    """What the person entered who approved it."""
    request: str = ""
    """Id of the request that it answers, so that the same request is not answered twice."""
    generation: int = 0
    """Generation of the run that created it for a request; the run's answer decides whether it is kept. 0 when it was
    created outside of a run."""
    drained: bool = False
    format: SavepointFormat = SavepointFormat.NATIVE
    job: str
    job_uuid: str
    max_parallelism: Parallelism
    checkpoint_id: int
    manifest: Manifest
    """The checkpoint's manifest, with keys relative to the savepoint's folder."""
    sinks: dict[str, PublishedOutput]
    """Position of each sink after this checkpoint's output was published, as far as the log knew."""
    stateflow: str = ""
    positions: dict[str, str] = {}
    """By uid of the source, where it continues as the caller of `SavepointWriter` stated it, such as ``latest``."""


class RequestKind(StrEnum):
    """The kinds of requests to a run."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Request(Document, frozen=True, kw_only=True):
    """`requests/<id>`: a request from outside to the job's run."""

    id: str
    kind: RequestKind
    savepoint: str
    """Name of the savepoint to take."""
    origin: Origin
    by: str
    requested_by: str = ""
    """Who requested it, if `by` is another person, who approved it."""
    reason: str = ""
    note: str = ""
    """What the person entered who approved it."""
    drain: bool = False
    format: SavepointFormat | None = None
    """The format of the savepoint; None for the default of the run, which depends on the kind."""
    full: bool = False
    """For a checkpoint: whether it must not share files with any earlier checkpoint."""
    at: str
    until: str = ""
    """When the requester stops waiting, by its own clock; a run withdraws the request then. Empty: never."""
    generation: int = 0
    """The only run that the request is for; a newer one withdraws it. 0 for any run."""
    takes_over: bool = False
    """For a stop: whether a newer run asks for it, which continues the job."""


class RequestAnswer(Document, frozen=True, kw_only=True):
    """`requests/<id>.done`: the outcome of a request; the first writer decides it."""

    id: str
    status: str
    """``done``, ``failed`` or ``withdrawn``."""
    checkpoint_id: int = 0
    """The savepoint's checkpoint; without a savepoint, the run's checkpoint when it answered."""
    savepoint_id: str = ""
    savepoint: str = ""
    """URI of the savepoint."""
    code: str = ""
    message: str = ""
    by: str = ""
    at: str


COMPLETED, ABORTED = "completed", "aborted"
StoredEventTime = Annotated[EventTime, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An event time within 64 bits."""
SAVEPOINT_RECORD = "savepoint"
"""Kind of the records of created savepoints."""


class Spread(Document, frozen=True, kw_only=True):
    """Minimum, average and maximum of a metric over subtasks."""

    min: float
    avg: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value."""
        return cls(min=min(values), avg=round(sum(values) / len(values), 3), max=max(values))


class SubtaskMetrics(Document, frozen=True, kw_only=True):
    """What a subtask of an operator has done in a batch."""

    subtask: int
    rows_in: int
    state_bytes: int
    """Bytes of its keyed state at the end."""
    function_ms: float
    cpu_ms: float


class OperatorMetrics(Document, frozen=True, kw_only=True):
    """What the subtasks of an operator have done in the batches of a checkpoint, together."""

    subtasks: int
    """Their number."""
    rows_in: int = 0
    rows_out: int = 0
    """Rows that it has emitted, to all outputs, before functions that follow in the same task."""
    rows_filtered: int = 0
    """Rows that functions of `filter` after it, in the same task, have dropped."""
    rows_late: int = 0
    """Rows whose event time was not after its watermark when the batch began, whether they were dropped or not."""
    rows_dropped: int = 0
    """Rows that it has dropped because they were too late."""
    dead_letters: int = 0
    state_bytes: int = 0
    """Bytes of its keyed state at the end."""
    live_bytes: int | None = None
    """Approximate size of `live_entries`; None if a subtask does not know. Unlike `state_bytes`, without entries that
    were overwritten or deleted, which the files of RocksDB have until a compaction."""
    state_entries: int | None = None
    """Entries of its keyed state at the end: values, elements, timers; None if a subtask does not know."""
    live_entries: int | None = None
    """At least so many entries were neither overwritten nor deleted; None if a subtask does not know."""
    state_entries_exact: bool = True
    """Whether `state_entries` is exact; RocksDB estimates it."""
    function_ms: float = 0.0
    """Time in the functions of the job; for a function of rows, with decoding and encoding the values of its state."""
    state_ms: float = 0.0
    """Time of encoding keys, and of reading and writing state for many keys at once."""
    store_ms: float = 0.0
    """Time in the stores, with opening them and their snapshots; of calls for one key, one in 64 is measured."""
    cpu_ms: float = 0.0
    """CPU time of the processes of the tasks."""
    busiest_subtask_rows: int = 0
    """Of each batch, the rows of the subtask that had most; the sum over the batches."""
    skew_ratio: float = 1.0
    """`busiest_subtask_rows` by the average of the subtasks: 1 if all had as many, their number if one had all."""
    watermark_at: StoredEventTime | None = None
    """Watermark in the last batch; None before the first one."""
    watermark_lag_ms: int | None = None
    """Processing time of the last batch minus the watermark; None without a watermark."""
    spread: dict[str, Spread] = {}
    """Over the subtasks, in the last batch: ``rows_in``, ``state_bytes``, ``function_ms``, ``cpu_ms``."""
    busiest: list[SubtaskMetrics] = []
    """The subtasks with the most rows in the last batch, or without rows those with the largest state; five at most."""

    def plus(self, later: OperatorMetrics) -> OperatorMetrics:
        """Returns the metrics of these batches and later ones."""
        summed = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        most, total = summed["busiest_subtask_rows"], summed["rows_in"]
        return replace(later, **summed, skew_ratio=skew(most, total, later.subtasks))


_SUMMED = (
    *("rows_in", "rows_out", "rows_filtered", "rows_late", "rows_dropped", "dead_letters", "busiest_subtask_rows"),
    *("function_ms", "state_ms", "store_ms", "cpu_ms"),
)
"""Fields of `OperatorMetrics` that are sums over batches; the others are values of the last one."""


def total_of(numbers: Sequence[int | None]) -> int | None:
    """Returns the sum of numbers; None if one is not known."""
    return None if None in numbers else sum(each or 0 for each in numbers)


def skew(most: float, total: float, subtasks: int) -> float:
    """Returns the most of a subtask by the average of all subtasks; 1 without any."""
    return round(most * subtasks / total, 3) if total else 1.0


class SinkMetrics(Document, frozen=True, kw_only=True):
    """What was published to a sink with a checkpoint."""

    rows: int = 0
    written_bytes: int = 0
    """Size of the files, or records, that tasks have written."""
    files: int = 0
    publish_ms: float = 0.0
    """Duration of the publication."""

    def plus(self, later: SinkMetrics) -> SinkMetrics:
        """Returns the metrics of these batches and later ones."""
        rows, size, files = self.rows + later.rows, self.written_bytes + later.written_bytes, self.files + later.files
        took = self.publish_ms + later.publish_ms
        return SinkMetrics(rows=rows, written_bytes=size, files=files, publish_ms=took)


class CheckpointRecord(Document, frozen=True, kw_only=True):
    """Statistics of one checkpoint, completed or aborted."""

    checkpoint_id: int
    """For an aborted checkpoint, the id of the checkpoint before it, or 0. Also 0 in a manifest's record of its own
    checkpoint, whose id only the log entry has."""
    generation: int
    ordinal: int
    run: int
    """Number of its run, counted from the job's first."""
    base_checkpoint_id: OptionalId = 0
    """The checkpoint that its first batch continued from; 0 for the first one of a job."""
    branch: OptionalId = 0
    """Generation of the restore that began its branch of the history; 0 for the first branch."""
    ended_at: Timestamp
    """When it completed or failed; in a manifest's own record, when the manifest was written."""
    duration_ms: float
    """Duration of its batches, plus the time from its barrier to its end."""
    increment_bytes: int
    full_bytes: int
    files: int
    rows_in: int
    rows_out: dict[str, int]
    compaction_bytes: int = 0
    driver: str
    """Host and process id of the run's driver."""
    reason: OptionalText = ""
    """Who or what requested the run."""
    status: str = COMPLETED
    """``completed`` or ``aborted``."""
    failure: OptionalText = ""
    """Why it was aborted."""
    triggered_at: Timestamp = ""
    """When its last batch started."""
    trigger_ms: float = 0
    """From `triggered_at` until the source positions were captured."""
    start_delay_ms: float = 0
    """From the start of its last batch until the first subtask reached the barrier."""
    alignment_ms: float = 0
    """From the first until the last subtask reached the barrier."""
    sync_ms: float = 0
    """Longest synchronous part of a subtask's snapshot."""
    async_ms: float = 0
    """From the last report until all files were stored; 0 when tasks store their files before they report."""
    commit_ms: float = 0
    """Duration of writing the manifest and the COMMIT."""
    publish_ms: float = 0
    new_files: int = 0
    """How many of `files` are state files that were stored for this checkpoint."""
    manifest_bytes: int = 0
    subtasks: dict[str, Spread] = {}
    """Over the subtasks that have state: ``sync_ms``, ``increment_bytes``, ``full_bytes``."""
    code_hash: OptionalText = ""
    """Hash of the job's code, as in the manifest."""
    operators: dict[str, OperatorMetrics] = {}
    """By uid, of the operators with keyed state."""
    sinks: dict[str, SinkMetrics] = {}
    """By uid, of the sinks with output."""
    cpu_ms: float = 0.0
    """CPU time of the driver's and the tasks' Python processes since the checkpoint before, without Spark's."""
    storage_requests: int = 0
    """Requests of these processes to storages such as the job root; of a file system, calls for files."""
    storage_read_bytes: int = 0
    storage_written_bytes: int = 0


class ActionRecord(Document, frozen=True, kw_only=True):
    """An action on the job, by a user, a schedule or a run."""

    seq: int
    """Number of the newest log entry at the time; for a savepoint or stop, of its checkpoint; for a restore, of its
    CLAIM; for a rejection, that of its plan."""
    kind: str
    """``savepoint``, ``dispose``, ``restore``, ``rejection`` (of a restore's plan), ``rewind``, ``fork``, ``relocate``,
    ``stop``, ``run`` (its start), ``background``, ``failure`` (of a run)."""
    ended_at: Timestamp
    """When it was done; of a failure, when it happened; of a run, when it was ready for its first batch."""
    by: Person
    """Who did it, or approved it."""
    requested_by: Person = ""
    """Who requested it, if another person approved or rejected it."""
    reason: OptionalText = ""
    """Why it was requested; of a failure, the error's sentence."""
    note: OptionalText = ""
    """What the person entered who approved or rejected it."""
    duration_ms: float | None = None
    """How long it took; of a run, how long its start took. None if it was not measured."""
    size_bytes: int | None = None
    """Size of the state that was written or deleted; None for an action without."""
    facts: dict[str, object] = {}
    """Further values, by kind of the action."""

    def text(self, fact: str) -> str:
        """Returns a fact that is a text; an empty text for any other value."""
        found = self.facts.get(fact)
        return found if isinstance(found, str) else ""

    def number(self, fact: str) -> int | None:
        """Returns a fact that is a whole number; None for any other value."""
        found = self.facts.get(fact)
        return found if isinstance(found, int) and not isinstance(found, bool) else None


class RunProgress(Document, frozen=True, kw_only=True):
    """`progress/<generation>/<number>`: how far a run was in a batch that takes long; the highest number counts."""

    reported_at: Timestamp
    ordinal: int
    """Number of the batch in its run."""
    batch_started_at: Timestamp
    batches: int
    """Batches that the launch has completed, in earlier runs too if it has restarted."""
    rows_in: int
    """Rows that it has read in them."""
    driver: str
    """Host and process id of the run's driver."""
    reason: OptionalText = ""
    """Who or what requested the run."""


Record = CheckpointRecord | ActionRecord


def seq_of(record: Record) -> int:
    """Returns the number of the log entry that a record refers to."""
    return record.checkpoint_id if isinstance(record, CheckpointRecord) else record.seq


def is_position(record: Record) -> bool:
    """Returns whether the record is of a position of the job: a checkpoint, a restore, or the start of a fork."""
    if isinstance(record, CheckpointRecord) or record.kind in ("restore", "rewind"):
        return True
    return record.kind == "fork" and "forked_from" in record.facts


def sort_records(records: Iterable[Record]) -> list[Record]:
    """Returns the records in order: positions by log entry, and actions on them in between by timestamp.

    Clocks of hosts may differ: whatever the timestamps, an action follows its position, and the disposal of a savepoint
    follows its creation.
    """
    known = sorted(records, key=seq_of)
    positions = [r for r in known if is_position(r)]
    saved = [r for r in known if isinstance(r, ActionRecord) and r.kind == SAVEPOINT_RECORD]
    made = {r.text("savepoint_id"): _time(r.ended_at) for r in saved}
    return sorted(known, key=lambda r: _rank(r, positions, made))


def disposed_savepoints(actions: Iterable[ActionRecord]) -> set[str]:
    """Returns the ids of the savepoints that were disposed of; a damaged one was disposed of without its id."""
    return {action.text("savepoint_id") for action in actions if action.kind == "dispose"} - {""}


def is_outside(savepoint: ActionRecord, job_root: str) -> bool:
    """Returns whether a savepoint was made outside of a job root; one without a path was made in it."""
    own = f"{job_root.rstrip('/')}/"
    return not (savepoint.text("path") or own).startswith(own)


def _rank(record: Record, positions: list[Record], made: dict[str, datetime]) -> tuple[int, bool, datetime, bool, str]:
    at, seq = _time(record.ended_at), seq_of(record)
    if isinstance(record, CheckpointRecord) or is_position(record):
        return seq, False, at, False, ""
    disposes = record.kind == "dispose"
    if disposes:
        at = max(at, made.get(record.text("savepoint_id"), at))
    later = bisect_right(positions, seq, key=seq_of)
    # Other positions may precede the action by timestamp, up to the first newer one, whatever later clocks show.
    before = later + sum(1 for _ in takewhile(lambda p: _time(p.ended_at) <= at, positions[later:]))
    description = f"{record.kind} {sorted(record.facts.items())}"
    return seq_of(positions[before - 1]) if before else seq, True, at, disposes, description


def _time(text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
