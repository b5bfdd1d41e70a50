"""What the versions of a Delta table hold, and what each entry of its log changed.

An entry is read as it stands in the log. The files of a version come from deltalake, which knows every format that
Delta's checkpoints can have, but which tells neither statistics as they were written nor deletion vectors. So it makes
one checkpoint more, in a folder of its own that has links to the log up to that version, and the files are read there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from stateflow.connectors.delta_files import disk_error
from stateflow.connectors.delta_log import (
    LOG_FOLDER,
    Metadata,
    Protocol,
    entry_path,
    list_log,
    open_deltalake,
)
from stateflow.errors import CorruptFile, SinkRefused, StorageError

_SIDECARS = "_sidecars"

ENGINE, RESTORE = "stateflow", "RESTORE"

Action = dict[str, Any]
Key = tuple[str, str]
"""Names a file as one version has it: its path, and which of its rows are deleted."""


@dataclass(frozen=True)
class DataFile:
    """A file that an action of the log names.

    Attributes:
        action: the ``add`` or ``remove``.
        rows: without deleted ones; None when there are no statistics.
    """

    action: Action
    rows: int | None

    @classmethod
    def of(cls, action: Action) -> DataFile:
        """The file that an ``add`` or ``remove`` is about."""
        found = msgspec.json.decode(action.get("stats") or "{}").get("numRecords")
        deleted = (action.get("deletionVector") or {}).get("cardinality", 0)
        return cls(action, None if found is None else found - deleted)

    @property
    def path(self) -> str:
        return str(self.action["path"])

    @property
    def vector(self) -> Action | None:
        """What is deleted of it."""
        return self.action.get("deletionVector")

    @property
    def key(self) -> Key:
        v = self.vector
        return self.path, f"{v['storageType']}{v['pathOrInlineDv']}@{v.get('offset')}" if v else ""


@dataclass(frozen=True)
class Entry:
    """What one entry of the log says.

    Attributes:
        tokens: what it sets, by application.
        added, removed: files whose rows came or went; a file that was only rewritten with the same rows is in neither.
    """

    version: int
    info: Mapping[str, Any]
    tokens: Mapping[str, int]
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]


@dataclass(frozen=True)
class Content:
    """What a version held, for one application."""

    version: int
    protocol: Protocol
    metadata: Metadata
    token: int
    files: Mapping[Key, DataFile]


def parent(entry: Entry) -> int:
    """The version whose content an entry continues."""
    back_to = restored(entry)
    return entry.version - 1 if back_to is None else back_to


def restored(entry: Entry) -> int | None:
    """The version that an entry of ours went back to; None when it is another entry."""
    if (entry.info.get("engineInfo"), entry.info.get("operation")) != (ENGINE, RESTORE):
        return None
    return int(entry.info["operationParameters"]["version"])


def read_entry(table: Path, version: int) -> Entry | None:
    """The log entry of a version; None when there is no such entry, any more or yet."""
    path = entry_path(table, version)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise disk_error(e, path) from e
    try:
        actions: list[Action] = [msgspec.json.decode(line) for line in lines if line.strip()]
        return _entry(version, actions)
    except (msgspec.DecodeError, KeyError) as e:
        message = "a log entry of the Delta table does not decode"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def _entry(version: int, actions: list[Action]) -> Entry:
    kinds: dict[str, list[Action]] = {}
    for action in actions:
        for kind, value in action.items():
            kinds.setdefault(kind, []).append(value)
    added, removed = kinds.get("add", []), kinds.get("remove", [])
    return Entry(
        version=version,
        info=kinds.get("commitInfo", [{}])[0],
        tokens={t["appId"]: t["version"] for t in kinds.get("txn", [])},
        added=tuple(DataFile.of(a) for a in added if a["dataChange"]),
        removed=tuple(DataFile.of(r) for r in removed if r["dataChange"]),
    )


def read_content(table: Path, version: int, application: str) -> Content | None:
    """What the table held at `version`; None when its log does not tell any more."""
    from deltalake.exceptions import TableNotFoundError

    with tempfile.TemporaryDirectory(prefix="stateflow-delta-") as scratch:
        view = Path(scratch)
        _link_log(table, view, version)
        try:
            opened = open_deltalake(view)
        except (TableNotFoundError, SinkRefused):
            return None
        if opened.version() != version:
            return None
        needs, about = opened.protocol(), opened.metadata()
        metadata = Metadata(
            str(about.id), opened.schema().to_json(), about.partition_columns, dict(about.configuration)
        )
        files = _files(view, version, metadata)
        return Content(
            version=version,
            protocol=Protocol(
                needs.min_reader_version,
                needs.min_writer_version,
                needs.reader_features,
                needs.writer_features,
            ),
            metadata=metadata,
            token=opened.transaction_version(application) or 0,
            files={file.key: file for file in files},
        )


def _link_log(table: Path, view: Path, version: int) -> None:
    """Makes a table of links that ends at `version`, and begins with the newest checkpoint up to there."""
    source, links = (table / LOG_FOLDER).absolute(), view / LOG_FOLDER
    links.mkdir()
    listing = list_log(table)
    first = listing.newest_checkpoint(version)
    for name, number in listing.names.items():
        if first <= number <= version and not name.endswith(".compacted.json"):
            (links / name).symlink_to(source / name)
    if (source / _SIDECARS).is_dir():
        (links / _SIDECARS).symlink_to(source / _SIDECARS)


def _files(view: Path, version: int, metadata: Metadata) -> Iterable[DataFile]:
    """The files of a view's newest version.

    One entry more, without the table's settings for checkpoints, says that statistics are to be text, as in the log.
    """
    from deltalake.exceptions import DeltaError

    plain = {
        "id": metadata.id, "format": {"provider": "parquet", "options": {}}, "schemaString": metadata.schema_string,
        "partitionColumns": metadata.partition_columns, "configuration": {}, "createdTime": 0,
    }  # fmt: skip
    entry_path(view, version + 1).write_bytes(msgspec.json.encode({"metaData": plain}))
    try:
        open_deltalake(view).create_checkpoint()
    except DeltaError as e:
        raise StorageError("the files of a Delta table's version cannot be listed", version=version,
                           reason=str(e).partition("\n")[0]) from e  # fmt: skip
    checkpoint = view / LOG_FOLDER / f"{version + 1:020d}.checkpoint.parquet"
    adds = pq.read_table(checkpoint, columns=["add"]).column("add")
    return [DataFile.of(_as_logged(add)) for add in adds.to_pylist(maps_as_pydicts="strict") if add]


def _as_logged(add: Action) -> Action:
    """An ``add`` as an entry has it: what is not there is left out."""
    found = {name: value for name, value in add.items() if value is not None}
    if vector := found.get("deletionVector"):
        found["deletionVector"] = {name: value for name, value in vector.items() if value is not None}
    return found
