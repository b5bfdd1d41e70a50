"""The logical plan of a job: the nodes that `build` declares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from stateflow.api.dead_letters import DEAD_LETTERS
from stateflow.api.graph.event_time import event_time_of, watermark_strategies
from stateflow.api.graph.nodes import Node, ProcessNode, RecordsNode, RowsNode, SideOutputNode, SinkNode, SourceNode
from stateflow.api.graph.rejected_records import dead_letters_of
from stateflow.api.graph.traversal import sources_of, with_ancestors
from stateflow.api.hidden_columns import with_hidden_columns
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.source import LocalSource, Source
from stateflow.errors import JobDefinitionError
from stateflow.ids import check_name

Row = TypeVar("Row")


@dataclass
class Graph:
    """The nodes that were declared while `build` ran.

    Attributes:
        row_dead_letters: the node of the dead letters of each row function and source that was declared with dead
            letters, by the node of its rows.
        code: hash of the job file and the modules next to it; empty for a graph without a file.
    """

    sources: list[SourceNode] = field(default_factory=list)
    operators: list[ProcessNode] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)
    side_outputs: list[SideOutputNode] = field(default_factory=list)
    row_dead_letters: dict[Node, RowsNode] = field(default_factory=dict)
    code: str = ""

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

    def shadowed(self) -> Graph:
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
                f"a {kind} has no uid", hint="pass uid=…: state and output are matched by uid", kind=kind
            )
        check_name(f"the uid of a {kind}", uid)
        nodes: list[SourceNode | ProcessNode | SinkNode] = [*self.sources, *self.operators, *self.sinks]
        if uid in [n.uid for n in nodes]:
            raise JobDefinitionError(
                "a uid is used twice", hint="give every source, operator and sink a unique uid", uid=uid
            )
