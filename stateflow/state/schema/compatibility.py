"""Schema compatibility: whether stored values of a state can be read as declared. Pure.

Values are not rewritten when a type changes: an old value is decoded as the new type when it is read, and stored in the
new form when it is written again. So a state may hold values of every type it has had, and all must be compatible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from stateflow.errors import CorruptFile, IncompatibleState
from stateflow.state.handles import StateSchema, TypeSchema
from stateflow.state.schema.compare import FIELD_MISSING, NEW_NAME, Comparison, Conflict
from stateflow.state.schema.describe import declaration_text, type_text
from stateflow.types.custom_serializer import Compatibility, Serializer

_OTHER_WINDOWS = (
    "windows that are open would never fire: give the operator another uid; or restore without them, "
    "stateflow restore JOB.py --job-root ROOT --plan latest --drop UID --out plan.json, then --execute plan.json"
)
_NULLABLE = "declare the output column as … | None, or give the operator another uid"


class Fit(StrEnum):
    """Compatibility of stored values with a declaration."""

    AS_IS = "as is"
    MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True)
class Declaration:
    """A state as declared by a job.

    Attributes:
        schema: schema of the state.
        serializer: the custom serializer, which decides itself what it can read; None for msgpack.
    """

    schema: StateSchema
    serializer: Serializer[Any] | None = None


@dataclass(frozen=True)
class Declarations:
    """The states that an operator's function declares before its first row.

    Attributes:
        keyed: keyed states.
        operator: operator states, without broadcast states that are first requested while a row is processed.
    """

    keyed: Sequence[Declaration] = ()
    operator: Sequence[Declaration] = ()


@dataclass(frozen=True)
class FitResult:
    """The result of comparing a stored schema with a declaration.

    Attributes:
        changes: effects of reading stored values as the new type, as sentences.
        conflicts: reasons why stored values cannot be read.
    """

    changes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def fit(self) -> Fit:
        """The result as one value."""
        if self.conflicts:
            return Fit.INCOMPATIBLE
        return Fit.MIGRATION if self.changes else Fit.AS_IS


def compare_schemas(stored: StateSchema, declared: Declaration) -> FitResult:
    """Compares every type that stored values may have with a declaration of the same name.

    Raises:
        CorruptFile: the stored schema is inconsistent.
    """
    wanted = declared.schema
    if (stored.kind, stored.key_type) != (wanted.kind, wanted.key_type):
        conflict = Conflict(
            "", declaration_text(stored), declaration_text(wanted), "the kind of state has changed", NEW_NAME
        )
        return FitResult((), (conflict,))
    if stored.windows and wanted.windows and stored.windows != wanted.windows:
        conflict = Conflict("", stored.windows, wanted.windows, "the kind of windows has changed", _OTHER_WINDOWS)
        return FitResult((), (conflict,))
    if stored.arguments and wanted.arguments and stored.arguments != wanted.arguments:
        return FitResult((), (_other_arguments(stored, wanted),))
    if stored.type is None:
        return _judge_undescribed(stored, wanted)
    assert wanted.type is not None
    verdicts = [_judge_type(old, wanted.type, declared.serializer) for old in [*stored.earlier, stored.type]]
    changes = dict.fromkeys(change for verdict in verdicts for change in verdict.changes)
    conflicts = dict.fromkeys(conflict for verdict in verdicts for conflict in verdict.conflicts)
    if wanted.windows and wanted.kind == "value":
        conflicts = dict.fromkeys(_of_windows(conflict) for conflict in conflicts)
    return FitResult(tuple(changes), tuple(conflicts))


def _of_windows(conflict: Conflict) -> Conflict:
    """Returns a conflict with a hint for aggregates of windows, whose class the user does not declare."""
    if conflict.reason != FIELD_MISSING:
        return conflict
    reason = "an aggregate was added whose output column is not nullable, and open windows have no value for it"
    return replace(conflict, reason=reason, way_out=_NULLABLE)


def check_state(stored: StateSchema | None, declared: Declaration, operator: str = "") -> None:
    """Raises IncompatibleState, with field, types and a hint, when stored values cannot be read as declared.

    Args:
        stored: the schema in the checkpoint; None for a new state.
        declared: the declaration.
        operator: uid of the operator, for the error.
    """
    verdict = FitResult() if stored is None else compare_schemas(stored, declared)
    if not verdict.conflicts:
        return
    first = verdict.conflicts[0]
    facts: dict[str, object] = {"name": declared.schema.name, "stored": first.stored, "declared": first.declared}
    if operator:
        facts["operator"] = operator
    if first.field:
        facts["field"] = first.field
    if len(verdict.conflicts) > 1:
        facts["more"] = [conflict.field or conflict.reason for conflict in verdict.conflicts[1:10]]
    raise IncompatibleState(
        f"stored values of a state cannot be read as declared: {first.reason}", hint=first.way_out, **facts
    )


def with_history(schema: StateSchema, stored: StateSchema | None) -> dict[str, Any]:
    """Returns the fields of a schema with the history of types, for the manifest."""
    if stored is None or stored.type is None:
        return {"type": schema.type, "earlier": []}
    earlier = [old for old in [*stored.earlier, stored.type] if old != schema.type]
    return {"type": schema.type, "earlier": earlier}


def _other_arguments(stored: StateSchema, wanted: StateSchema) -> Conflict:
    return Conflict(
        "",
        stored.arguments,
        wanted.arguments,
        "they depend on arguments of the operator, which have changed",
        "undo the change of the arguments, or of the fields of the rows, or give the operator another uid, so that it "
        "begins without state",
    )


def _judge_undescribed(stored: StateSchema, wanted: StateSchema) -> FitResult:
    """Compares with a schema of a version that recorded no types: only equal descriptions are compatible."""
    if stored.value_type == wanted.value_type and not (wanted.type and wanted.type.serializer):
        return FitResult()
    conflict = Conflict(
        "",
        stored.value_type,
        wanted.value_type,
        "the checkpoint does not record how its values are stored, so only the same type can be read",
        "run the job once with the old type: its next checkpoint records the type",
    )
    return FitResult((), (conflict,))


def _judge_type(old: TypeSchema, new: TypeSchema, serializer: Serializer[Any] | None) -> FitResult:
    if old.serializer or new.serializer:
        return _judge_serializer(old, new, serializer)
    comparison = Comparison(old.classes, new.classes)
    try:
        comparison.compare(old.root, new.root, "")
    except (IndexError, TypeError, RecursionError) as e:
        # The declared schema was created by this version, so the stored one is inconsistent.
        raise CorruptFile(
            "a state's schema in the manifest is inconsistent",
            hint="restore an older checkpoint",
            reason=f"{type(e).__name__}: {e}"[:200],
        ) from e
    return FitResult(tuple(comparison.changes), tuple(comparison.conflicts))


def _judge_serializer(old: TypeSchema, new: TypeSchema, serializer: Serializer[Any] | None) -> FitResult:
    texts = _schema_text(old), _schema_text(new)
    if serializer is None or old.serializer != new.serializer:
        return FitResult(
            (),
            (
                Conflict(
                    "",
                    *texts,
                    "another serializer wrote the stored values",
                    "declare the previous serializer, or give the state a new name",
                ),
            ),
        )
    found = serializer.compatibility(old.serializer_version)
    if found is Compatibility.AS_IS:
        return FitResult()
    if found is Compatibility.AFTER_MIGRATION:
        return FitResult((f"values of {texts[0]} are decoded by {texts[1]}",))
    conflict = Conflict(
        "",
        *texts,
        "the serializer cannot read values of this version",
        "support that version in its decode and compatibility methods, or give the state a new name",
    )
    return FitResult((), (conflict,))


def _schema_text(schema: TypeSchema) -> str:
    if schema.serializer:
        return f"serializer {schema.serializer} version {schema.serializer_version}"
    return type_text(schema.root, schema.classes)
