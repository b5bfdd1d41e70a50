"""Reader of the keyed state of a checkpoint; safe while a run is active.

The reader pins the checkpoint in the job's log, copies its files to a scratch folder, verifies and opens them there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import Clock, SystemClock
from stateflow.errors import CorruptFile
from stateflow.query.snapshot import open_snapshot
from stateflow.state.backends.entry_stream import Entry
from stateflow.state.backends.factory import open_store_location, read_entries
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.stored_key import POSITION_BYTES, STATE_PART, decode_parts
from stateflow.storage import Storage
from stateflow.types.serializers import decode_untyped


@dataclass(frozen=True)
class StateEntry:
    """One stored value.

    Attributes:
        state: name of the state.
        key: values of the key columns.
        map_key: key in a map state; None for other states.
        value: plain dictionaries, lists, numbers and texts. Each element of a list state is an entry, in order; the
            value of an aggregating state is its accumulator. Expired values are included.
        namespace: None without a namespace.
    """

    state: str
    key: tuple[object, ...]
    map_key: object
    value: Any
    namespace: object = None


def state_entries(job_root: str, uid: str, checkpoint_id: int | str | None = None) -> Iterator[StateEntry]:
    """Yields every entry of an operator's keyed state, ordered by key group and encoded key.

    Args:
        uid: uid of the operator.
        checkpoint_id: a retained or pinned checkpoint; the newest by default. See `open_snapshot` for savepoints.

    Raises:
        ConfigError: the job, the checkpoint or the operator does not exist.
        MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
    """
    with open_snapshot(job_root, checkpoint_id) as snapshot:
        yield from entries_of(snapshot.operator(uid), snapshot.storage, SystemClock())


def entries_of(operator: OperatorState, storage: Storage, clock: Clock) -> Iterator[StateEntry]:
    """Yields every entry of an operator's keyed state; the caller keeps the files from deletion.

    Args:
        storage: the storage with the operator's files.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    names, columns = state_names(operator.states), len(operator.key_types)
    for _, entries in read_stored_entries(operator, storage, clock):
        for key, value in entries:
            entry = check_entry(names, columns, key, value)
            if entry is not None:
                yield entry


def read_stored_entries(
    operator: OperatorState, storage: Storage, clock: Clock
) -> Iterator[tuple[SubtaskState, Generator[Entry, None, None]]]:
    """Yields each subtask with an iterator over its stored entries.

    Read the entries of a subtask, or close them, before you advance to the next subtask. The caller must prevent the
    deletion of the files, for example with a pin.

    Args:
        storage: the storage with the operator's files.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    for subtask in operator.subtasks:
        with open_store_location(storage, clock) as location:
            yield subtask, read_entries(location, Base.of(subtask))


def check_entry(
    names: dict[bytes, StateSchema | None],
    columns: int,
    stored: bytes,
    data: bytes,
    decode: Callable[[bytes], Any] = decode_untyped,
) -> StateEntry | None:
    """Decodes a stored entry; returns None for an internal one, such as a timer.

    Args:
        names: result of `state_names` for the operator.
        columns: number of key columns.
        stored: the encoded key: key group, state id, key columns, namespace, and map key or list position.
        data: the encoded value.
        decode: decodes the value; raises CorruptFile.

    Raises:
        CorruptFile: the key belongs to no state, or key or value does not decode.
    """
    state = stored[STATE_PART]
    if state not in names:
        raise CorruptFile("a stored key does not belong to a declared state", key=stored.hex()[:80])
    schema = names[state]
    if schema is None:
        return None
    tail = POSITION_BYTES if schema.kind == "list" else 0
    key, namespace, map_key = decode_parts(stored, columns, tail=tail)
    return StateEntry(schema.name, key, map_key, decode(data), namespace)
