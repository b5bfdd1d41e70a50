"""The shuffle before a level: sends rows to the subtasks of their keys, and one barrier to each subtask.

All edges of a level share one `partition_by_id` on the global (chain, subtask) index. Its input is a union with
barrier rows, one per subtask, also because Spark drops a shuffle whose input it can prove to be empty.

Expressions are SQL texts: each method of a ``Column`` is a call to the JVM, and hundreds of calls would dominate the
time of a small batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph import CONSTANT_KEY, Keying, Node, SourceNode, leaves_of
from stateflow.config.spark_versions import partition_by_id
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    CONTROL,
    INPUT,
    ORDER,
    ORIGIN,
    OUTPUT_NUMBER,
    PHASE,
    PHASE_SHIFT,
    POSITION,
    POSITION_SHIFT,
    SOURCE_PHASE,
    TARGET,
    BatchInfo,
    input_prefix,
    output_prefix,
)
from stateflow.runtime.planning.physical_plan import JobPlan, Level, Share
from stateflow.runtime.planning.routing import (
    KEY_HASH,
    ROW_PHASE,
    ROW_POSITION,
    ConstantExpression,
    FieldExpression,
    LevelRouting,
    Route,
    to_sql,
)
from stateflow.runtime.spark.frames import (
    ArrowFunction,
    Batches,
    Begin,
    FrameBuilder,
    Observer,
    compose_functions,
    functions_after,
    leaves_in_frames,
)
from stateflow.runtime.spark.inputs import ROW_BITS, ROW_NUMBER, Inputs, row_position
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.types.declared_types import quote_name

_ROUTES = "_sf_routes"
_SHARE_SHIFT = 55
"""The lowest bit of a share's number in the position of a row that was not emitted by a task. Spark's own number stays
below it while a frame has less than 4 million partitions."""


def reads_by_source(level: Level, info: BatchInfo, read_by_tasks: Collection[Node]) -> Counter[Node]:
    """Returns how many times the tasks' input reads the frame of each source.

    Args:
        read_by_tasks: sources whose files tasks read, without a frame if functions in Python follow.
    """
    found: Counter[Node] = Counter()
    for node in level.inputs:
        leaves = leaves_in_frames(node, info.task_info(), read_by_tasks)
        for share in level.shares[node]:
            found.update(leaf for leaf in leaves if share.leaf in (None, leaf))
    return found


def first_exchange(
    level: Level, inputs: Inputs, barrier: BarrierMessage, info: BatchInfo, times: Observer
) -> DataFrame:
    """Builds the shuffled input of the first level's tasks.

    Args:
        barrier: goes to each task, after its rows.
        times: observes the event times of rows.
    """
    exchange = _Exchange(level, info.settings.max_parallelism)
    builder = partial(FrameBuilder, info=info.task_info(), times=times)
    frames = list(_derived_inputs(level, inputs.frame, exchange, builder, inputs))
    frames.append(exchange.barriers(frames[0].sparkSession, barrier))
    return exchange.shuffled(frames)


def exchange_of(level: Level, rows: DataFrame, barrier: BarrierMessage, info: BatchInfo) -> DataFrame:
    """Builds the shuffled input of the first level's tasks, for a level with one input, from the rows of that input.

    Args:
        rows: the rows, with the columns of the input.
        barrier: goes to each task, after its rows.
    """
    exchange = _Exchange(level, info.settings.max_parallelism)
    (node,) = level.inputs
    (share,) = level.shares[node]
    routed = exchange.route(node, rows, _share_location(share, ROW_NUMBER), share.origin)
    return exchange.shuffled([routed, exchange.barriers(rows.sparkSession, barrier)])


def next_exchange(level: Level, before: Level, emitted: DataFrame, info: BatchInfo, times: Observer) -> DataFrame:
    """Builds the shuffled input of a later level's tasks.

    Args:
        before: the previous level.
        emitted: all rows that the tasks of the previous level emitted, barriers included.
        times: observes the event times of rows that pass a level before their watermarks are assigned.
    """
    exchange = _Exchange(level, info.settings.max_parallelism)
    frames = [exchange.forward(emitted, {_number(node, before): node for node in level.inputs if _is_direct(node)})]
    builder = partial(FrameBuilder, info=info.task_info(), times=times)
    frames += _derived_inputs(level, lambda node, *more: _emitted_rows(node, before, emitted, *more), exchange, builder)
    return exchange.shuffled(frames)


def reads_once(level: Level) -> bool:
    """Returns whether a later level takes all rows of the level before unchanged, and so reads them in one pass."""
    return all(map(_is_direct, level.inputs))


def _is_direct(node: Node) -> bool:
    """Returns whether a later level takes the node's rows unchanged."""
    return leaves_of(node) == [node]


def _number(node: Node, before: Level) -> int:
    """Returns the number of the output of the level before that emits the node's rows."""
    return next(n for n, output in enumerate(before.forwarded) if output.node is node)


def _derived_inputs(
    level: Level,
    leaf: Callable[..., DataFrame],
    exchange: _Exchange,
    builder: Callable[..., FrameBuilder],
    inputs: Inputs | None = None,
) -> Iterator[DataFrame]:
    """Yields the inputs that go through Spark expressions or row functions, one frame per share.

    Expressions see neither phase nor source of a row, so rows that differ in them go through separately.
    """
    begin = (lambda _: None) if inputs is None else inputs.begin
    for node in level.inputs:
        for share in level.shares[node]:
            if level.number > 1 and _is_direct(node):
                continue
            own = partial(_begin_share, begin, share)
            frame = builder(partial(_leaf_rows, leaf, share), begin=own).frame(node)
            if frame is not None:
                ranks = () if inputs is None else inputs.ranks_of(share.leaf or node)
                yield exchange.route(node, frame, _share_location(share, row_position(ranks)), share.origin)


def _leaf_rows(leaf: Callable[..., DataFrame], share: Share, node: Node) -> DataFrame | None:
    if share.leaf is not None and share.leaf is not node:
        return None
    if share.phase is None:
        return leaf(node)
    rows = leaf(node, PHASE).where(f"{PHASE} = {share.phase}")
    return rows.select(*(quote_name(name) for name in node.schema.names))


def _begin_share(begin: Begin, share: Share, node: Node) -> tuple[DataFrame, ArrowFunction] | None:
    return begin(node) if share.leaf in (None, node) else None


def _share_location(share: Share, position: str) -> _RowLocation:
    """Returns locations that no other share of the input has."""
    moved = f"({position} + {share.number << _SHARE_SHIFT}L)" if share.number else position
    return replace(_DERIVED, position=moved, phase=str(SOURCE_PHASE if share.phase is None else share.phase))


def _emitted_rows(node: Node, before: Level, emitted: DataFrame, *more: str) -> DataFrame:
    """Returns the rows of a node that the tasks of the level before emitted, with the columns `more`."""
    number = _number(node, before)
    prefix = output_prefix(number)
    columns = [f"{quote_name(prefix + name)} AS {quote_name(name)}" for name in node.schema.names]
    return emitted.where(f"{OUTPUT_NUMBER} = {number}").selectExpr(*columns, *more)


@dataclass(frozen=True)
class _RowLocation:
    """SQL expressions for a row's location in its input.

    Attributes:
        position: grows with the order of arrival.
        batch_bits: how many of its lower bits number rows that arrived together.
    """

    position: str
    phase: str
    batch_bits: int

    def fields(self, keying: Keying | None, prefix: str) -> dict[FieldExpression, str]:
        """Returns the expressions of all fields that a route may use.

        Args:
            prefix: prefix of the columns that hold the row.
        """
        fields: dict[FieldExpression, str] = {ROW_POSITION: self.position, ROW_PHASE: f"CAST({self.phase} AS BIGINT)"}
        if keying is not None:
            columns = [quote_name(prefix + column) for column in keying.row_columns] or [f"{CONSTANT_KEY}L"]
            fields[KEY_HASH] = f"xxhash64({', '.join(columns)})"
        return fields


@dataclass(frozen=True)
class _SqlRoute:
    """A route, rendered as SQL expressions."""

    target: str
    order: str
    input: int

    @classmethod
    def of(cls, route: Route, location: _RowLocation, prefix: str) -> _SqlRoute:
        """Renders a route; the arguments are those of `_RowLocation.fields`."""
        fields = location.fields(route.keying, prefix)
        return cls(f"CAST({to_sql(route.target, fields)} AS INT)", to_sql(route.order, fields), route.input)

    @classmethod
    def of_barrier(cls, target: str) -> _SqlRoute:
        """The route of a barrier, which a task reads after all rows."""
        return cls(f"CAST({target} AS INT)", to_sql(ConstantExpression(BARRIER_ORDER), {}), 0)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Pairs of column and expression."""
        return ((TARGET, self.target), (ORDER, self.order), (INPUT, str(self.input)))


_DERIVED = _RowLocation(ROW_NUMBER, str(SOURCE_PHASE), ROW_BITS)
"""Of rows that were not emitted by a task."""
_EMITTED = _RowLocation(POSITION, PHASE, POSITION_SHIFT)


def _case(branches: Sequence[tuple[str, str]]) -> str:
    """Returns the expression of the first branch whose condition holds. One condition always holds."""
    if len(branches) == 1:
        return branches[0][1]
    return f"CASE {' '.join(f'WHEN {when} THEN {then}' for when, then in branches)} END"


class _Exchange:
    """Builds the input of one level: each row gets a target, an order, and columns of its own per input."""

    def __init__(self, level: Level, max_parallelism: int) -> None:
        self._level = level
        self._routing = LevelRouting(level, max_parallelism)
        self._payload = [
            (quote_name(input_prefix(i) + c.name), c.spark_type)
            for i, n in enumerate(level.inputs)
            for c in n.schema.columns
        ]

    def route(self, node: Node, frame: DataFrame, location: _RowLocation, origin: int = -1) -> DataFrame:
        """Returns the rows of one input, once for each task that takes them.

        Args:
            origin: as in `Share`.
        """
        prefix = input_prefix(self._level.inputs.index(node))
        renamed = {quote_name(prefix + name): quote_name(name) for name in node.schema.names}
        carried = [f"CAST(NULL AS BINARY) AS {CONTROL}", *self._origin(origin), *self._values(renamed)]
        routes = self._routing.routes(node, location.batch_bits)
        if location.position != POSITION and any(route.by_position for route in routes):
            # Spark computes the position once, not for the column and again for the target.
            frame = frame.selectExpr("*", f"{location.position} AS {POSITION}")
            location = replace(location, position=POSITION)
        cases = [("TRUE", [_SqlRoute.of(route, location, "") for route in routes])]
        return self._sent(frame, cases, [f"{location.position} AS {POSITION}", *carried])

    def forward(self, emitted: DataFrame, numbers: Mapping[int, Node]) -> DataFrame:
        """Returns the barriers, and the rows of some outputs of the level before, unchanged and in one pass.

        A frame that is read twice would have to be persisted, which costs a small batch more than its tasks.

        Args:
            numbers: the nodes whose rows these are, by the number of their output.
        """
        wanted = [f"{CONTROL} IS NOT NULL", *(f"{OUTPUT_NUMBER} = {number}" for number in numbers)]
        routes = [
            [_SqlRoute.of_barrier(TARGET)],
            *(
                [
                    _SqlRoute.of(route, _EMITTED, output_prefix(number))
                    for route in self._routing.routes(node, _EMITTED.batch_bits)
                ]
                for number, node in numbers.items()
            ),
        ]
        renamed = {
            quote_name(input_prefix(self._level.inputs.index(node)) + name): quote_name(output_prefix(number) + name)
            for number, node in numbers.items()
            for name in node.schema.names
        }
        carried = [POSITION, CONTROL, *self._origin(-1), *self._values(renamed)]
        cases = list(zip(wanted, routes, strict=True))
        return self._sent(emitted.where(" OR ".join(wanted)), cases, carried)

    def barriers(self, spark: SparkSession, barrier: BarrierMessage) -> DataFrame:
        """Returns one barrier of the driver for each task."""
        data = msgspec.msgpack.encode(barrier).hex()
        route = self._route_columns(_SqlRoute.of_barrier("id"))
        return spark.range(0, self._level.targets, 1, 1).selectExpr(
            *(f"{text} AS {name}" for name, text in route.items()),
            f"0L AS {POSITION}",
            f"X'{data}' AS {CONTROL}",
            *self._origin(-1),
            *self._values({}),
        )

    def shuffled(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Returns the union of the frames, with each row at its task, in any order."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.union(frame)
        # No projection follows, because it would copy each row once more: tasks drop the columns that they do not need.
        return partition_by_id(union, self._level.targets, TARGET)

    def _route_columns(self, route: _SqlRoute) -> dict[str, str]:
        """Returns the expressions of a route by column, for the columns that the level's tasks read."""
        return {name: text for name, text in route.columns if name != INPUT or self._level.has_connected_inputs}

    def _origin(self, origin: int) -> list[str]:
        return [f"{origin} AS {ORIGIN}"] if self._level.has_origins else []

    def _values(self, sources: Mapping[str, str]) -> list[str]:
        """Returns the columns of all inputs: each from the column that `sources` maps it to, or null."""
        return [f"{sources.get(c, f'CAST(NULL AS {kind})')} AS {c}" for c, kind in self._payload]

    def _sent(self, frame: DataFrame, cases: Sequence[tuple[str, list[_SqlRoute]]], carried: list[str]) -> DataFrame:
        """Returns each row of `frame` on all routes of the first case whose condition holds for it."""
        if all(len(routes) == 1 for _, routes in cases):
            single = [(when, self._route_columns(route)) for when, (route,) in cases]
            columns = [f"{_case([(when, texts[name]) for when, texts in single])} AS {name}" for name in single[0][1]]
            return frame.selectExpr(*columns, *carried)
        arrays = [(when, f"array({', '.join(map(self._struct, routes))})") for when, routes in cases]
        exploded = frame.selectExpr(f"explode({_case(arrays)}) AS {_ROUTES}", *carried)
        parts = [f"{_ROUTES}.{name}" for name in self._route_columns(cases[0][1][0])]
        origin = (ORIGIN,) if self._level.has_origins else ()
        return exploded.selectExpr(*parts, POSITION, CONTROL, *origin, *(c for c, _ in self._payload))

    def _struct(self, route: _SqlRoute) -> str:
        fields = (f"{name!r}, {text}" for name, text in self._route_columns(route).items())
        return f"named_struct({', '.join(fields)})"


_KEEPS_PARTITIONS = frozenset({"RDDScanExec", "ProjectExec", "FilterExec", "GenerateExec", "CollectMetricsExec"})
"""Spark's physical operators that keep rows in the partitions of a batch's input.

Planning them runs nothing, unless an expression contains a subquery.
"""


class _Seq(Protocol):
    """A sequence of the JVM."""

    def size(self) -> int: ...

    def apply(self, index: int) -> _Plan: ...


class _Class(Protocol):
    def getSimpleName(self) -> str: ...


class _Plan(Protocol):
    """A physical operator in the JVM."""

    def getClass(self) -> _Class: ...

    def children(self) -> _Seq: ...

    def containsPattern(self, pattern: object) -> bool: ...


def find_written_rows(plan: JobPlan, inputs: Inputs, info: TaskInfo) -> DataFrame | None:
    """Returns the rows that a job writes if it has one sink, on rows of a source, and nothing else; else None."""
    if not _writes_rows_of_one_source(plan):
        return None
    (node,) = plan.levels[0].inputs
    return FrameBuilder(inputs.frame, info, inputs.begin).frame(node)


def files_read_by_tasks(plan: JobPlan, inputs: Inputs, info: TaskInfo) -> tuple[DataFrame, ArrowFunction] | None:
    """Returns a frame with a partition for each task, and a function that yields the rows of the task's files.

    Returns None unless the job only writes such rows, and needs no shuffle.
    """
    level = plan.levels[0]
    if not _writes_rows_of_one_source(plan) or inputs.cores > level.targets:
        return None
    (node,) = level.inputs
    start, functions = functions_after(node, info)
    if not isinstance(start, SourceNode) or start not in inputs.read_by_tasks:
        return None
    frame, read = inputs.begin_in(start, level.targets)
    return frame, compose_functions((read, *functions, partial(_renamed, node.schema.names)))


def find_unshuffled_input(plan: JobPlan, written: DataFrame) -> DataFrame | None:
    """Returns the rows of the first level's tasks, one partition for each task; None if they need a shuffle.

    Args:
        written: the frame of `find_written_rows`.
    """
    level = plan.levels[0]
    # For a shuffle, Spark reads with a task for each partition: faster if there are more cores than tasks here.
    if written.sparkSession.sparkContext.defaultParallelism > level.targets or _partitions(written) < level.targets:
        return None
    (node,) = level.inputs
    prefix = input_prefix(0)
    columns = [f"{quote_name(name)} AS {quote_name(prefix + name)}" for name in node.schema.names]
    return written.selectExpr(*columns).coalesce(level.targets)


def with_order(barrier: BarrierMessage, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task as the shuffle would deliver them: with their order, and the barrier after them."""
    for batch in batches:
        order = np.full(len(batch), SOURCE_PHASE << PHASE_SHIFT, np.int64)
        yield batch.append_column(ORDER, pa.array(order))
    control = msgspec.msgpack.encode(barrier)
    yield pa.RecordBatch.from_pydict({ORDER: [BARRIER_ORDER], CONTROL: [control]})


def _renamed(names: tuple[str, ...], batches: Batches) -> Batches:
    renamed = [input_prefix(0) + name for name in names]
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names=renamed)


def _writes_rows_of_one_source(plan: JobPlan) -> bool:
    """Returns whether the job has one sink, on rows of a source, and nothing else."""
    if len(plan.levels) != 1 or len(plan.sources) != 1 or len(plan.chains) != 1:
        return False
    (chain,) = plan.chains
    if chain.operator is not None or chain.is_relay or len(leaves_of(chain.inputs[0].node)) != 1:
        return False
    # A sink by key needs all rows of a key in one task.
    return not any(sink.sink.ordering_key for output in chain.outputs for sink in output.sinks)


def _partitions(frame: DataFrame) -> int:
    """Returns how many partitions a frame has; 0 if that is known only after a part of it has run."""
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - only the JVM's object has the plan
    operator = execution.sparkPlan()
    if not _keeps_partitions(operator) or _has_subquery(frame.sparkSession, operator):
        return 0
    count: int = execution.toRdd().getNumPartitions()
    return count


def _has_subquery(spark: SparkSession, operator: _Plan) -> bool:
    """Returns whether an expression contains a subquery, which `toRdd` would run."""
    jvm = spark._jvm  # noqa: SLF001 - only the JVM has the patterns
    assert jvm is not None
    return operator.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION())


def _keeps_partitions(operator: _Plan) -> bool:
    if operator.getClass().getSimpleName() not in _KEEPS_PARTITIONS:
        return False
    children = operator.children()
    return all(_keeps_partitions(children.apply(at)) for at in range(children.size()))
