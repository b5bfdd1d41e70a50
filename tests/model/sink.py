"""A simulated sink: a table with a version and one token per application, whose commits are compare-and-swaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stateflow.api.sink import SinkContext
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data
from tests.model.plan import READ, TABLE, WRITE
from tests.model.world import World


class Observer(Protocol):
    """Learns of every change of a table at the moment that it happens."""

    def published(self, sink: str, token: int, paths: list[str]) -> None:
        """The table took a commit."""

    def swept(self, sink: str, path: str) -> None:
        """A file is about to be removed as a leftover."""


class SimSink:
    """What a run needs of a `stateflow.api.sink.Sink` beside its writers, and what is in its table."""

    def __init__(self, world: World, uid: str, observer: Observer) -> None:
        self.uid = uid
        self.version = 1
        self.token = 0
        self.files: dict[str, int] = {}
        self.visible: set[str] = set()
        self._world = world
        self._observer = observer

    def check(self, context: SinkContext) -> str:
        """The table's id; it was made before the history began."""
        return self._world.call(READ, "check", self.uid, lambda: f"id-{self.uid}")

    prepare = check

    def open_table(self, context: SinkContext) -> SimTable:
        """The table as it is now."""
        return self._world.call(
            READ, "open", self.uid, lambda: SimTable(self, f"id-{self.uid}", self.version, self.token)
        )

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        """Removes files that no version of the table has and that `is_leftover` is true of."""
        # The files before the table: one that is published in between is then known.
        written = self._world.call(READ, "files", self.uid, lambda: sorted(self.files))
        known = self._world.call(READ, "table", self.uid, lambda: set(self.visible))
        removed = [path for path in written if path not in known and _ask(is_leftover, path)]
        if removed:
            self._world.call(WRITE, f"sweep {len(removed)}", removed[0], lambda: self._remove(removed))
        return removed

    def write(self, committable: Committable) -> None:
        """Writes a file that nobody sees yet."""
        act = lambda: self.files.__setitem__(committable.path, committable.size)  # noqa: E731
        self._world.call(WRITE, "write", committable.path, act)

    def vacuum(self, path: str) -> None:
        """Somebody removes a file that is not in the table, though it may be waiting to be published."""
        self.files.pop(path, None)

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those files that are not there."""
        return self._world.call(
            READ, "missing", self.uid,
            lambda: [c.path for c in committables if self.files.get(c.path) != c.size],
        )  # fmt: skip

    def commit(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        """Adds the files in one step, unless the table is not at the version `seen` any more."""
        label = f"{self.uid} token {token} on version {seen}"
        return self._world.call(TABLE, "commit", label, lambda: self._apply(seen, token, committables))

    def _apply(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        if seen != self.version:
            return None
        self.version += 1
        self.token = token
        self.visible.update(c.path for c in committables)
        self._observer.published(self.uid, token, [c.path for c in committables])
        return self.version

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            if path in self.files:
                self._observer.swept(self.uid, path)
                del self.files[path]


@dataclass
class SimTable:
    """The table as it was when the handle was made."""

    sink: SimSink
    table_id: str
    version: int
    token: int

    def __str__(self) -> str:
        return f"version {self.version}, token {self.token}"

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those of the files that are not there."""
        return self.sink.missing(committables)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """A commit on this very handle."""
        return self.sink.commit(self.version, token, committables)


def _ask(is_leftover: Callable[[int, int, str], bool], path: str) -> bool:
    data = parse_data(path)
    assert data is not None
    return is_leftover(data.generation, data.ordinal, path)
