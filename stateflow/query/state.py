"""The keyed state of a checkpoint, entry by entry, beside whatever run is going on.

The reader pins the checkpoint in the job's log, copies its files to a scratch folder, verified, and opens them there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.checkpoint.documents import EntryRef, Manifest, OperatorState
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, CorruptFile
from stateflow.serializers import decode_key, decode_untyped
from stateflow.settings import RocksDBSettings
from stateflow.state.backends import Place, read_entries
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.keyed import state_names
from stateflow.state.list_state import POSITION_BYTES
from stateflow.state.snapshots import Entry
from stateflow.state.transfer import HostCache
from stateflow.storage import Storage, open_storage

_GROUP_BYTES, _STATE_BYTES = 2, 4


@dataclass(frozen=True)
class StateEntry:
    """One stored value.

    Attributes:
        state: name of the state.
        key: the key columns.
        map_key: the map's key; None for other states.
        value: as plain dictionaries, lists, numbers and texts. A list's elements are entries each, in their order;
            of an aggregating state, it is the accumulator. Time to live is not looked at.
        namespace: None for the void one.
    """

    state: str
    key: tuple[Any, ...]
    map_key: Any
    value: Any
    namespace: Any = None


def read_state(job_root: str, uid: str, checkpoint_id: int | None = None) -> Iterator[StateEntry]:
    """Every entry of one operator's state, in order of key groups and keys.

    Args:
        checkpoint_id: one that is kept; by default the newest.

    Raises:
        ConfigError: there is no such job, checkpoint or operator.
        MissingFile, CorruptFile: a file of the checkpoint is not what was recorded.
    """
    root = JobRoot.open(open_storage(job_root), SystemClock(), "read_state")
    ref = _find(root, checkpoint_id)
    with root.pinned(ref, "read_state", f"reading the state of {uid}"):
        yield from entries_of(_operator(root.manifest_of(ref), uid), root.storage, root.clock)


def _find(root: JobRoot, checkpoint_id: int | None) -> EntryRef:
    refs = {ref.id: ref for ref in root.kept(root.head())}
    if not refs:
        raise ConfigError("the job has no checkpoint yet", hint="run it first", root=root.storage.uri)
    wanted = max(refs) if checkpoint_id is None else checkpoint_id
    if wanted not in refs:
        raise ConfigError("the checkpoint is not kept", wanted=wanted, kept=sorted(refs))
    return refs[wanted]


def _operator(manifest: Manifest, uid: str) -> OperatorState:
    for operator in manifest.operators:
        if operator.uid == uid:
            return operator
    raise ConfigError(
        "the checkpoint has no such operator", uid=uid, found=[o.uid for o in manifest.operators]
    )


def entries_of(operator: OperatorState, storage: Storage, clock: Clock) -> Iterator[StateEntry]:
    """Every entry of an operator's keyed state; the files must stay meanwhile. Raises as `read_state` does.

    Args:
        storage: with the files.
    """
    names, columns = state_names(operator.states), len(operator.key_types)
    for _, entries in stored_entries(operator, storage, clock):
        for key, value in entries:
            entry = check_entry(names, columns, key, value)
            if entry is not None:
                yield entry


def stored_entries(
    operator: OperatorState, storage: Storage, clock: Clock
) -> Iterator[tuple[SubtaskState, Iterator[Entry]]]:
    """The state of each subtask and its entries as they are stored, to be read before the next one is asked for; the
    files must stay meanwhile. Raises as `read_state` does.

    Args:
        storage: with the files.
    """
    with tempfile.TemporaryDirectory(prefix="stateflow-read-") as scratch:
        for subtask in operator.subtasks:
            folder = Path(scratch) / str(subtask.subtask)
            cache = HostCache.direct(folder / "cache", storage, clock)
            yield subtask, read_entries(Place(folder / "work", cache, RocksDBSettings()), Base.of(subtask))


def check_entry(
    names: dict[bytes, StateSchema | None], columns: int, stored: bytes, data: bytes
) -> StateEntry | None:
    """What a stored key and its value say; None for an entry of the engine's own, such as a timer.

    Args:
        names: what `state_names` gives for the operator.
        columns: how many key columns there are.

    Raises CorruptFile for a key that belongs to no state, StateError for what does not decode.
    """
    state = stored[_GROUP_BYTES : _GROUP_BYTES + _STATE_BYTES]
    if state not in names:
        raise CorruptFile("a stored key belongs to no declared state", key=stored.hex()[:80])
    schema = names[state]
    if schema is None:
        return None
    end = len(stored) - (POSITION_BYTES if schema.kind == "list" else 0)
    parts = decode_key(stored[_GROUP_BYTES + _STATE_BYTES : end])
    map_key = parts[columns + 1] if len(parts) > columns + 1 else None
    return StateEntry(schema.name, parts[:columns], map_key, decode_untyped(data), parts[columns])
