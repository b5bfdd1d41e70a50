"""The keyed states of one operator's subtask.

Rows arrive sorted by key, so each key is current for one consecutive range of rows. `KeyedState.set_key` makes a key
current. Each state then loads its value at most once, and flushes it to the pending changes when the next key becomes
current. Between `begin_key_batch` and `end_key_batch` no change is written that another key of the batch could read,
so a single multi-get answers the reads of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from stateflow.config.settings import EntryLimits
from stateflow.errors import IncompatibleState, StateError
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import StateSchema
from stateflow.state.key_columns import WINDOW_BYTES
from stateflow.state.kinds.key_context import BatchTime, EventClock, KeyContext, RowTimes, WriteBuffer
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, SingleValueState, ValueState
from stateflow.state.kinds.timers import TimerIndex, Timers
from stateflow.state.kinds.ttl import Ttl, TtlCleanup
from stateflow.state.kinds.window_timers import WindowTimers
from stateflow.state.schema import declaration_text
from stateflow.state.schema_compatibility import Declaration, check_state, with_history
from stateflow.state.stored_key import TIMER_IDS, VOID_NAMESPACE, encode_namespace, expiry_ids, state_id
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import Codec
from stateflow.types.ttl_config import StateTtlConfig


class RegisteredState(Protocol):
    """The part of every kind of state that the runtime uses."""

    id: bytes
    schema: StateSchema
    codec: Codec
    ttl: Ttl | None

    def flush(self) -> None:
        """Adds the cached changes of the current key to the pending changes and clears the cache."""

    def discard(self) -> None:
        """Clears the cache of the current key without writing it."""


S = TypeVar("S", bound=RegisteredState)


class StateRegistry:
    """The states of one subtask by name.

    Args:
        stored: schemas of the states in the checkpoint that the subtask starts from.
    """

    def __init__(self, stored: Iterable[StateSchema] = ()) -> None:
        self.stored = {schema.name: schema for schema in stored}
        self.states: dict[str, RegisteredState] = {}

    def register(self, wanted: S) -> S:
        """Registers a declared state, or returns the one that was registered with the same declaration.

        Raises:
            StateError: another declaration has the name, the id or the queryable name.
            IncompatibleState: the stored values cannot be read as declared.
        """
        name = wanted.schema.name
        found = self.states.get(name)
        if found is None:
            self._check_stored(wanted)
            check_state_ids(name, self.stored)
            self._check_unique(wanted)
            self.states[name] = wanted
            return wanted
        if not isinstance(found, type(wanted)) or found.schema != wanted.schema or _config(found) != _config(wanted):
            raise StateError(
                "a state name is used for two different states",
                hint="use another name",
                name=name,
                first=_state_text(found),
                second=_state_text(wanted),
            )
        return found

    def set_windows(self, state: RegisteredState, windows: str) -> None:
        """Records that the namespaces of a registered state are windows.

        Args:
            windows: the kind of the windows.

        Raises:
            IncompatibleState: the stored values belong to windows of another kind.
        """
        state.schema = replace(state.schema, windows=windows)
        check_state(self.stored.get(state.schema.name), _declaration(state))

    @property
    def schemas(self) -> list[StateSchema]:
        """The schemas to store in the manifest, in order of names."""
        return [self._stored_schema(self.states[name]) for name in sorted(self.states)]

    @property
    def declarations(self) -> list[Declaration]:
        """The states as declared, without the history of the stored ones, in order of names."""
        return [_declaration(self.states[name]) for name in sorted(self.states)]

    @property
    def ttl_configs(self) -> dict[str, StateTtlConfig]:
        """The TTL configurations of the states that have one, by name."""
        return {name: state.ttl.config for name, state in self.states.items() if state.ttl is not None}

    def _stored_schema(self, state: RegisteredState) -> StateSchema:
        """Returns a schema with the type and TTL history that the next batch needs."""
        stored, ttl = self.stored.get(state.schema.name), state.ttl
        schema = replace(state.schema, **with_history(state.schema, stored))
        if ttl is None:
            return replace(schema, ttl_index=stored is not None and stored.ttl_index)
        return replace(
            schema,
            ttl_time=ttl.characteristic,
            ttl_milliseconds=ttl.config.milliseconds,
            ttl_since=ttl.since,
            ttl_always=ttl.always,
            ttl_index=True,
            ttl_other_index=ttl.has_other_index,
        )

    def _check_stored(self, wanted: RegisteredState) -> None:
        stored, schema = self.stored.get(wanted.schema.name), wanted.schema
        if stored is not None:
            # The windows are declared after the state: `set_windows` compares them.
            schema = replace(schema, windows=stored.windows)
        check_state(stored, Declaration(schema, wanted.codec.custom))

    def _check_unique(self, wanted: RegisteredState) -> None:
        schema, taken = wanted.schema, {wanted.id, *expiry_ids(wanted.schema.name)}
        if taken & set(TIMER_IDS.values()):
            raise StateError("a state name has the same id as the timers", hint="rename the state", name=schema.name)
        for other in self.states.values():
            if taken & {other.id, *expiry_ids(other.schema.name)}:
                raise StateError(
                    "two state names have the same id",
                    hint="rename one of them",
                    first=schema.name,
                    second=other.schema.name,
                )
            if schema.queryable and schema.queryable == other.schema.queryable:
                raise StateError(
                    "two states have the same queryable name",
                    hint="rename one of them",
                    queryable=schema.queryable,
                    first=other.schema.name,
                    second=schema.name,
                )


def check_state_ids(name: str, stored: Iterable[str], operator: str = "") -> None:
    """Checks that a state's keys do not overlap those of a stored state with another name.

    The stored state may no longer be declared: its entries remain, and would be read as values of `name`.

    Args:
        stored: names of the states in the operator's checkpoint.
        operator: uid of the operator, for the error.

    Raises:
        IncompatibleState: two names have the same state id.
    """
    taken = {state_id(name), *expiry_ids(name)}
    for other in stored:
        if other != name and taken & {state_id(other), *expiry_ids(other)}:
            facts = {"operator": operator} if operator else {}
            raise IncompatibleState(
                "a state has the same id as a stored state of another name",
                hint="rename the new state",
                name=name,
                stored=other,
                **facts,
            )


def state_names(schemas: Iterable[StateSchema]) -> dict[bytes, StateSchema | None]:
    """Returns the schema for each state id in stored keys; None for expiry entries and timers."""
    names: dict[bytes, StateSchema | None] = dict.fromkeys(TIMER_IDS.values())
    names |= {expiry: None for schema in schemas for expiry in expiry_ids(schema.name)}
    return names | {state_id(schema.name): schema for schema in schemas}


def _declaration(state: RegisteredState) -> Declaration:
    return Declaration(state.schema, state.codec.custom)


def _config(state: RegisteredState) -> StateTtlConfig | None:
    return state.ttl.config if state.ttl is not None else None


def _state_text(state: RegisteredState) -> str:
    ttl = f", lives {state.ttl.config.ttl}" if state.ttl is not None else ""
    queryable = f", queryable as {state.schema.queryable}" if state.schema.queryable else ""
    return f"{declaration_text(state.schema)}{ttl}{queryable}"


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")
Single = TypeVar("Single", bound=SingleValueState[Any])
Registered = TypeVar("Registered", bound=RegisteredState)
MergeableState = ReducingState[Any] | AggregatingState[Any, Any, Any] | ListState[Any]
"""States whose content in several namespaces can be merged."""


class KeyedState:
    """All keyed states of one operator's subtask, for the current key.

    Args:
        stored: schemas of the states in the checkpoint that the subtask starts from. A declaration that cannot read
            the stored values is refused.
        time: epoch, processing time and watermark of the batch.
        undoable: whether `savepoint` may be called.
        limits: the largest entries that may be written; by default as in the settings.

    Attributes:
        registry: the declared states.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        stored: Iterable[StateSchema] = (),
        time: BatchTime | None = None,
        undoable: bool = False,
        limits: EntryLimits = EntryLimits(),
    ) -> None:
        self._context = KeyContext(backend, time or BatchTime(), undoable, limits)
        self._savepoint_namespace = VOID_NAMESPACE
        self.registry = StateRegistry(stored)
        self._states = self.registry.states
        self._single_values: list[SingleValueState[Any]] = []
        self._namespaced: list[RegisteredState] = []
        self._encoded: tuple[object, bytes] = (None, VOID_NAMESPACE)
        """The namespace that was set last, and its encoding."""

    def timers(self, owned: KeyGroupRange, index: TimerIndex) -> Timers:
        """Returns the timers for the same current key and namespace."""
        return Timers(self._context, owned, index)

    def window_timers(
        self, owned: KeyGroupRange, index: TimerIndex, namespace_bytes: int = WINDOW_BYTES
    ) -> WindowTimers:
        """Returns the timers of windows of many keys; or of keys, if that is the length of the void namespace."""
        return WindowTimers(self._context, owned, index, namespace_bytes)

    def ttl_cleanup(self, owned: KeyGroupRange) -> TtlCleanup:
        """Returns the cleanup of expired entries, to be run between key batches.

        Args:
            owned: the key groups of the subtask.
        """
        registry, epoch = self.registry, self._context.time.epoch
        return TtlCleanup(self._context.backend, owned, epoch, states=registry.states, stored=registry.stored)

    @property
    def clock(self) -> EventClock:
        """The event time that TTLs are measured in."""
        return self._context.clock

    def value_state(self, descriptor: ValueStateDescriptor[T], per_key: bool = False) -> ValueState[T]:
        """Returns the state that `descriptor` declares; the same object for the same descriptor.

        Args:
            per_key: whether all namespaces of a key share its value.

        Raises:
            StateError: another kind or type of state has the name.
            IncompatibleState: the stored values cannot be read as declared.
        """
        return self._register_single(ValueState(self._context, descriptor, self._ttl(descriptor)), per_key)

    def list_state(self, descriptor: ListStateDescriptor[T], per_key: bool = False) -> ListState[T]:
        """Returns a list state; see `value_state`."""
        return self._register(ListState(self._context, descriptor, self._ttl(descriptor)), per_key)

    def map_state(self, descriptor: MapStateDescriptor[K, V], per_key: bool = False) -> MapState[K, V]:
        """Returns a map state; see `value_state`."""
        return self._register(MapState(self._context, descriptor, self._ttl(descriptor)), per_key)

    def reducing_state(self, descriptor: ReducingStateDescriptor[T], per_key: bool = False) -> ReducingState[T]:
        """Returns a reducing state; see `value_state`."""
        return self._register_single(ReducingState(self._context, descriptor, self._ttl(descriptor)), per_key)

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor[In, Acc, Out], per_key: bool = False
    ) -> AggregatingState[In, Acc, Out]:
        """Returns an aggregating state; see `value_state`."""
        return self._register_single(AggregatingState(self._context, descriptor, self._ttl(descriptor)), per_key)

    def folding_state(self, descriptor: FoldingStateDescriptor[In, Acc]) -> AggregatingState[In, Acc, Acc]:
        """Returns the aggregating state that is equivalent to a folding state."""
        return self.aggregating_state(descriptor.aggregating)

    @property
    def current_key(self) -> tuple[bytes, bytes] | None:
        """Key group and key; None without a current key."""
        return self._context.current_key

    @property
    def namespace(self) -> object:
        """The namespace of the current key; None for the void namespace."""
        (namespace,) = decode_key(self._context.namespace)
        return namespace

    def set_key(self, group: bytes, key: bytes) -> None:
        """Makes a key current, in the void namespace.

        Args:
            group: the key group, 2 bytes.
            key: the key as encoded by `encode_key`.
        """
        context = self._context
        if context.current_key is not None:
            for state in self._states.values():
                state.flush()
        context.current_key = (group, key)
        context.namespace = VOID_NAMESPACE

    def set_namespace(self, namespace: object) -> None:
        """Sets the namespace of the current key for all states that are not per key, until the next `set_key`.

        Args:
            namespace: any value that can be part of a key; None for the void namespace.
        """
        if namespace is not self._encoded[0]:
            # The operator of windows enters the same one several times for each row.
            self._encoded = namespace, encode_namespace(namespace)
        encoded = self._encoded[1]
        if encoded != self._context.namespace:
            for state in self._namespaced:
                state.flush()
            self._context.namespace = encoded

    def merge_namespaces(self, state: MergeableState, sources: Iterable[object]) -> None:
        """Moves the content of a state from other namespaces of the current key to the current namespace."""
        (target,) = decode_key(self._context.namespace)
        for source in sources:
            self.set_namespace(source)
            content: Any = state.take()
            self.set_namespace(target)
            state.absorb(content)

    def clear_key(self) -> None:
        """Flushes the states of the current key; no key is current afterwards."""
        if self._context.current_key is not None:
            self._flush()
            self._context.current_key = None
            self._context.namespace = VOID_NAMESPACE

    def flush_event_times(self) -> None:
        """Writes the changes of the current key to states with a TTL in event time, before the current row ends."""
        for state in self._states.values():
            if state.ttl is not None and state.ttl.clock is not None:
                state.flush()

    def savepoint(self) -> None:
        """Marks the point that `rollback` returns to, like SQL's SAVEPOINT; unrelated to savepoints of the job."""
        undo = self._undo
        self._flush()
        self._savepoint_namespace = self._context.namespace
        undo.savepoint()

    def commit(self) -> None:
        """Encodes and keeps the changes since `savepoint`.

        Raises:
            StateError: a value cannot be stored.
        """
        self._flush()
        self._undo.commit()

    def rollback(self) -> None:
        """Undoes all changes since `savepoint`."""
        for state in self._states.values():
            state.discard()
        self._undo.rollback()
        self._context.namespace = self._savepoint_namespace
        for state in self._single_values:
            # A prefetched value may have been written since the savepoint.
            state.clear_prefetched()

    @property
    def _undo(self) -> WriteBuffer:
        assert self._context.undo is not None
        return self._context.undo

    def begin_key_batch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Prefetches the single-value states of many (key group, key) pairs in the void namespace."""
        for state in self._single_values:
            state.prefetch(keys)

    def batch_bytes(self) -> int:
        """Returns the bytes that `begin_key_batch` has read, and those of changes that are not written yet."""
        changed = sum(len(key) + len(data or b"") for key, data in self._context.pending.items())
        return changed + sum(state.prefetched_bytes for state in self._single_values)

    @property
    def bytes_read(self) -> int:
        """The bytes of the entries that were read as columns since the last key batch."""
        return self._context.bytes_read

    def batch_of(self, groups: Sequence[bytes], keys: Sequence[bytes], row_times: RowTimes = None) -> KeyedStateBatch:
        """Returns the states of many distinct keys in the void namespace, valid until `end_key_batch`.

        No key is current afterwards. Arguments as for `set_key`, one of each per key; `row_times` as for
        `KeyedStateBatch`.
        """
        self.clear_key()
        return KeyedStateBatch(self._context, groups, keys, row_times=row_times)

    def end_key_batch(self) -> None:
        """Writes the changes since the last key batch to the backend."""
        self.clear_key()
        self._context.write_through()
        self._context.bytes_read = 0
        for state in self._single_values:
            state.clear_prefetched()

    def _flush(self) -> None:
        for state in self._states.values():
            state.flush()

    def _ttl(self, descriptor: StateDescriptor) -> Ttl | None:
        if descriptor.ttl is None or not descriptor.ttl.is_enabled:
            return None
        return Ttl(self._context, descriptor.name, descriptor.ttl, self.registry.stored.get(descriptor.name))

    def _register_single(self, wanted: Single, per_key: bool) -> Single:
        found = self._register(wanted, per_key)
        if found is wanted:
            self._single_values.append(wanted)
        return found

    def _register(self, wanted: Registered, per_key: bool) -> Registered:
        found = self.registry.register(wanted)
        if found is wanted and per_key:
            self._context.per_key.add(wanted.id)
        elif found is wanted:
            self._namespaced.append(wanted)
        elif (found.id in self._context.per_key) != per_key:
            raise StateError(
                "a state is declared both per key and per window", hint="use another name", name=wanted.schema.name
            )
        return found
