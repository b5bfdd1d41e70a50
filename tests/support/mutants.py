"""Planted bugs: plausible mistakes, by name, that a search for faults must find. Without them it might look nowhere.

`planted` puts one into this process; a child process gets the one that its environment names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stateflow.api.sink import SinkTable
from stateflow.checkpoint import sink_commit
from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log import checkpoint_log, job_root, manifest_files
from stateflow.checkpoint.log.admin_entries import AdminEntries
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import JobFormat, Rewind
from stateflow.checkpoint.log.sealed_json import unseal
from stateflow.connectors.delta.sink import DeltaSinkTable
from stateflow.runtime import preflight
from stateflow.runtime.driver.checkpointing import uploads
from stateflow.runtime.job import loader
from stateflow.runtime.publisher import BoundSink
from stateflow.runtime.restore import existing_tables, rewind
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.state.files import host_cache
from stateflow.state.handles import Committable, StateFile
from stateflow.state.kinds.map_state import MapState
from stateflow.storage import BlobInfo, PosixStorage, PutResult, Storage, object_store, posix
from stateflow.storage.object_store import ObjectStorage
from stateflow.storage.paths import FORMAT, LOG

VARIABLE = "STATEFLOW_TEST_PLANT"


@dataclass(frozen=True)
class Plant:
    """What is wrong, and what is replaced where."""

    what: str
    places: tuple[tuple[Any, str, Any], ...]


def _always_publish(*_: Any) -> sink_commit.Decision:
    return sink_commit.Decision.PUBLISH


def _check_then_write(self: PosixStorage, key: str, data: bytes) -> PutResult:
    path = self._path(key)
    if path.exists():
        return PutResult.EXISTS
    self._make_folders(path.parent)
    path.write_bytes(data)
    return PutResult.CREATED


_put_new = ObjectStorage.put_new


def _believed(self: ObjectStorage, key: str, data: bytes) -> PutResult:
    result = _put_new(self, key, data)
    return PutResult.CREATED if result is PutResult.UNKNOWN else result


def _newest_by_time(self: CheckpointLog) -> Head | None:
    found = [head for seq in self._sequence_numbers(0) if (head := self._read(seq)) is not None]
    return max(found, key=lambda head: head.entry.at, default=None)


_sync = posix._sync_folder


def _sync_or_not(folder: Path) -> None:
    with contextlib.suppress(OSError):
        _sync(folder)


class _Blind:
    """Knows of no fork."""

    user: int | None = None

    @property
    def is_forked(self) -> bool:
        return False

    @is_forked.setter
    def is_forked(self, _: bool) -> None: ...


def _put_regardless(self: PosixStorage, key: str, data: bytes) -> PutResult:
    with self._unnamed_file(key) as (fd, path):
        posix._write_all(fd, data)
        with contextlib.suppress(OSError):
            posix.os.fsync(fd)
        return self._link(fd, path)


def _any_entry(*_: Any) -> bool:
    return True


def _read_any_format(storage: Storage) -> JobFormat:
    document, _ = unseal(storage.get(FORMAT), JobFormat, FORMAT)
    return document


_seed = SparkLocation.create


def _seed_nothing(self: SparkLocation, _: Any, query_id: str) -> None:
    _seed(self, None, query_id)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _version_of_the_intent(sink: BoundSink, table: SinkTable, rewind: Rewind, _: bool) -> int | None:
    intent = rewind.sinks[sink.uid]
    return None if intent.to_version == table.version else intent.to_version


_commit = DeltaSinkTable.commit


def _commit_all_there_is(self: DeltaSinkTable, token: int, committables: list[Committable]) -> int | None:
    if not committables:
        return _commit(self, token, committables)
    named = {c.path for c in committables}
    like = committables[0]
    stem = like.path.split("-s")[0]
    others = [p for p in self._root.glob(f"{stem}-s*.parquet") if p.name not in named]
    more = [_as_committable(like, path) for path in others]
    return _commit(self, token, [*committables, *more])


def _as_committable(like: Committable, path: Path) -> Committable:
    return Committable(path=path.name, size=path.stat().st_size, rows=like.rows)


_delete = Collector._delete


def _delete_data_only(self: Collector, garbage: tuple[BlobInfo, ...]) -> None:
    _delete(self, tuple(blob for blob in garbage if not blob.key.startswith(LOG)))


def _linked_unseen(copy: Path, file: StateFile, target: Path, _: object) -> bool:
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    return True


PLANTS = {
    "no-token": Plant(
        "output is published without a look at the table's token", ((sink_commit, "decide", _always_publish),)
    ),
    "check-then-write": Plant(
        "put-if-absent looks first, and writes then", ((PosixStorage, "put_new", _check_then_write),)
    ),
    "believed": Plant("a write without an answer counts as done", ((ObjectStorage, "put_new", _believed),)),
    "newest-by-time": Plant(
        "the newest log entry is the one that says so", ((CheckpointLog, "read_head", _newest_by_time),)
    ),
    "impatient": Plant(
        "a request that was refused is not tried again", ((object_store, "_RETRIES", {"max_retries": 0}),)
    ),
    "no-fence": Plant(
        "whose entry it is that came in between does not matter", ((checkpoint_log, "_is_admin_on_top", _any_entry),)
    ),
    "fsync-errors": Plant(
        "an error of syncing is forgotten",
        ((posix, "_sync_folder", _sync_or_not), (PosixStorage, "_put_unnamed", _put_regardless)),
    ),
    "no-fsync": Plant("a folder is not synced behind a new name in it", ((posix, "_sync_folder", _nothing),)),
    "no-hashes": Plant(
        "what comes from the storage is not compared with its hash",
        tuple(
            (place, name, _nothing)
            for place, name in (
                (host_cache, "check_file"),
                (host_cache, "check_content"),
                (manifest_files, "check_file"),
                (manifest_files, "check_content"),
                (uploads, "check_content"),
            )
        ),
    ),
    "trusted-cache": Plant(
        "what is in a host's cache is not looked at again",
        ((host_cache, "_link_copy", _linked_unseen), (host_cache, "_drop_if_damaged", _any_entry)),
    ),
    "all-there-is": Plant(
        "a commit publishes every file of its batch, also those of dead attempts",
        ((DeltaSinkTable, "commit", _commit_all_there_is),),
    ),
    "kept-entry": Plant("removing an entry of a map does nothing", ((MapState, "remove", _nothing),)),
    "any-format": Plant(
        "the version of the format is not checked",
        tuple((module, "read_format", _read_any_format) for module in (job_root, loader, preflight)),
    ),
    "no-seed": Plant(
        "a start does not tell Spark up to where the sources were read", ((SparkLocation, "create", _seed_nothing),)
    ),
    "kept-entries": Plant(
        "a collection leaves log entries that nothing needs",
        ((Collector, "_delete", _delete_data_only), (AdminEntries, "_delete_replaced", _nothing)),
    ),
    "blind-rewind": Plant(
        "a table goes back to the version of the intent, whatever others committed since",
        ((rewind, "_version_to_restore", _version_of_the_intent),),
    ),
    "any-table": Plant(
        "what a table holds after a savepoint is not checked", ((existing_tables, "_check_own_output", _nothing),)
    ),
    "no-fork-guard": Plant("nobody knows that the process was forked", ((object_store, "_process", _Blind()),)),
}
"""By name; some are of one row of the scoreboard only."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Puts a bug into this process; none for an empty name."""
    with ExitStack() as stack:
        for place, attribute, replacement in PLANTS[name].places if name else ():
            stack.enter_context(patch.object(place, attribute, replacement))
        yield


def plant_from_environment() -> None:
    """Puts the bug that the environment names, if any, into this process for good."""
    name = os.environ.get(VARIABLE)
    for place, attribute, replacement in PLANTS[name].places if name else ():
        setattr(place, attribute, replacement)
