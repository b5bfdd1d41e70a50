"""Whether values that were stored as one type can be read as another. Pure.

Nothing is rewritten when a type changes: an old value is decoded as the new type when it is read, and has the new form
once it is written again. So a state holds values of every type that it ever had, and each of them must fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stateflow.descriptors import Compatibility, Serializer
from stateflow.errors import CorruptFile, IncompatibleState
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
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
class Conflict:
    """One reason why stored values cannot be read.

    Attributes:
        field: where, as ``Class.field``; empty when it is the value itself.
        way_out: what to do.
    """

    field: str
    stored: str
    declared: str
    reason: str
    way_out: str


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


_NEW_NAME = "give the new state a new name, or change the type back"
_RENAME = "give the new field another stored name: msgspec.field(name=...)"


def judge(stored: StateSchema, declared: Declaration) -> Verdict:
    """How what is stored fits a declaration of the same name: every type that its values may have. Raises CorruptFile
    for a stored schema that does not hold together."""
    wanted = declared.schema
    if (stored.kind, stored.key_type) != (wanted.kind, wanted.key_type):
        conflict = Conflict(
            "", _state_text(stored), _state_text(wanted), "it is another kind of state", _NEW_NAME
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
    comparison = _Comparison(old.classes, new.classes)
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


@dataclass
class _Comparison:
    """Compares two types part by part, and collects what it finds."""

    old_classes: Sequence[ClassSchema]
    new_classes: Sequence[ClassSchema]
    changes: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def compare(self, old: TypeNode, new: TypeNode, at: str) -> None:
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
        elif _alike(old, new):
            self._compare_alike(old, new, at)
        elif (how := _widening(old, new)) is not None:
            self._change(at, f"{self._old(old)} is read as {self._new(new)}{how}")
        else:
            self._conflict(at, whole, new, "the type has changed")

    def _compare_to_union(self, old: TypeNode, new: TypeNode, at: str, whole: TypeNode) -> None:
        tries = []
        for part in new.parts:
            attempt = _Comparison(self.old_classes, self.new_classes, seen=set(self.seen))
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
            # What differs inside the one class that it can be says more than the two unions do.
            self.conflicts += classes[0].conflicts
        else:
            self._conflict(at, whole, new, "the type has changed")

    def _note_optional(self, old: TypeNode, new: TypeNode, at: str) -> None:
        kinds = {self._old(part) for part in old.parts}
        wider = [part for part in new.parts if self._new(part) not in kinds] if new.kind == "union" else []
        if len(wider) + len(old.parts) == len(new.parts) and wider:
            self._change(at, f"{self._old(old)} is read as {self._new(new)}")

    def _compare_alike(self, old: TypeNode, new: TypeNode, at: str) -> None:
        """Two types of the same kind: limits, choices and what they are made of."""
        if len(old.parts) != len(new.parts) or not set(old.choices) <= set(new.choices):
            self._conflict(
                at, old, new, "the type has changed" if old.parts else "values that were allowed are gone"
            )
            return
        if not _limits_hold(old, new):
            self._conflict(at, old, new, "values that were allowed are refused now")
            return
        if (old.kind, old.limits, old.choices) != (new.kind, new.limits, new.choices):
            self._change(at, f"{self._old(old)} is read as {self._new(new)}")
        if old.kind == "dict" and self._old(old.parts[0]) != self._new(new.parts[0]):
            self._conflict(at, old, new, "the keys of a dict have another type")
            return
        for before, after in zip(old.parts, new.parts, strict=True):
            self.compare(before, after, at)

    def _compare_classes(self, old_index: int, new_index: int, at: str) -> None:
        if (old_index, new_index) in self.seen:
            return
        self.seen.add((old_index, new_index))
        old, new = self.old_classes[old_index], self.new_classes[new_index]
        if (old.positional, old.tag) != (new.positional, new.tag):
            reason = (
                "one has fields by name, the other by position"
                if old.tag == new.tag
                else "the tag has changed"
            )
            way_out = "set array_like, tag and tag_field as they were, or give the new state a new name"
            self.conflicts.append(Conflict(at, _class_text(old), _class_text(new), reason, way_out))
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
            self._change(
                "", f"the fields of {new.name} are in another order, which changes nothing in values"
            )

    def _compare_by_position(self, old: ClassSchema, new: ClassSchema) -> None:
        for place, (stored, declared) in enumerate(zip(old.fields, new.fields, strict=False)):
            if stored.name != declared.name:
                self.conflicts.append(_moved(stored, declared, place, new))
                return
            self._compare_fields(stored, declared, old, new)
        for stored in old.fields[len(new.fields) :]:
            self._removed(stored, new)
        for declared in new.fields[len(old.fields) :]:
            self._added(declared, new)

    def _compare_fields(
        self, stored: FieldSchema, declared: FieldSchema, old: ClassSchema, new: ClassSchema
    ) -> None:
        where = f"{new.name}.{declared.name}"
        left_out = old.sparse and not stored.required
        if left_out and declared.required:
            self.conflicts.append(Conflict(where, f"left out when it is {stored.default or 'absent'}", "required",
                                           "stored values may lack the field", "give it a default again"))  # fmt: skip
        elif left_out and stored.default and stored.default != declared.default:
            defaults = f"default {stored.default}", f"default {declared.default}"
            self.conflicts.append(Conflict(where, *defaults, "stored values lack the field where it had its old "
                                           "default", f"keep the old default, or {_RENAME}"))  # fmt: skip
        elif not stored.required and stored.default != declared.default and not declared.required:
            defaults = stored.default or "absent", declared.default or "absent"
            self._change(where, "its default was {}, and is {}: values from before the field was there get the new "
                         "one".format(*defaults))  # fmt: skip
        self.compare(stored.type, declared.type, where)

    def _removed(self, stored: FieldSchema, new: ClassSchema) -> None:
        where = f"{new.name}.{stored.name}"
        text = self._old(stored.type)
        if new.closed:
            self.conflicts.append(Conflict(where, text, "no such field", "values with a field that is not declared are "
                                           "refused by the class", "declare the field again, or drop "
                                           "forbid_unknown_fields"))  # fmt: skip
        else:
            self._change(
                where,
                f"removed; it was {self._old(stored.type)}, and is gone from a value once that is written",
            )

    def _added(self, declared: FieldSchema, new: ClassSchema) -> None:
        where, text = f"{new.name}.{declared.name}", self._new(declared.type)
        if declared.required:
            self.conflicts.append(Conflict(where, "no such field", text, "stored values do not have the field, and it "
                                           "has no default", "give it a default, such as None for a type that is … | "
                                           "None"))  # fmt: skip
        else:
            self._change(where, f"added, {text}; old values have {declared.default or 'none'}")

    def _change(self, at: str, what: str) -> None:
        text = f"{at}: {what}" if at else what
        if text not in self.changes:
            self.changes.append(text)

    def _conflict(self, at: str, old: TypeNode, new: TypeNode, reason: str) -> None:
        way_out = f"{_RENAME}, with a default; or change the type back" if at else _NEW_NAME
        self.conflicts.append(Conflict(at, self._old(old), self._new(new), reason, way_out))

    def _old(self, node: TypeNode) -> str:
        return type_text(node, self.old_classes)

    def _new(self, node: TypeNode) -> str:
        return type_text(node, self.new_classes)


def _moved(stored: FieldSchema, declared: FieldSchema, place: int, new: ClassSchema) -> Conflict:
    reason = f"fields are stored by position, and number {place + 1} was another one"
    way_out = f"keep the order of fields, and add new ones at the end; a rename is msgspec.field(name={stored.name!r})"
    return Conflict(f"{new.name}.{declared.name}", stored.name, declared.name, reason, way_out)


def _class_text(found: ClassSchema) -> str:
    form = "by position" if found.positional else "by name"
    return f"{found.name}, fields {form}" + (f", tag {found.tag}" if found.tag else "")


_FAMILIES = [{"list", "vartuple"}, {"set", "frozenset"}, {"bool", "numpy.bool"}, {"float", "numpy.float64"}]
"""Kinds whose values are stored in the same way."""


def _alike(old: TypeNode, new: TypeNode) -> bool:
    return old.kind == new.kind or any({old.kind, new.kind} <= family for family in _FAMILIES)


_PLAIN = {"none", "bool", "int", "float", "str", "bytes"}
"""Kinds that come back as what they are when they are read as any."""
_EXACT = {"float": 53, "numpy.float64": 53, "numpy.float32": 24}
"""Bits that a floating point number keeps of a whole one."""


def _widening(old: TypeNode, new: TypeNode) -> str | None:
    """What to tell of a type that is read as a wider one; None when it is not wider."""
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
            return "" if exact else "; beyond 2**53 it is rounded"
        return None
    wider = _range(new)
    return "" if wider and wider[0] <= numbers[0] and numbers[1] <= wider[1] else None


def _integers() -> Iterator[tuple[str, tuple[int, int]]]:
    yield "int", (-(1 << 63), (1 << 64) - 1)
    for bits in (8, 16, 32, 64):
        yield f"numpy.int{bits}", (-(1 << bits - 1), (1 << bits - 1) - 1)
        yield f"numpy.uint{bits}", (0, (1 << bits) - 1)


_INTEGERS = dict(_integers())


def _range(node: TypeNode) -> tuple[int, int] | None:
    """The whole numbers that a type holds; None when it is none of these, or has other limits."""
    found = _INTEGERS.get(node.kind)
    if found is None or node.limits.keys() - {"ge", "le"}:
        return None
    low, high = node.limits.get("ge", found[0]), node.limits.get("le", found[1])
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def _limits_hold(old: TypeNode, new: TypeNode) -> bool:
    """Whether each limit was there before, at least as narrow."""
    for name, limit in new.limits.items():
        before = old.limits.get(name)
        if before is None:
            return False
        if name in ("ge", "gt", "min_length"):
            holds = limit <= before  # type: ignore[operator]
        elif name in ("le", "lt", "max_length"):
            holds = limit >= before  # type: ignore[operator]
        else:
            holds = limit == before
        if not holds:
            return False
    return True
