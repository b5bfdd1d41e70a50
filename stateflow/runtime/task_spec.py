"""What a task is sent: all that decides its result, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from stateflow.api.dead_letters import OnError
from stateflow.api.functions import KeyedFunction
from stateflow.api.graph import Keying
from stateflow.api.rich_functions import RowStep
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext
from stateflow.settings import RocksDBSettings, ShuffleSettings, StateSettings, TelemetrySettings
from stateflow.state.handles import StateSchema
from stateflow.state.timers import MAX_WATERMARK
from stateflow.state.uploads import Outbox
from stateflow.storage import Credentials, Storage, open_storage
from stateflow.storage.paths import data_folder

ORDER = "_sf_order"
CONTROL = "_sf_control"
TARGET = "_sf_target"
POSITION = "_sf_position"
INPUT = "_sf_input"
PHASE = "_sf_phase"
SOURCE = "_sf_source"
ORIGIN = "_sf_origin"
UNIT = "_sf_unit"
REPORT = "_sf_report"

GROUP_SHIFT = 46
"""`ORDER` is phase, then key group, then 46 bits of the key's hash: within a phase, a key's rows lie together, and key
groups are in order."""
GROUP_MASK = (1 << 15) - 1
PHASE_SHIFT = 61
"""Phase 0 is what the level before emitted while it applied its own phase 0 and fired its timers; all else, rows of
sources first of all, is phase 1. What separates them is that time advances in between."""
SOURCE_PHASE = 1
TIMER_PHASE = 0
POSITION_SHIFT = 40
"""Of what tasks emit, the position is the task's number, then 40 bits that count its rows."""
BROADCAST_ORDER = -1
"""Sorts before every keyed row."""
BARRIER_ORDER = (1 << 63) - 1
"""Sorts behind every row: a barrier ends a batch's input."""


@dataclass(frozen=True)
class BatchInfo:
    """The batch and the job, as tasks need to know them.

    Attributes:
        state: with no more inline state for a subtask than all of them can have in a manifest.
        epoch: number of the batch along the job's state.
        checkpoint_id: of the newest checkpoint that is committed; 0 when there is none.
        sort_memory_bytes: for the rows of one task, on Spark.
        credentials: the driver's, for the job root.
        upload_patience: how long files of a snapshot may take to be stored, beside the batches that follow; None when
            they are stored before the task reports.
        full: whether every subtask stores all of its state anew, also one without rows.
        telemetry: where spans go.
    """

    job_uuid: str
    root_uri: str
    generation: int
    ordinal: int
    processing_time: datetime
    max_parallelism: int
    local_folder: Path
    rocksdb: RocksDBSettings
    state: StateSettings = field(default_factory=StateSettings)
    epoch: int = 0
    checkpoint_id: int = 0
    sort_memory_bytes: int = ShuffleSettings().sort_memory_bytes
    credentials: Credentials = field(default_factory=Credentials)
    upload_patience: timedelta | None = None
    full: bool = False
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    @property
    def storage(self) -> Storage:
        """The job root."""
        self.credentials.adopt()
        return open_storage(self.root_uri)

    @property
    def outbox(self) -> Outbox | None:
        """Where this host keeps what is on its way; None when nothing is stored beside the batches."""
        if self.upload_patience is None:
            return None
        # No operator is called like this.
        return Outbox(self.local_folder / self.job_uuid / ".uploads", self.generation, self.upload_patience)

    def data_folder(self, attempt: str) -> str:
        """Where an attempt's files go."""
        return data_folder(self.generation, self.ordinal, attempt)


@dataclass(frozen=True)
class InputSpec:
    """One input of a unit.

    Attributes:
        prefix: of the columns that carry its rows.
        keying: None for a broadcast stream, and for a unit without an operator.
        time_column: with the event time of its rows; empty where none is declared.
    """

    prefix: str
    schema: RowSchema
    keying: Keying | None
    time_column: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns that carry its rows."""
        return [self.prefix + name for name in self.schema.names]


@dataclass(frozen=True)
class OutletSpec:
    """Something that a unit emits.

    Attributes:
        tag: the name of the operator's side output; empty for the main one.
        steps: row functions behind it.
        number: by which the next level knows it; None when it takes nothing of it.
    """

    tag: str
    steps: tuple[RowStep, ...]
    schema: RowSchema
    sinks: tuple[tuple[Sink, SinkContext], ...]
    number: int | None


@dataclass(frozen=True)
class SourceTime:
    """How far the event time of a source is, for an operator whose timers fire between rows.

    Attributes:
        number: of the source, as rows have it.
        out_of_orderness: of its watermark strategy, in milliseconds.
        watermark: of the batches before.
    """

    number: int
    out_of_orderness: int
    watermark: int


@dataclass(frozen=True)
class UnitSpec:
    """One unit of a level.

    Attributes:
        inputs: one; or two, of connected streams, of which the first is keyed.
        bases: msgpack of the parts of each subtask's base, a list of `SubtaskState`; empty for one without.
        known_states: what the base was written with.
        on_error: what becomes of rows that the function raises for.
        operator_base: msgpack of the `OperatorBase`; empty when the base does not have the operator.
        watermark: of the batch, in milliseconds since 1970; None before there is one.
        watermark_before: that of the batch before.
        emits: columns of the operator's main output; None for a unit without an operator.
        source_times: of the sources that its watermark is made of, if its timers fire between the rows of a key.
    """

    uid: str
    inputs: tuple[InputSpec, ...]
    function: KeyedFunction[object] | None
    outlets: tuple[OutletSpec, ...]
    bases: tuple[bytes, ...]
    known_states: tuple[StateSchema, ...] = ()
    on_error: OnError = None
    operator_base: bytes = b""
    watermark: int | None = None
    watermark_before: int | None = None
    emits: RowSchema | None = None
    source_times: tuple[SourceTime, ...] = ()

    @property
    def keying(self) -> Keying | None:
        """How the first input is keyed; the types are those of the state."""
        return self.inputs[0].keying

    @property
    def state_watermark(self) -> int | None:
        """The watermark that times to live count by: draining fires every timer, and lets nothing expire after that."""
        return self.watermark_before if self.watermark == MAX_WATERMARK else self.watermark


@dataclass(frozen=True)
class LevelSpec:
    """What every task of a level gets; the partition number tells which unit and subtask it is.

    Attributes:
        next_targets: number of tasks of the level behind; 0 in the last.
        output: the Arrow schema of what the tasks emit.
        sources: uids of the job's sources, in order.
    """

    batch: BatchInfo
    parallelism: int
    units: tuple[UnitSpec, ...]
    upstream: tuple[tuple[str, int], ...]
    next_targets: int
    output: pa.Schema
    sources: tuple[str, ...] = ()


def input_prefix(index: int) -> str:
    """Prefix of the columns of a level's `index`-th input."""
    return f"i{index}_"


def output_prefix(number: int) -> str:
    """Prefix of the columns of what a level's outlet emits."""
    return f"u{number}_"
