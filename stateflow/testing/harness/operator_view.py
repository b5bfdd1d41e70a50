"""Looking into the state of a harness, between two batches: on copies, so that nothing changes."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stateflow.api.functions import TaskInfo
from stateflow.api.graph import ProcessNode
from stateflow.checkpoint.documents import OperatorState
from stateflow.clock import SystemClock
from stateflow.descriptors import MapStateDescriptor
from stateflow.errors import ConfigError
from stateflow.keygroups import key_group
from stateflow.query.state import StateEntry, entries_of
from stateflow.runtime.declared import declare
from stateflow.runtime.operator import batch_time
from stateflow.runtime.operator_parts import OperatorBase, OperatorParts
from stateflow.runtime.specs import BatchInfo
from stateflow.serializers import encode_key
from stateflow.state.aggregating_state import AggregatingState
from stateflow.state.backends import Place, read_entries
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.keyed import KeyedState
from stateflow.state.list_state import ListState
from stateflow.state.map_state import MapState
from stateflow.state.memory import DictBackend
from stateflow.state.operator_state import SPLIT, OperatorListState, OperatorStateStore
from stateflow.state.reducing_state import ReducingState
from stateflow.state.timers import TimeDomain, timers_in
from stateflow.state.transfer import HostCache
from stateflow.state.value_state import ValueState


@dataclass(frozen=True)
class PendingTimer:
    """A timer that has not fired.

    Attributes:
        time: milliseconds since 1970.
        key: as `ctx.get_current_key()` gives it.
        namespace: None for the void one.
    """

    domain: TimeDomain
    time: int
    key: Any
    namespace: Any = None


@dataclass(frozen=True)
class OperatorView:
    """What one operator holds at a barrier.

    Attributes:
        stored: None before the first batch.
        batch: as a batch that began now would have it.
        task: its subtask 0, with the parallelism at which the state was written.
    """

    node: ProcessNode
    stored: OperatorState | None
    batch: BatchInfo
    task: TaskInfo

    def state(self, name: str, key: Any, namespace: Any) -> Any:
        """What a keyed state holds for a key, in plain Python. Raises ConfigError for a name or key that cannot be."""
        values = self._key(key)
        group = key_group(values, self.node.keying.types, self.batch.max_parallelism)
        known = self.stored.states if self.stored else ()
        # A copy: reading may begin an entry's life anew.
        entries = [dict(of) for subtask, of in self._contents if group in subtask.groups] or [{}]
        keyed = KeyedState(DictBackend(entries[0]), known, batch_time(self.task))
        declare(self.node.function, self.task, keyed)
        found = keyed._states.get(name)
        if found is None:
            raise ConfigError("the function declares no such keyed state", uid=self.node.uid, name=name,
                              declared=sorted(keyed._states))  # fmt: skip
        keyed.switch(struct.pack(">H", group), encode_key(values))
        keyed.set_namespace(namespace)
        return _content(found)

    def entries(self) -> list[StateEntry]:
        """Every stored entry of keyed state, without looking at times to live."""
        return list(entries_of(self.stored, self.batch.storage, SystemClock())) if self.stored else []

    def timers(self) -> list[PendingTimer]:
        """Those that have not fired, of each domain in the order in which they will."""
        entries = [entry for _, of in self._contents for entry in of.items()]
        return [
            PendingTimer(domain, timer.time, _scalar(timer.values), timer.namespace)
            for domain in TimeDomain
            for timer in timers_in(entries, domain)
        ]

    def operator_list(self, name: str) -> list[list[Any]]:
        """What each subtask keeps of an operator list. Raises ConfigError when the function declares none."""
        declared = declare(self.node.function, self.task).operator._states
        found = declared.get(name)
        if not isinstance(found, OperatorListState):
            raise ConfigError("the function declares no such operator list", uid=self.node.uid, name=name,
                              declared=sorted(declared))  # fmt: skip
        kept = [parts.assigned().own for parts in self._parts()]
        lists = [own.lists if found.schema.kind == SPLIT else own.unions for own in kept]
        return [[found._serializer.decode(data) for data in each.get(name, ())] for each in lists]

    def broadcast(self, descriptor: MapStateDescriptor[Any, Any]) -> dict[Any, Any]:
        """What every subtask sees of a broadcast state."""
        first = self._parts()[0]
        known = self.stored.operator_states if self.stored else ()
        store = OperatorStateStore(known, broadcasts=first.assigned().broadcasts)
        return dict(store.get_broadcast_state(descriptor).items())

    def _parts(self) -> list[OperatorParts]:
        count, base = self.task.parallelism, None
        if self.stored is not None:
            states, parts = self.stored.operator_states, self.stored.parts
            base = OperatorBase(parallelism=self.stored.parallelism, states=states, parts=parts)
        return [OperatorParts(self.node.uid, subtask, count, self.batch, base) for subtask in range(count)]

    @cached_property
    def _contents(self) -> list[tuple[SubtaskState, dict[bytes, bytes]]]:
        """The stored entries of each subtask."""
        return [
            (subtask, self._entries_of(subtask)) for subtask in (self.stored.subtasks if self.stored else ())
        ]

    def _entries_of(self, subtask: SubtaskState) -> dict[bytes, bytes]:
        with tempfile.TemporaryDirectory(prefix="stateflow-look-") as scratch:
            cache = HostCache.direct(Path(scratch, "cache"), self.batch.storage, SystemClock())
            return dict(
                read_entries(Place(Path(scratch, "work"), cache, self.batch.rocksdb), Base.of(subtask))
            )

    def _key(self, key: Any) -> tuple[Any, ...]:
        columns = self.node.keying.columns
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(columns):
            raise ConfigError("a key has another number of values than columns", hint="give a tuple with one value "
                              "for each", columns=list(columns), key=repr(key))  # fmt: skip
        return values


def _scalar(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _content(state: object) -> Any:
    if isinstance(state, ListState):
        return list(state.get())
    if isinstance(state, MapState):
        return dict(state.items())
    if isinstance(state, ValueState):
        return state.value()
    assert isinstance(state, ReducingState | AggregatingState)
    return state.get()
