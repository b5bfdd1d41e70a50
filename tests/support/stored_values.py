"""A keyed operator's state with one large value, in files as each backend stores it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import DBCompressionType

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import SystemClock
from stateflow.query.state import check_entry, stored_entries
from stateflow.state.backends import hash_maps
from stateflow.state.backends.rocksdb.manifest import compose, parse
from stateflow.state.handles import StateFile, StateSchema, SubtaskState
from stateflow.state.kinds.key_context import state_id
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.schema import type_schema
from stateflow.storage import PosixStorage
from stateflow.types.decoders import MEMORY_LIMIT, type_memory
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import VALUE_FORMAT, ValueSerializer, check_untyped, decode_untyped
from tests.support.table_files import write_store

STATE = StateSchema(name="totals", kind="value", value_type="list", type=type_schema(list))
KEY = b"\0\0" + state_id("totals") + encode_key(("k", None))


def write_stored(make: Callable[[], bytes], compression: DBCompressionType | None, folder: Path) -> None:
    """Writes ``operator``, which refers to files in ``root``.

    Args:
        make: returns the stored value.
        compression: of the data file of RocksDB; None for the filesystem backend.
    """
    storage = PosixStorage(folder / "root")
    files: list[tuple[str, bytes]] = []
    manifest = b""
    if compression is None:
        files.append(("entries", b"".join(hash_maps.encode_snapshot(iter([(KEY, make())])))))
    else:
        write_store(folder / "store", {KEY: make()}, compression)
        files += [(path.name, path.read_bytes()) for path in (folder / "store").glob("*.sst")]
        current = folder / "store" / (folder / "store" / "CURRENT").read_text().strip()
        manifest = compose(parse(current.read_bytes(), "m"))
    subtask = SubtaskState(
        subtask=0,
        first_group=0,
        last_group=0,
        snapshot="s",
        backend="filesystem" if compression is None else "rocksdb",
        files=[
            StateFile(handle=write_bytes(storage, f"data/{name}", content), local_name=name) for name, content in files
        ],
        store_manifest=manifest,
    )
    operator = OperatorState(
        uid="u", parallelism=1, key_types=["string"], key_names=["key"], states=[STATE], subtasks=[subtask]
    )
    (folder / "operator").write_bytes(msgspec.json.encode(operator))


def _read(folder: Path, decode: Callable[[bytes], Any]) -> None:
    operator = msgspec.json.decode((folder / "operator").read_bytes(), type=OperatorState)
    for _, entries in stored_entries(operator, PosixStorage(folder / "root"), SystemClock()):
        for key, value in entries:
            check_entry(state_names(operator.states), 1, key, value, decode)


def read_untyped(folder: Path) -> None:
    """Reads the state as `read_state` does."""
    _read(folder, decode_untyped)


def verify(folder: Path) -> None:
    """Reads the state as ``verify --deep`` does."""
    _read(folder, check_untyped)


def read_as(kind: object) -> Callable[[Path], None]:
    """Returns a function that reads the state as a job which declares values of this type."""
    return lambda folder: _read(folder, ValueSerializer(kind).decode)


def stored(value: object) -> bytes:
    """A value as it is stored."""
    return VALUE_FORMAT + msgspec.msgpack.encode(value)


def repeated(unit: object, count: int) -> bytes:
    """The stored value of a list with `count` times the unit."""
    return b"%b\xdd%b%b" % (VALUE_FORMAT, count.to_bytes(4), msgspec.msgpack.encode(unit) * count)


def most(unit: object, kind: object = Any) -> bytes:
    """The stored value of a list with as many units as a type's values may have, within one percent."""
    sample = type_memory(kind).size(repeated(unit, 100_000)[1:], 1 << 60)
    return repeated(unit, MEMORY_LIMIT * 99_000 // sample)
