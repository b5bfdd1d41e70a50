"""Checks of the columns that `key_by` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stateflow.api.graph.nodes import Keying, Node, ProcessNode, SourceNode
from stateflow.api.graph.traversal import parents_of
from stateflow.errors import JobDefinitionError
from stateflow.types.key_groups import check_key_type


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
