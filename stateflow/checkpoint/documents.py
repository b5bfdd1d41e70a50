"""What is written below a job root, field by field; ``docs/format.md`` explains each.

The documents are frozen; unknown fields are ignored on reading, and new ones have defaults.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from stateflow.checkpoint.history import CheckpointRecord
from stateflow.state.handles import (
    Committable,
    Document,
    FileHandle,
    OperatorPart,
    StateSchema,
    SubtaskState,
)

FORMAT_VERSION = 1
NOT_BEGUN = "-"
"""The offset of a source that had nothing yet, as Spark's offset log has it."""


class JobFormat(Document, frozen=True, kw_only=True):
    """`FORMAT`: who this job root belongs to; created once, never changed."""

    version: int
    job: str
    job_uuid: str
    max_parallelism: int
    key_types: dict[str, list[str]] = {}
    """Spark type names of the key columns of each keyed operator that the job had when it was created."""
    forked_from: str = ""
    """What a fork was made from: a savepoint's id, or job uuid and checkpoint. Empty for any other job."""
    begun_with: str = ""
    """URI of the savepoint that a run began the job root with; empty for any other job."""
    shadow: bool = False
    """Whether every run publishes to shadow tables instead of those that the job file names."""


class OperatorState(Document, frozen=True, kw_only=True):
    """The state of one keyed operator at a barrier."""

    uid: str
    parallelism: int
    key_types: list[str]
    states: list[StateSchema]
    subtasks: list[SubtaskState]
    operator_states: list[StateSchema] = []
    """What operator state is declared."""
    parts: list[OperatorPart] = []
    """Operator state, without subtasks that have none."""
    watermark: int | None = None
    """Of its batch, in milliseconds since 1970; None before there was one."""

    @property
    def files(self) -> list[FileHandle]:
        """Its files; one may come several times."""
        keyed = [f.handle for s in self.subtasks for f in s.files]
        return keyed + [part.handle for part in self.parts if part.handle]

    @property
    def has_state(self) -> bool:
        """Whether something would be lost without it."""
        return bool(self.subtasks or self.parts)


class SourceFile(Document, frozen=True, kw_only=True):
    """A file of Spark's ``sources/`` log; small ones are kept in the manifest itself."""

    path: str
    content: bytes | None = None
    handle: FileHandle | None = None


class SourcePosition(Document, frozen=True, kw_only=True):
    """Up to where one source has been read."""

    uid: str
    description: str
    offset: str
    """The source's own JSON, as Spark's offset log holds it; ``-`` when it had nothing yet."""


class SourceWatermark(Document, frozen=True, kw_only=True):
    """How far event time has come in one source, and whether anybody waits for it."""

    uid: str
    watermark: int | None = None
    """In milliseconds since 1970; None before there were rows."""
    active_at: int
    """Processing time of the last batch that had rows of it; of the first batch, when none had."""
    idle: bool = False


class SparkPosition(Document, frozen=True, kw_only=True):
    """What a fresh Spark checkpoint location is seeded with to go on after this checkpoint."""

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
    """Why it could not be read, in Spark's words."""
    at: str
    generation: int
    """Of the run that skipped it."""


class Manifest(Document, frozen=True, kw_only=True):
    """Everything that one checkpoint consists of, apart from what the log entry says."""

    job_uuid: str
    generation: int
    ordinal: int
    operators: list[OperatorState]
    sources: list[SourcePosition]
    spark: SparkPosition | None = None
    watermarks: list[SourceWatermark] = []
    """Of the sources that have a watermark strategy: the next batch's watermark is made of them."""
    increment_bytes: int = 0
    """Bytes of state written for this checkpoint alone, compactions apart."""
    compaction_bytes: int = 0
    """Bytes of state that compactions wrote for it: old data in new files."""
    full_bytes: int = 0
    """Bytes of state that it refers to."""
    epoch: int = 0
    """One more than that of the checkpoint that its batch started from, over restores and forks: state that a batch
    appends to has it in its keys, and so keeps its order."""
    columns: dict[str, dict[str, str]] = {}
    """By source uid: the columns that the job declared, with their Spark types; empty where it was not recorded."""
    record: CheckpointRecord | None = None
    """Of this checkpoint, as far as it was known before the COMMIT; None in older ones, and in what a restore brought
    from elsewhere."""
    history: list[CheckpointRecord] = []
    """Of checkpoints before it that are in no object of the history yet."""
    quarantined: list[QuarantinedFile] = []
    """Input files that were skipped up to this checkpoint, oldest first; the newest ones when there are many."""
    quarantined_count: int = 0
    """How many input files were skipped up to this checkpoint, also those that `quarantined` has no more."""
    drained: bool = False
    """Whether every event-time timer was fired, whatever the watermark, and no row was processed since."""

    def told(self, checkpoint_id: int) -> list[CheckpointRecord]:
        """Its records, its own included.

        Args:
            checkpoint_id: its own.
        """
        own = [replace(self.record, checkpoint_id=checkpoint_id)] if self.record else []
        return [*self.history, *own]


class PendingOutput(Document, frozen=True, kw_only=True):
    """Output of one checkpoint in one sink that is not known to be published."""

    checkpoint_id: int
    """0 in the COMMIT that brings it: its own sequence number is meant."""
    sink: str
    committables: list[Committable] | None
    """None when they are in `parts`: a version that does not know those refuses the entry, and loses no output."""
    parts: list[FileHandle] = []
    """Objects with the committables, each an `OutputPart`, where they are too many for a log entry."""


class OutputPart(Document, frozen=True, kw_only=True):
    """Committables of one checkpoint in one sink, stored as an object that log entries name."""

    committables: list[Committable]


class PublishedOutput(Document, frozen=True, kw_only=True):
    """Where a sink stands, as far as the log knows."""

    table_id: str
    version: int
    checkpoint_id: int
    """The last checkpoint whose output was published there; 0 when there is none."""


class EntryRef(Document, frozen=True, kw_only=True, eq=False):
    """A checkpoint: the sequence number and hash of its log entry, and what a reader needs of that entry.

    Number and hash identify it; the rest follows from them.
    """

    id: int
    sha256: str
    manifest: FileHandle | None = None
    """None in references that an older version wrote: only the checkpoint's log entry says it."""
    at: str = ""
    """When it was committed; empty where it is not known."""
    savepoint: str = ""
    """What savepoint its state is of, for people; empty for a COMMIT."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryRef) and (self.id, self.sha256) == (other.id, other.sha256)

    def __ne__(self, other: object) -> bool:
        # Without it msgspec's own would compare every field.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.id, self.sha256))


class RetainedLink(Document, frozen=True, kw_only=True):
    """Retained checkpoints that are in an object: those of a `RetainedSegment`, and of the ones before it."""

    handle: FileHandle
    newest: int
    """Id of the newest one that is meant; a restore may have left later ones."""


class RetainedSegment(Document, frozen=True, kw_only=True):
    """Retained checkpoints, stored as an immutable object that log entries name."""

    refs: list[EntryRef]
    """Oldest first."""
    before: RetainedLink | None = None
    """Those that are older."""


class Pin(Document, frozen=True, kw_only=True):
    """A checkpoint that somebody reads from outside, and that must not be cleaned meanwhile."""

    id: str
    checkpoint: EntryRef
    owner: str
    reason: str
    since: str
    generation: int = 0
    """The run that reads; its pins end with the next CLAIM. 0 for readers outside, whose pins stay until they go."""


class SinkMode(StrEnum):
    """What a restore does with a sink's table."""

    RESTORE = "restore"
    KEEP = "keep"


class SinkIntent(Document, frozen=True, kw_only=True):
    """What is to be done to one table before anything else happens in the job."""

    table_id: str
    mode: SinkMode
    to_version: int | None = None
    """The table's version to go back to, the newest one when there was nothing to take back; None for a kept table."""
    seen_version: int | None = None
    """The newest version that the plan looked at: commits of other writers after it are never undone. None in entries
    of versions that did not record it, where `to_version` stands for it."""


class RestoreFacts(Document, frozen=True, kw_only=True):
    """Who asked for a restore, why, and from where to where; for people."""

    request: str
    """Its id; empty when a start goes back by itself."""
    by: str
    reason: str = ""
    label: str
    """What was gone back to."""
    base: int
    """Its checkpoint; 0 for another job's."""
    left: int
    """The checkpoint that the job stood at."""
    undone: list[int] = []
    """Checkpoints that were retained, and could not be gone back to any more."""
    at: str
    bytes: int = 0
    """Of the state that was gone back to, what was dropped apart."""
    of_job: str = ""
    """Name and uuid of the other job whose savepoint it was; empty otherwise."""
    savepoint_path: str = ""
    """Where another job's savepoint was."""


class Rewind(Document, frozen=True, kw_only=True):
    """The intent of a restore: every later start completes it before anything else."""

    seq: int
    """Of the CLAIM that appended it; becomes the token of every table, so that a paused driver finds a higher one."""
    sinks: dict[str, SinkIntent]
    restore: RestoreFacts | None = None
    """What whoever completes it writes into the history."""


class WentBack(Document, frozen=True, kw_only=True):
    """One restore, as far as it tells what the present state came from."""

    seq: int
    """Of the CLAIM that went back."""
    base: int
    """The checkpoint that it went back to; 0 for another job's."""


class Ancestry(Document, frozen=True, kw_only=True):
    """Which numbers the present state came from: all that no restore has left behind."""

    since: int
    """The entry from which on every restore is in `restores`: the first one, unless an older version wrote that."""
    restores: list[WentBack] = []
    """Oldest first."""


class EntryKind(StrEnum):
    CLAIM = "claim"
    COMMIT = "commit"
    ADMIN = "admin"


class LogEntry(Document, frozen=True, kw_only=True):
    """`log/<seq>`: one step of the job's history, and, while it is the newest, the job's whole present."""

    job_uuid: str
    seq: int
    kind: EntryKind
    generation: int
    ordinal: int
    writer: str
    nonce: str
    parent: str
    """SHA-256 of the entry before; empty in the first."""
    at: str
    """When the writer's clock says that it was written; for people only."""
    note: str = ""
    checkpoint: EntryRef | None = None
    """The checkpoint that a start continues from; None in an entry that is one itself, and in a job without one."""
    manifest: FileHandle | None = None
    """The state and positions that a start continues from."""
    savepoint: str = ""
    """What savepoint they are of, for people; empty when they are a checkpoint's."""
    run: str = ""
    """Nonce of the generation's CLAIM, which no other entry of that number has; empty in entries of older versions."""
    retained: list[EntryRef] = []
    """Older checkpoints that are kept, oldest first; without `checkpoint`, and without those in `retained_before`."""
    retained_before: RetainedLink | None = None
    """Checkpoints before `retained` that are kept; None when there are few."""
    oldest_retained: int = 0
    """No checkpoint below this number is kept, whatever `retained_before` has."""
    pinned: list[Pin] = []
    sources: list[SourcePosition] = []
    pending: list[PendingOutput] = []
    published: dict[str, PublishedOutput] = {}
    requests: list[str] = []
    """Ids of restore requests that were carried out, so that a retry of one does not rewind twice."""
    claimed_for: str = ""
    """Id of the restore request that claimed the job last, and may not have gone further; a retry of it finds its own
    CLAIM, and the job where its plan saw it."""
    rewind: Rewind | None = None
    """A restore whose tables are not all known to have gone back."""
    ended: bool = False
    """Whether the run ended in good order: nobody works on the job then."""
    ancestry: Ancestry | None = None
    """None in entries of versions that did not record it."""
    times: dict[str, str] | None = {}
    """When kept checkpoints were committed, by id, in entries of older versions: now `EntryRef.at`. None where there is
    a `retained_before`: a version that does not know that refuses the entry, and forgets no checkpoint."""
    collected: int = 0
    """The newest entry when a run last looked through all data for garbage; 0 when none did."""
    runs: int = 0
    """How many runs have claimed the job, this one included; 0 in entries of older versions."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint itself: a COMMIT, or a CLAIM that brought state in from a savepoint."""
        adopts = self.kind is EntryKind.CLAIM and self.checkpoint is None and self.manifest is not None
        return adopts or self.kind is EntryKind.COMMIT


class Origin(StrEnum):
    """Why a savepoint was taken; retention by age and number only looks at periodic ones."""

    MANUAL = "manual"
    PERIODIC = "periodic"
    STOP = "stop"
    UPGRADE = "upgrade"


class Savepoint(Document, frozen=True, kw_only=True):
    """`_savepoint` in a savepoint's folder, written last: without it there is no savepoint."""

    version: int
    id: str
    name: str
    origin: Origin
    made_at: str
    committed_at: str = ""
    """When its checkpoint was committed, as the log has it; empty in savepoints of older versions."""
    by: str
    reason: str = ""
    request: str = ""
    """Id of the request that it answers, so that the same request is not answered twice."""
    generation: int = 0
    """Of the run that made it for its request, and whose answer decides whether it stays; 0 for anybody else."""
    drained: bool = False
    job: str
    job_uuid: str
    max_parallelism: int
    checkpoint_id: int
    manifest: Manifest
    """As the checkpoint's, with keys relative to the savepoint's folder."""
    sinks: dict[str, PublishedOutput]
    """Where each sink stood when this checkpoint's output was published, as far as the log knew."""
    stateflow: str = ""


class RequestKind(StrEnum):
    SAVEPOINT = "savepoint"
    STOP = "stop"
    CHECKPOINT = "checkpoint"


class Request(Document, frozen=True, kw_only=True):
    """`requests/<id>`: what somebody outside asks of the job's run."""

    id: str
    kind: RequestKind
    savepoint: str
    """Name of the savepoint to take."""
    origin: Origin
    by: str
    reason: str = ""
    drain: bool = False
    full: bool = False
    """Of a checkpoint: whether it must have no file in common with any before it."""
    at: str
    until: str = ""
    """When nobody waits for it any more, by the asker's clock; a run withdraws it then. Empty: never."""


class Answer(Document, frozen=True, kw_only=True):
    """`requests/<id>.done`: what became of a request; the first one to write it decides."""

    id: str
    status: str
    """``done``, ``failed`` or ``withdrawn``."""
    checkpoint_id: int = 0
    """The savepoint's; without one, where the run stood when it answered."""
    savepoint_id: str = ""
    savepoint: str = ""
    """URI of the savepoint."""
    code: str = ""
    message: str = ""
    by: str = ""
    at: str
