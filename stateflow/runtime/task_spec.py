"""Specification of tasks by the driver: everything that determines a task's result, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from stateflow.api.dead_letters import OnError
from stateflow.api.functions.process import KeyedFunction, TaskInfo
from stateflow.api.functions.rich import RowStep
from stateflow.api.functions.vectorized import ColumnsFunction
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext
from stateflow.config.settings import TelemetrySettings
from stateflow.config.state_settings import RocksDBSettings, ShuffleSettings, StateSettings
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.state.uploads import Outbox
from stateflow.storage import Credentials, Storage, open_storage
from stateflow.storage.overlay import OverlayStorage
from stateflow.storage.paths import data_folder

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
"""A column of 64-bit integers."""

ORDER = "_sf_order"
"""Column that a task's input is sorted by; see `GROUP_SHIFT`."""
CONTROL = "_sf_control"
"""Column with the msgpack of a barrier; null in data rows."""
TARGET = "_sf_target"
"""Column with the index of a row's task within its level."""
POSITION = "_sf_position"
"""Column that grows with the order of arrival."""
INPUT = "_sf_input"
"""Column with the number of a row's input, of chains with connected streams."""
PHASE = "_sf_phase"
"""Column with the phase of a row; see `PHASE_SHIFT`."""
SOURCE = "_sf_source"
"""Column with the number of a row's source in the frame of all sources."""
ORIGIN = "_sf_origin"
"""Column with the number of the source that determines a row's event time; -1 if it is not known."""
OUTPUT_NUMBER = "_sf_output"
"""Column with the number of the output that emitted a row."""
REPORT = "_sf_report"
"""Column with the msgpack of a task's report."""

GROUP_SHIFT = 46
"""`ORDER` is phase, key group and 46 bits of the key's hash: within a phase, the rows of a key are adjacent and key
groups ascend."""
GROUP_MASK = (1 << 15) - 1
PHASE_SHIFT = 61
"""Phase 0 holds the rows that the previous level emitted in its own phase 0 and from timers; phase 1 holds all other
rows, such as those of sources. Time advances between the phases."""
SOURCE_PHASE = 1
TIMER_PHASE = 0
POSITION_SHIFT = 40
"""The position of an emitted row is the task's number and 40 bits that count the task's rows."""
BROADCAST_ORDER = -1
"""Sorts before every keyed row."""
BARRIER_ORDER = (1 << 63) - 1
"""Sorts after every row: a barrier ends a batch's input."""


@dataclass(frozen=True)
class BatchId:
    """Identifies a batch of a job.

    Attributes:
        generation: number of the run's CLAIM.
        ordinal: number of the batch within the generation.
        processing_time: the processing time of all rows of the batch, in UTC.
        epoch: number of the batch over all runs, restores and forks of the job's state.
        checkpoint_id: the newest committed checkpoint; 0 without one.
    """

    job_uuid: str
    generation: int
    ordinal: int
    processing_time: datetime
    epoch: int = 0
    checkpoint_id: int = 0

    def data_folder(self, attempt: str) -> str:
        """Returns the key prefix of the files that a task attempt writes, with a final slash."""
        return data_folder(self.generation, self.ordinal, attempt)


@dataclass(frozen=True)
class TaskSettings:
    """The settings that apply to all tasks of a batch.

    Attributes:
        state: its limit for inline state is one subtask's share of what a manifest may contain.
        sort_memory_bytes: memory for sorting the rows of one task, on Spark.
        full_snapshot: whether every subtask stores all of its state again, including subtasks without rows.
        opens_to_clean_up: whether a subtask opens its store only to remove expired state, as in a run that waits for
            input: its stores stay open. A scheduled run would fetch state that no row needs.
        upload_timeout: how long background uploads of a snapshot may take; None if a task uploads its files before it
            reports.
    """

    max_parallelism: int
    rocksdb: RocksDBSettings = field(default_factory=RocksDBSettings)
    state: StateSettings = field(default_factory=StateSettings)
    sort_memory_bytes: int = ShuffleSettings().sort_memory_bytes
    full_snapshot: bool = False
    opens_to_clean_up: bool = False
    upload_timeout: timedelta | None = None


@dataclass(frozen=True)
class TaskEnvironment:
    """Where tasks read and write.

    Attributes:
        root_uri: URI of the job root.
        local_folder: scratch folder of each host.
        credentials: the driver's credentials for the job root.
        telemetry: where tasks export spans to.
        scratch_uri: storage for the files of a batch that must not change the job root; empty for the job root itself.
    """

    root_uri: str
    local_folder: Path
    credentials: Credentials = field(default_factory=Credentials)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    scratch_uri: str = ""

    @property
    def storage(self) -> Storage:
        """The storage of the job root."""
        self.credentials.adopt()
        root = open_storage(self.root_uri)
        return OverlayStorage(root, open_storage(self.scratch_uri)) if self.scratch_uri else root


@dataclass(frozen=True)
class BatchInfo:
    """The part of the specification that all tasks of a batch have in common."""

    id: BatchId
    settings: TaskSettings
    environment: TaskEnvironment

    @property
    def outbox(self) -> Outbox | None:
        """The folder of this host for files that are being uploaded; None without background uploads."""
        if self.settings.upload_timeout is None:
            return None
        # No operator has the uid `.uploads`, so the folder cannot collide with an operator's.
        folder = self.environment.local_folder / self.id.job_uuid / ".uploads"
        return Outbox(folder, self.id.generation, self.settings.upload_timeout)

    def task_info(
        self, uid: str = "", subtask: int = 0, parallelism: int = 0, watermark: int | None = None
    ) -> TaskInfo:
        """Returns the description of one subtask in this batch that user functions receive.

        Args:
            watermark: milliseconds since 1970; None before the first one.
        """
        batch, max_parallelism = self.id, self.settings.max_parallelism
        return TaskInfo(uid, subtask, parallelism, max_parallelism, batch.processing_time, batch.epoch, watermark)


@dataclass(frozen=True)
class InputSpec:
    """One input of an operator chain.

    Attributes:
        prefix: prefix of the columns that carry its rows.
        keying: None for a broadcast stream and for a chain without an operator.
        time_column: the column with the event time; empty if none is declared.
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
class OutputColumns:
    """A function over the Arrow batches of an output, with the columns that it takes and returns."""

    function: ColumnsFunction
    given: RowSchema
    output: RowSchema


@dataclass(frozen=True)
class OutputSpec:
    """One output of an operator chain.

    Attributes:
        tag: name of the operator's side output; empty for the main output.
        steps: the row functions after it.
        schema: the columns of the output, after all functions.
        sinks: the sinks that write its rows in the same task.
        number: its `OUTPUT_NUMBER`; None if the next level reads none of its rows.
        columns: the functions of columns after it; then it has no row functions.
    """

    tag: str
    steps: tuple[RowStep, ...]
    schema: RowSchema
    sinks: tuple[tuple[Sink, SinkContext], ...]
    number: int | None
    columns: tuple[OutputColumns, ...] = ()

    @property
    def emitted(self) -> RowSchema:
        """The columns of the rows before the functions of columns."""
        return self.columns[0].given if self.columns else self.schema


@dataclass(frozen=True)
class SourceTime:
    """The event time of a source before a batch, for an operator whose timers fire between rows.

    Attributes:
        number: number of the source, as in `ORIGIN`.
        out_of_orderness: bound of its watermark strategy, in milliseconds.
        watermark: its watermark after the previous batches, in milliseconds since 1970.
    """

    number: int
    out_of_orderness: int
    watermark: int


@dataclass(frozen=True)
class ChainSpec:
    """One operator chain of a level.

    Attributes:
        inputs: one input, or the two inputs of connected streams, the first of which is keyed.
        function: None for a relay and for a sink on an unkeyed stream.
        bases: the msgpack of each subtask's base, a list of `SubtaskState`; empty without a base.
        known_states: the states that the base was written with.
        on_error: the policy for rows that the function raises for.
        operator_base: msgpack of the `OperatorBase`; empty if the base does not contain the operator.
        watermark: watermark of this batch, in milliseconds since 1970; None before the first one.
        watermark_before: watermark of the previous batch.
        emits: columns of the operator's main output; None for a chain without an operator.
        source_times: the sources that determine its watermark, if its timers fire between the rows of a key.
        waiting: for each input, what its rows come from, `WaitingRows.inputs` as a text; empty if rows do not wait.
    """

    uid: str
    inputs: tuple[InputSpec, ...]
    function: KeyedFunction[object] | None
    outputs: tuple[OutputSpec, ...]
    bases: tuple[bytes, ...]
    known_states: tuple[StateSchema, ...] = ()
    on_error: OnError = None
    operator_base: bytes = b""
    watermark: int | None = None
    watermark_before: int | None = None
    emits: RowSchema | None = None
    source_times: tuple[SourceTime, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def keying(self) -> Keying | None:
        """The key columns of the first input. Keyed state uses their types."""
        return self.inputs[0].keying

    @property
    def state_watermark(self) -> int | None:
        """The watermark that determines the expiry of state. A drain fires every timer, but no state expires by it."""
        return self.watermark_before if self.watermark == MAX_WATERMARK else self.watermark


@dataclass(frozen=True)
class LevelSpec:
    """The specification of all tasks of a level. The partition number determines a task's chain and subtask.

    Attributes:
        upstream: uid and subtask of each task of the previous level; empty in the first.
        next_targets: number of tasks of the next level; 0 in the last.
        output_schema: Arrow schema of what the tasks emit.
        sources: uids of the job's sources, in order.
    """

    batch: BatchInfo
    parallelism: int
    chains: tuple[ChainSpec, ...]
    upstream: tuple[tuple[str, int], ...]
    next_targets: int
    output_schema: pa.Schema
    sources: tuple[str, ...] = ()

    def with_chain(self, number: int, chain: ChainSpec) -> LevelSpec:
        """Returns the specification with another chain in place of one."""
        return replace(self, chains=(*self.chains[:number], chain, *self.chains[number + 1 :]))


@dataclass(frozen=True)
class TaskSpec:
    """One attempt of one task of a level.

    Attributes:
        partition: number of the task within the level.
        attempt: unique name of the attempt.
    """

    level: LevelSpec
    partition: int
    attempt: str

    @property
    def batch(self) -> BatchInfo:
        """The batch that the task belongs to."""
        return self.level.batch

    @property
    def subtask(self) -> int:
        """Number of the task among those of its chain."""
        return self.partition % self.level.parallelism

    @cached_property
    def chain(self) -> ChainSpec:
        """The operator chain that the task runs."""
        return self.level.chains[self.partition // self.level.parallelism]

    @cached_property
    def info(self) -> TaskInfo:
        """The description of the subtask that user functions receive."""
        chain = self.chain
        return self.batch.task_info(chain.uid, self.subtask, self.level.parallelism, chain.state_watermark)


def input_prefix(index: int) -> str:
    """Returns the prefix of the columns of a level's `index`-th input."""
    return f"i{index}_"


def output_prefix(number: int) -> str:
    """Returns the prefix of the columns of a level's output with this number."""
    return f"u{number}_"
