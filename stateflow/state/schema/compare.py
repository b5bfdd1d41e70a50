"""Compares two types part by part: what of the old one can be read as the new one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stateflow.state.handles import ClassSchema, FieldSchema, TypeNode
from stateflow.state.typeschema import type_text
from stateflow.state.widening import alike, limits_hold, widening

NEW_NAME = "give the new state a new name, or change the type back"
_RENAME = "give the new field another stored name: msgspec.field(name=...)"


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


@dataclass
class Comparison:
    """Compares two types part by part, and collects what it finds."""

    old_classes: Sequence[ClassSchema]
    new_classes: Sequence[ClassSchema]
    changes: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def compare(self, old: TypeNode, new: TypeNode, at: str) -> None:
        """Notes what reading `old` as `new` changes, and what of it cannot be read; `at` as in `Conflict.field`."""
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
        elif alike(old, new):
            self._compare_alike(old, new, at)
        elif (how := widening(old, new)) is not None:
            self._change(at, f"{self._old(old)} is read as {self._new(new)}{how}")
        else:
            self._conflict(at, whole, new, "the type has changed")

    def _compare_to_union(self, old: TypeNode, new: TypeNode, at: str, whole: TypeNode) -> None:
        tries = []
        for part in new.parts:
            attempt = Comparison(self.old_classes, self.new_classes, seen=set(self.seen))
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
        if not limits_hold(old, new):
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
        way_out = f"{_RENAME}, with a default; or change the type back" if at else NEW_NAME
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
