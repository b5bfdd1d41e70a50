"""The manifest of a checkpoint: its operator state, source positions and records."""

from __future__ import annotations

from msgspec.structs import replace

from stateflow.checkpoint.log.records import CheckpointRecord
from stateflow.state.handles import Document, FileHandle, Int64, OperatorPart, Parallelism, StateSchema, SubtaskState

_SHOWN = 12
"""Digits of a hash that messages show."""
NOT_BEGUN = "-"
"""The offset of a source that had no data yet, as in Spark's offset log."""


class OperatorState(Document, frozen=True, kw_only=True):
    """The state of one keyed operator at a barrier."""

    uid: str
    parallelism: Parallelism
    key_types: list[str]
    key_names: list[str] = []
    """Names of the key columns in their order; empty in manifests of versions that did not record them."""
    states: list[StateSchema]
    subtasks: list[SubtaskState]
    operator_states: list[StateSchema] = []
    """Schemas of the declared operator state."""
    parts: list[OperatorPart] = []
    """Operator state by subtask, without subtasks that have none."""
    watermark: Int64 | None = None
    """Watermark of its batch, in milliseconds since 1970; None before the first watermark."""

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
    """By source uid: the columns that the job declared, with their Spark types; empty where it was not recorded."""
    record: CheckpointRecord | None = None
    """Record of this checkpoint, as known before the COMMIT; None in manifests of older versions, and in those that a
    restore imported."""
    history: list[CheckpointRecord] = []
    """Pending records: of earlier checkpoints that no object of the history contains yet."""
    quarantined: list[QuarantinedFile] = []
    """Input files skipped up to this checkpoint, oldest first; only the newest when there are many."""
    quarantined_count: int = 0
    """Number of input files skipped up to this checkpoint, including those that `quarantined` no longer lists."""
    drained: bool = False
    """Whether every event-time timer was fired, whatever the watermark, and no row was processed since."""
    parent: Int64 | None = None
    """Id of the checkpoint from whose state its first batch started, 0 for none; None where it was not recorded, and
    in manifests that a restore imported."""
    batches: list[BatchRecord] = []
    """The batches since `parent`, oldest first; empty where they were not recorded, or were too many."""
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
