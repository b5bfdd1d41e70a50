"""Running the levels of one batch: on Spark, as a single action, or in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stateflow.api.graph import event_time_of, maker_of
from stateflow.api.side_outputs import MAIN
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.documents import OperatorState
from stateflow.checkpoint.reports import TaskReport
from stateflow.checkpoint.restore import bases_of
from stateflow.decoders import msgpack_decoder
from stateflow.runtime.operator_parts import encode_operator_base
from stateflow.runtime.plan import JobPlan, Level, Outlet, Unit
from stateflow.runtime.specs import (
    CONTROL,
    PHASE,
    POSITION,
    REPORT,
    TARGET,
    UNIT,
    BatchInfo,
    InputSpec,
    LevelSpec,
    OutletSpec,
    SourceTime,
    UnitSpec,
    input_prefix,
    output_prefix,
)
from stateflow.state import snapshots
from stateflow.state.handles import Base
from stateflow.state.timers import NO_WATERMARK


@dataclass(frozen=True)
class BatchWork:
    """What one batch does: the plan, the barrier, and the state to start from.

    Attributes:
        watermarks: of each operator.
        sources: the watermark of each source before the batch; None where event time does not follow from the rows, so
            that no timer fires between them.
    """

    plan: JobPlan
    info: BatchInfo
    base: dict[str, OperatorState]
    watermarks: Mapping[str, int | None] = field(default_factory=dict)
    sources: Mapping[str, int | None] | None = None


class Executor(ABC):
    """Runs every level of a batch over its rows and returns the reports of all tasks."""

    reads_by_spark: bool = False
    """Whether Spark reads the sources, so that positions are in Spark's words."""

    @abstractmethod
    def no_rows(self, plan: JobPlan) -> Any:
        """What `execute` takes for a batch without rows."""

    @abstractmethod
    def tend(self, plan: JobPlan, info: BatchInfo) -> None:
        """Keeps alive what stores files beside the batches, while no batch runs."""

    def cancel(self) -> None:  # noqa: B027 - what runs in this process cannot be interrupted
        """Interrupts the batch that runs, if that is possible; called from another thread."""

    @abstractmethod
    def execute(self, rows: Any, work: BatchWork) -> list[TaskReport]:
        """Runs the batch.

        Args:
            rows: the sources' rows of this batch: for Spark a frame, as `source_frame` makes it; otherwise row objects
                by the source's uid.
        """


def output_schema(level: Level, last: bool) -> pa.Schema:
    """What the tasks of a level emit: in the last level reports, before it rows and barriers."""
    if last:
        return pa.schema([pa.field(REPORT, pa.binary())])
    fields = [pa.field(UNIT, pa.int32()), pa.field(TARGET, pa.int64()), pa.field(POSITION, pa.int64()),
              pa.field(PHASE, pa.int64()), pa.field(CONTROL, pa.binary())]  # fmt: skip
    for number, outlet in enumerate(level.fed):
        prefix = output_prefix(number)
        fields += [pa.field(prefix + c.name, c.arrow_type) for c in outlet.node.schema.columns]
    return pa.schema(fields)


def level_specs(work: BatchWork) -> list[LevelSpec]:
    """What the tasks of each level are sent."""
    specs: list[LevelSpec] = []
    upstream: tuple[tuple[str, int], ...] = ()
    levels = work.plan.levels
    for at, level in enumerate(levels):
        last = at == len(levels) - 1
        units = tuple(_unit_spec(level, index, work) for index in range(len(level.units)))
        specs.append(LevelSpec(
            work.info, level.parallelism, units, upstream, 0 if last else levels[at + 1].targets,
            output_schema(level, last), level.sources,
        ))  # fmt: skip
        upstream = tuple((u.uid, s) for u in level.units for s in range(level.parallelism))
    return specs


def _unit_spec(level: Level, index: int, work: BatchWork) -> UnitSpec:
    unit = level.units[index]
    operator = unit.operator
    state = work.base.get(unit.uid)
    bases = bases_of(state, level.parallelism, work.info.max_parallelism)
    return UnitSpec(
        uid=unit.uid, inputs=tuple(
            InputSpec(input_prefix(level.inputs.index(e.node)), e.node.schema, e.keying,
                      event_time_of(e.node) if operator else "") for e in unit.inputs
        ), function=operator.function if operator else None,
        outlets=tuple(_outlet_spec(outlet, unit, level, work.info) for outlet in unit.outlets),
        bases=tuple(_packed(base) for base in bases),
        known_states=tuple(state.states) if state else (), on_error=operator.on_error if operator else None,
        operator_base=encode_operator_base(state) if state else b"", watermark=work.watermarks.get(unit.uid),
        watermark_before=state.watermark if state else None, emits=operator.schema if operator else None,
        source_times=_source_times(level, unit, work),
    )  # fmt: skip


def _source_times(level: Level, unit: Unit, work: BatchWork) -> tuple[SourceTime, ...]:
    if work.sources is None or not unit.fires_between_rows:
        return ()
    found = []
    for uid in sorted(unit.watermark_sources):
        watermark, bound = work.sources.get(uid), work.plan.strategies[uid].out_of_orderness
        known = NO_WATERMARK if watermark is None else watermark
        found.append(SourceTime(level.sources.index(uid), bound, known))
    return tuple(found)


def _packed(base: Base) -> bytes:
    """The parts of a base as they are sent. Of state that is in the manifest, each new subtask gets its own only: every
    task is sent the bases of all."""
    parts = base.parts
    if base.rescales:
        parts = tuple(
            p if p.inline is None else replace(p, inline=snapshots.cut(p.inline, base.owned, p.snapshot)) for p in parts
        )  # fmt: skip
    return msgspec.msgpack.encode(parts) if parts else b""


def _outlet_spec(outlet: Outlet, unit: Unit, level: Level, info: BatchInfo) -> OutletSpec:
    schema = outlet.node.schema
    # What a unit without an operator takes has been worked on already.
    tag, steps = maker_of(outlet.node)[1:] if unit.operator else (MAIN, ())
    sinks = tuple((s.sink, SinkContext(info.job_uuid, s.uid, schema)) for s in outlet.sinks)
    return OutletSpec(tag, steps, schema, sinks, level.fed.index(outlet) if outlet.feeds else None)


def flatten(reports: Sequence[TaskReport]) -> list[TaskReport]:
    """The reports and all that they carry."""
    result = []
    for report in reports:
        result.append(report)
        result += flatten(report.carried)
    return result


def decode_reports(data: Iterator[bytes]) -> list[TaskReport]:
    """The reports in the last level's rows."""
    return flatten(list(map(msgpack_decoder(TaskReport).decode, data)))
