"""The logical plan of a job: what the user declared, as frozen nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stateflow.api.functions import KeyedProcessFunction
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
from stateflow.api.source import LocalSource, Source
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


@dataclass(frozen=True, eq=False)
class ProcessNode:
    """A keyed stateful operator."""

    uid: str
    parent: Node
    keying: Keying
    function: KeyedProcessFunction[Any, Any]
    schema: RowSchema


Node = SourceNode | TransformNode | ProcessNode


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

    def shadowed(self) -> Graph:
        """The same graph, every sink of which publishes to the table beside its own."""
        return Graph(self.sources, self.operators, [replace(s, sink=s.sink.shadow()) for s in self.sinks])

    def check(self) -> None:
        """Raises JobDefinitionError when nothing could run."""
        if not self.sources:
            raise JobDefinitionError("the job reads nothing", hint="call env.from_source in build")
        if not self.operators and not self.sinks:
            raise JobDefinitionError("the job does nothing", hint="end a stream with process or sink_to")
        if len(self.sources) > 1:
            raise JobDefinitionError("this version runs jobs with one source", hint="union the inputs in one source, "
                                     "or make two jobs", sources=[s.uid for s in self.sources])  # fmt: skip

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
    found = [parent.schema.column(name) for name in columns]
    for name in order_by:
        parent.schema.column(name)
    types = tuple(check_key_type(c.spark_type, c.name) for c in found)
    return Keying(columns, order_by, types)


def level_of(node: Node) -> int:
    """How many shuffles lie between the sources and the rows that `node` produces."""
    if isinstance(node, SourceNode):
        return 0
    if isinstance(node, TransformNode):
        return level_of(node.parent)
    return level_of(node.parent) + 1
