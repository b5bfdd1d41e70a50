"""The two inputs of a join: their keys, their event times, and the order of their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from stateflow.api.changelog import Changelog, check_appends
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.graph.nodes import Edge
from stateflow.api.graph.traversal import level_of
from stateflow.api.side_outputs import OutputTag, check_late_tag
from stateflow.api.streams.connected_streams import checked_pair
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.api.watermarks import event_time_reader
from stateflow.errors import JobDefinitionError

Row = TypeVar("Row")


@dataclass(frozen=True)
class ChangelogEdge:
    """A keyed stream.

    Attributes:
        changelog: how its rows correct earlier ones; None if they only append.
    """

    edge: Edge
    changelog: Changelog | None = None


TimeReader = Callable[[object], int | None] | None
"""Returns the event time of a row; None for rows without event time."""


def joined_pair(left: KeyedInput[Stream], right: object, method: str) -> tuple[Edge, Edge]:
    """Returns the edges of two keyed streams, in the order of event time where timers can fire between their rows.

    Raises:
        JobDefinitionError: `right` is no keyed stream of the same job, the keys have different types, or a stream is a
            changelog.
    """
    given = _checked(left, right, method)
    for stream in (left, given):
        check_appends(stream._changelog, method)
    return _timed_pair(left, given)


def versioned_pair(left: KeyedInput[Stream], versions: object, method: str) -> tuple[Edge, ChangelogEdge]:
    """Returns the edges of a keyed stream of rows and one of versions, which may be a changelog by its key.

    Raises:
        JobDefinitionError: `versions` is no keyed stream of the same job, the keys have different types, the stream of
            rows is a changelog, or a key of the other one may have several versions at a time.
    """
    given = _checked(left, versions, method)
    check_appends(left._changelog, method)
    first, second = _timed_pair(left, given)
    changelog, keying = given._changelog, second.keying
    assert keying is not None
    if changelog is not None and set(changelog.keys) != set(keying.columns):
        raise JobDefinitionError(
            "the versions of a temporal join need the key of the join as their upsert key",
            hint="a key has one version at a time: declare it before key_by, with as_changelog(…) and the columns of "
            "key_by; or deduplicate by them",
            called=method,
            key=list(keying.columns),
            upsert_key=list(changelog.keys),
        )
    return first, ChangelogEdge(second, changelog)


def _timed_pair(left: KeyedInput[Stream], right: KeyedInput[Stream]) -> tuple[Edge, Edge]:
    first, second = checked_pair(left._edge, right._edge)
    times = event_time_of(first.node), event_time_of(second.node)
    if not _can_be_ordered(first, second, times):
        return first, second
    return _ordered(first, times[0]), _ordered(second, times[1])


def changelog_pair(left: KeyedInput[Stream], right: object, method: str) -> tuple[ChangelogEdge, ChangelogEdge]:
    """Returns the edges of two keyed streams that may be changelogs; as `joined_pair` if both only append rows.

    Raises:
        JobDefinitionError: `right` is no keyed stream of the same job, the keys have different types, or the rows of a
            changelog have another order than that of their arrival.
    """
    given = _checked(left, right, method)
    changelogs = left._changelog, given._changelog
    if changelogs == (None, None):
        first, second = joined_pair(left, right, method)
        return ChangelogEdge(first), ChangelogEdge(second)
    # A row that is retracted must come after the row that it retracts.
    for edge, changelog in zip((left._edge, given._edge), changelogs, strict=True):
        if changelog is not None and edge.keying is not None and edge.keying.order_by:
            raise JobDefinitionError(
                "the rows of a changelog are joined in the order of their arrival",
                hint="call key_by without order_by",
                called=method,
                order_by=list(edge.keying.order_by),
            )
    first, second = checked_pair(left._edge, given._edge)
    return ChangelogEdge(first, changelogs[0]), ChangelogEdge(second, changelogs[1])


def _checked(left: KeyedInput[Stream], right: object, method: str) -> KeyedInput[Stream]:
    if not isinstance(right, KeyedInput) or right._graph is not left._graph:
        raise JobDefinitionError(
            f"{method} needs another keyed stream of the same job",
            hint=f'first.key_by("id").{method}(second.key_by("id"))',
            called=method,
            given=type(right).__name__,
        )
    return right


def check_event_times(pair: tuple[Edge, Edge], method: str) -> None:
    """Raises JobDefinitionError if one of the streams has no event time."""
    for side, edge in zip(("left", "right"), pair, strict=True):
        if not event_time_of(edge.node):
            raise JobDefinitionError(
                f"{method} needs two streams with event time",
                hint="declare it: source.assign_timestamps_and_watermarks(…), and keep the column in the row class",
                called=method,
                side=side,
                columns=list(edge.node.schema.names),
            )


def time_readers(pair: tuple[Edge, Edge]) -> tuple[TimeReader, TimeReader]:
    """Returns functions that read the event time of a row of each side."""
    left, right = pair
    return event_time_reader(event_time_of(left.node)), event_time_reader(event_time_of(right.node))


def checked_late_tag(tag: OutputTag[Row], edge: Edge) -> OutputTag[object]:
    """Returns the side output for late rows. Raises JobDefinitionError if it is of another class than the rows."""
    check_late_tag(tag, edge.node.schema.row_class)
    return cast("OutputTag[object]", tag)


def _can_be_ordered(first: Edge, second: Edge, times: tuple[str, str]) -> bool:
    """Returns whether rows of both come from sources, with event times that can be compared, in no declared order."""
    edges = tuple(zip((first, second), times, strict=True))
    if not all(times) or any(level_of(edge.node) or (edge.keying and edge.keying.order_by) for edge, _ in edges):
        return False
    kinds = {edge.node.schema.column(time).dtype for edge, time in edges}
    return len(kinds) == 1


def _ordered(edge: Edge, time: str) -> Edge:
    assert edge.keying is not None
    return replace(edge, keying=replace(edge.keying, order_by=(time,)))
