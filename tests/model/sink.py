"""A simulated sink: a table with a version and one token per application, whose commits are compare-and-swaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stateflow.api.sink import OtherCommit, SinkContext, SinkRewind, TableChanges
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data
from tests.model.plan import FOREIGN, READ, TABLE, WRITE
from tests.model.world import World


class Observer(Protocol):
    """Learns of every change of a table at the moment that it happens."""

    def published(self, sink: str, token: int, paths: list[str]) -> None:
        """The table took a commit."""

    def rewound(self, sink: str, token: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """The table went back, or kept its content, with a new token."""

    def appended(self, sink: str, path: str) -> None:
        """Another application appended to the table."""

    def swept(self, sink: str, path: str) -> None:
        """A file is about to be removed as a leftover."""


class SimSink:
    """What a run needs of a `stateflow.api.sink.Sink` besides its writers, and what is in its table."""

    location = ""

    def __init__(self, world: World, uid: str, observer: Observer) -> None:
        self.uid = uid
        self.versions: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        """Token and content of each version."""
        self.files: dict[str, int] = {}
        self.named: set[str] = set()
        """Every file that some version has."""
        self.foreign: dict[int, str] = {}
        """What another application appended, by version."""
        self.own: set[int] = set()
        """Versions that the job made."""
        self._world = world
        self._observer = observer

    @property
    def content(self) -> tuple[str, ...]:
        """What a reader sees now."""
        return self.versions[-1][1]

    def check(self, context: SinkContext) -> str:
        """The table's id; it was made before the history began."""
        return self._world.call(READ, "check", self.uid, lambda: f"id-{self.uid}")

    prepare = check

    def open_table(self, context: SinkContext) -> SimTable:
        """The table as it is now."""
        return self._world.call(
            READ,
            "open",
            self.uid,
            lambda: SimTable(self, f"id-{self.uid}", len(self.versions) - 1, self.versions[-1][0]),
        )

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        """Removes files that no version of the table has and that `is_leftover` is true of."""
        # The files before the table: one that is published in between is then known.
        written = self._world.call(READ, "files", self.uid, lambda: sorted(self.files))
        known = self._world.call(READ, "table", self.uid, lambda: set(self.named))
        removed = [path for path in written if path not in known and _ask(is_leftover, path)]
        if removed:
            self._world.call(WRITE, f"sweep {len(removed)}", removed[0], lambda: self._remove(removed))
        return removed

    def write(self, committable: Committable) -> None:
        """Writes a file that nobody sees yet."""
        act = lambda: self.files.__setitem__(committable.path, committable.size)  # noqa: E731
        self._world.call(WRITE, "write", committable.path, act)

    def append(self) -> None:
        """Another application appends a file, in one step."""
        version = len(self.versions)
        path = f"{FOREIGN}{self.uid}-{version}"
        self.versions.append((self.versions[-1][0], (*self.content, path)))
        self.foreign[version] = path
        self.files[path] = 1
        self.named.add(path)
        self._observer.appended(self.uid, path)

    def vacuum(self, path: str) -> None:
        """Somebody removes a file that is not in the table, though it may be waiting to be published."""
        self.files.pop(path, None)

    def missing(self, committables: list[Committable]) -> list[str]:
        """Those files that are not there."""
        return self._world.call(
            READ, "missing", self.uid, lambda: [c.path for c in committables if self.files.get(c.path) != c.size]
        )

    def commit(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        """Adds the files in one step, unless the table is not at the version `seen` any more."""
        label = f"{self.uid} token {token} on version {seen}"
        return self._world.call(TABLE, "commit", label, lambda: self._apply(seen, token, committables))

    def rewind(self, seen: int, to_version: int | None, token: int) -> int | None:
        """Makes the content that of `to_version` in one step, unless the table is not at `seen` any more."""
        label = f"{self.uid} to {to_version} token {token} on version {seen}"
        return self._world.call(TABLE, "rewind", label, lambda: self._go_back(seen, to_version, token))

    def _apply(self, seen: int, token: int, committables: list[Committable]) -> int | None:
        if seen != len(self.versions) - 1:
            return None
        paths = [c.path for c in committables]
        self.own.add(len(self.versions))
        self.versions.append((token, (*self.content, *paths)))
        self.named.update(paths)
        self._observer.published(self.uid, token, paths)
        return seen + 1

    def _go_back(self, seen: int, to_version: int | None, token: int) -> int | None:
        if seen != len(self.versions) - 1:
            return None
        before = self.content
        after = before if to_version is None else self.versions[to_version][1]
        self.own.add(len(self.versions))
        self.versions.append((token, after))
        self._observer.rewound(self.uid, token, before, after)
        return seen + 1

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

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """What a rewind on this very handle would do."""
        versions = self.sink.versions[: self.version + 1]
        later = (n for n, (token, _) in enumerate(versions) if token > checkpoint_id)
        first = next(later, None)
        if first is None:
            return SinkRewind(self.version, None, None, None, ())
        gone = set(versions[-1][1]) - set(versions[first - 1][1])
        others = tuple(_commit(v, path) for v, path in self.sink.foreign.items() if path in gone)
        return SinkRewind(self.version, first - 1, None, None, others)

    def changes_since(self, version: int) -> TableChanges:
        """What came after a version, up to that of this very handle."""
        later = range(version + 1, self.version + 1)
        paths = [(v, self.sink.foreign[v]) for v in later if v in self.sink.foreign]
        others = tuple(_commit(v, path) for v, path in paths)
        return TableChanges(self.sink.uid, any(v in self.sink.own for v in later), others)

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """A rewind on this very handle."""
        if token <= self.token or not (to_version is None or 0 <= to_version < self.version):
            raise AssertionError(f"{self.sink.uid}: rewind to {to_version} with token {token} on {self}")
        return self.sink.rewind(self.version, to_version, token)


def _commit(version: int, path: str) -> OtherCommit:
    return OtherCommit(version, frozenset({"other"}), path, (path,))


def _ask(is_leftover: Callable[[int, int, str], bool], path: str) -> bool:
    data = parse_data(path)
    assert data is not None, path
    return is_leftover(data.generation, data.ordinal, path)
