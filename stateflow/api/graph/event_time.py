"""Event time in the logical plan: watermark strategies of sources, timestamp columns of streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stateflow.api.functions.process import KeyedFunction, has_timers
from stateflow.api.graph.nodes import Edge, Node, RecordsNode, UnionNode, WatermarkNode
from stateflow.api.graph.traversal import is_emitted, level_of, parents_of, sources_of, with_ancestors
from stateflow.api.watermarks import WatermarkStrategy, has_event_time
from stateflow.errors import JobDefinitionError


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


def ordered_by_event_time(edge: Edge, function: KeyedFunction[object]) -> Edge:
    """Returns the input of `function`, ordered by event time if the function has timers and no order is declared.

    Only rows of sources are ordered. In this order, timers can fire between two rows of a batch.
    """
    if edge.keying is None or edge.keying.order_by or not has_timers(function) or level_of(edge.node):
        return edge
    time = event_time_of(edge.node)
    return replace(edge, keying=replace(edge.keying, order_by=(time,))) if time else edge
