"""State as data: read as columns, compared, and written from a DataFrame.

`measure` reads rows as columns, per second of CPU time, next to an iteration of the same store without decoding. Small
values are integers; large ones have 200 random bytes. CPU time is that of the whole process, all threads included, so a
figure is of one core. `run` adds the figures of `state_diff` and `state_writer`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import state_diff, state_writer
from benchmarks.results import write_result
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.query.state_table import KeyedTable
from stateflow.state.backends import canonical_file
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.factory import StoreLocation, read_blocks, read_entries
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.column_serializer import ColumnSerializer
from stateflow.state.handles import CANONICAL, Base, StateFile, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.key_columns import encode_keys
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import VOID_NAMESPACE, state_id
from stateflow.storage import PosixStorage
from stateflow.types.key_groups import KeyGroupRange

KEYS = 5_000_000
VALUE_BYTES = 200
_GROUPS = 128
_BLOCK = 10_000
_REPEATS = 3


def run(folder: Path, keys: int = KEYS) -> Path:
    """Measures everything, one after the other, and writes ``state.json``."""
    figures = measure(folder / "read", keys)
    shutil.rmtree(folder / "read")
    found = state_diff.measure(folder / "diff", state_diff.Size(keys=keys))
    shutil.rmtree(folder / "diff")
    figures |= {name: figure for name, figure in found.items() if name.startswith(("diff_", "merge_"))}
    figures |= state_writer.measure(folder / "write", keys, VALUE_BYTES)
    return write_result("state", figures)


def measure(folder: Path, keys: int = KEYS) -> dict[str, Any]:
    """Builds stores with small and with large values in a folder, and reads them."""
    small = _measure(folder / "small", keys, int, lambda count: pa.array(np.arange(count)))
    large = _measure(folder / "large", keys, bytes, _random)
    return {
        "dataframe_rows_per_s_core": small["rocksdb"],
        "dataframe_rows_per_s_core_canonical": small["canonical"],
        "iterated_rows_per_s_core": small["iterated"],
        "values_of_200_bytes": large,
        "keys": keys,
        "value_bytes": VALUE_BYTES,
    }


def _random(count: int) -> pa.Array:
    data = os.urandom(count * VALUE_BYTES)
    offsets = pa.py_buffer((np.arange(count + 1) * VALUE_BYTES).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


@dataclass(frozen=True)
class _Stored:
    """A state in files.

    Attributes:
        operator: the operator.
        storage: has its files.
    """

    operator: OperatorState
    storage: PosixStorage

    def rows(self) -> int:
        """Reads all columns, and returns the number of rows."""
        table = KeyedTable(self.operator, self.operator.states[0])
        batches = table.batches(self.storage, SystemClock(), table.schema.names)
        return sum(batch.num_rows for batch in batches)

    def entries(self, folder: Path) -> int:
        """Iterates the stored entries, and returns their number."""
        return sum(1 for _ in read_entries(self.location(folder), Base.of(self.operator.subtasks[0])))

    def location(self, folder: Path) -> StoreLocation:
        """Where the files are linked to."""
        cache = HostCache.direct(folder / "cache", self.storage, SystemClock())
        return StoreLocation(folder / f"work-{time.monotonic_ns()}", cache, RocksDBSettings())


def _measure(folder: Path, keys: int, kind: type, values: Callable[[int], pa.Array]) -> dict[str, Any]:
    native = _rocksdb(folder, keys, kind, values)
    canonical = _canonical(folder, native)
    return {
        "rocksdb": _rate(keys, native.rows),
        "canonical": _rate(keys, canonical.rows),
        "iterated": _rate(keys, lambda: native.entries(folder)),
    }


def _rate(keys: int, read: Callable[[], int]) -> int:
    """Rows per second of CPU time; the best of some."""
    took = []
    for _ in range(_REPEATS):
        began = time.process_time()
        assert read() == keys
        took.append(time.process_time() - began)
    return round(keys / min(took))


def _rocksdb(folder: Path, keys: int, kind: type, values: Callable[[int], pa.Array]) -> _Stored:
    storage = PosixStorage(folder / "root")
    cache = HostCache.direct(folder / "cache", storage, SystemClock())
    groups = KeyGroupRange(0, _GROUPS - 1)
    store = RocksDBBackend(folder / "store", cache, Base(0, groups), RocksDBSettings())
    store.load(_blocks(keys, kind, values))
    taken = store.snapshot("data/state-")
    store.close()
    subtask = SubtaskState(
        subtask=0,
        first_group=groups.first,
        last_group=groups.last,
        snapshot="s",
        files=list(taken.files),
        store_manifest=taken.store_manifest,
    )
    state = StateSchema(name="state", kind="value", value_type="", type=type_schema(kind))
    operator = OperatorState(
        uid="operator", parallelism=1, key_types=["bigint"], key_names=["key"], states=[state], subtasks=[subtask]
    )
    return _Stored(operator, storage)


def _blocks(keys: int, kind: type, values: Callable[[int], pa.Array]) -> Iterator[EntryBlock]:
    """Yields the entries in order of keys, evenly over the key groups."""
    serializer = ColumnSerializer(kind)
    for group in range(_GROUPS):
        numbers = np.arange(keys * group // _GROUPS, keys * (group + 1) // _GROUPS)
        prefix = group.to_bytes(2) + state_id("state")
        for first in range(0, len(numbers), _BLOCK):
            some = pa.array(numbers[first : first + _BLOCK])
            encoded = serializer.encode(values(len(some)))
            stored = [prefix + key + VOID_NAMESPACE for key in encode_keys([some])]
            yield EntryBlock(stored, [value for value in encoded if value is not None])


def _canonical(folder: Path, native: _Stored) -> _Stored:
    operator = native.operator
    (subtask,) = operator.subtasks
    header = canonical_file.CanonicalHeader(
        uid=operator.uid,
        key_types=operator.key_types,
        max_parallelism=_GROUPS,
        first_group=subtask.first_group,
        last_group=subtask.last_group,
        states=operator.states,
    )
    blocks = read_blocks(native.location(folder), Base.of(subtask))
    handle = write_bytes(native.storage, "data/canonical", b"".join(canonical_file.encode_file(header, blocks)))
    files = [StateFile(handle=handle, local_name="entries")]
    changed = SubtaskState(
        subtask=0,
        first_group=subtask.first_group,
        last_group=subtask.last_group,
        snapshot="s",
        files=files,
        backend=CANONICAL,
    )
    return _Stored(
        OperatorState(
            uid=operator.uid,
            parallelism=1,
            key_types=operator.key_types,
            key_names=operator.key_names,
            states=operator.states,
            subtasks=[changed],
        ),
        native.storage,
    )
