"""The inputs of joins, with their checks, and the columns that a join returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from stateflow.api.changelog import Changelog, check_appends
from stateflow.api.graph import Edge, event_time_of, level_of
from stateflow.api.schema import Column, RowSchema
from stateflow.api.side_outputs import OutputTag, check_late_tag
from stateflow.api.streams.connected_streams import check_pair
from stateflow.api.streams.operator_input import OperatorInput, Stream
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


def join_pair(left: OperatorInput[Stream], right: object, method: str) -> tuple[Edge, Edge]:
    """Returns the edges of two keyed streams, in the order of event time where timers can fire between their rows.

    Raises:
        JobDefinitionError: `right` is not a keyed stream of the job, the keys have different types, or a stream is a
            changelog.
    """
    given = _checked(left, right, method)
    for stream in (left, given):
        check_appends(stream._changelog, method)
    return _timed_pair(left, given)


def join_versions(left: OperatorInput[Stream], versions: object, method: str) -> tuple[Edge, ChangelogEdge]:
    """Returns the edges of a keyed stream of rows and one of versions, which may be a changelog by its key.

    Raises:
        JobDefinitionError: `versions` is not a keyed stream of the job, the keys have different types, the stream of
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


def _timed_pair(left: OperatorInput[Stream], right: OperatorInput[Stream]) -> tuple[Edge, Edge]:
    first, second = check_pair(left._edge, right._edge)
    times = event_time_of(first.node), event_time_of(second.node)
    if not _can_be_ordered(first, second, times):
        return first, second
    return _ordered(first, times[0]), _ordered(second, times[1])


def changelog_pair(left: OperatorInput[Stream], right: object, method: str) -> tuple[ChangelogEdge, ChangelogEdge]:
    """Returns the edges of two keyed streams that may be changelogs; as `join_pair` if both only append rows.

    Raises:
        JobDefinitionError: `right` is not a keyed stream of the job, the keys have different types, or the rows of a
            changelog have another order than that of their arrival.
    """
    given = _checked(left, right, method)
    changelogs = left._changelog, given._changelog
    if changelogs == (None, None):
        first, second = join_pair(left, right, method)
        return ChangelogEdge(first), ChangelogEdge(second)
    # A row that is retracted must come after the row that it retracts.
    for edge, changelog in zip((left._edge, given._edge), changelogs, strict=True):
        if changelog is not None and edge.keying is not None and edge.keying.order_by:
            raise JobDefinitionError(
                "a join of a changelog needs rows in the order of their arrival",
                hint="call key_by without order_by",
                called=method,
                order_by=list(edge.keying.order_by),
            )
    first, second = check_pair(left._edge, given._edge)
    return ChangelogEdge(first, changelogs[0]), ChangelogEdge(second, changelogs[1])


def _checked(left: OperatorInput[Stream], right: object, method: str) -> OperatorInput[Stream]:
    if not isinstance(right, OperatorInput) or right._graph is not left._graph:
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


def check_tag_of_late_rows(tag: OutputTag[Row], edge: Edge) -> OutputTag[object]:
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


Schemas = tuple[RowSchema, RowSchema]
"""The columns of the left and of the right rows."""


def resolve_columns(
    schemas: Schemas, output: RowSchema, given: Mapping[str, str], uid: str, others: Collection[str] = ()
) -> dict[str, tuple[bool, str]]:
    """Returns for each column of the output whether it is of the left side, and its name there.

    Args:
        schemas: the columns of both sides.
        given: the declared names: ``{field: "left.column"}``.
        others: columns of the output that are not of a row.

    Raises:
        JobDefinitionError: a field has no column, or one of another type.
    """
    unknown = sorted(given.keys() - set(output.names))
    if unknown:
        raise JobDefinitionError(
            "select names columns that its output does not have",
            hint="name the fields of the output class: {field: 'left.column'}",
            unknown=unknown,
            uid=uid,
        )
    found = [column for column in output.columns if column.name not in others]
    return {column.name: _origin(schemas, column, given.get(column.name, ""), uid) for column in found}


def _origin(schemas: Schemas, column: Column, given: str, uid: str) -> tuple[bool, str]:
    """Returns the side of a column of the output, and its name there."""
    is_left, name = _named(schemas, column.name, given, uid)
    source = schemas[0 if is_left else 1].column(name)
    if source.dtype != column.dtype or (source.nullable and not column.nullable):
        raise JobDefinitionError(
            "a field of a join's output must have the type of its column",
            hint="declare the field with the type of the column",
            field=f"{column.name}: {column.dtype}{' | None' if column.nullable else ''}",
            column=f"{source.name}: {source.dtype}{' | None' if source.nullable else ''}",
            uid=uid,
        )
    return is_left, name


def _named(schemas: Schemas, field: str, given: str, uid: str) -> tuple[bool, str]:
    side, dot, name = given.partition(".")
    if dot and side in ("left", "right"):
        return side == "left", name
    left, right = schemas
    sides = [is_left for is_left, of in ((True, left), (False, right)) if field in of.names]
    if given or len(sides) != 1:
        raise JobDefinitionError(
            "could not find the column of a field of a join's output",
            hint=f'pass columns={{"{field}": "left.name"}}, or right.name',
            field=field,
            given=given,
            left=list(left.names),
            right=list(right.names),
            uid=uid,
        )
    return sides[0], field
