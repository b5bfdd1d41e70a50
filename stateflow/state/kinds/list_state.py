"""List state: one list per key.

An element is stored under ``… | epoch (8 bytes) | index (4 bytes)``: the epoch of the batch that added it, and the
number of elements that this subtask had added to the state earlier in that batch. So adding an element is a write
without a read, and elements keep their order over batches, restores and forks, since epochs only increase along a
state's history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import repeat
from typing import Generic, TypeVar

from stateflow.errors import StateError
from stateflow.state.backends.base import value_too_large
from stateflow.state.column_serializer import ColumnSerializer, columns_of
from stateflow.state.kinds.key_context import KeyContext, RowTimes
from stateflow.state.kinds.ttl import Ttl
from stateflow.state.schema import state_schema
from stateflow.state.stored_key import encode_epoch, encode_index, state_id
from stateflow.types.descriptors import ListStateDescriptor
from stateflow.types.serializers import value_serializer

T = TypeVar("T")


class ListState(Generic[T]):
    """A list for the current key. Adding does not read the list, and it is never loaded as a whole."""

    def __init__(self, context: KeyContext, descriptor: ListStateDescriptor[T], ttl: Ttl | None = None) -> None:
        self.id = state_id(descriptor.name)
        self.codec = value_serializer(descriptor.element_type, descriptor.serializer, descriptor.name)
        self.schema = state_schema(descriptor, "list", descriptor.element_type)
        self.ttl = ttl
        self._context = context
        self._largest_value = context.limits.value_bytes
        self._epoch = encode_epoch(context.time.epoch)
        self._added = 0

    @cached_property
    def columns(self) -> ColumnSerializer:
        """The serializer for elements of many keys. Raises JobDefinitionError when the type has no columns."""
        return columns_of(self.codec)

    def get(self) -> Iterator[T]:
        """Returns the elements in the order in which they were added, as of now: later changes are not seen."""
        found = self._context.scan(self._context.stored_key(self.id))
        return (self.codec.decode(data) for key, data in found if self._is_visible(key, data))

    def add(self, value: T) -> None:
        """Appends an element.

        Raises:
            StateError: the value is None or cannot be stored.
            EntryTooLarge: the encoded value is larger than ``state.max_value_bytes``.
        """
        self._append([self._encoded(value)])

    def add_all(self, values: Iterable[T]) -> None:
        """Appends elements in their order; none of them when one raises StateError as in `add`."""
        self._append([self._encoded(value) for value in values])

    def update(self, values: Iterable[T]) -> None:
        """Replaces the list; it is unchanged when one of `values` raises StateError as in `add`."""
        # Encode before clearing: the values may come from this very list, and an invalid one must change nothing.
        data = [self._encoded(value) for value in values]
        self.clear()
        self._append(data)

    def clear(self) -> None:
        """Removes every element."""
        for key, data in self._context.scan(self._context.stored_key(self.id)):
            if self.ttl is None:
                self._context.pending[key] = None
            else:
                self.ttl.remove(key, data)
            self._context.write_through_if_many()

    def append_stored(self, prefixes: Iterable[bytes], elements: Iterable[bytes], times: RowTimes = None) -> None:
        """Appends encoded elements to the lists of many keys.

        Args:
            prefixes: for each element, the prefix of the stored keys of its list.
            times: for each element, the event time of its row, None without one; None for those of the current row.
        """
        rows: Iterable[tuple[bytes, bytes]] = zip(prefixes, elements, strict=True)
        if self.ttl is None:
            epoch, before = self._epoch, self._added
            added = {prefix + epoch + encode_index(number): data for number, (prefix, data) in enumerate(rows, before)}
            self._added = before + len(added)
            self._context.pending |= added
            return
        for (prefix, data), row in zip(rows, repeat(None) if times is None else times, strict=False):
            self._put(prefix + self._epoch, data, row)

    def take(self) -> list[T]:
        """Removes and returns the elements, for `absorb`."""
        elements = list(self.get())
        self.clear()
        return elements

    def absorb(self, content: Iterable[T]) -> None:
        """Appends the elements of another namespace."""
        self.add_all(content)

    def flush(self) -> None:
        """Does nothing: a list caches nothing for the current key."""

    def discard(self) -> None:
        """Does nothing: a list caches nothing for the current key."""

    def _encoded(self, value: T) -> bytes:
        if value is None:
            raise StateError("a list's element cannot be None", hint="skip the element", state=self.schema.name)
        data = self.codec.encode(value)
        if len(data) > self._largest_value:
            raise value_too_large(self.schema.name, len(data), self._context.limits)
        return data

    def _append(self, elements: list[bytes]) -> None:
        prefix = self._context.stored_key(self.id) + self._epoch
        for data in elements:
            self._put(prefix, data)

    def _put(self, prefix: bytes, data: bytes, row: int | None = None) -> None:
        key = prefix + encode_index(self._added)
        self._added += 1
        if self.ttl is None:
            self._context.pending[key] = data
        else:
            self.ttl.write(key, data, None, row)

    def _is_visible(self, key: bytes, data: bytes) -> bool:
        return self.ttl is None or self.ttl.on_scan(key, data)
