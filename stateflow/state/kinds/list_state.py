"""A list per key.

An element lies under ``… | epoch (8 bytes) | index (4)``: the batch that added it, and how many elements this subtask
had added to the state in it. So adding is a write that needs to know nothing of the list, and elements keep their
order over batches, restores and forks, since epochs only grow along a job's state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from stateflow.descriptors import ListStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import value_serializer
from stateflow.state.current import CurrentKey, state_id
from stateflow.state.ttl import Ttl
from stateflow.state.typeschema import state_schema

T = TypeVar("T")

POSITION_BYTES = 12
"""Epoch and index, behind the namespace."""


class ListState(Generic[T]):
    """A list for the current key; adding to it never reads it, and it is never loaded as a whole."""

    def __init__(
        self, entries: CurrentKey, descriptor: ListStateDescriptor[T], ttl: Ttl | None = None
    ) -> None:
        self.id = state_id(descriptor.name)
        self.codec = value_serializer(descriptor.element_type, descriptor.serializer, descriptor.name)
        self.schema = state_schema(descriptor, "list", descriptor.element_type)
        self.ttl = ttl
        self._entries = entries
        self._epoch = struct.pack(">Q", entries.time.epoch)
        self._added = 0

    def get(self) -> Iterator[T]:
        """The elements in the order in which they were added, as they are now: later changes are not seen."""
        found = self._entries.scan(self._entries.stored_key(self.id))
        return (self.codec.decode(data) for key, data in found if self._admits(key, data))

    def add(self, value: T) -> None:
        """Adds an element at the end. Raises StateError for None, and for a value that cannot be stored."""
        self._append([self._encoded(value)])

    def add_all(self, values: Iterable[T]) -> None:
        """Adds elements at the end, in their order: all of them, or none when one raises StateError as in `add`."""
        self._append([self._encoded(value) for value in values])

    def update(self, values: Iterable[T]) -> None:
        """Replaces the list. The list stays as it is when one of `values` raises StateError as in `add`."""
        # Encode before clearing: the values may come from this very list, and an invalid one must change nothing.
        data = [self._encoded(value) for value in values]
        self.clear()
        self._append(data)

    def clear(self) -> None:
        """Removes every element."""
        for key, data in self._entries.scan(self._entries.stored_key(self.id)):
            if self.ttl is None:
                self._entries.pending[key] = None
            else:
                self.ttl.remove(key, data)
            self._entries.write_some()

    def give_back(self) -> None:
        """Nothing is kept for the current key."""

    def drop(self) -> None:
        """Nothing is kept for the current key."""

    def _encoded(self, value: T) -> bytes:
        if value is None:
            raise StateError("a list's element cannot be None", state=self.schema.name)
        return self.codec.encode(value)

    def _append(self, elements: list[bytes]) -> None:
        prefix = self._entries.stored_key(self.id) + self._epoch
        for data in elements:
            key = prefix + struct.pack(">I", self._added)
            self._added += 1
            if self.ttl is None:
                self._entries.pending[key] = data
            else:
                self.ttl.write(key, data, None)

    def _admits(self, key: bytes, data: bytes) -> bool:
        return self.ttl is None or self.ttl.admit_scanned(key, data)
