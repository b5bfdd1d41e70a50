"""Whether values that were stored as one type can be read as another. Pure.

Nothing is rewritten when a type changes: an old value is decoded as the new type when it is read, and has the new form
once it is written again. So a state holds values of every type that it ever had, and each of them must fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stateflow.descriptors import Compatibility, Serializer
from stateflow.errors import CorruptFile, IncompatibleState
from stateflow.state.handles import StateSchema, TypeSchema
from stateflow.state.type_comparison import NEW_NAME, Comparison, Conflict
from stateflow.state.typeschema import type_text


class Fit(StrEnum):
    """How stored values fit a declaration."""

    AS_IS = "as is"
    MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True)
class Declaration:
    """What a job declares about one state.

    Attributes:
        serializer: the state's own, when it has one; it says itself what it can read.
    """

    schema: StateSchema
    serializer: Serializer[Any] | None = None


@dataclass(frozen=True)
class Declarations:
    """What an operator's function declares before its first row.

    Attributes:
        keyed: state of its keys.
        operator: state of its subtasks. A broadcast state that is first asked for with a row is not among it.
    """

    keyed: Sequence[Declaration] = ()
    operator: Sequence[Declaration] = ()


@dataclass(frozen=True)
class Verdict:
    """How the stored values of a state fit what is declared.

    Attributes:
        changes: what reading them as the new type does, in sentences.
    """

    changes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def fit(self) -> Fit:
        """The verdict in a word."""
        if self.conflicts:
            return Fit.INCOMPATIBLE
        return Fit.MIGRATION if self.changes else Fit.AS_IS


def judge(stored: StateSchema, declared: Declaration) -> Verdict:
    """How what is stored fits a declaration of the same name: every type that its values may have. Raises CorruptFile
    for a stored schema that does not hold together."""
    wanted = declared.schema
    if (stored.kind, stored.key_type) != (wanted.kind, wanted.key_type):
        conflict = Conflict(
            "", _state_text(stored), _state_text(wanted), "it is another kind of state", NEW_NAME
        )
        return Verdict((), (conflict,))
    if stored.type is None:
        return _judge_undescribed(stored, wanted)
    assert wanted.type is not None
    verdicts = [_judge_type(old, wanted.type, declared.serializer) for old in [*stored.earlier, stored.type]]
    changes = dict.fromkeys(change for verdict in verdicts for change in verdict.changes)
    conflicts = dict.fromkeys(conflict for verdict in verdicts for conflict in verdict.conflicts)
    return Verdict(tuple(changes), tuple(conflicts))


def check_state(stored: StateSchema | None, declared: Declaration, operator: str = "") -> None:
    """Raises IncompatibleState, naming field, both types and the way out, when stored values cannot be read."""
    verdict = Verdict() if stored is None else judge(stored, declared)
    if not verdict.conflicts:
        return
    first = verdict.conflicts[0]
    facts: dict[str, object] = {
        "name": declared.schema.name,
        "stored": first.stored,
        "declared": first.declared,
    }
    if operator:
        facts["operator"] = operator
    if first.field:
        facts["field"] = first.field
    if len(verdict.conflicts) > 1:
        facts["more"] = [conflict.field or conflict.reason for conflict in verdict.conflicts[1:10]]
    raise IncompatibleState(
        f"a state is declared as something else than what is stored: {first.reason}",
        hint=first.way_out,
        **facts,
    )


def with_history(schema: StateSchema, stored: StateSchema | None) -> dict[str, Any]:
    """The fields of a schema that a manifest gets about types: how it is written now, and was before."""
    if stored is None or stored.type is None:
        return {"type": schema.type, "earlier": []}
    earlier = [old for old in [*stored.earlier, stored.type] if old != schema.type]
    return {"type": schema.type, "earlier": earlier}


def _judge_undescribed(stored: StateSchema, wanted: StateSchema) -> Verdict:
    """What was written before schemas had fields: only a description that is the same is known to fit."""
    if stored.value_type == wanted.value_type and not (wanted.type and wanted.type.serializer):
        return Verdict()
    conflict = Conflict("", stored.value_type, wanted.value_type, "the checkpoint does not say how its values are "
                        "stored, so only the same type fits", "run the job once with the old type: its next "
                        "checkpoint says so")  # fmt: skip
    return Verdict((), (conflict,))


def _judge_type(old: TypeSchema, new: TypeSchema, serializer: Serializer[Any] | None) -> Verdict:
    if old.serializer or new.serializer:
        return _judge_serializer(old, new, serializer)
    comparison = Comparison(old.classes, new.classes)
    try:
        comparison.compare(old.root, new.root, "")
    except (IndexError, TypeError, RecursionError) as e:
        # The declared one was made here, so it is the stored one that does not hold together.
        raise CorruptFile("a state's schema in the manifest is none that stateflow writes", hint="go back to an older "
                          "checkpoint", reason=f"{type(e).__name__}: {e}"[:200]) from e  # fmt: skip
    return Verdict(tuple(comparison.changes), tuple(comparison.conflicts))


def _judge_serializer(old: TypeSchema, new: TypeSchema, serializer: Serializer[Any] | None) -> Verdict:
    texts = _schema_text(old), _schema_text(new)
    if serializer is None or old.serializer != new.serializer:
        return Verdict((), (Conflict("", *texts, "another serializer wrote its values", "declare the serializer that "
                                     "the state had, or give the state a new name"),))  # fmt: skip
    found = serializer.compatibility(old.serializer_version)
    if found is Compatibility.AS_IS:
        return Verdict()
    if found is Compatibility.AFTER_MIGRATION:
        return Verdict((f"values of {texts[0]} are decoded by {texts[1]}",))
    conflict = Conflict("", *texts, "the serializer does not read values of this version", "let its decode and its "
                        "compatibility know that version, or give the state a new name")  # fmt: skip
    return Verdict((), (conflict,))


def _schema_text(schema: TypeSchema) -> str:
    if schema.serializer:
        return f"serializer {schema.serializer} version {schema.serializer_version}"
    return type_text(schema.root, schema.classes)


def _state_text(schema: StateSchema) -> str:
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"
