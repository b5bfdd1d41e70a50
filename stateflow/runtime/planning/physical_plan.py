"""From the logical graph to levels of units: what runs in which task of which shuffle. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from stateflow.api.functions import has_timers
from stateflow.api.graph import (
    Edge,
    Graph,
    Node,
    ProcessNode,
    SinkNode,
    SourceNode,
    event_time_of,
    is_emitted,
    leaves_of,
    level_of,
    maker_of,
    sources_of,
    strategies,
)
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.barrier import Participant


@dataclass(frozen=True)
class Outlet:
    """Something that a unit's tasks emit.

    Attributes:
        node: the emitted node, or the source, whose rows these are.
        sinks: those that take the rows in the same task.
        feeds: whether a unit of the next level consumes the rows.
    """

    node: Node
    sinks: tuple[SinkNode, ...]
    feeds: bool


@dataclass(frozen=True)
class Unit:
    """Something that runs in tasks: a keyed operator with the sinks behind it, a sink on an unkeyed stream, or a relay,
    which only carries rows over a level that they have no work in.

    Attributes:
        first_target: global index of its subtask 0 within its level.
        inputs: one; or two, of connected streams.
    """

    uid: str
    level: int
    first_target: int
    inputs: tuple[Edge, ...]
    operator: ProcessNode | None
    outlets: tuple[Outlet, ...]

    @property
    def is_relay(self) -> bool:
        """Whether it only carries rows on."""
        return self.operator is None and any(o.feeds for o in self.outlets)

    @property
    def fires(self) -> bool:
        """Whether its function has timers."""
        return self.operator is not None and has_timers(self.operator.function)

    @cached_property
    def fires_between_rows(self) -> bool:
        """Whether a key's event-time timers fire between two of its rows: the rows come from sources, of which alone it
        is known what may still come, and in the order of event time."""
        if not self.fires or self.level != 1:
            return False
        return all(e.keying is None or _is_in_time_order(e) for e in self.inputs)

    @cached_property
    def watermark_sources(self) -> frozenset[str]:
        """Uids of the sources that its watermark is made of."""
        return frozenset(strategies(e.node for e in self.operator.inputs) if self.operator else ())

    @cached_property
    def sources(self) -> frozenset[str]:
        """Uids of the sources whose rows can reach it."""
        return frozenset(source.uid for edge in self.inputs for source in sources_of(edge.node))


@dataclass(frozen=True)
class Share:
    """A part of an input's rows that goes through the shuffle apart, so that something is known of all of its rows.

    Attributes:
        number: tells the shares of an input apart.
        leaf: whose rows these are; None for those of all leaves.
        phase: of the rows; None where each row says it, or all are of the same.
        origin: number of the source that they come from, when its watermark is made of them; else -1.
    """

    number: int
    leaf: Node | None
    phase: int | None
    origin: int


@dataclass(frozen=True)
class Level:
    """All units behind the same number of shuffles; one shuffle and one mapInArrow run them.

    Attributes:
        sources: uids of the job's sources, in order.
        phased: whether rows of phase 0 can come in, which timers of a level before have made.
    """

    number: int
    units: tuple[Unit, ...]
    parallelism: int
    sources: tuple[str, ...] = ()
    phased: bool = False

    @property
    def targets(self) -> int:
        """Number of tasks."""
        return len(self.units) * self.parallelism

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The distinct nodes whose rows the units take."""
        return tuple(dict.fromkeys(e.node for u in self.units for e in u.inputs))

    @cached_property
    def fed(self) -> tuple[Outlet, ...]:
        """The outlets that units of the next level consume; an outlet's place here is its number."""
        return tuple(o for u in self.units for o in u.outlets if o.feeds)

    @cached_property
    def shares(self) -> dict[Node, tuple[Share, ...]]:
        """How the rows of each input are taken apart."""
        return {node: tuple(self._shares(node)) for node in self.inputs}

    @property
    def tells_origin(self) -> bool:
        """Whether rows say which source they come from."""
        return any(share.origin >= 0 for shares in self.shares.values() for share in shares)

    def _shares(self, node: Node) -> Iterator[Share]:
        taken = any(u.operator and e.node is node for u in self.units for e in u.inputs)
        timed = strategies([node], directly=True) if taken else {}
        leaves = list(dict.fromkeys(leaves_of(node)))
        number = 0
        for leaf in leaves if timed and len(leaves) > 1 else [None]:
            of = leaves[0] if leaf is None else leaf
            origin = self.sources.index(of.uid) if isinstance(of, SourceNode) and of.uid in timed else -1
            phased = self.phased and leaves != [node] and any(map(is_emitted, [leaf] if leaf else leaves))
            for phase in (0, 1) if phased else (None,):
                yield Share(number, leaf, phase, origin)
                number += 1

    @property
    def connects(self) -> bool:
        """Whether a unit has several inputs, so that rows say which they came by."""
        return any(len(u.inputs) > 1 for u in self.units)


@dataclass(frozen=True)
class JobPlan:
    """Everything that a batch runs.

    Attributes:
        sources: in order of uids, so that their order in the job file means nothing.
    """

    sources: tuple[SourceNode, ...]
    levels: tuple[Level, ...]
    parallelism: int

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units of all levels."""
        return tuple(u for level in self.levels for u in level.units)

    @property
    def bounded(self) -> frozenset[str]:
        """Uids of the sources that end."""
        return frozenset(node.uid for node in self.sources if node.source.bounded)

    @property
    def key_types(self) -> dict[str, list[str]]:
        """Spark type names of the key columns, by operator."""
        return {u.uid: list(u.operator.keying.types) for u in self.units if u.operator}

    @property
    def strategies(self) -> dict[str, WatermarkStrategy]:
        """The watermark strategies of sources that reach an operator, by uid."""
        return strategies(e.node for u in self.units if u.operator for e in u.inputs)

    @property
    def first_units(self) -> frozenset[str]:
        """Uids of units of the first level whose rows, together, are those of every source once."""
        counted: set[str] = set()
        chosen = []
        for unit in self.levels[0].units:
            found = {s.uid for e in unit.inputs for s in sources_of(e.node)}
            if not found & counted:
                counted |= found
                chosen.append(unit.uid)
        return frozenset(chosen)

    def participants(self) -> list[Participant]:
        """Who must report on a barrier."""
        result: list[Participant] = []
        upstream: frozenset[tuple[str, int]] = frozenset()
        for level in self.levels:
            keys = [(u.uid, s) for u in level.units for s in range(level.parallelism)]
            result += [Participant(uid, subtask, upstream) for uid, subtask in keys]
            upstream = frozenset(keys)
        return result


def _is_in_time_order(edge: Edge) -> bool:
    time = event_time_of(edge.node)
    return bool(time) and edge.keying is not None and edge.keying.order_by[:1] == (time,)


@dataclass(frozen=True)
class _Draft:
    """A unit before its level is laid out."""

    uid: str
    level: int
    inputs: tuple[Edge, ...]
    operator: ProcessNode | None
    nodes: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]


def plan_job(graph: Graph, parallelism: int) -> JobPlan:
    """Arranges a checked graph in levels. Raises JobDefinitionError when it cannot run."""
    graph.check()
    drafts = _drafts(graph)
    relays = _relays(drafts)
    drafts += relays
    fed = {(leaf, draft.level - 1) for draft in drafts for leaf in _leaves(draft)}
    numbers = sorted({draft.level for draft in drafts})
    levels = []
    uids = tuple(sorted(s.uid for s in graph.sources))
    phased = False
    for number in numbers:
        here = [draft for draft in drafts if draft.level == number]
        units = tuple(_unit(draft, index * parallelism, fed) for index, draft in enumerate(here))
        levels.append(Level(number, units, parallelism, uids, phased))
        phased = phased or any(unit.fires for unit in units)
    return JobPlan(tuple(sorted(graph.sources, key=lambda s: s.uid)), tuple(levels), parallelism)


def _drafts(graph: Graph) -> list[_Draft]:
    used = dict.fromkeys(leaf for node in graph.consumed for leaf in leaves_of(node) if is_emitted(leaf))
    drafts = []
    for operator in graph.operators:
        nodes = tuple(node for node in used if maker_of(node)[0] is operator)
        sinks = tuple(s for s in graph.sinks if s.parent in nodes)
        # What nobody takes is still compared with its class.
        drafts.append(
            _Draft(operator.uid, level_of(operator), operator.inputs, operator, nodes or (operator,), sinks)
        )
    for sink in graph.sinks:
        if not is_emitted(sink.parent):
            edges = (Edge(sink.parent, None),)
            drafts.append(_Draft(sink.uid, level_of(sink.parent) + 1, edges, None, (sink.parent,), (sink,)))
    return drafts


def _relays(drafts: Iterable[_Draft]) -> list[_Draft]:
    """A row moves one level at a time: only then do the barriers that a task hears tell of all that it reads."""
    found: dict[tuple[Node, int], _Draft] = {}
    for draft in drafts:
        for leaf in _leaves(draft):
            for level in range(level_of(leaf) + 1, draft.level):
                # No user's uid begins like this.
                uid = f"~relay-{level}-{len(found)}"
                found.setdefault((leaf, level), _Draft(uid, level, (Edge(leaf, None),), None, (leaf,), ()))
    return list(found.values())


def _leaves(draft: _Draft) -> list[Node]:
    return [leaf for edge in draft.inputs for leaf in leaves_of(edge.node)]


def _unit(draft: _Draft, first_target: int, fed: set[tuple[Node, int]]) -> Unit:
    outlets = tuple(
        Outlet(node, tuple(s for s in draft.sinks if s.parent is node), _feeds(draft, node, fed))
        for node in draft.nodes
    )
    return Unit(draft.uid, draft.level, first_target, draft.inputs, draft.operator, outlets)


def _feeds(draft: _Draft, node: Node, fed: set[tuple[Node, int]]) -> bool:
    # A sink on a source's stream has that stream as its outlet, and sends it nowhere.
    sends = draft.operator is not None or not draft.sinks
    return sends and (node, draft.level) in fed
