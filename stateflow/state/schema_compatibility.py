"""Decides whether stored values of a state can be read as a job declares them. Pure.

`check_state` decides for a declared state; `TypeComparison` compares a stored type with a declared one part by part.

Values are not rewritten when a type changes: an old value is decoded as the new type when it is read, and stored in the
new form when it is written again. So a state may hold values of every type it has had, and all must be compatible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from stateflow.errors import CorruptFile, IncompatibleState
from stateflow.outputs import OptionalText
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.schema import declaration_text, type_text
from stateflow.types.custom_serializer import Compatibility, Serializer

_OTHER_WINDOWS = (
    "windows that are open would never fire: give the operator another uid; or restore without them, "
    "stateflow restore JOB.py --job-root ROOT --plan latest --drop UID --out plan.json, then --execute plan.json"
)
_OTHER_ARGUMENTS = (
    "they depend on arguments of the operator, which have changed",
    "undo the change of the arguments, or of the fields of the rows, or give the operator another uid, so that it "
    "begins without state",
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
        texts = declaration_text(stored), declaration_text(wanted)
        return _refused(*texts, "the kind of state has changed", NEW_NAME)
    # A savepoint that was written without a run does not have the kind.
    if stored.windows and stored.windows != wanted.windows:
        return _refused(stored.windows, wanted.windows, "the kind of windows has changed", _OTHER_WINDOWS)
    if stored.arguments != wanted.arguments:
        return _refused(stored.arguments, wanted.arguments, *_OTHER_ARGUMENTS)
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
    if stored is None:
        return {"type": schema.type, "earlier": []}
    earlier = [old for old in [*stored.earlier, stored.type] if old != schema.type]
    return {"type": schema.type, "earlier": earlier}


def _refused(stored: str, declared: str, reason: str, way_out: str) -> FitResult:
    return FitResult((), (Conflict("", stored, declared, reason, way_out),))


def _judge_type(old: TypeSchema, new: TypeSchema, serializer: Serializer[Any] | None) -> FitResult:
    if old.serializer or new.serializer:
        return _judge_serializer(old, new, serializer)
    comparison = TypeComparison(old.classes, new.classes)
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
        way_out = "declare the previous serializer, or give the state a new name"
        return _refused(*texts, "another serializer wrote the stored values", way_out)
    found = serializer.compatibility(old.serializer_version)
    if found is Compatibility.AS_IS:
        return FitResult()
    if found is Compatibility.AFTER_MIGRATION:
        return FitResult((f"values of {texts[0]} are decoded by {texts[1]}",))
    way_out = "support that version in its decode and compatibility methods, or give the state a new name"
    return _refused(*texts, "the serializer cannot read values of this version", way_out)


def _schema_text(schema: TypeSchema) -> str:
    if schema.serializer:
        return f"serializer {schema.serializer} version {schema.serializer_version}"
    return type_text(schema.root, schema.classes)


_OTHER_DECLARATION = "change the declaration back, or give the operator a new uid: it then starts without this state"
NEW_NAME = "give the new state a new name, or change the type back"
FIELD_MISSING = "stored values lack the field, and it has no default"
_RENAME = "give the new field another stored name: msgspec.field(name=...)"


@dataclass(frozen=True)
class Conflict:
    """A reason why stored values cannot be read as declared.

    Attributes:
        field: the field, as ``Class.field``; empty for the value itself.
        stored: the stored type, as text.
        declared: the declared type, as text.
        reason: what is incompatible.
        way_out: how to fix it.
    """

    field: OptionalText
    stored: str
    declared: str
    reason: str
    way_out: str


@dataclass
class TypeComparison:
    """Recursive comparison of two types, which collects changes and conflicts.

    Attributes:
        old_classes: classes of the stored schema.
        new_classes: classes of the declared schema.
        changes: effects of reading stored values as the new type, as sentences.
        conflicts: reasons why stored values cannot be read.
        seen: pairs of class indexes that were compared, since classes may be recursive.
    """

    old_classes: Sequence[ClassSchema]
    new_classes: Sequence[ClassSchema]
    changes: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def compare(self, old: TypeNode, new: TypeNode, at: str) -> None:
        """Compares a type with a new one and adds to `changes` and `conflicts`; `at` as `Conflict.field`."""
        if old.kind == "union":
            for part in old.parts:
                self._compare_one(part, new, at, whole=old)
            self._note_optional(old, new, at)
        else:
            self._compare_one(old, new, at, whole=old)

    def _compare_one(self, old: TypeNode, new: TypeNode, at: str, whole: TypeNode) -> None:
        if new.kind == "union":
            self._compare_to_union(old, new, at, whole)
        elif old.kind == "class" and new.kind == "class":
            self._compare_classes(old.class_index, new.class_index, at)
        elif has_same_form(old, new):
            self._compare_members(old, new, at)
        elif (how := widening_note(old, new)) is not None:
            self._change(at, f"{self._old(old)} is read as {self._new(new)}{how}")
        else:
            self._conflict(at, whole, new, "the type has changed")

    def _compare_to_union(self, old: TypeNode, new: TypeNode, at: str, whole: TypeNode) -> None:
        tries = []
        for part in new.parts:
            attempt = TypeComparison(self.old_classes, self.new_classes, seen=set(self.seen))
            attempt.compare(old, part, at)
            tries.append(attempt)
        fitting = [t for t in tries if not t.conflicts]
        if fitting:
            best = min(fitting, key=lambda t: len(t.changes))
            self.changes += [change for change in best.changes if change not in self.changes]
            if whole is old:
                self._change(at, f"{self._old(old)} is read as {self._new(new)}")
            return
        classes = [t for t, part in zip(tries, new.parts, strict=True) if old.kind == part.kind == "class"]
        if len(classes) == 1:
            # The differences within the only class are more specific than a conflict of the two unions.
            self.conflicts += classes[0].conflicts
        else:
            self._conflict(at, whole, new, "the type has changed")

    def _note_optional(self, old: TypeNode, new: TypeNode, at: str) -> None:
        kinds = {self._old(part) for part in old.parts}
        wider = [part for part in new.parts if self._new(part) not in kinds] if new.kind == "union" else []
        if len(wider) + len(old.parts) == len(new.parts) and wider:
            self._change(at, f"{self._old(old)} is read as {self._new(new)}")

    def _compare_members(self, old: TypeNode, new: TypeNode, at: str) -> None:
        """Compares limits, choices and member types of two types of the same kind."""
        if old.kind == "literal" and len(old.choices) == len(new.choices) == 1 and old.choices != new.choices:
            # A field with one value identifies what the values belong to.
            reason = "the values belong to another declaration"
            self._refuse(at, self._old(old), self._new(new), reason, _OTHER_DECLARATION)
            return
        if len(old.parts) != len(new.parts) or not set(old.choices) <= set(new.choices):
            self._conflict(
                at, old, new, "the type has changed" if old.parts else "values that were allowed no longer exist"
            )
            return
        if not limits_hold(old, new):
            self._conflict(at, old, new, "values that were allowed are now refused")
            return
        if (old.kind, old.limits, old.choices) != (new.kind, new.limits, new.choices):
            self._change(at, f"{self._old(old)} is read as {self._new(new)}")
        if old.kind == "dict" and self._old(old.parts[0]) != self._new(new.parts[0]):
            self._conflict(at, old, new, "the type of a dict's keys has changed")
            return
        for before, after in zip(old.parts, new.parts, strict=True):
            self.compare(before, after, at)

    def _compare_classes(self, old_index: int, new_index: int, at: str) -> None:
        if (old_index, new_index) in self.seen:
            return
        self.seen.add((old_index, new_index))
        old, new = self.old_classes[old_index], self.new_classes[new_index]
        if (old.positional, old.tag) != (new.positional, new.tag):
            reason = "one has fields by name, the other by position" if old.tag == new.tag else "the tag has changed"
            way_out = "set array_like, tag and tag_field as they were, or give the new state a new name"
            self._refuse(at, _class_text(old), _class_text(new), reason, way_out)
        elif old.positional:
            self._compare_by_position(old, new)
        else:
            self._compare_by_name(old, new)

    def _compare_by_name(self, old: ClassSchema, new: ClassSchema) -> None:
        before, after = {f.name: f for f in old.fields}, {f.name: f for f in new.fields}
        for name in sorted(before.keys() - after.keys()):
            self._removed(before[name], new)
        for name, declared in after.items():
            stored = before.get(name)
            if stored is None:
                self._added(declared, new)
            else:
                self._compare_fields(stored, declared, old, new)
        common = [[name for name in fields if name in before and name in after] for fields in (before, after)]
        if common[0] != common[1]:
            self._change("", f"the fields of {new.name} are in another order, which changes nothing in values")

    def _compare_by_position(self, old: ClassSchema, new: ClassSchema) -> None:
        for position, (stored, declared) in enumerate(zip(old.fields, new.fields, strict=False)):
            if stored.name != declared.name:
                self.conflicts.append(_moved(stored, declared, position, new))
                return
            self._compare_fields(stored, declared, old, new)
        for stored in old.fields[len(new.fields) :]:
            self._removed(stored, new)
        for declared in new.fields[len(old.fields) :]:
            self._added(declared, new)

    def _compare_fields(self, stored: FieldSchema, declared: FieldSchema, old: ClassSchema, new: ClassSchema) -> None:
        where = f"{new.name}.{declared.name}"
        omitted = old.sparse and not stored.required
        if omitted and declared.required:
            before = f"omitted when it is {stored.default or 'absent'}"
            self._refuse(where, before, "required", "stored values may lack the field", "declare its default again")
        elif omitted and stored.default and stored.default != declared.default:
            defaults = f"default {stored.default}", f"default {declared.default}"
            reason = "stored values omit the field where it had the old default"
            self._refuse(where, *defaults, reason, f"keep the old default, or {_RENAME}")
        elif not stored.required and stored.default != declared.default and not declared.required:
            defaults = stored.default or "absent", declared.default or "absent"
            self._change(
                where, "its default was {}, and is {}: values without the field get the new one".format(*defaults)
            )
        self.compare(stored.type, declared.type, where)

    def _removed(self, stored: FieldSchema, new: ClassSchema) -> None:
        where = f"{new.name}.{stored.name}"
        text = self._old(stored.type)
        if new.closed:
            reason = "the class refuses values with a field that is not declared"
            way_out = "declare the field again, or drop forbid_unknown_fields"
            self._refuse(where, text, "no such field", reason, way_out)
        else:
            self._change(where, f"removed; it was {text}, and is dropped when a value is written again")

    def _added(self, declared: FieldSchema, new: ClassSchema) -> None:
        where, text = f"{new.name}.{declared.name}", self._new(declared.type)
        if declared.required:
            way_out = "declare a default, for example None for a type … | None"
            self._refuse(where, "no such field", text, FIELD_MISSING, way_out)
        else:
            self._change(where, f"added, {text}; old values have {declared.default or 'none'}")

    def _change(self, at: str, what: str) -> None:
        text = f"{at}: {what}" if at else what
        if text not in self.changes:
            self.changes.append(text)

    def _conflict(self, at: str, old: TypeNode, new: TypeNode, reason: str) -> None:
        way_out = f"{_RENAME}, with a default; or change the type back" if at else NEW_NAME
        self._refuse(at, self._old(old), self._new(new), reason, way_out)

    def _refuse(self, *facts: str) -> None:
        """Adds a conflict with these attributes."""
        self.conflicts.append(Conflict(*facts))

    def _old(self, node: TypeNode) -> str:
        return type_text(node, self.old_classes)

    def _new(self, node: TypeNode) -> str:
        return type_text(node, self.new_classes)


def _moved(stored: FieldSchema, declared: FieldSchema, position: int, new: ClassSchema) -> Conflict:
    reason = f"fields are stored by position, and field {position + 1} was another one"
    way_out = f"keep the order of fields, and add new ones at the end; a rename is msgspec.field(name={stored.name!r})"
    return Conflict(f"{new.name}.{declared.name}", stored.name, declared.name, reason, way_out)


def _class_text(found: ClassSchema) -> str:
    form = "by position" if found.positional else "by name"
    return f"{found.name}, fields {form}" + (f", tag {found.tag}" if found.tag else "")


_FAMILIES = [{"list", "vartuple"}, {"set", "frozenset"}, {"bool", "numpy.bool"}, {"float", "numpy.float64"}]
"""Sets of kinds with the same stored form."""
_PLAIN = {"none", "bool", "int", "float", "str", "bytes"}
"""Kinds whose values are unchanged when they are read as any."""
_EXACT = {"float": 53, "numpy.float64": 53, "numpy.float32": 24}
"""Number of bits of an integer that a floating-point type represents exactly."""


def _integers() -> Iterator[tuple[str, tuple[int, int]]]:
    yield "int", (-(1 << 63), (1 << 64) - 1)
    for bits in (8, 16, 32, 64):
        yield f"numpy.int{bits}", (-(1 << bits - 1), (1 << bits - 1) - 1)
        yield f"numpy.uint{bits}", (0, (1 << bits) - 1)


_INTEGERS = dict(_integers())


def has_same_form(old: TypeNode, new: TypeNode) -> bool:
    """Returns whether both types are of the same kind, or of kinds with the same stored form."""
    return old.kind == new.kind or any({old.kind, new.kind} <= family for family in _FAMILIES)


def widening_note(old: TypeNode, new: TypeNode) -> str | None:
    """Returns a note for a change to a wider type, which may be empty; None if the new type is not wider."""
    if new.kind == "any":
        return "" if old.kind in _PLAIN else None
    if old.kind == "numpy.float32" and new.kind in ("float", "numpy.float64"):
        return "" if not new.limits else None
    numbers = _range(old)
    if numbers is None or (new.limits and new.kind not in _INTEGERS):
        return None
    if new.kind == "decimal":
        return ""
    if new.kind in _EXACT:
        exact = max(map(abs, numbers)) <= 1 << _EXACT[new.kind]
        if exact or new.kind != "numpy.float32":
            return "" if exact else "; integers beyond 2**53 are rounded"
        return None
    wider = _range(new)
    return "" if wider and wider[0] <= numbers[0] and numbers[1] <= wider[1] else None


def _range(node: TypeNode) -> tuple[int, int] | None:
    """Returns the smallest and largest integer of a type; None for other types and other limits."""
    found = _INTEGERS.get(node.kind)
    if found is None or node.limits.keys() - {"ge", "le"}:
        return None
    low, high = node.limits.get("ge", found[0]), node.limits.get("le", found[1])
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def limits_hold(old: TypeNode, new: TypeNode) -> bool:
    """Returns whether each new limit is implied by an old one, so that all old values satisfy it."""
    for name, limit in new.limits.items():
        before = old.limits.get(name)
        if before is None:
            return False
        if not _implies(name, before, limit):
            return False
    return True


def _implies(name: str, before: int | float | str | bool, limit: int | float | str | bool) -> bool:
    """Returns whether a limit with the value `before` implies the same limit with the value `limit`."""
    if name not in ("ge", "gt", "min_length", "le", "lt", "max_length"):
        return limit == before
    if isinstance(before, str) or isinstance(limit, str):
        raise TypeError(f"{name} is not a number")
    return limit <= before if name in ("ge", "gt", "min_length") else limit >= before
