"""A sink that keeps its table in a folder of JSON files: simple enough to be read by eye, fenced as Delta is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.clock import SystemClock
from stateflow.state.handles import Committable
from stateflow.storage import PosixStorage, PutResult

_clock = SystemClock()
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-([^-]+)-(.+)\.json")


class FolderSink(Sink):
    """Rows as JSON lines in data files, and one create-only file per table version.

    Args:
        folder: of the table.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def host_local(self) -> bool:
        return True

    def check(self, context: SinkContext) -> str | None:
        # Another run may have made the folder, and its first version not yet.
        versions = _versions(self.folder) if (self.folder / "versions").is_dir() else []
        return versions[0]["id"] if versions else None

    def prepare(self, context: SinkContext) -> str:
        first = json.dumps({"id": _clock.new_id()}).encode()
        PosixStorage(self.folder).put_new("versions/00000000", first)
        return str(_versions(self.folder)[0]["id"])

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        name = (
            f"{writing.generation}-{writing.ordinal}-{writing.subtask}-{writing.attempt}-{context.uid}.json"
        )
        return _Writer(self.folder / "data" / name)

    def open_table(self, context: SinkContext) -> SinkTable:
        return _Table(self.folder, context.application)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        # The folder before the versions: a file that is published in between is then known.
        written = sorted((self.folder / "data").glob(f"*-{context.uid}.json"))
        known = {path for version in _versions(self.folder) for path in version.get("paths", [])}
        removed = []
        for path in written:
            match = _NAME.fullmatch(path.name)
            if match and path.name not in known and is_leftover(int(match[1]), int(match[2]), path.name):
                path.unlink()
                removed.append(path.name)
        return removed

    def rows(self) -> list[dict[str, Any]]:
        """The published rows, in order of publication."""
        result = []
        for version in _versions(self.folder):
            for name in version.get("paths", []):
                result += [
                    json.loads(line) for line in (self.folder / "data" / name).read_text().splitlines()
                ]
        return result


def _versions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((folder / "versions").iterdir())]


class _Writer(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += rows.to_pylist()

    def close(self) -> list[Committable]:
        if not self._rows:
            return []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(json.dumps(row, default=str) + "\n" for row in self._rows).encode()
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(data)
        os.replace(partial, self._path)
        return [Committable(path=self._path.name, size=len(data), rows=len(self._rows))]


class _Table:
    def __init__(self, folder: Path, application: str) -> None:
        self._folder = folder
        self._application = application
        versions = _versions(folder)
        self.table_id = str(versions[0]["id"])
        self.version = len(versions) - 1
        self.token = max((v["token"] for v in versions if v.get("application") == application), default=0)

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables if not self._has(c)]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        content = {"application": self._application, "token": token, "paths": [c.path for c in committables]}
        key = f"versions/{self.version + 1:08d}"
        created = PosixStorage(self._folder).put_new(key, json.dumps(content).encode())
        return self.version + 1 if created is PutResult.CREATED else None

    def _has(self, committable: Committable) -> bool:
        path = self._folder / "data" / committable.path
        return path.is_file() and path.stat().st_size == committable.size
