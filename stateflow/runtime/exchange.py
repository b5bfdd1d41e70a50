"""The shuffle in front of a level: rows to the subtasks of their keys, and one barrier behind them, in Spark's words.

All edges of a level share one ``repartitionById`` on the global (unit, subtask) index. Its input is a union with
barrier rows, one per subtask, also because Spark drops a shuffle whose input it can prove empty.

Expressions are SQL texts: every method of a Column is a call to the JVM, and a small batch has no time for hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.api.functions import TaskInfo
from stateflow.api.graph import (
    Keying,
    Node,
    leaves_of,
)
from stateflow.runtime.frames import Expressions, quoted
from stateflow.runtime.plan import Level, Share, Unit
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
    input_prefix,
    output_prefix,
)
from stateflow.runtime.task import Barrier

_ROUTES = "_sf_routes"
_SHARE_SHIFT = 55
"""Of a row without a place of its own: above Spark's number, as long as a frame has less than 4 million partitions."""


def reads_of_source(level: Level) -> int:
    """How many times the tasks' input reads the batch's source frame."""
    return sum(
        leaves_of(node).count(share.leaf) if share.leaf else len(leaves_of(node))
        for node in level.inputs
        for share in level.shares[node]
    )


def first_exchange(
    level: Level, sources: Mapping[Node, DataFrame], barrier: Barrier, info: BatchInfo
) -> DataFrame:
    """The input of the first level's tasks, from the batch's source frames."""
    router = _Router(level, info.max_parallelism)
    frames = list(_shared(level, sources.__getitem__, router, info))
    frames.append(router.barriers(frames[0].sparkSession, barrier))
    return router.exchange(frames)


def next_exchange(level: Level, before: Level, emitted: DataFrame, info: BatchInfo) -> DataFrame:
    """The input of a later level's tasks, from what the level before emitted."""
    router = _Router(level, info.max_parallelism)
    frames = [router.controls(emitted.where(f"{CONTROL} IS NOT NULL"))]
    for node in level.inputs:
        if leaves_of(node) == [node]:
            rows = _emitted_rows(node, before, emitted, POSITION, PHASE)
            frames.append(router.route(node, rows, _EMITTED))
    frames += _shared(level, lambda node, *more: _emitted_rows(node, before, emitted, *more), router, info)
    return router.exchange(frames)


def _shared(
    level: Level, leaf: Callable[..., DataFrame], router: _Router, info: BatchInfo
) -> Iterator[DataFrame]:
    """The input's rows that go through expressions, which see neither phase nor source: so these go through apart."""
    for node in level.inputs:
        for share in level.shares[node]:
            if level.number > 1 and leaves_of(node) == [node]:
                continue
            frame = Expressions(partial(_leaf_rows, leaf, share), _frame_info(info)).frame(node)
            if frame is not None:
                yield router.route(node, frame, _placed(share), share.origin)


def _leaf_rows(leaf: Callable[..., DataFrame], share: Share, node: Node) -> DataFrame | None:
    if share.leaf is not None and share.leaf is not node:
        return None
    if share.phase is None:
        return leaf(node)
    rows = leaf(node, PHASE).where(f"{PHASE} = {share.phase}")
    return rows.select(*(quoted(name) for name in node.schema.names))


def _placed(share: Share) -> _Place:
    """Rows of two shares must not have one position."""
    position = (
        f"({_ARRIVAL.position} + {share.number << _SHARE_SHIFT}L)" if share.number else _ARRIVAL.position
    )
    return replace(
        _ARRIVAL, position=position, phase=str(SOURCE_PHASE if share.phase is None else share.phase)
    )


def _frame_info(info: BatchInfo) -> TaskInfo:
    return TaskInfo("", 0, 0, info.max_parallelism, info.processing_time, info.epoch)


def _emitted_rows(node: Node, before: Level, emitted: DataFrame, *more: str) -> DataFrame:
    """The rows of a node that the tasks before emitted, and further columns."""
    number = next(n for n, outlet in enumerate(before.fed) if outlet.node is node)
    prefix = output_prefix(number)
    columns = [f"{quoted(prefix + name)} AS {quoted(name)}" for name in node.schema.names]
    return emitted.where(f"{UNIT} = {number}").selectExpr(*columns, *more)


@dataclass(frozen=True)
class _Place:
    """Expressions for where a row stands among the others.

    Attributes:
        position: grows with the order of arrival.
        together: how many of its lower bits count rows that came together.
    """

    position: str
    phase: str
    together: int


@dataclass(frozen=True)
class _Route:
    """Expressions for the way of an input's rows to one subtask."""

    target: str
    order: str
    number: int

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return ((TARGET, self.target), (ORDER, self.order), (INPUT, str(self.number)))

    @property
    def struct(self) -> str:
        return f"named_struct({', '.join(f'{name!r}, {expression}' for name, expression in self.columns)})"


_ARRIVAL = _Place("monotonically_increasing_id()", str(SOURCE_PHASE), 33)
"""Of rows without a place of their own. Spark's number has the partition above 33 bits."""
_EMITTED = _Place(POSITION, PHASE, POSITION_SHIFT)


class _Router:
    """Gives each row a target, an order, and columns of its own per input."""

    def __init__(self, level: Level, max_parallelism: int) -> None:
        self._level = level
        self._max_parallelism = max_parallelism
        self._payload = [
            (quoted(input_prefix(i) + c.name), c.spark_type)
            for i, n in enumerate(level.inputs)
            for c in n.schema.columns
        ]

    def route(self, node: Node, frame: DataFrame, place: _Place, origin: int = -1) -> DataFrame:
        """One input's rows, once for each subtask that takes them; `origin` as a `Share` has it."""
        units = [unit for unit in self._level.units if any(e.node is node for e in unit.inputs)]
        prefix = input_prefix(self._level.inputs.index(node))
        renamed = {quoted(prefix + name): quoted(name) for name in node.schema.names}
        values = [f"{renamed.get(c, 'CAST(NULL AS ' + kind + ')')} AS {c}" for c, kind in self._payload]
        nothing = [
            f"CAST(NULL AS BINARY) AS {CONTROL}",
            f"CAST(NULL AS BINARY) AS {REPORT}",
            *self._origin(origin),
        ]
        if any(unit.operator is None for unit in units) and place.position != POSITION:
            # A position is not to be computed twice: once for the row, once to spread rows over a sink's subtasks.
            frame = frame.selectExpr("*", f"{place.position} AS {POSITION}")
            place = replace(place, position=POSITION)
        routes = [
            route
            for unit in units
            for number, edge in enumerate(unit.inputs)
            if edge.node is node
            for route in self._routes(unit, number, edge.keying, place)
        ]
        position = f"{place.position} AS {POSITION}"
        if len(routes) == 1:
            columns = [f"{expression} AS {name}" for name, expression in routes[0].columns]
            return frame.selectExpr(*columns, position, *nothing, *values)
        structs = ", ".join(route.struct for route in routes)
        exploded = frame.selectExpr(f"explode(array({structs})) AS {_ROUTES}", position, *nothing, *values)
        names = [c for c, _ in self._payload]
        return exploded.selectExpr(
            *(f"{_ROUTES}.{name}" for name in (TARGET, ORDER, INPUT)),
            POSITION,
            CONTROL,
            REPORT,
            *self._told,
            *names,
        )

    def barriers(self, spark: SparkSession, barrier: Barrier) -> DataFrame:
        """A barrier from the driver for each task."""
        data = msgspec.msgpack.encode(barrier).hex()
        return spark.range(0, self._level.targets, 1, 1).selectExpr(
            f"CAST(id AS INT) AS {TARGET}", f"{BARRIER_ORDER}L AS {ORDER}", f"0 AS {INPUT}", f"0L AS {POSITION}",
            f"X'{data}' AS {CONTROL}", f"CAST(NULL AS BINARY) AS {REPORT}", *self._origin(-1), *self._nulls(),
        )  # fmt: skip

    def controls(self, frame: DataFrame) -> DataFrame:
        """Barriers and reports from the tasks of the level before."""
        return frame.selectExpr(f"CAST({TARGET} AS INT) AS {TARGET}", f"{BARRIER_ORDER}L AS {ORDER}", f"0 AS {INPUT}",
                                POSITION, CONTROL, REPORT, *self._origin(-1), *self._nulls())  # fmt: skip

    def exchange(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The frames together, each row with its subtask, sorted."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.union(frame)
        parts = union.repartitionById(self._level.targets, TARGET)
        keys = [F.expr(text) for text in (ORDER, *self._tie_breakers(), POSITION)]
        sorted_parts = parts.sortWithinPartitions(*keys)
        inputs = (INPUT,) if self._level.connects else ()
        return sorted_parts.selectExpr(
            ORDER, *inputs, CONTROL, REPORT, *self._told, *(c for c, _ in self._payload)
        )

    @property
    def _told(self) -> tuple[str, ...]:
        return (ORIGIN,) if self._level.tells_origin else ()

    def _origin(self, origin: int) -> list[str]:
        return [f"{origin} AS {ORIGIN}"] if self._level.tells_origin else []

    def _nulls(self) -> list[str]:
        return [f"CAST(NULL AS {kind}) AS {c}" for c, kind in self._payload]

    def _routes(self, unit: Unit, number: int, keying: Keying | None, place: _Place) -> list[_Route]:
        if keying is not None:
            return [self._keyed(unit, number, keying, place)]
        targets = range(unit.first_target, unit.first_target + self._level.parallelism)
        if unit.operator is not None:
            return [_Route(str(target), f"{BROADCAST_ORDER}L", number) for target in targets]
        # A relay keeps the order of arrival of what came together.
        spread = f"shiftright({place.position}, {place.together})" if unit.is_relay else place.position
        target = f"CAST(pmod({spread}, {self._level.parallelism}) + {unit.first_target} AS INT)"
        return [_Route(target, f"shiftleft(CAST({place.phase} AS BIGINT), {PHASE_SHIFT})", number)]

    def _keyed(self, unit: Unit, number: int, keying: Keying, place: _Place) -> _Route:
        digest = f"xxhash64({', '.join(quoted(c) for c in keying.columns)})"
        group = f"pmod({digest}, {self._max_parallelism}L)"
        # As keygroups.subtask_of has it.
        target = f"CAST(({group} * {self._level.parallelism}) DIV {self._max_parallelism} + {unit.first_target} AS INT)"
        order = (
            f"shiftleft(CAST({place.phase} AS BIGINT), {PHASE_SHIFT}) | shiftleft({group}, {GROUP_SHIFT}) | "
            f"shiftrightunsigned({digest}, {64 - GROUP_SHIFT})"
        )
        return _Route(target, order, number)

    def _tie_breakers(self) -> list[str]:
        """Key columns, because two keys may have one `_order`; then the declared order, then the input."""
        columns = [text for unit in self._level.units if unit.operator for text in self._sort_columns(unit)]
        return [*columns, INPUT] if self._level.connects else columns

    def _sort_columns(self, unit: Unit) -> list[str]:
        keyed = [(n, e.node, e.keying) for n, e in enumerate(unit.inputs) if e.keying]
        # Keys, and orders, of several inputs are of the same types.
        columns = [
            self._of_input([(n, quoted(input_prefix(self._level.inputs.index(node)) + name))
                            for (n, node, _), name in zip(keyed, names, strict=True)])
            for names in zip(*((*k.columns, *k.order_by) for _, _, k in keyed), strict=True)
        ]  # fmt: skip
        if len(self._level.units) == 1:
            return columns
        # Other units' rows share these columns, and must not be sorted by them.
        last = unit.first_target + self._level.parallelism - 1
        return [f"IF({TARGET} BETWEEN {unit.first_target} AND {last}, {column}, NULL)" for column in columns]

    def _of_input(self, columns: list[tuple[int, str]]) -> str:
        """The column of the input that a row came by."""
        if len(columns) == 1:
            return columns[0][1]
        whens = " ".join(f"WHEN {number} THEN {column}" for number, column in columns)
        return f"CASE {INPUT} {whens} END"
