"""A cached stored value of the current key; value, reducing and aggregating states are built on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from stateflow.serializers import Codec
from stateflow.state.changes import ABSENT
from stateflow.state.columns import ColumnSerializer, columns_of
from stateflow.state.current import VOID_NAMESPACE, CurrentKey, state_id
from stateflow.state.handles import StateSchema
from stateflow.state.ttl import Ttl

T = TypeVar("T")


class Cell(Generic[T]):
    """Decodes the current key's value when it is first asked for, and encodes it when the next key comes.

    Args:
        entries: what the state works on.
        schema: what is declared.
        codec: of what is stored.
        ttl: None when values do not expire.
        default: the value of a key that has none stored.
    """

    def __init__(self, entries: CurrentKey, schema: StateSchema, codec: Codec, ttl: Ttl | None = None,
                 default: T | None = None) -> None:  # fmt: skip
        self.id = state_id(schema.name)
        self.schema = schema
        self.ttl = ttl
        self._entries = entries
        self.codec = codec
        self._encode, self._decode = codec.encode, codec.decode
        self._default = None if default is None else self._encode(default)
        self._prefetched: dict[bytes, bytes | None] = {}
        self._value: T | None = None
        self._stored_key: bytes | None = None
        self._changed = False
        if ttl is not None and ttl.clock is not None:
            # A value with an event-time TTL may expire between two rows of its key.
            ttl.clock.before_move(self.give_back)

    @property
    def default(self) -> bytes | None:
        """The encoded default value; None without one."""
        return self._default

    @cached_property
    def columns(self) -> ColumnSerializer:
        """The serializer for values of many keys at once. Raises JobDefinitionError when the type has no columns."""
        return columns_of(self.codec)

    def clear(self) -> None:
        """Removes the current key's value."""
        key = self._entries.stored_key(self.id) if self._stored_key is None else self._stored_key
        self._changed = False
        self._stored_key = None
        if self.ttl is None:
            self._entries.pending[key] = None
        else:
            self.ttl.remove(key, self._known(key))
        self._prefetched.pop(key, None)

    def prefetch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the values of many keys at once."""
        stored = [group + self.id + key + VOID_NAMESPACE for group, key in keys]
        self._prefetched = dict(zip(stored, self._entries.backend.multi_get(stored), strict=True))

    def give_back(self) -> None:
        """Adds the current key's change to the pending changes, and drops the cached value."""
        if self._stored_key is None:
            return
        if self._changed:
            key, data = self._stored_key, self._encode(self._value)
            if self.ttl is None:
                self._entries.pending[key] = data
            else:
                self.ttl.write(key, data, self._known(key))
            # A key that comes back later must see this change, not what was prefetched before it.
            self._prefetched.pop(key, None)
            self._changed = False
        self._stored_key = None
        self._value = None

    def drop(self) -> None:
        """Drops the cached value of the current key without writing it."""
        self._changed = False
        self._stored_key = None
        self._value = None

    def forget_prefetched(self) -> None:
        """Drops what `prefetch` read."""
        self._prefetched = {}

    def _get(self) -> T | None:
        if self._stored_key is None:
            self._load()
        return self._value

    def _set(self, value: T) -> None:
        if self._stored_key is None:
            self._stored_key = self._entries.stored_key(self.id)
        self._value = value
        self._changed = True

    def _load(self) -> None:
        key = self._entries.stored_key(self.id)
        data = self._prefetched.get(key, ABSENT)
        if data is ABSENT:
            data = self._entries.read(key)
        if self.ttl is not None and data is not None and not self._lives(self.ttl, key, data):
            if self.ttl.returns_expired:
                # Not cached: an expired value is returned once.
                self._value = self._decode(data)
                return
            data = None
        if data is None:
            data = self._default
        self._value = None if data is None else self._decode(data)
        self._stored_key = key

    def _lives(self, ttl: Ttl, key: bytes, data: bytes) -> bool:
        """Applies the time to live to a read entry, which may renew or remove it; returns False for an expired one."""
        expired = ttl.expired(data)
        ttl.admit(key, data)
        if key in self._entries.pending:
            self._prefetched.pop(key, None)
        else:
            self._prefetched[key] = data
        return not expired

    def _known(self, key: bytes) -> Any:
        """The stored bytes, if they are in the pending changes or prefetched; `ABSENT` otherwise."""
        data = self._entries.pending.get(key, ABSENT)
        return self._prefetched.get(key, ABSENT) if data is ABSENT else data
