"""Detects rows that have the same key in one state, when a savepoint is written from rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow.compute as pc

from stateflow.errors import CorruptFile, DataError
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.kinds.key_context import KEY_OFFSET
from stateflow.state.kinds.state_registry import state_names
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.types.key_encoding import decode_key

_GROUP_BYTES = 2


def without_duplicates(header: CanonicalHeader, parts: Iterable[EntryColumns]) -> Iterator[EntryColumns]:
    """Yields the entries unchanged, but a timer that occurs several times only once.

    Args:
        header: the states of the operator.
        parts: the entries, in ascending order of keys; no part is empty.

    Raises:
        DataError: a key of a state occurs twice.
    """
    last = b""
    for entries in parts:
        keys, before = entries.keys, last
        last = keys[len(keys) - 1].as_py()
        if keys[0].as_py() == before or pc.any(pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py():
            entries = _of_distinct_keys(header, entries.block(), before)
        if len(entries):
            yield entries


def _of_distinct_keys(header: CanonicalHeader, block: EntryBlock, last: bytes) -> EntryColumns:
    keys: list[bytes] = []
    values: list[bytes] = []
    timers = set(TIMER_IDS.values())
    for key, value in zip(block.keys, block.values, strict=True):
        if key != last:
            keys.append(key)
            values.append(value)
        elif key[_GROUP_BYTES:KEY_OFFSET] not in timers:
            raise _duplicate(header, key)
        last = key
    return EntryColumns.of(keys, values)


def _duplicate(header: CanonicalHeader, stored: bytes) -> DataError:
    schema = state_names(header.states).get(stored[_GROUP_BYTES:KEY_OFFSET])
    try:
        parts = decode_key(stored[KEY_OFFSET:])
    except CorruptFile:
        parts = (stored.hex()[:200],)
    columns = len(header.key_types)
    facts = {"map_key": repr(parts[columns + 1])[:200]} if len(parts) > columns + 1 else {}
    return DataError(
        "two rows have the same key",
        hint="aggregate the rows of a key, or drop duplicates, before the state is written",
        operator=header.uid,
        state=schema.name if schema else "",
        key=repr(parts[:columns])[:300],
        **facts,
    )
