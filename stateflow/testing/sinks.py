"""A sink whose table is a folder of JSON files, with the same fencing as the Delta sink."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.sink import (
    OtherCommit,
    Sink,
    SinkContext,
    SinkRewind,
    SinkTable,
    SinkWriter,
    Successor,
    TableChanges,
    Writing,
)
from stateflow.clock import SystemClock
from stateflow.errors import SinkDiverged, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import PosixStorage, PutResult

_clock = SystemClock()
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-([^-]+)-(.+)\.json")


class FolderSink(Sink):
    """Writes rows as JSON lines to data files, and one create-only file per table version.

    A version consists of the data files of its parent version, or of the version to which it rewinds, and its own
    ``paths``.

    Args:
        folder: folder of the table.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def location(self) -> str:
        return str(self.folder)

    @property
    def host_local(self) -> bool:
        return True

    def for_changelog(self, changelog: Changelog) -> FolderSink:
        return self

    def check(self, context: SinkContext) -> str | None:
        versions = _versions_if_any(self.folder)
        return versions[0]["id"] if versions else None

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        versions = _versions_if_any(self.folder)
        ended = {application for version in versions for application in version.get("taken_over", {})}
        names = (v["application"] for v in versions[1:] if v["application"] not in ended)
        found = (name.partition("/") for name in names)
        return frozenset(job for job, _, uid in found if uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        first = json.dumps({"id": _clock.new_id()}).encode()
        PosixStorage(self.folder).put_new("versions/00000000", first)
        return str(_versions(self.folder)[0]["id"])

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        attempt = f"{writing.generation}-{writing.ordinal}-{writing.subtask}-{writing.attempt}"
        return _Writer(self.folder / "data" / f"{attempt}{_owner(context)}")

    def open_table(self, context: SinkContext) -> SinkTable:
        if not (self.folder / "versions").is_dir():
            raise SinkDiverged("the sink's folder no longer exists", hint="restore it", path=str(self.folder))
        return _Table(self.folder, context.application)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        # List the folder before the versions: a file that is published in between is then known.
        written = sorted((self.folder / "data").glob(f"*{_owner(context)}"))
        known = {path for version in _versions(self.folder) for path in version.get("paths", [])}
        removed = []
        for path in written:
            match = _NAME.fullmatch(path.name)
            if match and path.name not in known and is_leftover(int(match[1]), int(match[2]), path.name):
                # Another run may sweep concurrently.
                path.unlink(missing_ok=True)
                removed.append(path.name)
        return removed

    def shadow(self) -> FolderSink:
        return FolderSink(self.folder.with_name(f"{self.folder.name}_shadow"))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the published rows in order of publication."""
        result = []
        # The folder exists before the first version.
        for name in (_contents(_versions(self.folder)) or [[]])[-1]:
            result += [json.loads(line) for line in (self.folder / "data" / name).read_text().splitlines()]
        return result


class _Version(TypedDict, total=False):
    """The document of a version: the first one has the table's id, each later one is a commit."""

    id: str
    application: str
    token: int
    paths: list[str]
    back_to: int
    taken_over: dict[str, str]


def _owner(context: SinkContext) -> str:
    """Returns the suffix of data file names; it identifies the sink, since several jobs may write to one folder."""
    return f"-{context.job_uuid[:8]}-{context.uid}.json"


def _versions_if_any(folder: Path) -> list[_Version]:
    """Returns the versions of a table; an empty list if the table does not exist."""
    return _versions(folder) if (folder / "versions").is_dir() else []


def _versions(folder: Path) -> list[_Version]:
    return [json.loads(path.read_bytes()) for path in sorted((folder / "versions").iterdir())]


def _contents(versions: list[_Version]) -> list[list[str]]:
    """Returns the data files of each version."""
    result: list[list[str]] = []
    for version in versions:
        before = result[version.get("back_to", -1)] if result else []
        result.append([*before, *version.get("paths", [])])
    return result


class _Writer(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, object]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += rows.to_pylist()

    def close(self) -> list[Committable]:
        if not self._rows:
            return []
        data = "".join(json.dumps(row, default=str) + "\n" for row in self._rows).encode()
        # Atomic: no sweep would find a partial file after a kill.
        if PosixStorage(self._path.parent).put_new(self._path.name, data) is not PutResult.CREATED:
            raise StorageError("a data file exists already, or could not be made durable", path=self._path)
        return [Committable(path=self._path.name, size=len(data), rows=len(self._rows))]


class _Table:
    def __init__(self, folder: Path, application: str) -> None:
        self._folder = folder
        self._application = application
        self._versions = _versions(folder)
        self.table_id = str(self._versions[0]["id"])
        self.version = len(self._versions) - 1
        self.token: int | None = max((v["token"] for v in self._versions if self._is_ours(v)), default=0)
        ended = (v["taken_over"].get(application) for v in self._versions if "taken_over" in v)
        last = next((text for text in reversed(list(ended)) if text), "")
        self.successor = Successor.parse(last) if last else None

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables if not self._has(c)]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        return self._append(token, {"paths": [c.path for c in committables]})

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        later = (n for n, v in enumerate(self._versions) if self._is_ours(v) and v["token"] > checkpoint_id)
        first = next(later, None)
        if first is None:
            return SinkRewind(self.version, None, 0, 0, ())
        self._check_files(first - 1)
        contents = _contents(self._versions)
        now, then = set(contents[-1]), set(contents[first - 1])
        return SinkRewind(
            self.version, first - 1, self._count(now - then), self._count(then - now), tuple(self._others(now - then))
        )

    def changes_since(self, version: int) -> TableChanges:
        later = [(n, v) for n, v in enumerate(self._versions) if n > version]
        changed = ((n, v) for n, v in later if v.get("paths") or "back_to" in v)
        others = (self._other(n, v, v.get("paths", [])) for n, v in changed if not self._is_ours(v))
        return TableChanges(str(self._folder), any(self._is_ours(v) for _, v in later), tuple(others))

    def _other(self, number: int, version: _Version, paths: Iterable[str]) -> OtherCommit:
        """Returns the description of another application's commit, for some of its files."""
        who, count = version["application"], self._count(paths)
        rows = "1 row" if count == 1 else f"{count} rows"
        text = f"version {number}: {rows} added by {who}"
        return OtherCommit(number, frozenset({who}), text, tuple(paths), rows=count)

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if to_version is None:
            return self._append(token, {"paths": []})
        self._check_files(to_version)
        return self._append(token, {"paths": [], "back_to": to_version})

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        return self._append(token, {"paths": [], "taken_over": dict.fromkeys(former, by.text)})

    def _is_ours(self, version: _Version) -> bool:
        return version.get("application") == self._application

    def _append(self, token: int, content: _Version) -> int | None:
        document = {"application": self._application, "token": token, **content}
        key = f"versions/{self.version + 1:08d}"
        created = PosixStorage(self._folder).put_new(key, json.dumps(document).encode())
        return self.version + 1 if created is PutResult.CREATED else None

    def _check_files(self, version: int) -> None:
        missing = [p for p in _contents(self._versions)[version] if not (self._folder / "data" / p).is_file()]
        if missing:
            raise SinkDiverged(
                "the table cannot be rewound: files of the target version do not exist",
                hint="choose a newer checkpoint",
                table=str(self._folder),
                version=version,
                files=missing[:3],
            )

    def _others(self, removed: set[str]) -> Iterator[OtherCommit]:
        """Yields the commits of other applications that added files of `removed`."""
        for n, version in enumerate(self._versions):
            theirs = [] if self._is_ours(version) else [p for p in version.get("paths", []) if p in removed]
            if theirs:
                yield self._other(n, version, theirs)

    def _count(self, names: Iterable[str]) -> int:
        return sum(len((self._folder / "data" / name).read_text().splitlines()) for name in names)

    def _has(self, committable: Committable) -> bool:
        path = self._folder / "data" / committable.path
        return path.is_file() and path.stat().st_size == committable.size
