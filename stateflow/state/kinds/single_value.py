"""States with one value per key: value, reducing and aggregating state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Generic, TypeVar

from stateflow.errors import StateError
from stateflow.state.backends.base import value_too_large
from stateflow.state.column_serializer import ColumnSerializer, columns_of
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import ABSENT, Absent, KeyContext
from stateflow.state.kinds.ttl import Ttl
from stateflow.state.schema import state_schema
from stateflow.state.stored_key import VOID_NAMESPACE, state_id
from stateflow.types.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from stateflow.types.serializers import Codec, value_serializer

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class SingleValueState(Generic[T]):
    """Base class of states with one stored value per key.

    The value of the current key is decoded on first access, and encoded when the next key becomes current.

    Args:
        context: current key and pending changes.
        schema: schema of the declared state.
        codec: serializer of the stored value.
        ttl: None if values do not expire.
        default: value of a key without a stored value.
    """

    def __init__(
        self, context: KeyContext, schema: StateSchema, codec: Codec, ttl: Ttl | None = None, default: T | None = None
    ) -> None:
        self.id = state_id(schema.name)
        self.schema = schema
        self.ttl = ttl
        self._context = context
        self._largest_value = context.limits.value_bytes
        self.codec = codec
        self._encode, self._decode = codec.encode, codec.decode
        self._default = None if default is None else self._encode(default)
        self._prefetched: dict[bytes, bytes | None] = {}
        self._value: T | None = None
        self._stored_key: bytes | None = None
        self._changed = False
        if ttl is not None and ttl.clock is not None:
            # A value with an event-time TTL may expire between two rows of its key.
            ttl.clock.on_change(self.flush)

    @property
    def default(self) -> bytes | None:
        """The encoded default value; None without one."""
        return self._default

    @cached_property
    def columns(self) -> ColumnSerializer:
        """The serializer for values of many keys. Raises JobDefinitionError when the type has no columns."""
        return columns_of(self.codec)

    def clear(self) -> None:
        """Removes the current key's value."""
        key = self._context.stored_key(self.id) if self._stored_key is None else self._stored_key
        self._changed = False
        self._stored_key = None
        if self.ttl is None:
            self._context.pending[key] = None
        else:
            self.ttl.remove(key, self._known(key))
        self._prefetched.pop(key, None)

    def prefetch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the values of many (key group, key) pairs with one multi-get."""
        stored = [group + self.id + key + VOID_NAMESPACE for group, key in keys]
        self._prefetched = dict(zip(stored, self._context.backend.multi_get(stored), strict=True))

    @property
    def prefetched_bytes(self) -> int:
        """The size of the prefetched values that were not changed since."""
        return sum(len(data) for data in self._prefetched.values() if data is not None)

    def flush(self) -> None:
        """Adds the current key's change to the pending changes and clears the cached value."""
        if self._stored_key is None:
            return
        if self._changed:
            key, data = self._stored_key, self._encode(self._value)
            if len(data) > self._largest_value:
                raise value_too_large(self.schema.name, len(data), self._context.limits)
            if self.ttl is None:
                self._context.pending[key] = data
            else:
                self.ttl.write(key, data, self._known(key))
            # When the key becomes current again, it must see this change, not the prefetched value.
            self._prefetched.pop(key, None)
            self._changed = False
        self._stored_key = None
        self._value = None

    def discard(self) -> None:
        """Clears the cached value of the current key without writing it."""
        self._changed = False
        self._stored_key = None
        self._value = None

    def clear_prefetched(self) -> None:
        """Clears the prefetched values."""
        self._prefetched = {}

    def _get(self) -> T | None:
        if self._stored_key is None:
            self._load()
        return self._value

    def _set(self, value: T) -> None:
        if self._stored_key is None:
            self._stored_key = self._context.stored_key(self.id)
        self._value = value
        self._changed = True

    def _load(self) -> None:
        key = self._context.stored_key(self.id)
        data = self._prefetched.get(key, ABSENT)
        if data is ABSENT:
            data = self._context.read(key)
        if self.ttl is not None and data is not None and not self._apply_ttl(self.ttl, key, data):
            if self.ttl.returns_expired:
                # Not cached: an expired value is returned once.
                self._value = self._decode(data)
                return
            data = None
        if data is None:
            data = self._default
        self._value = None if data is None else self._decode(data)
        self._stored_key = key

    def _apply_ttl(self, ttl: Ttl, key: bytes, data: bytes) -> bool:
        """Applies the TTL to a value that is read, which may renew or remove it; returns False for an expired one."""
        expired = ttl.is_expired(data)
        ttl.on_read(key, data)
        if key in self._context.pending:
            self._prefetched.pop(key, None)
        else:
            self._prefetched[key] = data
        return not expired

    def _known(self, key: bytes) -> bytes | Absent | None:
        """Returns the stored bytes if they are pending or prefetched, else `ABSENT`."""
        data = self._context.pending.get(key, ABSENT)
        return self._prefetched.get(key, ABSENT) if data is ABSENT else data


class ValueState(SingleValueState[T]):
    """One value for the current key."""

    def __init__(self, context: KeyContext, descriptor: ValueStateDescriptor[T], ttl: Ttl | None = None) -> None:
        codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "value", descriptor.value_type)
        super().__init__(context, schema, codec, ttl, descriptor.default)

    def value(self) -> T | None:
        """Returns the current key's value, or the default or None without one.

        Change the value with `update`, not in place.
        """
        if self._stored_key is None:
            self._load()
        return self._value

    def update(self, value: T | None) -> None:
        """Sets the current key's value; None removes it."""
        if value is None:
            self.clear()
            return
        if self._stored_key is None:
            self._stored_key = self._context.stored_key(self.id)
        self._value = value
        self._changed = True


class ReducingState(SingleValueState[T]):
    """One value for the current key, to which added values are reduced."""

    def __init__(self, context: KeyContext, descriptor: ReducingStateDescriptor[T], ttl: Ttl | None = None) -> None:
        codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "reducing", descriptor.value_type)
        super().__init__(context, schema, codec, ttl)
        self._reduce = descriptor.reduce

    def get(self) -> T | None:
        """Returns the reduced value; None if no value was added."""
        return self._get()

    def add(self, value: T) -> None:
        """Reduces the current value and `value` to one.

        Raises:
            StateError: `value` is None, or the reduce function returned None.
        """
        if value is None:
            raise StateError("a reducing state cannot add None", hint="skip the value", state=self.schema.name)
        before = self._get()
        reduced = value if before is None else self._reduce(before, value)
        if reduced is None:
            raise StateError("a reduce function returned None", hint="return the reduced value", state=self.schema.name)
        self._set(reduced)

    def take(self) -> T | None:
        """Removes and returns the reduced value, for `absorb`."""
        value = self._get()
        self.clear()
        return value

    def absorb(self, content: T | None) -> None:
        """Adds the content of another namespace."""
        if content is not None:
            self.add(content)


class AggregatingState(SingleValueState[Acc], Generic[In, Acc, Out]):
    """One accumulator for the current key, to which values are added; the accumulator is what is stored."""

    def __init__(
        self, context: KeyContext, descriptor: AggregatingStateDescriptor[In, Acc, Out], ttl: Ttl | None = None
    ) -> None:
        codec = value_serializer(descriptor.accumulator_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "aggregating", descriptor.accumulator_type)
        super().__init__(context, schema, codec, ttl)
        self._function = descriptor.agg_function

    def get(self) -> Out | None:
        """Returns the result of the added values; None if no value was added."""
        accumulator = self._get()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: In) -> None:
        """Adds a value to the accumulator.

        Raises:
            StateError: `value` is None, or the aggregate function returned None.
        """
        if value is None:
            raise StateError("an aggregating state cannot add None", hint="skip the value", state=self.schema.name)
        before = self._get()
        after = self._function.add(value, self._function.create_accumulator() if before is None else before)
        if after is None:
            raise StateError(
                "an aggregate function returned None for an accumulator",
                hint="return the accumulator",
                state=self.schema.name,
            )
        self._set(after)

    def take(self) -> Acc | None:
        """Removes and returns the accumulator, for `absorb`."""
        accumulator = self._get()
        self.clear()
        return accumulator

    def absorb(self, content: Acc | None) -> None:
        """Merges the accumulator of another namespace into this one."""
        if content is not None:
            before = self._get()
            self._set(content if before is None else self._function.merge(before, content))
