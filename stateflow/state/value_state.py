"""One value per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from stateflow.descriptors import ValueStateDescriptor
from stateflow.serializers import ValueSerializer
from stateflow.state.current import ABSENT, VOID_NAMESPACE, CurrentKey, state_id
from stateflow.state.handles import StateSchema

T = TypeVar("T")


class ValueState(Generic[T]):
    """One value for the current key."""

    def __init__(self, owner: CurrentKey, descriptor: ValueStateDescriptor[T]) -> None:
        self._owner = owner
        self._serializer = ValueSerializer(descriptor.value_type)
        self.id = state_id(descriptor.name)
        self.schema = StateSchema(name=descriptor.name, kind="value", value_type=self._serializer.type_name)
        self._prefetched: dict[bytes, bytes | None] = {}
        self._value: T | None = None
        self._stored_key: bytes | None = None
        self._changed = False

    def value(self) -> T | None:
        """The current key's value; None when it has none. Change it by `update`, not in place."""
        if self._stored_key is None:
            self._load()
        return self._value

    def update(self, value: T | None) -> None:
        """Sets the current key's value; None clears it."""
        if self._stored_key is None:
            self._stored_key = self._owner.stored_key(self.id)
        self._value = value
        self._changed = True

    def clear(self) -> None:
        """Removes the current key's value."""
        self.update(None)

    def prefetch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the values of many keys at once."""
        stored = [group + self.id + key + VOID_NAMESPACE for group, key in keys]
        self._prefetched = dict(zip(stored, self._owner.backend.multi_get(stored), strict=True))

    def give_back(self) -> None:
        """Hands the current key's change to the owner, and forgets the key."""
        if self._stored_key is None:
            return
        if self._changed:
            value = self._value
            self._owner.pending[self._stored_key] = None if value is None else self._serializer.encode(value)
            # A key that comes back later must see this change, not what was prefetched before it.
            self._prefetched.pop(self._stored_key, None)
            self._changed = False
        self._stored_key = None
        self._value = None

    def forget_prefetched(self) -> None:
        """Drops what `prefetch` read."""
        self._prefetched = {}

    def _load(self) -> None:
        key = self._owner.stored_key(self.id)
        data = self._prefetched.get(key, ABSENT)
        if data is ABSENT:
            data = self._owner.read(key)
        self._value = None if data is None else self._serializer.decode(data)
        self._stored_key = key
