"""A simulated sink: a table with a version and one token per application, whose commits are compare-and-swaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stateflow.api.sink import OtherCommit, Sink, SinkContext, SinkRewind, SinkWriter, Successor, TableChanges, Writing
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data
from tests.model.invariants.tables import FOREIGN, TableChecker
from tests.model.simulation.plan import READ, TABLE, WRITE
from tests.model.simulation.scheduler import Scheduler


@dataclass(frozen=True)
class Version:
    """A version of a table, and who made it: the job, or another application that appended the file `foreign`."""

    token: int
    content: tuple[str, ...]
    is_own: bool = False
    foreign: str = ""


class SimSink(Sink):
    """The parts of a sink that a run uses without writers, and the sink's table.

    Attributes:
        files: sizes of data files, whether a version has them or not.
        named: every file that some version has.
    """

    def __init__(self, scheduler: Scheduler, checker: TableChecker) -> None:
        self.uid = checker.uid
        self.checker = checker
        self.versions = [Version(0, ())]
        self.files: dict[str, int] = {}
        self.named: set[str] = set()
        self._scheduler = scheduler

    def check(self, context: SinkContext) -> str:
        return self._scheduler.call(READ, "check", self.uid, lambda: f"id-{self.uid}")

    prepare = check

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        raise NotImplementedError

    def shadow(self) -> Sink:
        raise NotImplementedError

    def open_table(self, context: SinkContext) -> SimTable:
        return self._scheduler.call(READ, "open", self.uid, lambda: SimTable(self, len(self.versions) - 1))

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        """Removes files that no version of the table has and that `is_leftover` is true of."""
        # The files before the table: one that is published in between is then known.
        written = self._scheduler.call(READ, "files", self.uid, lambda: sorted(self.files))
        known = self._scheduler.call(READ, "table", self.uid, lambda: set(self.named))
        removed = [path for path in written if path not in known and _is_leftover(path, is_leftover)]
        if removed:
            self._scheduler.call(WRITE, f"sweep {len(removed)}", removed[0], lambda: self._remove(removed))
        return removed

    def write(self, committable: Committable) -> None:
        self._scheduler.call(WRITE, "write", committable.path, lambda: self.files.update({committable.path: 1}))

    def append(self) -> None:
        """Another application appends a file, in one step."""
        path = f"{FOREIGN}{self.uid}-{len(self.versions)}"
        self.files[path] = 1
        self.add(Version(self.versions[-1].token, (*self.versions[-1].content, path), foreign=path))
        self.checker.appended()

    def add(self, version: Version) -> int:
        self.versions.append(version)
        self.named.update(version.content)
        return len(self.versions) - 1

    def call(self, kind: str, op: str, label: str, act: Callable[[], int | None]) -> int | None:
        return self._scheduler.call(kind, op, f"{self.uid} {label}", act)

    def missing(self, committables: list[Committable]) -> list[str]:
        return self._scheduler.call(
            READ, "missing", self.uid, lambda: [c.path for c in committables if c.path not in self.files]
        )

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            if path in self.files:
                self.checker.swept(path)
                del self.files[path]


@dataclass
class SimTable:
    """The table at one version."""

    sink: SimSink
    version: int

    def __post_init__(self) -> None:
        self.table_id = f"id-{self.sink.uid}"
        self.token: int | None = self.sink.versions[self.version].token
        self.successor: Successor | None = None

    def __str__(self) -> str:
        return f"version {self.version}, token {self.token}"

    def missing(self, committables: list[Committable]) -> list[str]:
        return self.sink.missing(committables)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Adds the files in one step, unless the table has a newer version."""
        paths = [c.path for c in committables]

        def act() -> int | None:
            if self._is_outdated():
                return None
            content = (*self.sink.versions[-1].content, *paths)
            number = self.sink.add(Version(token, content, is_own=True))
            self.sink.checker.published(token, paths)
            return number

        return self.sink.call(TABLE, "commit", f"token {token} on version {self.version}", act)

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        versions = self.sink.versions[: self.version + 1]
        first = next((n for n, version in enumerate(versions) if version.token > checkpoint_id), None)
        if first is None:
            return SinkRewind(self.version, None, None, None, ())
        undone = set(versions[-1].content) - set(versions[first - 1].content)
        return SinkRewind(self.version, first - 1, None, None, self._others(lambda path: path in undone))

    def changes_since(self, version: int) -> TableChanges:
        is_own = any(v.is_own for v in self.sink.versions[version + 1 : self.version + 1])
        return TableChanges(self.sink.uid, is_own, self._others(lambda _: True, version + 1))

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """Restores the content of `to_version` in one step, unless the table has a newer version than this one."""
        assert token > self.sink.versions[self.version].token, (token, self)
        assert to_version is None or 0 <= to_version < self.version, (to_version, self)

        def act() -> int | None:
            if self._is_outdated():
                return None
            before = self.sink.versions[-1].content
            after = before if to_version is None else self.sink.versions[to_version].content
            number = self.sink.add(Version(token, after, is_own=True))
            self.sink.checker.rewound(token, before, after)
            return number

        return self.sink.call(TABLE, "rewind", f"to {to_version} token {token} on version {self.version}", act)

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        raise NotImplementedError

    def _is_outdated(self) -> bool:
        return self.version != len(self.sink.versions) - 1

    def _others(self, wanted: Callable[[str], bool], first: int = 0) -> tuple[OtherCommit, ...]:
        versions = enumerate(self.sink.versions[first : self.version + 1], first)
        found = [(n, v.foreign) for n, v in versions if v.foreign and wanted(v.foreign)]
        return tuple(OtherCommit(n, frozenset({"other"}), path, (path,)) for n, path in found)


def _is_leftover(path: str, is_leftover: Callable[[int, int, str], bool]) -> bool:
    data = parse_data(path)
    assert data is not None, path
    return is_leftover(data.generation, data.ordinal, path)
