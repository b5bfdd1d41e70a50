"""The job graph: nodes, edges, and what follows from them.

Operators of the API add nodes; the planner and the runtime read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from stateflow.api.changelog import Changelog, find_changelog
from stateflow.api.dead_letters import DEAD_LETTERS, DeadLetter, DeadLetters, OnError
from stateflow.api.functions.process import KeyedFunction, has_timers
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.functions.vectorized import ColumnsFunction
from stateflow.api.schema import RejectedRecord, RowSchema, UndecodableRecord, with_hidden_columns
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink
from stateflow.api.source import LocalSource, Source
from stateflow.api.watermarks import WatermarkStrategy, has_event_time
from stateflow.errors import JobDefinitionError
from stateflow.helpers import check_name
from stateflow.types.key_groups import check_key_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Reduction(Protocol):
    """The computation on the rows of a partition before the shuffle, so that the operator gets fewer of them."""

    @property
    def name(self) -> str:
        """The name that plans show."""

    @property
    def schema(self) -> RowSchema:
        """The columns of what it yields."""

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields what the operator gets in place of the rows of a partition."""


@dataclass(frozen=True, eq=False)
class SourceNode:
    """A source; its columns are the columns of its rows, and hidden ones."""

    uid: str
    source: Source | LocalSource
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class RecordsNode:
    """The rows of a source that has hidden columns, without these: those of decoded records, or rejected records."""

    parent: SourceNode
    schema: RowSchema
    rejected: bool = False


@dataclass(frozen=True, eq=False)
class TransformNode:
    """A stateless Spark expression over the rows of `parent`.

    Attributes:
        step: a function of each row with the same results, for runs without Spark; None if there is none.
    """

    parent: Node
    function: Callable[[DataFrame], DataFrame]
    schema: RowSchema
    step: RowStep | None = None


@dataclass(frozen=True, eq=False)
class ColumnsNode:
    """The results of a stateless function over Arrow batches of the rows of `parent`."""

    parent: Node
    function: ColumnsFunction
    schema: RowSchema


@dataclass(frozen=True, eq=False)
class RowsNode:
    """The results of a stateless function over each row of `parent`."""

    parent: Node
    step: RowStep

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.step.schema


@dataclass(frozen=True, eq=False)
class ReducedNode:
    """The rows that an operator needs of `parent`, computed before the shuffle."""

    parent: Node
    reduction: Reduction

    @property
    def schema(self) -> RowSchema:
        """The columns after the reduction."""
        return self.reduction.schema


@dataclass(frozen=True, eq=False)
class WatermarkNode:
    """The rows of `parent` with event time. All of them are from one source."""

    parent: Node
    strategy: WatermarkStrategy

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self.parent.schema


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The union of several streams with the same columns."""

    parents: tuple[Node, ...]

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows, with the row class of the first stream."""
        return self.parents[0].schema


@dataclass(frozen=True)
class Keying:
    """How a stream is keyed and ordered.

    Attributes:
        columns: the key columns.
        order_by: columns that order a key's rows; ties keep their order of arrival.
        types: Spark type names of the key columns.
        is_constant: whether all rows have the key 0, which is a column of the state and not of the rows.
    """

    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    types: tuple[str, ...]
    is_constant: bool = False

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The key columns that rows have: none of a constant key."""
        return () if self.is_constant else self.columns


CONSTANT_KEY = 0
"""The key of all rows of a constant keying; part of the stored format."""
ONE_KEY = Keying(("all_rows",), (), ("bigint",), is_constant=True)
"""The keying of an operator over all rows of a stream."""


@dataclass(frozen=True)
class Edge:
    """One input of an operator.

    Attributes:
        keying: None if every subtask receives all rows.
    """

    node: Node
    keying: Keying | None


@dataclass(frozen=True, eq=False)
class ProcessNode:
    """A keyed stateful operator.

    Attributes:
        inputs: one input, or the two of connected streams; the second may be broadcast.
        name: the function's name, for display.
        on_error: what happens to rows for which the function raises.
        changelog: how its rows correct earlier ones; None if they do not, or if their class declares it.
        appends: whether its rows only append although their class may have a row kind, as the rows that it takes.
    """

    uid: str
    inputs: tuple[Edge, ...]
    function: KeyedFunction[object]
    schema: RowSchema
    name: str = ""
    on_error: OnError = None
    changelog: Changelog | None = None
    appends: bool = False

    @property
    def keying(self) -> Keying:
        """The keying of the first input; the operator's state has its types."""
        keying = self.inputs[0].keying
        assert keying is not None
        return keying


@dataclass(frozen=True, eq=False)
class SideOutputNode:
    """A side output of an operator."""

    parent: ProcessNode
    tag: OutputTag[Any]
    schema: RowSchema


Node = (
    SourceNode
    | RecordsNode
    | TransformNode
    | ColumnsNode
    | RowsNode
    | ReducedNode
    | WatermarkNode
    | UnionNode
    | ProcessNode
    | SideOutputNode
)


@dataclass(frozen=True, eq=False)
class SinkNode:
    """A sink for the rows of `parent`."""

    uid: str
    parent: Node
    sink: Sink


Row = TypeVar("Row")


@dataclass(frozen=True)
class JobFile:
    """The file that declares a job, as it was loaded.

    Attributes:
        name: its name without its folder.
        text: its content.
        modified_at: when it was modified.
    """

    name: str
    text: bytes
    modified_at: datetime


@dataclass
class Graph:
    """The nodes that were declared while `build` ran.

    Attributes:
        row_dead_letters: the node of the dead letters of each row function and source that was declared with dead
            letters, by the node of its rows.
        code: hash of the job file and the modules next to it; empty for a graph without a file.
        file: the job file; None for a graph without one.
    """

    sources: list[SourceNode] = field(default_factory=list)
    operators: list[ProcessNode] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)
    side_outputs: list[SideOutputNode] = field(default_factory=list)
    row_dead_letters: dict[Node, RowsNode] = field(default_factory=dict)
    code: str = ""
    file: JobFile | None = None

    def add_source(self, uid: str, source: Source | LocalSource) -> Node:
        """Registers a source, and the node of its dead letters if it has any; returns the node of its rows.

        Raises JobDefinitionError for a missing or duplicate uid.
        """
        self._check_uid("source", uid)
        if not source.has_splits:
            node = SourceNode(uid, source, source.schema)
            self.sources.append(node)
            return node
        node = SourceNode(uid, source, with_hidden_columns(source.schema, rejects=source.on_error is not None))
        self.sources.append(node)
        rows = RecordsNode(node, source.schema)
        if source.on_error is not None:
            self.row_dead_letters[rows] = dead_letters_of(node, source.on_error, source.reason)
        return rows

    def add_operator(self, node: ProcessNode) -> ProcessNode:
        """Registers a keyed operator. Raises JobDefinitionError for a missing or duplicate uid."""
        self._check_uid("operator", node.uid)
        self.operators.append(node)
        return node

    def add_sink(self, node: SinkNode) -> SinkNode:
        """Registers a sink. Raises JobDefinitionError for a missing or duplicate uid."""
        self._check_uid("sink", node.uid)
        self.sinks.append(node)
        return node

    def side_output(self, parent: ProcessNode, tag: OutputTag[Row]) -> SideOutputNode:
        """Returns the node of an operator's side output; the same node for each call.

        Raises:
            JobDefinitionError: an earlier call had a tag of that name with another row class.
        """
        for node in self.side_outputs:
            if node.parent is parent and node.tag.name == tag.name:
                if node.tag != tag:
                    raise JobDefinitionError(
                        "a side output has two row classes",
                        hint="use one OutputTag object",
                        uid=parent.uid,
                        tag=tag.name,
                    )
                return node
        node = SideOutputNode(parent, tag, RowSchema.of(tag.row_class))
        self.side_outputs.append(node)
        return node

    def add_rows(self, node: RowsNode) -> RowsNode:
        """Registers a row function, and its dead-letter node if it has dead letters."""
        if node.step.on_error is not None:
            self.row_dead_letters[node] = RowsNode(node.parent, node.step.dead_letter_step())
        return node

    def dead_letters(self, node: Node) -> Node:
        """Returns the node of the dead letters of the function that produces `node`; the same node for each call.

        Raises:
            JobDefinitionError: the function was not declared with dead letters.
        """
        if node in self.row_dead_letters:
            return self.row_dead_letters[node]
        if isinstance(node, ProcessNode) and node.on_error is not None:
            return self.side_output(node, DEAD_LETTERS)
        raise JobDefinitionError(
            "the stream has no dead letters",
            hint="call get_dead_letters on the result of a function, or of a source, that was declared with "
            "on_error=DeadLetters(budget=…)",
        )

    def with_shadow_sinks(self) -> Graph:
        """Returns the same graph with every sink replaced by its shadow, which writes to a separate table."""
        return replace(self, sinks=[replace(s, sink=s.sink.shadow()) for s in self.sinks])

    def check(self) -> None:
        """Raises JobDefinitionError if the job has no source, no consumer, or unused sources or dead letters."""
        if not self.sources:
            raise JobDefinitionError("the job has no source", hint="call env.from_source in build")
        if not self.operators and not self.sinks:
            sources = [source.uid for source in self.sources]
            raise JobDefinitionError(
                "the job has no operator and no sink", hint="end a stream with process or sink_to", sources=sources
            )
        used = {source.uid for node in self.consumed for source in sources_of(node)}
        unused = [s.uid for s in self.sources if s.uid not in used]
        if unused:
            raise JobDefinitionError(
                "a source has no consumer", hint="consume its stream, or remove the source", sources=unused
            )
        self._check_dead_letters()
        self._check_event_time()

    def _check_dead_letters(self) -> None:
        declared = [(o.uid, self.dead_letters(o)) for o in self.operators if o.on_error is not None]
        declared += [(letters.step.name, letters) for letters in self.row_dead_letters.values()]
        used = set(with_ancestors(self.consumed))
        unused = [name for name, letters in declared if letters not in used]
        if unused:
            raise JobDefinitionError(
                "dead letters have no consumer",
                hint="write them to a sink: stream.get_dead_letters().sink_to(…)",
                of=unused,
            )

    def _check_event_time(self) -> None:
        watermark_strategies(self.consumed)
        for operator in self.operators:
            for edge in operator.inputs:
                event_time_of(edge.node)

    @property
    def consumed(self) -> list[Node]:
        """The nodes whose rows operators and sinks consume, in order of declaration."""
        return [e.node for o in self.operators for e in o.inputs] + [s.parent for s in self.sinks]

    def _check_uid(self, kind: str, uid: str) -> None:
        if not uid:
            raise JobDefinitionError(
                f"a {kind} needs a uid", hint="pass uid=…: state and output are matched by uid", kind=kind
            )
        check_name(f"the uid of a {kind}", uid)
        nodes: list[SourceNode | ProcessNode | SinkNode] = [*self.sources, *self.operators, *self.sinks]
        if uid in [n.uid for n in nodes]:
            raise JobDefinitionError(
                "a uid must be unique", hint="give every source, operator and sink a unique uid", uid=uid
            )


def parents_of(node: Node) -> tuple[Node, ...]:
    """Returns the nodes whose rows `node` consumes."""
    if isinstance(node, SourceNode):
        return ()
    if isinstance(node, UnionNode):
        return node.parents
    if isinstance(node, ProcessNode):
        return tuple(edge.node for edge in node.inputs)
    return (node.parent,)


def with_ancestors(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields the nodes and all their ancestors; a node may occur several times."""
    for node in nodes:
        yield node
        yield from with_ancestors(parents_of(node))


def sources_of(node: Node) -> list[SourceNode]:
    """Returns the sources whose rows can reach `node`."""
    if isinstance(node, SourceNode):
        return [node]
    return [source for parent in parents_of(node) for source in sources_of(parent)]


def level_of(node: Node) -> int:
    """Returns the number of shuffles between the sources and the rows that `node` produces."""
    level = max((level_of(parent) for parent in parents_of(node)), default=0)
    return level + 1 if isinstance(node, ProcessNode) else level


def is_emitted(node: Node) -> bool:
    """Returns whether tasks produce the rows of `node`.

    Tasks produce an operator's outputs, main and side, and apply the functions directly after them: functions of rows,
    or functions of columns.
    """
    kind = RowsNode if isinstance(node, RowsNode) else ColumnsNode
    while isinstance(node, kind):
        node = node.parent
    return isinstance(node, ProcessNode | SideOutputNode)


def leaves_of(node: Node) -> list[Node]:
    """Returns the sources and emitted nodes that the rows of `node` are made of, in order; with duplicates."""
    if isinstance(node, SourceNode) or is_emitted(node):
        return [node]
    return [leaf for parent in parents_of(node) for leaf in leaves_of(parent)]


@dataclass(frozen=True)
class Producer:
    """The operator and functions that produce the rows of an emitted node.

    Attributes:
        operator: the operator.
        tag: the name of its side output; empty for the main output.
        steps: the row functions after it.
        columns: the functions of columns after it; a node has only one of both kinds.
    """

    operator: ProcessNode
    tag: str
    steps: tuple[RowStep, ...]
    columns: tuple[ColumnsNode, ...]


def producer_of(node: Node) -> Producer:
    """Returns what produces the rows of an emitted node."""
    steps: tuple[RowStep, ...] = ()
    columns: tuple[ColumnsNode, ...] = ()
    while isinstance(node, RowsNode | ColumnsNode):
        if isinstance(node, RowsNode):
            steps = (node.step, *steps)
        else:
            columns = (node, *columns)
        node = node.parent
    if isinstance(node, SideOutputNode):
        return Producer(node.parent, node.tag.name, steps, columns)
    assert isinstance(node, ProcessNode)
    return Producer(node, "", steps, columns)


def changelog_of(node: Node) -> Changelog | None:
    """Returns how the rows of a source or an operator correct earlier ones, by its declaration or a `RowKind` field."""
    declared = node.changelog if isinstance(node, ProcessNode) else None
    operator = node.parent if isinstance(node, SideOutputNode) else node
    appends = isinstance(operator, ProcessNode) and operator.appends
    return declared if appends else declared or find_changelog(node.schema)


def watermark_strategies(nodes: Iterable[Node], directly: bool = False) -> dict[str, WatermarkStrategy]:
    """Returns the watermark strategies of the sources that can reach `nodes`, by uid.

    Args:
        directly: only sources with no operator in between.

    Raises:
        JobDefinitionError: a source has two strategies.
    """
    found: dict[str, WatermarkStrategy] = {}
    for node in nodes:
        if directly and is_emitted(node):
            continue
        for parent in parents_of(node):
            _add_strategies(found, watermark_strategies([parent], directly))
        if isinstance(node, WatermarkNode):
            (source,) = set(sources_of(node))
            _add_strategies(found, {source.uid: node.strategy})
    return found


def times_of_splits(nodes: Iterable[Node]) -> dict[str, str]:
    """Returns the timestamp columns of the sources that can reach `nodes` and have a watermark per split, by uid.

    That needs a watermark strategy on the source's own stream: a split is not a column of later streams.
    """
    found: dict[str, str] = {}
    for node in with_ancestors(nodes):
        if isinstance(node, WatermarkNode) and isinstance(node.parent, RecordsNode):
            found[node.parent.parent.uid] = node.strategy.column
    return found


def _add_strategies(found: dict[str, WatermarkStrategy], more: Mapping[str, WatermarkStrategy]) -> None:
    for uid, strategy in more.items():
        if found.setdefault(uid, strategy) != strategy:
            raise JobDefinitionError(
                "a source has two watermark strategies", hint="declare one, directly after from_source", uid=uid
            )


def event_time_of(node: Node) -> str:
    """Returns the timestamp column of a stream; empty if none is declared.

    For an operator's output, it is the column of the same name, if the output has one.

    Raises:
        JobDefinitionError: the column is missing before the first operator, or differs within a union.
    """
    if isinstance(node, WatermarkNode):
        return node.strategy.column
    found = {name for parent in parents_of(node) if (name := event_time_of(parent))}
    if len(found) > 1 and isinstance(node, UnionNode):
        raise JobDefinitionError(
            "the streams of a union have different timestamp columns",
            hint="rename the columns to one name before the union",
            columns=sorted(found),
        )
    if len(found) != 1:
        return ""
    (name,) = found
    if has_event_time(node.schema, name):
        return name
    if level_of(node) == 0:
        raise JobDefinitionError(
            "the timestamp column is lost before the first key_by",
            hint="keep the column in the output class, or declare the watermark strategy later",
            column=name,
            columns=list(node.schema.names),
        )
    return ""


def order_by_event_time(edge: Edge, function: KeyedFunction[object]) -> Edge:
    """Returns the input of `function`, ordered by event time if the function has timers and no order is declared.

    Only rows of sources are ordered. In this order, timers can fire between two rows of a batch.
    """
    if edge.keying is None or edge.keying.order_by or not has_timers(function) or level_of(edge.node):
        return edge
    time = event_time_of(edge.node)
    return replace(edge, keying=replace(edge.keying, order_by=(time,))) if time else edge


def make_keying(parent: Node, columns: tuple[str, ...], order_by: tuple[str, ...]) -> Keying:
    """Returns the keying of a `key_by` on `parent`.

    Raises:
        JobDefinitionError: no column is named, or a column does not exist.
        ConfigError: a column's type cannot be a key.
    """
    with add_stream_facts("key_by", parent):
        if not columns:
            raise JobDefinitionError("key_by needs at least one column", hint="name the columns of the key")
        found = [parent.schema.column(name) for name in columns]
    with add_stream_facts("order_by", parent):
        for name in order_by:
            parent.schema.column(name).check_sortable()
    types = tuple(check_key_type(c.spark_type, c.name) for c in found)
    return Keying(columns, order_by, types)


@contextmanager
def add_stream_facts(called: str, node: Node) -> Iterator[None]:
    """Adds the called method and the stream's uid to a JobDefinitionError that the body raises."""
    try:
        yield
    except JobDefinitionError as e:
        e.add_facts(called=called, stream=_nearest_uids(node))
        raise


def _nearest_uids(node: Node) -> str:
    """Returns the uids of the nearest operators or sources that produce the rows of `node`."""
    if isinstance(node, SourceNode | ProcessNode):
        return node.uid
    return ", ".join(dict.fromkeys(map(_nearest_uids, parents_of(node))))


@dataclass(frozen=True)
class _Raise:
    """A row function that raises for each rejected record, so that the record becomes a dead letter.

    Args:
        reason: as `Source.reason`.
    """

    reason: Callable[[RejectedRecord], str]

    def __call__(self, record: RejectedRecord) -> Iterable[DeadLetter]:
        raise UndecodableRecord(self.reason(record) or record.reason)


def dead_letters_of(source: SourceNode, policy: DeadLetters, reason: Callable[[RejectedRecord], str]) -> RowsNode:
    """Returns the node of a source's dead letters.

    Args:
        policy: how many there may be.
        reason: as `Source.reason`.
    """
    records = RecordsNode(source, RowSchema.of(RejectedRecord), rejected=True)
    step = RowStep(StepKind.FLAT_MAP, _Raise(reason), records.schema, policy, uid=source.uid)
    return RowsNode(records, step.dead_letter_step())
