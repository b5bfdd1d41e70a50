"""The executor without Spark: the same tasks in this process, for tests and for tiny jobs."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa

from stateflow.api.graph import TransformNode
from stateflow.checkpoint.reports import TaskReport
from stateflow.errors import JobDefinitionError
from stateflow.keygroups import key_hash, subtask_of
from stateflow.runtime.executors import BatchWork, Executor, decode_reports, level_specs
from stateflow.runtime.plan import JobPlan, Level, Unit, producer
from stateflow.runtime.rows import row_maker, to_batch, to_rows
from stateflow.runtime.specs import (
    BARRIER_ORDER,
    CONTROL,
    GROUP_SHIFT,
    ORDER,
    POSITION,
    REPORT,
    TARGET,
    UNIT,
    LevelSpec,
    input_prefix,
    output_prefix,
)
from stateflow.runtime.task import Barrier, run_level

_HASH_MASK = (1 << GROUP_SHIFT) - 1


@dataclass(frozen=True)
class _Routed:
    """A row on its way to a task, with everything that it is sorted by."""

    order: int
    ties: tuple[Any, ...]
    position: int
    row: Any


class LocalExecutor(Executor):
    """Runs tasks one after another. Refuses Spark expressions, which it cannot evaluate."""

    def __init__(self) -> None:
        self._attempts = count()

    def execute(self, rows: Sequence[Any], work: BatchWork) -> list[TaskReport]:
        """Runs the batch over row objects of the source's class."""
        refuse_transforms(work.plan)
        specs = level_specs(work)
        barrier = msgspec.msgpack.encode(Barrier(work.info.generation, work.info.ordinal))
        controls = [[(barrier, None)] for _ in range(work.plan.levels[0].targets)]
        inputs = {id(work.plan.source): list(enumerate(rows))}
        emitted: list[pa.RecordBatch] = []
        for at, level in enumerate(work.plan.levels):
            emitted = self._run_level(specs[at], level, (inputs, controls), work.info.max_parallelism)
            if at + 1 < len(work.plan.levels):
                inputs, controls = _split(emitted, level, work.plan.levels[at + 1].targets)
        return decode_reports(value for batch in emitted for value in batch.column(REPORT).to_pylist())

    def _run_level(
        self, spec: LevelSpec, level: Level, given: tuple[dict[int, Any], list[Any]], max_parallelism: int
    ) -> list[pa.RecordBatch]:
        inputs, controls = given
        routed = _route(level, inputs, max_parallelism)
        result: list[pa.RecordBatch] = []
        for target in range(level.targets):
            unit = level.units[target // level.parallelism]
            batches = _input_batches(unit, level, routed[target], controls[target])
            # Functions live one batch: a task on a cluster gets its own copy too.
            own = replace(spec, units=copy.deepcopy(spec.units))
            result += run_level(own, target, f"l{next(self._attempts)}", batches)
        return result


def refuse_transforms(plan: JobPlan) -> None:
    """Raises JobDefinitionError when a unit's input goes through a Spark expression."""
    for unit in plan.units:
        if isinstance(unit.input, TransformNode):
            raise JobDefinitionError("a Spark expression cannot run without Spark", hint="run the job on Spark, or "
                                     "feed the operator directly", uid=unit.uid)  # fmt: skip


def _route(level: Level, inputs: dict[int, Any], max_parallelism: int) -> dict[int, list[_Routed]]:
    routed: dict[int, list[_Routed]] = defaultdict(list)
    for unit in level.units:
        for position, row in inputs.get(id(producer(unit.input)), ()):
            target, item = _target(unit, level.parallelism, max_parallelism, position, row)
            routed[target].append(item)
    for items in routed.values():
        items.sort(key=lambda r: (r.order, r.ties, r.position))
    return routed


def _target(
    unit: Unit, parallelism: int, max_parallelism: int, position: int, row: Any
) -> tuple[int, _Routed]:
    if unit.operator is None:
        return unit.first_target + position % parallelism, _Routed(0, (), position, row)
    keying = unit.operator.keying
    key = tuple(getattr(row, c) for c in keying.columns)
    if None in key:
        # As Spark has it: a null does not change the hash. The operator refuses the row with a clear error.
        return unit.first_target, _Routed(0, (), position, row)
    digest = key_hash(key, keying.types)
    group = digest % max_parallelism
    order = group << GROUP_SHIFT | (digest % (1 << 64)) >> (64 - GROUP_SHIFT) & _HASH_MASK
    ties = tuple((v is not None, v) for v in (*key, *(getattr(row, c) for c in keying.order_by)))
    return unit.first_target + subtask_of(group, parallelism, max_parallelism), _Routed(
        order, ties, position, row
    )


def _input_batches(
    unit: Unit, level: Level, items: Sequence[_Routed], controls: Sequence[tuple[bytes, bytes | None]]
) -> list[pa.RecordBatch]:
    schema = unit.input.schema
    prefix = input_prefix(level.inputs.index(unit.input))
    data = to_batch([item.row for item in items], schema)
    names = [ORDER, CONTROL, REPORT, *(prefix + n for n in schema.names)]
    rows = [pa.array([i.order for i in items], pa.int64()), pa.nulls(len(items), pa.binary()),
            pa.nulls(len(items), pa.binary()), *data.columns]  # fmt: skip
    barriers = [pa.array([BARRIER_ORDER] * len(controls), pa.int64()), pa.array([c for c, _ in controls], pa.binary()),
                pa.array([r for _, r in controls], pa.binary()),
                *(pa.nulls(len(controls), c.arrow_type) for c in schema.columns)]  # fmt: skip
    return [pa.RecordBatch.from_arrays(rows, names=names), pa.RecordBatch.from_arrays(barriers, names=names)]


def _split(emitted: list[pa.RecordBatch], level: Level, targets: int) -> tuple[dict[int, Any], list[Any]]:
    """What a level emitted, as the next level's rows by producer and its barriers by target."""
    rows: dict[int, list[Any]] = defaultdict(list)
    controls: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(targets)]
    for batch in emitted:
        kinds = batch.column(UNIT).to_pylist()
        if kinds and kinds[0] is None:
            columns = (batch.column(c).to_pylist() for c in (TARGET, CONTROL, REPORT))
            for target, control, report in zip(*columns, strict=True):
                controls[target].append((control, report))
        elif kinds:
            operator = level.units[kinds[0]].operator
            assert operator is not None
            prefix = output_prefix(kinds[0])
            found = to_rows(
                [batch.column(prefix + n) for n in operator.schema.names], row_maker(operator.schema)
            )
            rows[id(operator)] += zip(batch.column(POSITION).to_pylist(), found, strict=True)
    return rows, controls
