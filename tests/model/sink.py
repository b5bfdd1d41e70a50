"""A simulated sink: a table with a version and one token per application, whose commits are compare-and-swaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stateflow.state.handles import Committable
from tests.model.plan import READ, TABLE, WRITE
from tests.model.world import World

Observer = Callable[[str, int, list[str]], None]
"""Told (sink, token, paths) of every commit at the moment that it happens."""


class SimSink:
    """Implements `stateflow.checkpoint.publish.PublishingSink`; holds what is in the table, too."""

    def __init__(self, world: World, uid: str, observer: Observer) -> None:
        self.uid = uid
        self.version = 1
        self.token = 0
        self.files: dict[str, int] = {}
        self._world = world
        self._observer = observer

    def open_table(self) -> SimTable:
        """The table as it is now."""
        return self._world.call(
            READ, "open", self.uid, lambda: SimTable(self, f"id-{self.uid}", self.version, self.token)
        )

    def write(self, committable: Committable) -> None:
        """Writes a file that nobody sees yet."""
        act = lambda: self.files.__setitem__(committable.path, committable.size)  # noqa: E731
        self._world.call(WRITE, "write", committable.path, act)

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those files that are not there."""
        return self._world.call(
            READ, "missing", self.uid,
            lambda: [c.path for c in committables if self.files.get(c.path) != c.size],
        )  # fmt: skip

    def commit(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        """Adds the files in one step, unless the table is not at the version `seen` any more."""
        label = f"token {token} on version {seen}"
        return self._world.call(TABLE, "commit", f"{self.uid} {label}", lambda: self._apply(seen, token, committables))

    def _apply(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        if seen != self.version:
            return None
        self.version += 1
        self.token = token
        self._observer(self.uid, token, [c.path for c in committables])
        return self.version


@dataclass
class SimTable:
    """Implements `stateflow.checkpoint.publish.TableHandle`."""

    sink: SimSink
    table_id: str
    version: int
    token: int

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those of the files that are not there."""
        return self.sink.missing(committables)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """A commit on this very handle."""
        return self.sink.commit(self.version, token, committables)
