"""The interface of executors, and the specification of a batch's tasks that all executors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stateflow.api.graph import event_time_of, producer_of
from stateflow.api.side_outputs import MAIN
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.barriers import TaskReport
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_assignment import bases_of
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.runtime.planning.physical_plan import JobPlan, Level, OperatorChain, Output
from stateflow.runtime.task.operator_state import encode_operator_base
from stateflow.runtime.task_spec import (
    CONTROL,
    OUTPUT_NUMBER,
    PHASE,
    POSITION,
    REPORT,
    TARGET,
    BatchInfo,
    ChainSpec,
    InputSpec,
    LevelSpec,
    OutputColumns,
    OutputSpec,
    SourceTime,
    input_prefix,
    output_prefix,
)
from stateflow.state.backends import hash_maps
from stateflow.state.handles import Base
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.types.decoders import msgpack_decoder


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
            p if p.inline is None else replace(p, inline=hash_maps.select_groups(p.inline, base.owned, p.snapshot))
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
