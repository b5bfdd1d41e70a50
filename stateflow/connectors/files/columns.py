"""Compares the declared columns of a file source with those of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stateflow.api.schema import RowSchema
from stateflow.errors import ConfigError, SchemaMismatch

_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
    # Parquet has no durations: Spark writes microseconds, as Arrow does.
    "interval day to second": {"bigint"},
}
"""Narrower types in files that Spark reads as the declared type."""


@dataclass(frozen=True)
class ColumnPolicy:
    """How the start of a run handles Parquet files whose columns differ from those of the row class.

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


def check_columns(found: Mapping[str, str], schema: RowSchema, policy: ColumnPolicy, path: str) -> None:
    """Compares declared columns with those of files.

    Args:
        found: Spark's type names of the files' columns, by column.
        path: path of the source, for errors.

    Raises:
        SchemaMismatch: a column is missing, has another type, or is not declared; names the column.
    """
    added = sorted(found.keys() - set(schema.names))
    if added and policy.added == "refuse":
        raise SchemaMismatch(
            "the files have columns that are not declared",
            hint="declare them in the row class, or ignore them with ColumnPolicy(added='ignore')",
            columns=added,
            path=path,
        )
    for column in schema.columns:
        if column.name in found:
            _check_type(column.name, column.dtype, found[column.name], path)
        elif not column.nullable or policy.missing == "refuse":
            raise SchemaMismatch(
                "the files lack a declared column",
                hint="correct the row class or the files; ColumnPolicy(missing='null') reads a nullable column as null",
                column=column.name,
                found=sorted(found),
                path=path,
            )


def _check_type(name: str, declared: str, found: str, path: str) -> None:
    if found != declared and found not in _WIDER.get(declared, ()):
        raise SchemaMismatch(
            "a column of the files has another type than declared",
            hint="correct the row class",
            column=name,
            declared=declared,
            found=found,
            path=path,
        )
