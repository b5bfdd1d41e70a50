"""Read access to the state of a harness between two batches. Works on copies, so that the state does not change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph import ProcessNode
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError
from stateflow.query.state import StateEntry, entries_of
from stateflow.runtime.executor import BatchInfo, OperatorBase
from stateflow.runtime.planning.state_discovery import discover_states
from stateflow.runtime.task.operator_runtime import batch_time
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.state.backends.factory import open_store_location, read_entries
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.operator_state import SPLIT, OperatorListState, OperatorStateStore
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.state.kinds.timers import timers_in
from stateflow.state.stored_key import TimeDomain, encode_group
from stateflow.types.columns.conversion import to_stored_scalar
from stateflow.types.descriptors import MapStateDescriptor
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class PendingTimer:
    """A timer that has not fired.

    Attributes:
        domain: event time or processing time.
        time: milliseconds since 1970.
        key: the key, as `ctx.get_current_key()` returns it.
        namespace: None for the void namespace.
    """

    domain: TimeDomain
    time: int
    key: Any
    namespace: object = None


@dataclass(frozen=True)
class OperatorView:
    """The state of one operator at a barrier.

    Attributes:
        stored: None before the first batch.
        batch: the description of the next batch.
        task: subtask 0, with the parallelism at which the state was written.
    """

    node: ProcessNode
    stored: OperatorState | None
    batch: BatchInfo
    task: TaskInfo

    def state(self, name: str, key: object, namespace: object) -> Any:
        """Returns the value of a keyed state as plain Python. Raises ConfigError for an unknown name or invalid key."""
        values = self._key_values(key)
        group = key_group(values, self.node.keying.types, self.batch.settings.max_parallelism)
        known = self.stored.states if self.stored else ()
        # A copy: a read may renew the time to live of an entry.
        entries = [dict(of) for subtask, of in self._contents if group in subtask.groups] or [{}]
        keyed = KeyedState(DictBackend(entries[0]), known, batch_time(self.task))
        discover_states(self.node.function, self.task, keyed)
        found = keyed._states.get(name)
        if found is None:
            raise ConfigError(
                "the function declares no such keyed state",
                uid=self.node.uid,
                name=name,
                declared=sorted(keyed._states),
            )
        keyed.set_key(encode_group(group), encode_key(values))
        keyed.set_namespace(namespace)
        return _plain_value(found)

    def entries(self) -> list[StateEntry]:
        """Returns every stored entry of keyed state, including expired entries."""
        return list(entries_of(self.stored, self.batch.environment.storage, SystemClock())) if self.stored else []

    def timers(self) -> list[PendingTimer]:
        """Returns the pending timers, per time domain in order of time."""
        entries = [entry for _, of in self._contents for entry in of.items()]
        return [
            PendingTimer(domain, timer.time, _scalar(timer.values), timer.namespace)
            for domain in TimeDomain
            for timer in timers_in(entries, domain)
        ]

    def operator_list(self, name: str) -> list[list[Any]]:
        """Returns an operator list, per subtask. Raises ConfigError if the function declares none of that name."""
        declared = discover_states(self.node.function, self.task).operator._states
        found = declared.get(name)
        if not isinstance(found, OperatorListState):
            raise ConfigError(
                "the function declares no such operator list", uid=self.node.uid, name=name, declared=sorted(declared)
            )
        kept = [parts.read_assigned().own for parts in self._parts()]
        lists = [own.lists if found.schema.kind == SPLIT else own.unions for own in kept]
        return [[found._serializer.decode(data) for data in each.get(name, ())] for each in lists]

    def broadcast(self, descriptor: MapStateDescriptor[K, V]) -> dict[K, V]:
        """Returns the broadcast state that `descriptor` declares."""
        first = self._parts()[0]
        known = self.stored.operator_states if self.stored else ()
        store = OperatorStateStore(known, broadcasts=first.read_assigned().broadcasts)
        return dict(store.get_broadcast_state(descriptor).items())

    def _parts(self) -> list[OperatorParts]:
        count, base = self.task.parallelism, None
        if self.stored is not None:
            states, parts = self.stored.operator_states, self.stored.parts
            base = OperatorBase(parallelism=self.stored.parallelism, states=states, parts=parts)
        return [OperatorParts(self.node.uid, subtask, count, self.batch, base) for subtask in range(count)]

    @cached_property
    def _contents(self) -> list[tuple[SubtaskState, dict[bytes, bytes]]]:
        """Each subtask with its stored entries."""
        return [(subtask, self._entries_of(subtask)) for subtask in (self.stored.subtasks if self.stored else ())]

    def _entries_of(self, subtask: SubtaskState) -> dict[bytes, bytes]:
        with open_store_location(self.batch.environment.storage, SystemClock()) as location:
            return dict(read_entries(location, Base.of(subtask)))

    def _key_values(self, key: object) -> tuple[object, ...]:
        columns = self.node.keying.columns
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(columns):
            raise ConfigError(
                "the number of key values differs from the number of key columns",
                hint="pass a tuple with one value per key column",
                columns=list(columns),
                key=repr(key),
            )
        return tuple(map(to_stored_scalar, values))


def _scalar(values: tuple[object, ...]) -> object:
    return values[0] if len(values) == 1 else values


def _plain_value(state: object) -> Any:
    if isinstance(state, ListState):
        return list(state.get())
    if isinstance(state, MapState):
        return dict(state.items())
    if isinstance(state, ValueState):
        return state.value()
    assert isinstance(state, ReducingState | AggregatingState)
    return state.get()
