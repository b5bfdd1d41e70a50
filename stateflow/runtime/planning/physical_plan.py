"""Arranges the logical graph in levels of operator chains. Pure functions, without storage or Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from stateflow.api.functions.process import has_timers
from stateflow.api.graph import (
    Edge,
    Graph,
    Node,
    ProcessNode,
    SinkNode,
    SourceNode,
    TransformNode,
    event_time_of,
    is_emitted,
    leaves_of,
    level_of,
    parents_of,
    producer_of,
    sources_of,
    times_of_splits,
    watermark_strategies,
)
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.barriers import Participant
from stateflow.errors import JobDefinitionError


@dataclass(frozen=True)
class Output:
    """One output of an operator chain.

    Attributes:
        node: the emitted node or the source whose rows these are.
        sinks: the sinks that write the rows in the same task.
        is_forwarded: whether the next level consumes the rows.
    """

    node: Node
    sinks: tuple[SinkNode, ...]
    is_forwarded: bool


@dataclass(frozen=True)
class OperatorChain:
    """Operators that one task runs.

    A keyed operator with the row functions and sinks after it, a sink on an unkeyed stream, or a relay, which forwards
    rows through a level in which nothing processes them.

    Attributes:
        first_target: index of its subtask 0 among all tasks of its level.
        inputs: one input, or the two of connected streams.
        operator: None for a relay and for a sink on an unkeyed stream.
    """

    uid: str
    level: int
    first_target: int
    inputs: tuple[Edge, ...]
    operator: ProcessNode | None
    outputs: tuple[Output, ...]

    @property
    def is_relay(self) -> bool:
        """Whether the chain only forwards rows."""
        return self.operator is None and any(o.is_forwarded for o in self.outputs)

    @property
    def has_timer_function(self) -> bool:
        """Whether its function defines `on_timer`."""
        return self.operator is not None and has_timers(self.operator.function)

    @cached_property
    def fires_between_rows(self) -> bool:
        """Whether a key's event-time timers fire between two of its rows.

        They do if the rows come directly from sources, whose watermarks bound the rows that may still come, and in the
        order of event time.
        """
        if not self.has_timer_function or self.level != 1:
            return False
        return all(e.keying is None or _is_in_time_order(e) for e in self.inputs)

    @cached_property
    def watermark_sources(self) -> frozenset[str]:
        """Uids of the sources that determine its watermark."""
        return frozenset(watermark_strategies(e.node for e in self.operator.inputs) if self.operator else ())

    @cached_property
    def waiting_inputs(self) -> tuple[str, ...]:
        """For each input, the uids of the sources and operators that its rows come from, as a text.

        Empty unless rows may wait for rows of another source: the operator has timers, and its watermark comes from
        several sources, or from the splits of one.
        """
        nodes = [edge.node for edge in self.inputs]
        has_several = len(self.watermark_sources) > 1 or bool(self.operator and times_of_splits(nodes))
        if not has_several or not self.has_timer_function:
            return ()
        return tuple(", ".join(sorted({_uid_of(leaf) for leaf in leaves_of(node)})) for node in nodes)

    @cached_property
    def sources(self) -> frozenset[str]:
        """Uids of the sources whose rows can reach the chain."""
        return frozenset(source.uid for edge in self.inputs for source in sources_of(edge.node))


def _uid_of(leaf: Node) -> str:
    return leaf.uid if isinstance(leaf, SourceNode) else producer_of(leaf).operator.uid


@dataclass(frozen=True)
class Share:
    """Rows of an input that are sent through the shuffle separately, because they have phase or source in common.

    Attributes:
        number: number of the share within its input.
        leaf: the source or emitted node of the rows; None for the rows of all leaves.
        phase: the phase of all rows; None if the level has one phase, or each row carries its phase.
        origin: number of the source whose watermark follows from the rows; -1 for all others.
    """

    number: int
    leaf: Node | None
    phase: int | None
    origin: int


@dataclass(frozen=True)
class Level:
    """All operator chains after the same number of shuffles; one shuffle and one ``mapInArrow`` run them.

    Attributes:
        number: the first level has number 1.
        sources: uids of the job's sources, in order.
        has_timer_rows: whether rows of phase 0 can arrive, which timers of a previous level emit.
    """

    number: int
    chains: tuple[OperatorChain, ...]
    parallelism: int
    sources: tuple[str, ...] = ()
    has_timer_rows: bool = False

    @property
    def targets(self) -> int:
        """Number of tasks of the level."""
        return len(self.chains) * self.parallelism

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The distinct nodes whose rows the chains consume."""
        return tuple(dict.fromkeys(e.node for chain in self.chains for e in chain.inputs))

    @cached_property
    def forwarded(self) -> tuple[Output, ...]:
        """The outputs that the next level consumes. The index of an output is its number."""
        return tuple(o for chain in self.chains for o in chain.outputs if o.is_forwarded)

    @cached_property
    def shares(self) -> dict[Node, tuple[Share, ...]]:
        """The shares of each input."""
        return {node: tuple(self._shares(node)) for node in self.inputs}

    @property
    def has_origins(self) -> bool:
        """Whether rows carry the number of their source."""
        return any(share.origin >= 0 for shares in self.shares.values() for share in shares)

    def _shares(self, node: Node) -> Iterator[Share]:
        taken = any(chain.operator and e.node is node for chain in self.chains for e in chain.inputs)
        timed = set(watermark_strategies([node], directly=True) if taken else ())
        split = times_of_splits([node]).keys()
        leaves = list(dict.fromkeys(leaves_of(node)))
        number = 0
        for leaf in leaves if timed and len(leaves) > 1 else [None]:
            of = leaves[0] if leaf is None else leaf
            # The watermark of a source with splits is the lowest of these, which does not follow from a key's rows.
            origin = self.sources.index(of.uid) if isinstance(of, SourceNode) and of.uid in timed - split else -1
            has_timer_rows = (
                self.has_timer_rows and leaves != [node] and any(map(is_emitted, [leaf] if leaf else leaves))
            )
            for phase in (0, 1) if has_timer_rows else (None,):
                yield Share(number, leaf, phase, origin)
                number += 1

    @property
    def has_connected_inputs(self) -> bool:
        """Whether a chain has several inputs, so that rows carry the number of their input."""
        return any(len(chain.inputs) > 1 for chain in self.chains)


@dataclass(frozen=True)
class JobPlan:
    """The levels of a job.

    Attributes:
        sources: the sources, ordered by uid, so that their order in the job file has no effect.
    """

    sources: tuple[SourceNode, ...]
    levels: tuple[Level, ...]
    parallelism: int

    @property
    def chains(self) -> tuple[OperatorChain, ...]:
        """All chains of all levels."""
        return tuple(chain for level in self.levels for chain in level.chains)

    @property
    def bounded(self) -> frozenset[str]:
        """Uids of the bounded sources."""
        return frozenset(node.uid for node in self.sources if node.source.bounded)

    @property
    def key_types(self) -> dict[str, list[str]]:
        """Spark type names of the key columns, by uid of the operator."""
        return {chain.uid: list(chain.operator.keying.types) for chain in self.chains if chain.operator}

    @property
    def key_columns(self) -> dict[str, dict[str, str]]:
        """Spark type names of the key columns by their names, by uid of the operator."""
        keyings = {chain.uid: chain.operator.keying for chain in self.chains if chain.operator}
        return {uid: dict(zip(k.columns, k.types, strict=True)) for uid, k in keyings.items()}

    @property
    def strategies(self) -> dict[str, WatermarkStrategy]:
        """The watermark strategies of the sources that reach an operator, by uid of the source.

        A bounded source is at its end, and idle, when a batch has no input of it.
        """
        found = watermark_strategies(e.node for chain in self.chains if chain.operator for e in chain.inputs)
        return {uid: replace(of, idleness=0) if uid in self.bounded else of for uid, of in found.items()}

    @cached_property
    def times_of_splits(self) -> dict[str, str]:
        """The timestamp columns of the sources that have a watermark per split, by uid of the source."""
        return times_of_splits(e.node for chain in self.chains if chain.operator for e in chain.inputs)

    def participants(self) -> list[Participant]:
        """Returns the subtasks that must report on a barrier."""
        result: list[Participant] = []
        upstream: frozenset[tuple[str, int]] = frozenset()
        for level in self.levels:
            keys = [(chain.uid, s) for chain in level.chains for s in range(level.parallelism)]
            result += [Participant(uid, subtask, upstream) for uid, subtask in keys]
            upstream = frozenset(keys)
        return result


def _is_in_time_order(edge: Edge) -> bool:
    time = event_time_of(edge.node)
    return bool(time) and edge.keying is not None and edge.keying.order_by[:1] == (time,)


@dataclass(frozen=True)
class _ChainDraft:
    """An operator chain before its place in the level is known."""

    uid: str
    level: int
    inputs: tuple[Edge, ...]
    operator: ProcessNode | None
    nodes: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]


def plan_job(graph: Graph, parallelism: int) -> JobPlan:
    """Checks a graph and arranges it in levels.

    Raises:
        JobDefinitionError: the graph cannot run.
    """
    graph.check()
    drafts = _chain_drafts(graph)
    relays = _relays(drafts)
    drafts += relays
    forwarded = {(leaf, draft.level - 1) for draft in drafts for leaf in _leaves(draft)}
    numbers = sorted({draft.level for draft in drafts})
    levels = []
    uids = tuple(sorted(s.uid for s in graph.sources))
    has_timer_rows = False
    for number in numbers:
        of_level = [draft for draft in drafts if draft.level == number]
        chains = tuple(_chain(draft, index * parallelism, forwarded) for index, draft in enumerate(of_level))
        levels.append(Level(number, chains, parallelism, uids, has_timer_rows))
        has_timer_rows = has_timer_rows or any(chain.has_timer_function for chain in chains)
    return JobPlan(tuple(sorted(graph.sources, key=lambda s: s.uid)), tuple(levels), parallelism)


def _chain_drafts(graph: Graph) -> list[_ChainDraft]:
    used = dict.fromkeys(leaf for node in graph.consumed for leaf in leaves_of(node) if is_emitted(leaf))
    drafts = []
    for operator in graph.operators:
        nodes = tuple(node for node in used if producer_of(node).operator is operator)
        sinks = tuple(s for s in graph.sinks if s.parent in nodes)
        # The rows of an output without a consumer are still checked against their class.
        drafts.append(
            _ChainDraft(operator.uid, level_of(operator), operator.inputs, operator, nodes or (operator,), sinks)
        )
    for sink in graph.sinks:
        if not is_emitted(sink.parent):
            edges = (Edge(sink.parent, None),)
            drafts.append(_ChainDraft(sink.uid, level_of(sink.parent) + 1, edges, None, (sink.parent,), (sink,)))
    return drafts


def _relays(drafts: Iterable[_ChainDraft]) -> list[_ChainDraft]:
    """Returns relays for the levels that rows pass without being processed.

    A row moves one level at a time. Only then do the barriers that a task receives name all attempts whose rows it
    reads.
    """
    found: dict[tuple[Node, int], _ChainDraft] = {}
    for draft in drafts:
        for leaf in _leaves(draft):
            for level in range(level_of(leaf) + 1, draft.level):
                # A uid in a job file cannot begin with a tilde.
                uid = f"~relay-{level}-{len(found)}"
                found.setdefault((leaf, level), _ChainDraft(uid, level, (Edge(leaf, None),), None, (leaf,), ()))
    return list(found.values())


def _leaves(draft: _ChainDraft) -> list[Node]:
    return [leaf for edge in draft.inputs for leaf in leaves_of(edge.node)]


def _chain(draft: _ChainDraft, first_target: int, forwarded: set[tuple[Node, int]]) -> OperatorChain:
    outputs = tuple(
        Output(node, tuple(s for s in draft.sinks if s.parent is node), _is_forwarded(draft, node, forwarded))
        for node in draft.nodes
    )
    return OperatorChain(draft.uid, draft.level, first_target, draft.inputs, draft.operator, outputs)


def _is_forwarded(draft: _ChainDraft, node: Node, forwarded: set[tuple[Node, int]]) -> bool:
    # The output of a sink on a source's stream is that stream, but the sink forwards nothing.
    sends = draft.operator is not None or not draft.sinks
    return sends and (node, draft.level) in forwarded


def check_no_transforms(plan: JobPlan) -> None:
    """Raises JobDefinitionError if an input is computed by a Spark transform, which needs Spark."""
    for chain in plan.chains:
        if any(_needs_spark(edge.node) for edge in chain.inputs):
            raise JobDefinitionError(
                "a transform cannot run without Spark",
                hint="run the job on Spark, or connect the operator to the stream before the transform",
                uid=chain.uid,
            )


def has_transform(node: Node) -> bool:
    """Returns whether a transform lies between `node` and the sources or emitted nodes that its rows come from."""
    if leaves_of(node) == [node]:
        return False
    return isinstance(node, TransformNode) or any(map(has_transform, parents_of(node)))


def _needs_spark(node: Node) -> bool:
    """Returns whether such a transform cannot be computed row by row instead."""
    if leaves_of(node) == [node]:
        return False
    return (isinstance(node, TransformNode) and node.step is None) or any(map(_needs_spark, parents_of(node)))
