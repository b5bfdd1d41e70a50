"""The open sessions of many keys, as columns; stored as `stateflow.api.windows.sessions` stores them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.column_windows.session_merging import Sessions
from stateflow.api.column_windows.slices import is_sorted
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.windows.sessions import STATE_NAME, Session
from stateflow.types.descriptors import ValueStateDescriptor

_FIELDS = ("start", "end", "state_start", "state_end")


class SessionSets:
    """The set of open sessions of each key."""

    def __init__(self, ctx: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor(STATE_NAME, list[Session])
        self._state = ctx.keyed_state.value_state(descriptor, per_key=True)

    def read(self, state: WindowVectorState) -> Sessions:
        """Returns the open sessions of all keys, ordered by key and start."""
        column = state.read(self._state)
        counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        of = np.repeat(np.arange(len(column)), counts)
        every = column.flatten()
        found = Sessions(of, *(pc.struct_field(every, name).to_numpy(zero_copy_only=False) for name in _FIELDS))
        return found if is_sorted(of, found.starts) else found.at(np.lexsort((found.starts, of)))

    def write(self, state: WindowVectorState, sessions: Sessions, changed: Array) -> None:
        """Stores the open sessions of some keys.

        Args:
            sessions: all open sessions, ordered by key.
            changed: the numbers of the keys.
        """
        counts = np.bincount(sessions.of, minlength=len(state))
        where = np.zeros(len(state), bool)
        where[changed] = True
        columns = (sessions.starts, sessions.ends, sessions.state_starts, sessions.state_ends)
        structs = pa.StructArray.from_arrays([pa.array(c) for c in columns], names=list(_FIELDS))
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), structs)
        state.write(self._state, pc.if_else(pa.array(counts > 0), lists, pa.scalar(None, lists.type)), where)
