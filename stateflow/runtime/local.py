"""The executor without Spark: the same tasks in this process, for tests and for tiny jobs."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.functions import TaskInfo
from stateflow.api.graph import (
    Keying,
    Node,
    PartialNode,
    RowsNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    leaves_of,
    parents_of,
)
from stateflow.checkpoint.reports import TaskReport
from stateflow.errors import JobDefinitionError
from stateflow.keygroups import key_hash, subtask_of
from stateflow.runtime.executors import BatchWork, Executor, decode_reports, level_specs
from stateflow.runtime.plan import JobPlan, Level, Unit
from stateflow.runtime.row_steps import RowChain
from stateflow.runtime.rows import row_maker, to_batch, to_rows
from stateflow.runtime.specs import (
    BARRIER_ORDER,
    BROADCAST_ORDER,
    CONTROL,
    GROUP_SHIFT,
    INPUT,
    ORDER,
    ORIGIN,
    PHASE,
    PHASE_SHIFT,
    POSITION,
    POSITION_SHIFT,
    REPORT,
    SOURCE_PHASE,
    TARGET,
    UNIT,
    BatchInfo,
    InputSpec,
    LevelSpec,
    output_prefix,
)
from stateflow.runtime.task import Barrier, run_level

_HASH_MASK = (1 << GROUP_SHIFT) - 1


@dataclass(frozen=True)
class _Placed:
    """A row, where it stands among the others, and the number of the source that it comes from, or -1."""

    position: int
    phase: int
    row: Any
    origin: int = -1


@dataclass(frozen=True)
class _Routed:
    """A row on its way to a task, with everything that it is sorted by."""

    order: int
    ties: tuple[Any, ...]
    number: int
    position: int
    row: Any
    origin: int = -1


_Rows = Mapping[Node, list[_Placed]]
_Controls = list[list[bytes]]


class LocalExecutor(Executor):
    """Runs tasks one after another. Refuses Spark expressions, which it cannot evaluate.

    Args:
        arrow_rows: of the Arrow batches that tasks are given; None for all rows in one.
    """

    def __init__(self, arrow_rows: int | None = None) -> None:
        self._attempts = count()
        self._arrow_rows = arrow_rows

    def no_rows(self, plan: JobPlan) -> Mapping[str, Sequence[Any]]:
        return {}

    def tend(self, plan: JobPlan, info: BatchInfo) -> None:
        """Files are stored by a thread of this process, which lives."""

    def execute(self, rows: Mapping[str, Sequence[Any]], work: BatchWork) -> list[TaskReport]:
        """Runs the batch over row objects of the sources' classes, by uid."""
        refuse_transforms(work.plan)
        specs = level_specs(work)
        barrier = msgspec.msgpack.encode(Barrier(work.info.generation, work.info.ordinal))
        controls: _Controls = [[barrier] for _ in range(work.plan.levels[0].targets)]
        inputs: _Rows = {
            node: [_Placed(n, SOURCE_PHASE, row, origin) for n, row in enumerate(rows.get(node.uid, ()))]
            for origin, node in enumerate(work.plan.sources)
        }
        emitted: list[pa.RecordBatch] = []
        for at, level in enumerate(work.plan.levels):
            routed = _Router(level, work.info).route(_expressed(level, inputs, work.info))
            emitted = self._run_level(specs[at], level, routed, controls)
            if at + 1 < len(work.plan.levels):
                inputs, controls = _split(emitted, level, work.plan.levels[at + 1].targets)
        return decode_reports(value for batch in emitted for value in batch.column(REPORT).to_pylist())

    def _run_level(
        self, spec: LevelSpec, level: Level, routed: Mapping[int, list[_Routed]], controls: _Controls
    ) -> list[pa.RecordBatch]:
        result: list[pa.RecordBatch] = []
        for target in range(level.targets):
            unit = spec.units[target // level.parallelism]
            whole = _input_batches(unit.inputs, routed[target], controls[target])
            batches = [part for batch in whole for part in _parts(batch, self._arrow_rows)]
            # Functions live one batch: a task on a cluster gets its own copy too.
            own = replace(spec, units=copy.deepcopy(spec.units))
            result += run_level(own, target, f"l{next(self._attempts)}", batches)
        return result


def refuse_transforms(plan: JobPlan) -> None:
    """Raises JobDefinitionError when a unit's input goes through a Spark expression."""
    for unit in plan.units:
        if any(has_transform(edge.node) for edge in unit.inputs):
            raise JobDefinitionError("a Spark expression cannot run without Spark", hint="run the job on Spark, or "
                                     "feed the operator directly", uid=unit.uid)  # fmt: skip


def has_transform(node: Node) -> bool:
    """Whether the rows of `node` go through a Spark expression, since they came from a source or a task."""
    if leaves_of(node) == [node]:
        return False
    return isinstance(node, TransformNode) or any(map(has_transform, parents_of(node)))


def _expressed(level: Level, given: _Rows, info: BatchInfo) -> _Rows:
    """The rows of each input of a level."""
    return {node: list(_rows_of(node, given, info)) for node in level.inputs}


def _rows_of(node: Node, given: _Rows, info: BatchInfo) -> Iterator[_Placed]:
    if leaves_of(node) == [node]:
        yield from given.get(node, ())
    elif isinstance(node, WatermarkNode):
        yield from _rows_of(node.parent, given, info)
    elif isinstance(node, UnionNode):
        together = [placed for parent in node.parents for placed in _rows_of(parent, given, info)]
        yield from (replace(placed, position=n) for n, placed in enumerate(together))
    elif isinstance(node, PartialNode):
        yield from _aggregated(node, list(_rows_of(node.parent, given, info)))
    else:
        assert isinstance(node, RowsNode)
        yield from _stepped(node, list(_rows_of(node.parent, given, info)), info)


def _stepped(node: RowsNode, rows: Sequence[_Placed], info: BatchInfo) -> Iterator[_Placed]:
    chain = RowChain(
        [copy.deepcopy(node.step)], TaskInfo("", 0, 1, info.max_parallelism, info.processing_time, info.epoch)
    )
    numbers = count()
    for placed in rows:
        with chain.closed_on_error():
            made = chain.apply([placed.row])
        yield from (_Placed(next(numbers), placed.phase, row, placed.origin) for row in made)
    chain.close()


def _aggregated(node: PartialNode, rows: Sequence[_Placed]) -> Iterator[_Placed]:
    numbers, maker = count(), row_maker(node.schema)
    for phase in sorted({placed.phase for placed in rows}):
        given = to_batch([placed.row for placed in rows if placed.phase == phase], node.parent.schema)
        for made in node.aggregation.apply([given]):
            yield from (_Placed(next(numbers), phase, row) for row in to_rows(list(made.columns), maker))


class _Router:
    """Sends rows to the subtasks that take them, as `exchange` does on Spark."""

    def __init__(self, level: Level, info: BatchInfo) -> None:
        self._level = level
        self._max_parallelism = info.max_parallelism

    def route(self, rows: _Rows) -> Mapping[int, list[_Routed]]:
        """The sorted rows of each target."""
        routed: dict[int, list[_Routed]] = defaultdict(list)
        for unit in self._level.units:
            for number, edge in enumerate(unit.inputs):
                for placed in rows[edge.node]:
                    for target, item in self._routes(unit, number, edge.keying, placed):
                        routed[unit.first_target + target].append(item)
        for items in routed.values():
            items.sort(key=lambda r: (r.order, r.ties, r.number, r.position))
        return routed

    def _routes(
        self, unit: Unit, number: int, keying: Keying | None, placed: _Placed
    ) -> Iterator[tuple[int, _Routed]]:
        parallelism, position = self._level.parallelism, placed.position
        if keying is not None:
            yield self._keyed(number, keying, placed)
        elif unit.operator is not None:
            item = _Routed(BROADCAST_ORDER, (), number, position, placed.row, placed.origin)
            yield from ((subtask, item) for subtask in range(parallelism))
        else:
            # A relay keeps the order of arrival of what came together.
            spread = position >> POSITION_SHIFT if unit.is_relay else position
            yield spread % parallelism, _Routed(placed.phase << PHASE_SHIFT, (), number, position, placed.row)

    def _keyed(self, number: int, keying: Keying, placed: _Placed) -> tuple[int, _Routed]:
        phase, row = placed.phase << PHASE_SHIFT, placed.row
        key = tuple(getattr(row, c) for c in keying.columns)
        if None in key:
            # As Spark has it: a null does not change the hash. The operator refuses the row with a clear error.
            return 0, _Routed(phase, (), number, placed.position, row, placed.origin)
        digest = key_hash(key, keying.types)
        group = digest % self._max_parallelism
        order = phase | group << GROUP_SHIFT | (digest % (1 << 64)) >> (64 - GROUP_SHIFT) & _HASH_MASK
        ties = tuple((v is not None, v) for v in (*key, *(getattr(row, c) for c in keying.order_by)))
        subtask = subtask_of(group, self._level.parallelism, self._max_parallelism)
        return subtask, _Routed(order, ties, number, placed.position, row, placed.origin)


def _input_batches(
    inputs: Sequence[InputSpec], items: Sequence[_Routed], controls: Sequence[bytes]
) -> list[pa.RecordBatch]:
    number = pa.array([i.number for i in items], pa.int32())
    names, columns = [ORDER, INPUT, CONTROL, ORIGIN], [
        pa.array([i.order for i in items], pa.int64()), number, pa.nulls(len(items), pa.binary()),
        pa.array([i.origin for i in items], pa.int32()),
    ]  # fmt: skip
    barriers = [pa.array([BARRIER_ORDER] * len(controls), pa.int64()), pa.array([0] * len(controls), pa.int32()),
                pa.array(controls, pa.binary()), pa.array([-1] * len(controls), pa.int32())]  # fmt: skip
    given = dict(zip(names, columns, strict=True))
    ended = dict(zip(names, barriers, strict=True))
    for at, spec in enumerate(inputs):
        own = _column_arrays(spec, [i.row if i.number == at else None for i in items])
        for name, column in zip(spec.columns, own, strict=True):
            # One stream that is connected to itself has its columns once.
            known = given.get(name)
            given[name] = column if known is None else pc.coalesce(known, column)
            ended[name] = pa.nulls(len(controls), column.type)
    return [pa.RecordBatch.from_pydict(given), pa.RecordBatch.from_pydict(ended)]


def _parts(batch: pa.RecordBatch, size: int | None) -> list[pa.RecordBatch]:
    return [batch] if size is None else [batch.slice(at, size) for at in range(0, len(batch), size)]


def _column_arrays(spec: InputSpec, rows: Sequence[Any]) -> list[pa.Array]:
    """Columns of rows, null where there is none."""
    places = [n for n, row in enumerate(rows) if row is not None]
    data = to_batch([rows[n] for n in places], spec.schema)
    if len(places) == len(rows):
        return list(data.columns)
    at = dict(zip(places, range(len(places)), strict=True))
    take = pa.array([at.get(n) for n in range(len(rows))], pa.int64())
    return [column.take(take) for column in data.columns]


def _split(emitted: list[pa.RecordBatch], level: Level, targets: int) -> tuple[_Rows, _Controls]:
    """What a level emitted, as the next level's rows by node and its barriers by target."""
    rows: dict[Node, list[_Placed]] = defaultdict(list)
    controls: _Controls = [[] for _ in range(targets)]
    for batch in emitted:
        kinds = batch.column(UNIT).to_pylist()
        if kinds and kinds[0] is None:
            columns = (batch.column(c).to_pylist() for c in (TARGET, CONTROL))
            for target, control in zip(*columns, strict=True):
                controls[target].append(control)
        elif kinds:
            rows[level.fed[kinds[0]].node] += _emitted_rows(batch, kinds[0], level)
    return rows, controls


def _emitted_rows(batch: pa.RecordBatch, number: int, level: Level) -> Iterator[_Placed]:
    schema, prefix = level.fed[number].node.schema, output_prefix(number)
    found = to_rows([batch.column(prefix + n) for n in schema.names], row_maker(schema))
    places = (batch.column(c).to_pylist() for c in (POSITION, PHASE))
    node = level.fed[number].node
    origin = level.sources.index(node.uid) if isinstance(node, SourceNode) else -1
    return map(_Placed, *places, found, repeat(origin))
