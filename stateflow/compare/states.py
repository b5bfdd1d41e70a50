"""The states of an operator in two snapshots: their entries and keys, and whether two stored values are equal.

Two values are equal if they decode to the same value. Their bytes may differ: sets and dicts have no order, a class may
have had other fields when the older value was written, and a value of a state with a TTL carries a timestamp. The
timestamp is not compared: it says when the value was written, and two jobs write the same value at different times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.compare.merge import Difference, unpack_list
from stateflow.errors import CorruptFile
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.schema import ValueVisitor, fields_of
from stateflow.state.schema_compatibility import Declaration, compare_schemas
from stateflow.state.stored_key import STATE_PART, TIMER_DOMAINS, TIMER_IDS, StoredKey, state_id
from stateflow.types.serializers import decode_untyped, payload_start

_SETS = {"set", "frozenset"}
_LISTS = {*_SETS, "tuple"}
"""Types of lists that always have parts."""


class ValueComparison:
    """Compares stored values of one state in two snapshots.

    Args:
        old: schema of the state in the first snapshot; None if it does not have the state.
        new: the same for the second snapshot; of the same kind.

    Attributes:
        reads_as: whose type both values are read with: ``new``, ``old``, or ``neither`` if the types are incompatible
            or unknown. Values are then compared without their types.
    """

    def __init__(self, old: StateSchema | None, new: StateSchema | None) -> None:
        known = new or old
        self._is_list = known is not None and known.kind == "list"
        self.reads_as, self._type = _common_type(old, new)

    def equal(self, old: bytes, new: bytes) -> bool:
        """Returns whether two values are equal; each that of a list as `pack_list` returns it.

        Raises:
            CorruptFile: a value does not decode, or does not have its recorded type.
        """
        if old == new:
            return True
        if not self._is_list:
            return self._equal(old, new)
        before, after = unpack_list(old), unpack_list(new)
        return len(before) == len(after) and all(map(self._equal, before, after))

    def identity(self, data: bytes) -> str:
        """Returns a text that equal values share; raises as `equal`."""
        return repr(self._comparable(data))

    def _equal(self, old: bytes, new: bytes) -> bool:
        if old[payload_start(old) :] == new[payload_start(new) :]:
            return True
        return self._comparable(old) == self._comparable(new)

    def _comparable(self, data: bytes) -> object:
        value = decode_untyped(data)
        try:
            return _plain(value) if self._type is None else _Reader(self._type.classes).visit(value, self._type.root)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as e:
            raise CorruptFile(
                "a stored value does not have the type that its snapshot records",
                hint="restore an older checkpoint",
                reason=f"{type(e).__name__}: {e}"[:200],
            ) from e


def _common_type(old: StateSchema | None, new: StateSchema | None) -> tuple[str, TypeSchema | None]:
    if old is None or new is None:
        return "neither", None
    if old.type.serializer or new.type.serializer:
        # Only the job has the code that decodes these values, so the bytes that it has written are compared.
        return "neither", None
    if not compare_schemas(old, Declaration(new)).conflicts:
        return "new", new.type
    if not compare_schemas(new, Declaration(old)).conflicts:
        return "old", old.type
    return "neither", None


def _plain(value: object) -> object:
    """Returns a decoded value in a form that can be compared: one NaN equals another."""
    if isinstance(value, float) and value != value:
        return ("NaN",)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


class _Reader(ValueVisitor):
    """Reads decoded values as a recorded type: with its fields and their defaults, and sets without order."""

    def visit_items(self, items: list[object], node: TypeNode) -> object:
        return ("set", sorted(map(repr, items))) if node.kind in _SETS else items

    def visit_class(self, value: dict[str, object] | list[object], described: ClassSchema) -> object:
        found = fields_of(value, described)
        # Members of a union may have the same fields.
        tag: dict[str, object] = {"": described.tag} if described.tag else {}
        return tag | {field.name: self._read_field(found, field) for field in described.fields}

    def visit_other(self, value: object, node: TypeNode) -> object:
        if node.kind == "class" or (isinstance(value, list) and node.kind in _LISTS):
            raise TypeError(f"a value of the type {node.kind} is stored as {type(value).__name__}")
        return _plain(value)

    def _read_field(self, found: dict[str, object], field: FieldSchema) -> object:
        if field.name in found:
            return self.visit(found[field.name], field.type)
        try:
            return self.visit(msgspec.json.decode(field.default or "null"), field.type)
        except msgspec.DecodeError:
            # The name of a factory, whose value is not known here.
            return ("default", field.default)


TIMERS = "_timers"
"""Name under which timers are reported."""


@dataclass(frozen=True)
class StatePair:
    """A state in two snapshots.

    Attributes:
        name: name of the state; `TIMERS` for the timers.
        kind: kind of the state, ``timer`` for timers. A state whose kind has changed is two states.
        old, new: its schemas; None in a snapshot without the state, and for timers.
    """

    name: str
    kind: str
    old: StateSchema | None = None
    new: StateSchema | None = None

    @cached_property
    def values(self) -> ValueComparison:
        """Compares its values."""
        return ValueComparison(self.old, self.new)


class StatePairs:
    """The keyed states of one operator in two snapshots.

    Args:
        old, new: the operator in each snapshot; None if the snapshot does not have it.
    """

    def __init__(self, old: OperatorState | None, new: OperatorState | None) -> None:
        self._ids = _ids_of(old), _ids_of(new)
        self._columns = len((new or old or _NOTHING).key_types)
        self._timers = StatePair(TIMERS, "timer")
        self._pairs = {(each.name, each.kind): each for each in _pairs(old, new)}

    @property
    def pairs(self) -> list[StatePair]:
        """Every state, in order of names, and the timers."""
        return [*(self._pairs[key] for key in sorted(self._pairs)), self._timers]

    def list_ids(self, side: int) -> set[bytes]:
        """Returns the ids of the list states of one snapshot: 0 is the first one, 1 the second one."""
        return {found for found, schema in self._ids[side].items() if schema is not None and schema.kind == "list"}

    @property
    def internal_ids(self) -> set[bytes]:
        """The ids of entries that are not compared."""
        known = {found for ids in self._ids for found, schema in ids.items() if schema is None}
        return known - TIMER_DOMAINS.keys()

    @property
    def have_same_kinds(self) -> bool:
        """Whether no id belongs to states of two kinds."""
        old, new = self._ids
        return all(_kind(old[found]) == _kind(new[found]) for found in old.keys() & new.keys())

    def of_id(self, found: bytes, side: int) -> StatePair | None:
        """Returns the state with an id in one snapshot; None for internal entries.

        Raises:
            CorruptFile: no state of the snapshot has the id.
        """
        if found in TIMER_DOMAINS:
            return self._timers
        if found not in self._ids[side]:
            raise CorruptFile("a stored key does not belong to a declared state", state_id=found.hex())
        schema = self._ids[side][found]
        return None if schema is None else self._pairs[schema.name, schema.kind]

    def split(self, found: Difference) -> Iterable[tuple[StatePair, Difference]]:
        """Yields what a difference is to report: nothing for internal entries and for equal values.

        An entry of a state whose kind has changed is removed from the state of the old kind, and added to the new one.

        Raises:
            CorruptFile: the key belongs to no state, or a value does not decode.
        """
        key, old, new = found.key, found.old, found.new
        before = None if old is None else self.of_id(key[STATE_PART], 0)
        after = None if new is None else self.of_id(key[STATE_PART], 1)
        if before is not None and before is after:
            assert old is not None and new is not None
            if not before.values.equal(old, new):
                yield before, found
            return
        if before is not None:
            yield before, Difference(key, old, None)
        if after is not None:
            yield after, Difference(key, None, new)

    def decode(self, key: bytes) -> StoredKey:
        """Decodes a stored key; of a list without a position. Raises CorruptFile if it is not one of this operator."""
        return StoredKey.decode(key, self._columns)


_NOTHING = OperatorState(uid="", parallelism=1, key_types=[], key_names=[], states=[], subtasks=[])


def _ids_of(operator: OperatorState | None) -> dict[bytes, StateSchema | None]:
    return state_names((operator or _NOTHING).states)


def _pairs(old: OperatorState | None, new: OperatorState | None) -> Iterable[StatePair]:
    before = {schema.name: schema for schema in (old or _NOTHING).states}
    after = {schema.name: schema for schema in (new or _NOTHING).states}
    for name, found in (before | after).items():
        first, second = before.get(name), after.get(name)
        if first is None or second is None or first.kind == second.kind:
            yield StatePair(name, found.kind, first, second)
        else:
            yield StatePair(name, first.kind, first, None)
            yield StatePair(name, second.kind, None, second)


def _kind(schema: StateSchema | None) -> str:
    return "" if schema is None else schema.kind


def id_of(pair: StatePair) -> tuple[bytes, ...]:
    """Returns the ids of a state in stored keys; the timers have two."""
    return tuple(TIMER_IDS.values()) if pair.kind == "timer" else (state_id(pair.name),)
