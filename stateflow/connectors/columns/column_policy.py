"""What sources and sinks do when columns are not those of the row class, whatever the system. Imports no Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import ConfigError, SchemaMismatch


@dataclass(frozen=True)
class ColumnPolicy:
    """How a source handles columns that differ from those of the row class.

    Args:
        added: the policy for columns that only the files have: ignore them, or refuse to start.
        missing: the policy for columns that only the row class has: refuse to start, or read them as null. A column
            that must not be null is always refused.

    Raises:
        ConfigError: a value is not one of these.
    """

    added: Literal["ignore", "refuse"] = "ignore"
    missing: Literal["refuse", "null"] = "refuse"

    def __post_init__(self) -> None:
        if self.added not in ("ignore", "refuse") or self.missing not in ("refuse", "null"):
            raise ConfigError(
                "a value of ColumnPolicy is not supported",
                hint="added: ignore or refuse; missing: refuse or null",
                added=self.added,
                missing=self.missing,
            )


@dataclass(frozen=True)
class FoundColumns:
    """The columns of a source.

    Attributes:
        names: their names, in order.
        types: their types as text, for errors.
        misfit: returns the path of the first part of a found column that cannot be read as the declared column: empty
            for the whole, None without one. It takes the declared column, and the position of the found one.
        compares_types: whether a misfit is refused; otherwise it only distinguishes a renamed column from another one.
    """

    names: Sequence[str]
    types: Sequence[str]
    misfit: Callable[[Column, int], str | None]
    compares_types: bool = True


def check_found_columns(found: FoundColumns, schema: RowSchema, policy: ColumnPolicy, path: str) -> None:
    """Compares declared columns with those of a source. Pure.

    Args:
        path: path of the source, or its description, for errors.

    Raises:
        SchemaMismatch: a column is missing, has another type, or is not declared; names the column.
    """
    added = sorted(set(found.names) - set(schema.names))
    if added and policy.added == "refuse":
        raise SchemaMismatch(
            "the source has columns that are not declared",
            hint="declare them in the row class, or ignore them with ColumnPolicy(added='ignore')",
            columns=added,
            path=path,
        )
    _refuse_renames(found, schema, path)
    positions = {name: at for at, name in enumerate(found.names)}
    for column in schema.columns:
        if column.name in positions:
            if found.compares_types:
                _check_type(column, positions[column.name], found, path)
        elif not column.nullable or policy.missing == "refuse":
            raise SchemaMismatch(
                "the source lacks a declared column",
                hint="correct the row class or the data; ColumnPolicy(missing='null') reads a nullable column as null",
                column=column.name,
                found=sorted(found.names),
                path=path,
            )


def _refuse_renames(found: FoundColumns, schema: RowSchema, path: str) -> None:
    """Raises SchemaMismatch for a column that seems to be one of the source under another name.

    Under a policy that reads missing columns as null, it would be null in all rows.
    """
    for at, column in schema.possible_renames(found.names):
        if found.misfit(column, at) is None:
            name = found.names[at]
            raise SchemaMismatch(
                "a column of the source seems to have been renamed in the row class",
                hint=f"name the field {name}, and rename it in a map; or declare {name} as well",
                column=name,
                renamed_to=column.name,
                position=at + 1,
                path=path,
            )


def _check_type(column: Column, at: int, found: FoundColumns, path: str) -> None:
    part = found.misfit(column, at)
    if part is not None:
        raise SchemaMismatch(
            "a column of the source has another type than declared",
            hint="correct the row class",
            column=column.name + part,
            declared=column.dtype,
            found=found.types[at],
            path=path,
        )


def columns_to_add(
    table: str, existing: Sequence[str], schema: RowSchema, has_type: Callable[[Column, int], bool]
) -> tuple[Column, ...]:
    """Returns the columns that the table of a sink lacks, in the order of the row class. Pure.

    Args:
        table: its name or path, for errors.
        existing: the names of its columns, in order.
        schema: the row class.
        has_type: returns whether the table's column at a position has the type of a declared one.

    Raises:
        SchemaMismatch: a column seems to have been renamed: the row class has another column of the same type in the
            place of a column of the table, which would be null from then on.
    """
    for at, column in schema.possible_renames(existing):
        if has_type(column, at):
            name = existing[at]
            raise SchemaMismatch(
                "a column of the sink's table seems to have been renamed in the row class",
                hint=f"keep the name {name}; or, to add {column.name} as a further column, declare both: "
                f"{name} as … | None = None",
                table=table,
                column=name,
                renamed_to=column.name,
                position=at + 1,
            )
    known = {name.lower() for name in existing}
    return tuple(column for column in schema.columns if column.name.lower() not in known)
