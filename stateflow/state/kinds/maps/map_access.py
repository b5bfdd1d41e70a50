"""Python's operators for maps, based on the named methods of map and broadcast state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MapAccess(ABC, Generic[K, V]):
    """Mix-in for map states: ``key in state``, ``state[key]``, ``del state[key]`` and ``for key in state``.

    As in PyFlink, ``state[key]`` is None for a key that the map does not have, and deleting such a key does nothing.
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of `key`; None when the map does not have it."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes `key`; does nothing when the map does not have it."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Returns whether the map has `key`."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """Returns the keys in order."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()
