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
    frames = [
        router.forward(emitted, {_number(node, before): node for node in level.inputs if _is_direct(node)})
    ]
    frames += _shared(level, lambda node, *more: _emitted_rows(node, before, emitted, *more), router, info)
    return router.exchange(frames)


def reads_once(level: Level) -> bool:
    """Whether a later level takes all that the level before emitted as it is, and so reads it in one pass."""
    return all(map(_is_direct, level.inputs))


def _is_direct(node: Node) -> bool:
    """Whether a later level takes the node's rows as they were emitted."""
    return leaves_of(node) == [node]


def _number(node: Node, before: Level) -> int:
    """That of the outlet of the level before which emits the node's rows."""
    return next(n for n, outlet in enumerate(before.fed) if outlet.node is node)


def _shared(
    level: Level, leaf: Callable[..., DataFrame], router: _Router, info: BatchInfo
) -> Iterator[DataFrame]:
    """The input's rows that go through expressions, which see neither phase nor source: so these go through apart."""
    for node in level.inputs:
        for share in level.shares[node]:
            if level.number > 1 and _is_direct(node):
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
    number = _number(node, before)
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
        """Column and expression."""
        return ((TARGET, self.target), (ORDER, self.order), (INPUT, str(self.number)))


_ARRIVAL = _Place("monotonically_increasing_id()", str(SOURCE_PHASE), 33)
"""Of rows without a place of their own. Spark's number has the partition above 33 bits."""
_EMITTED = _Place(POSITION, PHASE, POSITION_SHIFT)


def _case(branches: Sequence[tuple[str, str]]) -> str:
    """The expression of the first branch whose condition holds; one of them does."""
    if len(branches) == 1:
        return branches[0][1]
    return f"CASE {' '.join(f'WHEN {when} THEN {then}' for when, then in branches)} END"


def _prefixed(keying: Keying | None, prefix: str) -> Keying | None:
    return keying and replace(keying, columns=tuple(prefix + column for column in keying.columns))


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
        prefix = input_prefix(self._level.inputs.index(node))
        renamed = {quoted(prefix + name): quoted(name) for name in node.schema.names}
        carried = [
            f"CAST(NULL AS BINARY) AS {CONTROL}",
            *self._origin(origin),
            *self._values(renamed),
        ]
        if any(u.operator is None for u in self._takers(node)) and place.position != POSITION:
            # A position is not to be computed twice: once for the row, once to spread rows over a sink's subtasks.
            frame = frame.selectExpr("*", f"{place.position} AS {POSITION}")
            place = replace(place, position=POSITION)
        cases = [("TRUE", self._routes(node, place))]
        return self._sent(frame, cases, [f"{place.position} AS {POSITION}", *carried])

    def forward(self, emitted: DataFrame, numbers: Mapping[int, Node]) -> DataFrame:
        """Barriers and rows of some outlets of the level before, as they were emitted.

        In one pass: a frame that is read twice would have to be persisted, which costs a small batch more than its
        tasks.

        Args:
            numbers: the nodes whose rows these are, by the number of their outlet.
        """
        wanted = [f"{CONTROL} IS NOT NULL", *(f"{UNIT} = {number}" for number in numbers)]
        control = _Route(f"CAST({TARGET} AS INT)", f"{BARRIER_ORDER}L", 0)
        routes = [
            [control],
            *(self._routes(node, _EMITTED, output_prefix(number)) for number, node in numbers.items()),
        ]
        renamed = {
            quoted(input_prefix(self._level.inputs.index(node)) + name): quoted(output_prefix(number) + name)
            for number, node in numbers.items()
            for name in node.schema.names
        }
        carried = [POSITION, CONTROL, *self._origin(-1), *self._values(renamed)]
        cases = list(zip(wanted, routes, strict=True))
        return self._sent(emitted.where(" OR ".join(wanted)), cases, carried)

    def barriers(self, spark: SparkSession, barrier: Barrier) -> DataFrame:
        """A barrier from the driver for each task."""
        data = msgspec.msgpack.encode(barrier).hex()
        return spark.range(0, self._level.targets, 1, 1).selectExpr(
            *self._named(_Route("CAST(id AS INT)", f"{BARRIER_ORDER}L", 0)), f"0L AS {POSITION}",
            f"X'{data}' AS {CONTROL}", *self._origin(-1), *self._values({}),
        )  # fmt: skip

    def exchange(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The frames together, each row at its subtask, in any order."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.union(frame)
        # Without a projection behind it, which would copy each row once more: tasks leave out what they do not need.
        return union.repartitionById(self._level.targets, TARGET)

    def _named(self, route: _Route) -> list[str]:
        """The columns of a route, as far as the level's tasks look at them."""
        return [f"{text} AS {name}" for name, text in self._way(route).items()]

    def _way(self, route: _Route) -> dict[str, str]:
        return {name: text for name, text in route.columns if name != INPUT or self._level.connects}

    @property
    def _told(self) -> tuple[str, ...]:
        return (ORIGIN,) if self._level.tells_origin else ()

    def _origin(self, origin: int) -> list[str]:
        return [f"{origin} AS {ORIGIN}"] if self._level.tells_origin else []

    def _values(self, sources: Mapping[str, str]) -> list[str]:
        """The inputs' columns: each from the column that `sources` names for it, or null."""
        return [f"{sources.get(c, f'CAST(NULL AS {kind})')} AS {c}" for c, kind in self._payload]

    def _sent(
        self, frame: DataFrame, cases: Sequence[tuple[str, list[_Route]]], carried: list[str]
    ) -> DataFrame:
        """Each row of `frame` on the routes of the first case that holds for it."""
        if all(len(routes) == 1 for _, routes in cases):
            ways = [(when, self._way(route)) for when, (route,) in cases]
            columns = [f"{_case([(when, way[name]) for when, way in ways])} AS {name}" for name in ways[0][1]]
            return frame.selectExpr(*columns, *carried)
        arrays = [(when, f"array({', '.join(map(self._struct, routes))})") for when, routes in cases]
        exploded = frame.selectExpr(f"explode({_case(arrays)}) AS {_ROUTES}", *carried)
        names = [c for c, _ in self._payload]
        parts = [f"{_ROUTES}.{name}" for name in self._way(cases[0][1][0])]
        return exploded.selectExpr(*parts, POSITION, CONTROL, *self._told, *names)

    def _struct(self, route: _Route) -> str:
        fields = (f"{name!r}, {text}" for name, text in self._way(route).items())
        return f"named_struct({', '.join(fields)})"

    def _takers(self, node: Node) -> list[Unit]:
        return [unit for unit in self._level.units if any(e.node is node for e in unit.inputs)]

    def _routes(self, node: Node, place: _Place, prefix: str = "") -> list[_Route]:
        """All that a row of `node` takes.

        Args:
            prefix: of the columns that the row has now.
        """
        return [
            route
            for unit in self._takers(node)
            for number, edge in enumerate(unit.inputs)
            if edge.node is node
            for route in self._edge_routes(unit, number, _prefixed(edge.keying, prefix), place)
        ]

    def _edge_routes(self, unit: Unit, number: int, keying: Keying | None, place: _Place) -> list[_Route]:
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
