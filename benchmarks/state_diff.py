"""Comparing two checkpoints of one job that are 1 % of their keys apart.

``python -m benchmarks.state_diff`` prints the figures; the files are below the folder for temporary files.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.clock import SystemClock
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare
from stateflow.config.settings import RocksDBSettings
from stateflow.query.snapshot import Snapshot
from stateflow.state.backends.entry_stream import blocks_of
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import encode_group, state_id
from stateflow.storage import PosixStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import range_of

M = 4096
_STATE = "total"
_PER_BATCH = 10_000


@dataclass(frozen=True)
class Size:
    """How much state there is.

    Attributes:
        keys: number of keys.
        value_bytes: bytes of each value, which do not compress.
        parallelism: number of subtasks.
        changed: part of the keys that the second checkpoint has changed; they are spread over all key groups.
    """

    keys: int = 5_000_000
    value_bytes: int = 200
    parallelism: int = 2
    changed: float = 0.01


def measure(folder: Path, size: Size = Size(), repeats: int = 3) -> dict[str, Any]:
    """Builds two checkpoints and compares them; times are the best of `repeats`, with all files in the page cache.

    ``diff_s`` is the wall time of a summary, in one process; ``diff_with_keys_s`` is that with all changed keys and
    their values as Arrow batches. ``merge_s`` is the time of comparing everything.

    ``diff_read_fraction`` is the bytes that are read: whole files that only one checkpoint has, and of the files that
    both have, their indexes, properties and the blocks in which changed keys are; divided by the bytes of the state
    files of both checkpoints, which a comparison of everything reads. Divided by the bytes of the distinct files of
    both, it is ``diff_read_fraction_of_files``.
    """
    old, new = _build(folder, size)
    seconds, found = _best(old, new, DiffOptions(changes=False), repeats)
    with_keys, listed = _best(old, new, DiffOptions(), repeats)
    merge, _ = _best(old, new, DiffOptions(changes=False, counts_all=True), 1)
    assert listed.changes is not None
    distinct = {f.sha256: f.size for each in (old, new) for s in each.operator("op").subtasks for f in s.files}
    return {
        "keys": size.keys,
        "value_bytes": size.value_bytes,
        "parallelism": size.parallelism,
        "changed_keys": found.keys,
        "state_bytes": found.new.size_bytes,
        "diff_s": round(seconds, 2),
        "diff_with_keys_s": round(with_keys, 2),
        "diff_read_fraction": round(found.read_bytes / (found.old.size_bytes + found.new.size_bytes), 4),
        "diff_read_fraction_of_files": round(found.read_bytes / sum(distinct.values()), 4),
        "listed_keys": sum(batch.num_rows for batch in listed.changes),
        "merge_s": round(merge, 2),
    }


def _best(old: Snapshot, new: Snapshot, options: DiffOptions, repeats: int) -> tuple[float, SnapshotDiff]:
    best: tuple[float, SnapshotDiff] | None = None
    for _ in range(repeats):
        began = time.monotonic()
        found = compare(old, new, options)
        took = time.monotonic() - began
        if best is None or took < best[0]:
            best = took, found
    assert best is not None
    return best


def _build(folder: Path, size: Size) -> tuple[Snapshot, Snapshot]:
    storage = PosixStorage(folder / "root")
    states = [_build_subtask(folder, storage, subtask, size) for subtask in range(size.parallelism)]
    old, new = zip(*states, strict=True)
    return _snapshot(storage, old, 1), _snapshot(storage, new, 2)


def _build_subtask(folder: Path, storage: PosixStorage, subtask: int, size: Size) -> tuple[SubtaskState, SubtaskState]:
    """A subtask's state before and after some of its keys have changed: one sorted run, and one file above it."""
    owned = range_of(subtask, size.parallelism, M)
    cache = HostCache.direct(folder / f"cache-{subtask}", storage, SystemClock())
    store = RocksDBBackend(folder / f"store-{subtask}", cache, Base(subtask, owned), RocksDBSettings())
    dice = random.Random(subtask)
    keys = sorted(
        encode_group(owned.first + number % len(owned)) + state_id(_STATE) + encode_key((f"key-{number:010d}", None))
        for number in range(subtask, size.keys, size.parallelism)
    )
    store.load(blocks_of((key, _value(dice, size)) for key in keys))
    taken = []
    for checkpoint in (1, 2):
        name = f"data/{1:020d}/{checkpoint:010d}-attempt/op-{subtask}-"
        found = store.snapshot(name)
        taken.append(
            SubtaskState(
                subtask=subtask,
                first_group=owned.first,
                last_group=owned.last,
                snapshot=name,
                files=list(found.files),
                store_manifest=found.store_manifest,
            )
        )
        if checkpoint == 1:
            for some in _slices(dice.sample(keys, int(len(keys) * size.changed))):
                store.write({key: _value(dice, size) for key in some})
    store.close()
    return taken[0], taken[1]


def _value(dice: random.Random, size: Size) -> bytes:
    return b"\x01\xc4" + bytes([size.value_bytes]) + dice.randbytes(size.value_bytes)


def _slices(keys: list[bytes]) -> Iterator[list[bytes]]:
    return (keys[at : at + _PER_BATCH] for at in range(0, len(keys), _PER_BATCH))


def _snapshot(storage: PosixStorage, states: Iterable[SubtaskState], checkpoint_id: int) -> Snapshot:
    subtasks = list(states)
    schema = StateSchema(name=_STATE, kind="value", value_type="bytes", type=type_schema(bytes))
    operator = OperatorState(
        uid="op", parallelism=len(subtasks), key_types=["string"], key_names=["key"], states=[schema], subtasks=subtasks
    )
    manifest = Manifest(job_uuid="u", generation=1, ordinal=1, operators=[operator], sources=[])
    return Snapshot(storage, manifest, "job", "u", M, checkpoint_id)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name)), indent=2))
