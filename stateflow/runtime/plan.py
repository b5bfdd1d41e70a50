"""From the logical graph to levels of units: what runs in which task of which shuffle. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.api.graph import Graph, Node, ProcessNode, SinkNode, SourceNode, TransformNode, level_of
from stateflow.checkpoint.coordinator import Participant
from stateflow.errors import JobDefinitionError


@dataclass(frozen=True)
class Unit:
    """Something that runs in tasks: a keyed operator with the sinks behind it, or a sink on an unkeyed stream.

    Attributes:
        first_target: global index of its subtask 0 within its level.
        feeds: whether a unit of the next level consumes what it emits.
    """

    uid: str
    level: int
    first_target: int
    input: Node
    operator: ProcessNode | None
    sinks: tuple[SinkNode, ...]
    feeds: bool


@dataclass(frozen=True)
class Level:
    """All units behind the same number of shuffles; one shuffle and one mapInArrow run them."""

    number: int
    units: tuple[Unit, ...]
    parallelism: int

    @property
    def targets(self) -> int:
        """Number of tasks."""
        return len(self.units) * self.parallelism

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The distinct nodes whose rows the units take."""
        return tuple(dict.fromkeys(u.input for u in self.units))


@dataclass(frozen=True)
class JobPlan:
    """Everything that a batch runs."""

    source: SourceNode
    levels: tuple[Level, ...]
    parallelism: int

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units of all levels."""
        return tuple(u for level in self.levels for u in level.units)

    @property
    def key_types(self) -> dict[str, list[str]]:
        """Spark type names of the key columns, by operator."""
        return {u.uid: list(u.operator.keying.types) for u in self.units if u.operator}

    def participants(self) -> list[Participant]:
        """Who must report on a barrier."""
        result: list[Participant] = []
        upstream: frozenset[tuple[str, int]] = frozenset()
        for level in self.levels:
            keys = [(u.uid, s) for u in level.units for s in range(level.parallelism)]
            result += [Participant(uid, subtask, upstream) for uid, subtask in keys]
            upstream = frozenset(keys)
        return result


def plan_job(graph: Graph, parallelism: int) -> JobPlan:
    """Arranges a checked graph in levels. Raises JobDefinitionError when it cannot run."""
    graph.check()
    chained = {id(s): s for s in graph.sinks if isinstance(s.parent, ProcessNode)}
    makers: list[tuple[str, Node, ProcessNode | None, tuple[SinkNode, ...]]] = [
        (o.uid, o.parent, o, tuple(s for s in chained.values() if s.parent is o)) for o in graph.operators
    ]
    makers += [(s.uid, s.parent, None, (s,)) for s in graph.sinks if id(s) not in chained]
    fed = {id(producer(parent)) for _, parent, _, _ in makers}
    by_level: dict[int, list[Unit]] = {}
    for uid, parent, operator, sinks in makers:
        number = level_of(parent) + 1
        units = by_level.setdefault(number, [])
        units.append(
            Unit(uid, number, len(units) * parallelism, parent, operator, sinks, id(operator) in fed)
        )
    if not by_level:
        raise JobDefinitionError("the job does nothing", hint="end a stream with process or sink_to")
    levels = tuple(Level(n, tuple(by_level[n]), parallelism) for n in sorted(by_level))
    return JobPlan(graph.sources[0], levels, parallelism)


def producer(node: Node) -> SourceNode | ProcessNode:
    """The source or operator whose rows reach `node`, through Spark expressions or directly."""
    while isinstance(node, TransformNode):
        node = node.parent
    return node
