"""The work of an executor: the tasks of a batch as specifications; and the interface of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.api.dead_letters import OnError
from stateflow.api.functions.process import KeyedFunction, TaskInfo
from stateflow.api.functions.rich import RowStep
from stateflow.api.functions.vectorized import ColumnsFunction
from stateflow.api.graph import Keying, event_time_of, producer_of
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import MAIN
from stateflow.api.sink import Sink, SinkContext
from stateflow.checkpoint.barriers import TaskReport
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_assignment import bases_of
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.config.settings import RocksDBSettings, ShuffleSettings, StateSettings, TelemetrySettings
from stateflow.runtime.planning.physical_plan import JobPlan, Level, OperatorChain, Output
from stateflow.state.backends import hash_maps
from stateflow.state.handles import Base, Document, OperatorPart, StateSchema
from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK
from stateflow.state.uploads import Outbox
from stateflow.storage import Credentials, Storage, open_storage
from stateflow.storage.overlay import OverlayStorage
from stateflow.storage.paths import data_folder
from stateflow.types.decoders import msgpack_decoder

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


class OperatorBase(Document, frozen=True, kw_only=True):
    """The operator state of a base, as tasks receive it."""

    parallelism: int
    states: list[StateSchema]
    parts: list[OperatorPart]


def encode_operator_base(state: OperatorState) -> bytes:
    """Returns the msgpack for `ChainSpec.operator_base`."""
    base = OperatorBase(parallelism=state.parallelism, states=state.operator_states, parts=state.parts)
    return msgspec.msgpack.encode(base)


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


@dataclass(frozen=True)
class BatchWork:
    """One batch to run: the plan, the batch and the state to start from.

    Attributes:
        base: the state of each operator by uid.
        watermarks: the watermark of each operator by uid, in milliseconds since 1970; None before the first one.
        source_watermarks: the watermark of each source before the batch, by uid; None if event time does not follow
            from the rows, so that no timer fires between them.
    """

    plan: JobPlan
    info: BatchInfo
    base: dict[str, OperatorState]
    watermarks: Mapping[str, int | None] = field(default_factory=dict)
    source_watermarks: Mapping[str, int | None] | None = None


@dataclass(frozen=True)
class Executed:
    """Reports of the tasks of a batch.

    Attributes:
        reports: the reports of all tasks.
        event_times: the latest event time of each source's rows where its watermarks are assigned, in milliseconds
            since 1970, by uid; without sources that have none, and those with a watermark per split.
        rows: number of rows that the sources had, before filters.
    """

    reports: list[TaskReport]
    event_times: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0


class Executor(ABC):
    """Runs the levels of a batch over its rows, on Spark or in this process."""

    reads_by_spark: bool = False
    """Whether Spark reads the sources, so that source positions are in Spark's format."""

    @abstractmethod
    def empty_rows(self, plan: JobPlan) -> Any:
        """Returns the rows to pass to `execute` for a batch without rows."""

    @abstractmethod
    def keep_workers_alive(self, plan: JobPlan, info: BatchInfo) -> None:
        """Keeps the processes alive that upload files in the background; called while no batch runs."""

    def warm_up(self, plan: JobPlan) -> None:  # noqa: B027 - an executor in this process has nothing to start
        """Starts what the first batch would start; called before a run takes over from the active one."""

    def cancel(self) -> None:  # noqa: B027 - an executor in this process cannot be interrupted
        """Interrupts the running batch if possible; called from another thread."""

    @property
    def savepoint_workers(self) -> SavepointWorkers:
        """The workers that write canonical savepoints, also while a batch runs."""
        return LocalWorkers()

    @abstractmethod
    def execute(self, rows: Any, work: BatchWork) -> Executed:
        """Runs the batch.

        Args:
            rows: the sources' rows of this batch: on Spark a DataFrame as `source_frame` builds it, otherwise row
                objects by uid of the source.
        """


def output_schema(level: Level, last: bool) -> pa.Schema:
    """Returns the schema of what a level's tasks emit: reports in the last level, rows and barriers in all others."""
    if last:
        return pa.schema([pa.field(REPORT, pa.binary())])
    fields = [
        pa.field(OUTPUT_NUMBER, pa.int32()),
        pa.field(TARGET, pa.int64()),
        pa.field(POSITION, pa.int64()),
        pa.field(PHASE, pa.int64()),
        pa.field(CONTROL, pa.binary()),
    ]
    for number, output in enumerate(level.forwarded):
        prefix = output_prefix(number)
        fields += [pa.field(prefix + c.name, c.arrow_type) for c in output.node.schema.columns]
    return pa.schema(fields)


def level_specs(work: BatchWork) -> list[LevelSpec]:
    """Returns what the tasks of each level receive."""
    specs: list[LevelSpec] = []
    upstream: tuple[tuple[str, int], ...] = ()
    levels = work.plan.levels
    for at, level in enumerate(levels):
        last = at == len(levels) - 1
        chains = tuple(_chain_spec(level, index, work) for index in range(len(level.chains)))
        specs.append(
            LevelSpec(
                work.info,
                level.parallelism,
                chains,
                upstream,
                0 if last else levels[at + 1].targets,
                output_schema(level, last),
                level.sources,
            )
        )
        upstream = tuple((chain.uid, s) for chain in level.chains for s in range(level.parallelism))
    return specs


def _chain_spec(level: Level, index: int, work: BatchWork) -> ChainSpec:
    chain = level.chains[index]
    operator = chain.operator
    state = work.base.get(chain.uid)
    bases = bases_of(state, level.parallelism, work.info.settings.max_parallelism)
    return ChainSpec(
        uid=chain.uid,
        inputs=tuple(
            InputSpec(
                input_prefix(level.inputs.index(e.node)),
                e.node.schema,
                e.keying,
                event_time_of(e.node) if operator else "",
            )
            for e in chain.inputs
        ),
        function=operator.function if operator else None,
        outputs=tuple(_output_spec(output, chain, level, work.info) for output in chain.outputs),
        bases=tuple(_encode_parts(base) for base in bases),
        known_states=tuple(state.states) if state else (),
        on_error=operator.on_error if operator else None,
        operator_base=encode_operator_base(state) if state else b"",
        watermark=work.watermarks.get(chain.uid),
        watermark_before=state.watermark if state else None,
        emits=operator.schema if operator else None,
        source_times=_source_times(level, chain, work),
        waiting=chain.waiting_inputs,
    )


def _source_times(level: Level, chain: OperatorChain, work: BatchWork) -> tuple[SourceTime, ...]:
    if work.source_watermarks is None or not chain.fires_between_rows:
        return ()
    found = []
    for uid in sorted(chain.watermark_sources):
        watermark, bound = work.source_watermarks.get(uid), work.plan.strategies[uid].out_of_orderness
        known = NO_WATERMARK if watermark is None else watermark
        found.append(SourceTime(level.sources.index(uid), bound, known))
    return tuple(found)


def _encode_parts(base: Base) -> bytes:
    """Returns the msgpack of a base's parts.

    State that is inline in the manifest is cut to the subtask's own key groups, because every task receives the bases
    of all subtasks.
    """
    parts = base.parts
    if base.rescales:
        parts = tuple(
            p
            if p.inline is None
            else msgspec.structs.replace(p, inline=hash_maps.select_groups(p.inline, base.owned, p.snapshot))
            for p in parts
        )
    return msgspec.msgpack.encode(parts) if parts else b""


def _output_spec(output: Output, chain: OperatorChain, level: Level, info: BatchInfo) -> OutputSpec:
    schema = output.node.schema
    # The previous level has applied the row functions of a chain without an operator.
    producer = producer_of(output.node) if chain.operator else None
    sinks = tuple((s.sink, SinkContext(info.id.job_uuid, s.uid, schema)) for s in output.sinks)
    number = level.forwarded.index(output) if output.is_forwarded else None
    if producer is None:
        return OutputSpec(MAIN, (), schema, sinks, number)
    columns = tuple(OutputColumns(node.function, node.parent.schema, node.schema) for node in producer.columns)
    return OutputSpec(producer.tag, producer.steps, schema, sinks, number, columns)


def _flatten(reports: Sequence[TaskReport]) -> list[TaskReport]:
    """Returns the reports and, recursively, all reports that they carry."""
    result = []
    for report in reports:
        result.append(report)
        result += _flatten(report.carried)
    return result


def decode_reports(data: Iterator[bytes]) -> list[TaskReport]:
    """Returns the reports in the last level's rows."""
    return _flatten(list(map(msgpack_decoder(TaskReport).decode, data)))
