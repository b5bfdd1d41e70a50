"""Traversal of the logical plan: ancestors, sources, level and producer of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stateflow.api.changelog import Changelog, declared_changelog
from stateflow.api.functions.rich import RowStep
from stateflow.api.graph.nodes import ColumnsNode, Node, ProcessNode, RowsNode, SideOutputNode, SourceNode, UnionNode


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
    """What produces the rows of an emitted node.

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
    return declared if appends else declared or declared_changelog(node.schema)
