"""The columns that `select` of a join declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError

Schemas = tuple[RowSchema, RowSchema]
"""The columns of the left and of the right rows."""


def declared_columns(
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
            "a field of a join's output has another type than its column",
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
            "the column of a field of a join's output is not known",
            hint=f'pass columns={{"{field}": "left.name"}}, or right.name',
            field=field,
            given=given,
            left=list(left.names),
            right=list(right.names),
            uid=uid,
        )
    return sides[0], field
