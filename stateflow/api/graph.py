"""The logical plan of a job: what the user declared, as frozen nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stateflow.api.dead_letters import DEAD_LETTERS, OnError
from stateflow.api.functions import KeyedFunction, has_timers
from stateflow.api.partial_aggregation import PartialAggregation
from stateflow.api.rich_functions import RowStep
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink
from stateflow.api.source import LocalSource, Source
from stateflow.api.watermarks import WatermarkStrategy, has_event_time
from stateflow.errors import JobDefinitionError
from stateflow.ids import check_name
from stateflow.keygroups import check_key_type


@dataclass(frozen=True, eq=False)
class SourceNode:
    """Rows from outside."""

    uid: str
    source: Source | LocalSource
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class TransformNode:
    """A stateless Spark expression over the rows of `parent`."""

    parent: Node
    function: Callable[[Any], Any]
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class RowsNode:
    """The rows that a stateless function makes of each row of `parent`."""

    parent: Node
    step: RowStep

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.step.schema


@dataclass(frozen=True, eq=False)
class PartialNode:
    """The rows of `parent`, aggregated as far as it can be before they are shuffled."""

    parent: Node
    aggregation: PartialAggregation

    @property
    def schema(self) -> RowSchema:
        """The columns of the partial results."""
        return self.aggregation.schema


@dataclass(frozen=True, eq=False)
class WatermarkNode:
    """The rows of `parent`, whose event time is known from here on. All are of one source."""

    parent: Node
    strategy: WatermarkStrategy

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.parent.schema


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The rows of several streams with the same columns."""

    parents: tuple[Node, ...]

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows; their class is that of the first stream."""
        return self.parents[0].schema


@dataclass(frozen=True)
class Keying:
    """How a stream is keyed and ordered.

    Attributes:
        columns: the key.
        order_by: columns that order a key's rows; ties keep their order of arrival.
        types: Spark type names of the key columns.
    """

    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """One input of an operator.

    Attributes:
        keying: None when every subtask gets all rows.
    """

    node: Node
    keying: Keying | None


@dataclass(frozen=True, eq=False)
class ProcessNode:
    """A keyed stateful operator.

    Attributes:
        inputs: one; or the two of connected streams, of which the second may be broadcast.
        name: what people call its function.
        on_error: what becomes of rows that the function raises for.
    """

    uid: str
    inputs: tuple[Edge, ...]
    function: KeyedFunction[Any]
    schema: RowSchema
    name: str = ""
    on_error: OnError = None

    @property
    def keying(self) -> Keying:
        """How its first input is keyed; the types are those of its state."""
        keying = self.inputs[0].keying
        assert keying is not None
        return keying


@dataclass(frozen=True, eq=False)
class SideOutputNode:
    """What an operator emits beside its main output."""

    parent: ProcessNode
    tag: OutputTag[Any]
    schema: RowSchema


Node = (
    SourceNode
    | TransformNode
    | RowsNode
    | PartialNode
    | WatermarkNode
    | UnionNode
    | ProcessNode
    | SideOutputNode
)


@dataclass(frozen=True, eq=False)
class SinkNode:
    """Where the rows of `parent` go."""

    uid: str
    parent: Node
    sink: Sink


@dataclass
class Graph:
    """Collects nodes while `build` runs."""

    sources: list[SourceNode] = field(default_factory=list)
    operators: list[ProcessNode] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)
    side_outputs: list[SideOutputNode] = field(default_factory=list)
    caught: dict[RowsNode, RowsNode] = field(default_factory=dict)
    """The dead letters of row functions that have some."""

    def add_source(self, node: SourceNode) -> SourceNode:
        """Registers a source. Raises JobDefinitionError for a uid that is taken."""
        self._check_uid("source", node.uid)
        self.sources.append(node)
        return node

    def add_operator(self, node: ProcessNode) -> ProcessNode:
        """Registers a keyed operator. Raises JobDefinitionError for a uid that is taken."""
        self._check_uid("operator", node.uid)
        self.operators.append(node)
        return node

    def add_sink(self, node: SinkNode) -> SinkNode:
        """Registers a sink. Raises JobDefinitionError for a uid that is taken."""
        self._check_uid("sink", node.uid)
        self.sinks.append(node)
        return node

    def side_output(self, parent: ProcessNode, tag: OutputTag[Any]) -> SideOutputNode:
        """The operator's output of that name, always the same node.

        Raises JobDefinitionError when it was asked for with another row class.
        """
        for node in self.side_outputs:
            if node.parent is parent and node.tag.name == tag.name:
                if node.tag != tag:
                    raise JobDefinitionError("a side output has two row classes", hint="use one OutputTag object",
                                             uid=parent.uid, tag=tag.name)  # fmt: skip
                return node
        node = SideOutputNode(parent, tag, RowSchema.of(tag.row_class))
        self.side_outputs.append(node)
        return node

    def add_rows(self, node: RowsNode) -> RowsNode:
        """Registers a row function, for its dead letters."""
        if node.step.on_error is not None:
            self.caught[node] = RowsNode(node.parent, node.step.catching())
        return node

    def dead_letters(self, node: Node) -> Node:
        """The stream of what the function that makes `node` failed on, always the same node.

        Raises JobDefinitionError when it has none.
        """
        if isinstance(node, RowsNode) and node in self.caught:
            return self.caught[node]
        if isinstance(node, ProcessNode) and node.on_error is not None:
            return self.side_output(node, DEAD_LETTERS)
        raise JobDefinitionError("the stream has no dead letters", hint="ask what a function returned that was given "
                                 "on_error=DeadLetters(budget=…)")  # fmt: skip

    def shadowed(self) -> Graph:
        """The same graph, every sink of which publishes to the table beside its own."""
        return replace(self, sinks=[replace(s, sink=s.sink.shadow()) for s in self.sinks])

    def check(self) -> None:
        """Raises JobDefinitionError when nothing could run."""
        if not self.sources:
            raise JobDefinitionError("the job reads nothing", hint="call env.from_source in build")
        if not self.operators and not self.sinks:
            raise JobDefinitionError("the job does nothing", hint="end a stream with process or sink_to")
        used = {source.uid for node in self.consumed for source in sources_of(node)}
        idle = [s.uid for s in self.sources if s.uid not in used]
        if idle:
            raise JobDefinitionError("a source is read by nothing", hint="use its stream, or remove the source",
                                     sources=idle)  # fmt: skip
        self._refuse_lost_letters()

    def _refuse_lost_letters(self) -> None:
        made = [(o.uid, self.dead_letters(o)) for o in self.operators if o.on_error is not None]
        made += [(node.step.name, letters) for node, letters in self.caught.items()]
        used = set(all_before(self.consumed))
        lost = [name for name, letters in made if letters not in used]
        if lost:
            raise JobDefinitionError("dead letters go nowhere", hint="stream.get_dead_letters().sink_to(…)",
                                     of=lost)  # fmt: skip

        strategies(self.consumed)
        for operator in self.operators:
            for edge in operator.inputs:
                event_time_of(edge.node)

    @property
    def consumed(self) -> list[Node]:
        """The nodes whose rows operators and sinks take, in order of declaration."""
        return [e.node for o in self.operators for e in o.inputs] + [s.parent for s in self.sinks]

    def _check_uid(self, kind: str, uid: str) -> None:
        if not uid:
            raise JobDefinitionError(
                f"a {kind} has no uid", hint="state and output are matched by uid: give one"
            )
        check_name(f"the uid of a {kind}", uid)
        nodes: list[SourceNode | ProcessNode | SinkNode] = [*self.sources, *self.operators, *self.sinks]
        taken = [n.uid for n in nodes]
        if uid in taken:
            raise JobDefinitionError("a uid is used twice", hint="every source, operator and sink needs its own",
                                     uid=uid)  # fmt: skip


def keying(parent: Node, columns: tuple[str, ...], order_by: tuple[str, ...]) -> Keying:
    """Checks the columns of a `key_by`. Raises JobDefinitionError or ConfigError."""
    if not columns:
        raise JobDefinitionError("key_by needs at least one column", hint="name the columns of the key")
    with naming_stream("key_by", parent):
        found = [parent.schema.column(name) for name in columns]
    with naming_stream("order_by", parent):
        for name in order_by:
            parent.schema.column(name)
    types = tuple(check_key_type(c.spark_type, c.name) for c in found)
    return Keying(columns, order_by, types)


@contextmanager
def naming_stream(called: str, node: Node) -> Iterator[None]:
    """Adds to a JobDefinitionError of the body which call on which stream it is about."""
    try:
        yield
    except JobDefinitionError as e:
        e.add_facts(called=called, stream=_named_before(node))
        raise


def _named_before(node: Node) -> str:
    """The uids of the nearest operators or sources that the rows of `node` come from."""
    if isinstance(node, SourceNode | ProcessNode):
        return node.uid
    return ", ".join(dict.fromkeys(map(_named_before, parents_of(node))))


def in_time_order(edge: Edge, function: KeyedFunction[Any]) -> Edge:
    """The input of a function that has timers, ordered by event time when its rows are those of sources and no order is
    declared: then its timers can fire between two rows of a batch."""
    if edge.keying is None or edge.keying.order_by or not has_timers(function) or level_of(edge.node):
        return edge
    time = event_time_of(edge.node)
    return replace(edge, keying=replace(edge.keying, order_by=(time,))) if time else edge


def parents_of(node: Node) -> tuple[Node, ...]:
    """The nodes whose rows `node` is made of."""
    if isinstance(node, SourceNode):
        return ()
    if isinstance(node, UnionNode):
        return node.parents
    if isinstance(node, ProcessNode):
        return tuple(edge.node for edge in node.inputs)
    return (node.parent,)


def all_before(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and all whose rows they are made of; some of them several times."""
    for node in nodes:
        yield node
        yield from all_before(parents_of(node))


def sources_of(node: Node) -> list[SourceNode]:
    """The sources whose rows can reach `node`."""
    if isinstance(node, SourceNode):
        return [node]
    return [source for parent in parents_of(node) for source in sources_of(parent)]


def strategies(nodes: Iterable[Node], directly: bool = False) -> dict[str, WatermarkStrategy]:
    """The watermark strategy of each source that has one and can reach `nodes`, by uid.

    Args:
        directly: without an operator in between.

    Raises JobDefinitionError when a source has two.
    """
    found: dict[str, WatermarkStrategy] = {}
    for node in nodes:
        if directly and is_emitted(node):
            continue
        for parent in parents_of(node):
            _add_strategies(found, strategies([parent], directly))
        if isinstance(node, WatermarkNode):
            (source,) = set(sources_of(node))
            _add_strategies(found, {source.uid: node.strategy})
    return found


def _add_strategies(found: dict[str, WatermarkStrategy], more: dict[str, WatermarkStrategy]) -> None:
    for uid, strategy in more.items():
        if found.setdefault(uid, strategy) != strategy:
            raise JobDefinitionError("a source has two watermark strategies", hint="declare one, where its stream "
                                     "begins", uid=uid)  # fmt: skip


def event_time_of(node: Node) -> str:
    """The column with the event time of a stream's rows; empty when none is declared. Behind an operator it is the
    column of the same name, if there is one.

    Raises JobDefinitionError when it got lost before the first operator, or differs within a union.
    """
    if isinstance(node, WatermarkNode):
        return node.strategy.column
    found = {name for parent in parents_of(node) if (name := event_time_of(parent))}
    if len(found) > 1 and isinstance(node, UnionNode):
        raise JobDefinitionError("the streams of a union have different columns of event time", hint="bring them to "
                                 "one before", columns=sorted(found))  # fmt: skip
    if len(found) != 1:
        return ""
    (name,) = found
    if has_event_time(node.schema, name):
        return name
    if level_of(node) == 0:
        raise JobDefinitionError("the column of event time is lost before the first key_by", hint="keep it in the "
                                 "schema of what comes behind, or declare the strategy later", column=name,
                                 columns=list(node.schema.names))  # fmt: skip
    return ""


def level_of(node: Node) -> int:
    """How many shuffles lie between the sources and the rows that `node` produces."""
    before = max((level_of(parent) for parent in parents_of(node)), default=0)
    return before + 1 if isinstance(node, ProcessNode) else before


def is_emitted(node: Node) -> bool:
    """Whether tasks make the rows of `node`: an operator's output, main or side, and row functions right behind it."""
    while isinstance(node, RowsNode):
        node = node.parent
    return isinstance(node, ProcessNode | SideOutputNode)


def leaves_of(node: Node) -> list[Node]:
    """The sources and emitted nodes that the rows of `node` are made of, in order; one may come several times."""
    if isinstance(node, SourceNode) or is_emitted(node):
        return [node]
    return [leaf for parent in parents_of(node) for leaf in leaves_of(parent)]


def maker_of(node: Node) -> tuple[ProcessNode, str, tuple[RowStep, ...]]:
    """Of an emitted node: the operator, the name of its output, and the row functions behind that."""
    steps: tuple[RowStep, ...] = ()
    while isinstance(node, RowsNode):
        steps = (node.step, *steps)
        node = node.parent
    if isinstance(node, SideOutputNode):
        return node.parent, node.tag.name, steps
    assert isinstance(node, ProcessNode)
    return node, "", steps
