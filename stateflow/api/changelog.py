"""How the rows of a stream correct earlier rows, and what operators may do with such a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.columns.shapes import Leaf

RETRACT_FIRST = (
    "emit each row that is replaced once more: with retract=True of deduplicate, top_n or aggregate_columns, or from a "
    "source or function of yours that is declared with as_changelog(…, retracts=True)"
)
NO_KIND = "rows that are retracted need a column of type RowKind"
KIND_HINT = "declare a field in the output class: kind: RowKind"
AS_APPENDS = "to process each row as a row of its own, call as_append_only() on the stream"


@dataclass(frozen=True)
class Changelog:
    """How the rows of a stream correct earlier rows; a stream without one only appends rows.

    Attributes:
        keys: the upsert key: each row replaces the earlier row of its key. Empty if there is none.
        row_kind: the column of type `RowKind`; empty if every row is an upsert.
        retracts: whether each row that is replaced is retracted first, by a row of kind `UPDATE_BEFORE` or `DELETE`.
    """

    keys: tuple[str, ...] = ()
    row_kind: str = ""
    retracts: bool = False

    def check_sink_keys(self, keys: Sequence[str]) -> None:
        """Raises JobDefinitionError if rows that are replaced would stay in a sink that matches rows by other columns.

        Rows that are retracted leave the table, so other keys may identify them as well, but no part of the upsert
        key.
        """
        if set(keys) != set(self.keys) and (not self.retracts or set(keys) < set(self.keys)):
            raise JobDefinitionError(
                "the keys of a sink must be the upsert key of its stream",
                hint="rows that are replaced would stay: pass the upsert key as keys=…; or, for other keys of rows, "
                f"{RETRACT_FIRST}",
                keys=list(keys),
                upsert_key=list(self.keys),
            )

    def compares_content(self, keys: Sequence[str]) -> bool:
        """Returns whether a sink with these keys deletes a row only if it equals the one that is retracted.

        By the upsert key, all rows of a key of the sink come from one task, in order. By other keys, they come from
        several.
        """
        return self.retracts and set(keys) != set(self.keys)


def row_kind_of(schema: RowSchema) -> str:
    """Returns the name of the column of type `RowKind`; empty without one.

    Raises:
        JobDefinitionError: there are several such columns, or it may be null.
    """
    found = [column for column in schema.columns if isinstance(column.shape, Leaf) and column.shape.kind is RowKind]
    if len(found) > 1 or any(column.nullable for column in found):
        raise JobDefinitionError(
            "a row class needs one column of type RowKind, which is never null",
            hint="declare one field: kind: RowKind",
            row_class=schema.row_class.__name__,
            columns=[column.name for column in found],
        )
    return found[0].name if found else ""


def find_changelog(schema: RowSchema) -> Changelog | None:
    """Returns the changelog of rows that a source or a user's function makes; None if they have no row kind."""
    name = row_kind_of(schema)
    return Changelog(row_kind=name, retracts=True) if name else None


def with_keys(schema: RowSchema, keys: Sequence[str], *, retracts: bool = False) -> Changelog:
    """Returns the changelog of rows that a user declares.

    Args:
        schema: columns of the rows.
        keys: the upsert key; may be empty if each row that is replaced is retracted.
        retracts: whether it is.

    Raises:
        JobDefinitionError: the key is empty, a column does not exist, or the rows lack a row kind for retractions.
    """
    kind = row_kind_of(schema)
    for name in keys:
        schema.column(name)
    if not keys and not retracts:
        raise JobDefinitionError("an upsert key needs at least one column", hint="name the columns of the key")
    if retracts and not kind:
        raise JobDefinitionError(NO_KIND, hint=KIND_HINT, row_class=schema.row_class.__name__)
    return Changelog(tuple(keys), kind, retracts)


def after_map(before: Changelog | None, given: RowSchema, output: RowSchema) -> Changelog | None:
    """Returns the changelog after a function that returns one row for each row.

    Raises:
        JobDefinitionError: the output class lacks the upsert key or the row kind.
    """
    if before is None:
        return None if row_kind_of(given) else find_changelog(output)
    # Without a kind in the changelog, that of the rows is a column like others.
    kind = row_kind_of(output) if before.row_kind or not row_kind_of(given) else ""
    lost = [name for name in before.keys if name not in output.names]
    if lost or bool(kind) != bool(before.row_kind):
        raise JobDefinitionError(
            "the output class of a changelog lacks its upsert key or its row kind",
            hint=f"keep these columns, with their values, in the output class; {AS_APPENDS}",
            upsert_key=list(before.keys),
            row_kind=before.row_kind,
            columns=list(output.names),
        )
    return replace(before, row_kind=kind)


def after_filter(before: Changelog | None) -> Changelog | None:
    """Returns the changelog after a filter.

    Raises:
        JobDefinitionError: a row that the filter drops would leave the row that it replaces.
    """
    if before is not None and not before.retracts:
        raise JobDefinitionError(
            "a filter of upserts would keep rows whose replacement it drops",
            hint=f"filter before the operator; or {RETRACT_FIRST}; {AS_APPENDS}",
            upsert_key=list(before.keys),
        )
    return before


def after_flat_map(before: Changelog | None, given: RowSchema, output: RowSchema) -> Changelog | None:
    """Returns the changelog after a function that returns any number of rows; raises JobDefinitionError as a filter."""
    kept = after_map(after_filter(before), given, output)
    return replace(kept, keys=()) if kept else None


def of_union(changelogs: Sequence[Changelog | None]) -> Changelog | None:
    """Returns the changelog of a union.

    Raises:
        JobDefinitionError: some streams are changelogs, and not all of them retract the rows that they replace.
    """
    if not any(changelogs):
        return None
    kinds = {each.row_kind for each in changelogs if each is not None and each.retracts}
    if len(kinds) != 1 or not all(each is not None and each.retracts for each in changelogs):
        raise JobDefinitionError(
            "union needs changelogs that retract replaced rows",
            hint=f"in all streams of the union, {RETRACT_FIRST}; {AS_APPENDS}",
            called="union",
        )
    (kind,) = kinds
    return Changelog(row_kind=kind, retracts=True)


def check_key_by(before: Changelog | None, columns: Sequence[str]) -> None:
    """Raises JobDefinitionError if a row and the row that it replaces may have different keys."""
    if before is not None and not before.retracts and not set(columns) <= set(before.keys):
        raise JobDefinitionError(
            "a changelog of upserts cannot be keyed by columns outside of its upsert key",
            hint=f"the row that is replaced may have another key: use columns of the upsert key; or {RETRACT_FIRST}; "
            f"{AS_APPENDS}",
            columns=list(columns),
            upsert_key=list(before.keys),
        )


def check_appends(before: Changelog | None, called: str, uid: str = "") -> None:
    """Raises JobDefinitionError for an operator that takes each row as a row of its own."""
    if before is not None:
        raise JobDefinitionError(
            f"{called} needs a stream that only appends rows",
            hint=f"apply it before the operator that corrects rows; {AS_APPENDS}",
            called=called,
            uid=uid,
            upsert_key=list(before.keys),
            row_kind=before.row_kind,
        )


def check_aggregated(before: Changelog | None, kind: str, uid: str = "") -> None:
    """Raises JobDefinitionError for aggregates by columns of rows that replace others without retracting them.

    Args:
        before: of the rows.
        kind: the column with the kinds of the results; empty without.
    """
    if before is None or (before.retracts and kind):
        return
    way_out = f"{KIND_HINT}, because a result is deleted with its last row" if before.retracts else RETRACT_FIRST
    raise JobDefinitionError(
        "aggregate_columns of a changelog needs retractions, and an output class with a row kind",
        hint=f"{way_out}; {AS_APPENDS}",
        called="aggregate_columns",
        uid=uid,
        upsert_key=list(before.keys),
        row_kind=before.row_kind,
        retracts=before.retracts,
        result_kind=kind,
    )


def check_row_kind(before: Changelog | None, called: str, uid: str = "") -> None:
    """Raises JobDefinitionError for a function of the user, if rows do not show that they replace earlier ones."""
    if before is not None and not before.row_kind:
        check_appends(before, called, uid)


def with_kind(row: object, name: str, kind: RowKind) -> object:
    """Returns a copy of a row whose field `name` has a `RowKind`."""
    if isinstance(row, msgspec.Struct):
        return msgspec.structs.replace(row, **{name: kind})
    assert dataclasses.is_dataclass(row) and not isinstance(row, type)
    return dataclasses.replace(row, **{name: kind})


def check_retracted(before: Changelog | None, called: str, uid: str = "") -> None:
    """Raises JobDefinitionError for an operator that needs rows that are retracted."""
    if before is None or not before.retracts:
        raise JobDefinitionError(
            f"{called} needs a changelog that retracts replaced rows",
            hint=f"the newest row of a key is what deduplicate(keep='last') returns; or {RETRACT_FIRST}",
            called=called,
            uid=uid,
            upsert_key=list(before.keys) if before else [],
        )
