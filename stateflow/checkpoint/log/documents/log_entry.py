"""The entry of the checkpoint log, and the documents that it contains or refers to."""

from __future__ import annotations

from enum import StrEnum

from stateflow.checkpoint.log.documents.manifest import SourcePosition
from stateflow.state.handles import Committable, Document, FileHandle


class PendingOutput(Document, frozen=True, kw_only=True):
    """Output of one checkpoint in one sink that is not known to be published."""

    checkpoint_id: int
    """0 in the COMMIT that adds it, where it means the COMMIT's own sequence number."""
    sink: str
    committables: list[Committable] | None
    """None when they are in `parts`: a version that does not know `parts` refuses the entry, and loses no output."""
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


class EntryRef(Document, frozen=True, kw_only=True, eq=False):
    """A reference to a checkpoint: sequence number and hash of its log entry, and what readers need of that entry.

    Number and hash identify it; the other fields follow from them.
    """

    id: int
    sha256: str
    manifest: FileHandle | None = None
    """None in references that an older version wrote: only the checkpoint's log entry has it."""
    at: str = ""
    """When it was committed; empty where it is not known."""
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
    the pin. Empty for a pin without an end. A version that does not know the field removes it: the pin stays then."""


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
    """What a restore does with a sink's table."""

    RESTORE = "restore"
    KEEP = "keep"


class SinkIntent(Document, frozen=True, kw_only=True):
    """What a restore must do to one table before the job continues."""

    table_id: str
    mode: SinkMode
    to_version: int | None = None
    """The table version to restore, or the newest version when there was nothing to undo; None for a kept table."""
    seen_version: int | None = None
    """The newest version that the plan saw: commits of other writers after it are never undone. None in entries of
    versions that did not record it; `to_version` is used then."""
    takes_over: dict[str, int | None] = {}
    """The applications of other job roots that must no longer write to the table, with the token that each may have;
    None for any."""

    @property
    def is_checked(self) -> bool:
        """Whether the applications of `takes_over` may only have the tokens of the plan."""
        return None not in self.takes_over.values()


class RestoreFacts(Document, frozen=True, kw_only=True):
    """Requester, reason, start and target of a restore, for display."""

    request: str
    """Id of the request; empty when a start rewinds without a request."""
    by: str
    reason: str = ""
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
    of_job: str = ""
    """Name and uuid of the other job whose savepoint it was; empty otherwise."""
    savepoint_path: str = ""
    """Path of another job's savepoint."""
    is_claimed: bool = False
    """Whether the savepoint was claimed: the job deletes it."""


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


class Ancestry(Document, frozen=True, kw_only=True):
    """The restores that determine which checkpoints the current state descends from."""

    since: int
    """The entry from which on every restore is in `restores`: the first one, unless an older version wrote that."""
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
    run: str = ""
    """Nonce of the generation's CLAIM, which identifies the run; empty in entries of older versions."""
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
    ancestry: Ancestry | None = None
    """None in entries of versions that did not record it."""
    times: dict[str, str] | None = {}
    """Commit times of retained checkpoints by id, in entries of older versions; now in `EntryRef.at`. None where
    `retained_before` is set: a version that does not know that field refuses the entry, and loses no checkpoint."""
    collected: int = 0
    """The newest entry when a run last looked through all data for garbage; 0 when none did."""
    runs: int = 0
    """How many runs have claimed the job, including this one; 0 in entries of older versions."""
    history: FileHandle | None = None
    """The index of the history, with the hashes of its objects; None before the first, and in entries of versions that
    wrote none. For information: no step of a run depends on it."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether the entry is a checkpoint itself: a COMMIT, or a CLAIM that imported state from a savepoint."""
        adopts = self.kind is EntryKind.CLAIM and self.checkpoint is None and self.manifest is not None
        return adopts or self.kind is EntryKind.COMMIT
