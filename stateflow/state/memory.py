"""Keyed state in a dictionary: for tests of what is written above backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import StateFile


class DictBackend(KeyedStateBackend):
    """Forgets everything when it is closed; it has no files."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.entries.items() if k.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value

    def snapshot(self, name: str) -> list[StateFile]:
        return []

    def close(self) -> None:
        self.entries.clear()
