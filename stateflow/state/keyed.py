"""The states of one operator's subtask: registration, prefetching, and writing back.

Rows come sorted by key, so a key is current once per stretch of rows. `KeyedState.switch` makes one current; each
state then loads its value at most once, and gives it back when the next key comes. Between `begin_stretch` and
`end_stretch` nothing is written to the backend that a later key could read, so one multi-get answers all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from stateflow.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from stateflow.errors import IncompatibleState, StateError
from stateflow.keygroups import KeyGroupRange
from stateflow.serializers import Codec
from stateflow.state.aggregating_state import AggregatingState
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.cell import Cell
from stateflow.state.changes import Changes
from stateflow.state.current import (
    VOID_NAMESPACE,
    BatchTime,
    CurrentKey,
    EventClock,
    encode_namespace,
    state_id,
)
from stateflow.state.evolution import Declaration, check_state, with_history
from stateflow.state.expiry import CleanUp
from stateflow.state.handles import StateSchema
from stateflow.state.list_state import ListState
from stateflow.state.many_keys import ManyKeys
from stateflow.state.map_state import MapState
from stateflow.state.reducing_state import ReducingState
from stateflow.state.timers import TIMER_IDS, TimerIndex, Timers
from stateflow.state.ttl import Ttl, expiry_ids
from stateflow.state.value_state import ValueState
from stateflow.time_to_live import StateTtlConfig

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class _State(Protocol):
    """What every kind of state has."""

    id: bytes
    schema: StateSchema
    codec: Codec
    ttl: Ttl | None

    def give_back(self) -> None: ...

    def drop(self) -> None: ...


class KeyedState:
    """All states of one operator's subtask, for one key at a time.

    Args:
        known: the states that the base was written with; declaring one of them as something that its values cannot be
            read as is refused, because its bytes would be taken for what they are not.
        time: of the batch.
        undoable: whether `mark` may be called.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        known: Iterable[StateSchema] = (),
        time: BatchTime | None = None,
        undoable: bool = False,
    ) -> None:
        self._entries = CurrentKey(backend, time or BatchTime(), undoable)
        self._marked_namespace = VOID_NAMESPACE
        self._known = {schema.name: schema for schema in known}
        self._states: dict[str, _State] = {}
        self._cells: list[Cell[Any]] = []

    def timers(self, owned: KeyGroupRange, index: TimerIndex) -> Timers:
        """The timers beside the states, for the same current key and namespace."""
        return Timers(self._entries, owned, index)

    @property
    def clock(self) -> EventClock:
        """The event time that times to live count by."""
        return self._entries.clock

    def value_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """The state that `descriptor` declares; the same object when it is asked for again.

        Raises StateError when the name is taken by a state of another kind or type, IncompatibleState when what is
        stored cannot be read as what is declared.
        """
        found: ValueState[T] = self._cell(ValueState(self._entries, descriptor, self._ttl(descriptor)))
        return found

    def list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """As `value_state`, for a list."""
        found: ListState[T] = self._register(ListState(self._entries, descriptor, self._ttl(descriptor)))
        return found

    def map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """As `value_state`, for a map."""
        found: MapState[K, V] = self._register(MapState(self._entries, descriptor, self._ttl(descriptor)))
        return found

    def reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """As `value_state`, for a value that others are reduced to."""
        found: ReducingState[T] = self._cell(ReducingState(self._entries, descriptor, self._ttl(descriptor)))
        return found

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor[In, Acc, Out]
    ) -> AggregatingState[In, Acc, Out]:
        """As `value_state`, for an accumulator."""
        wanted = AggregatingState(self._entries, descriptor, self._ttl(descriptor))
        found: AggregatingState[In, Acc, Out] = self._cell(wanted)
        return found

    def folding_state(self, descriptor: FoldingStateDescriptor[In, Acc]) -> AggregatingState[In, Acc, Acc]:
        """The aggregating state that `descriptor` stands for."""
        return self.aggregating_state(descriptor.aggregating)

    @property
    def schemas(self) -> list[StateSchema]:
        """What is declared, in order of names."""
        return [self._recorded(self._states[name]) for name in sorted(self._states)]

    @property
    def times_to_live(self) -> dict[str, StateTtlConfig]:
        """Those of the states that have one, by name."""
        return {name: state.ttl.config for name, state in self._states.items() if state.ttl is not None}

    @property
    def declarations(self) -> list[Declaration]:
        """The same as it was declared, apart from what is stored."""
        return [_declaration(self._states[name]) for name in sorted(self._states)]

    @property
    def current(self) -> tuple[bytes, bytes] | None:
        """Key group and key, while there is a current key."""
        return self._entries.address

    def switch(self, group: bytes, key: bytes) -> None:
        """Makes a key current, in the void namespace.

        Args:
            group: its key group, 2 bytes.
            key: the key as `encode_key` encodes it.
        """
        entries = self._entries
        if entries.address is not None:
            for state in self._states.values():
                state.give_back()
        entries.address = (group, key)
        entries.namespace = VOID_NAMESPACE

    def set_namespace(self, namespace: object) -> None:
        """Lets all states work in a namespace of the current key until the next `switch`. None is the void one; else
        anything that can be part of a key."""
        self._give_back()
        self._entries.namespace = encode_namespace(namespace)

    def leave(self) -> None:
        """Takes back what the current key's states hold; no key is current then."""
        if self._entries.address is not None:
            self._give_back()
            self._entries.address = None
            self._entries.namespace = VOID_NAMESPACE

    def mark(self) -> None:
        """What states are changed to from now on may be taken back, until `keep` or `take_back`."""
        changes = self._changes
        self._give_back()
        self._marked_namespace = self._entries.namespace
        changes.mark()

    def keep(self) -> None:
        """Encodes what was changed since `mark`, and keeps it. Raises StateError for what cannot be stored."""
        self._give_back()
        self._changes.keep()

    def take_back(self) -> None:
        """Lets all states be what they were at `mark`."""
        for state in self._states.values():
            state.drop()
        self._changes.take_back()
        self._entries.namespace = self._marked_namespace
        for cell in self._cells:
            # It may be what was written since the mark.
            cell.forget_prefetched()

    @property
    def _changes(self) -> Changes:
        assert self._entries.marked is not None
        return self._entries.marked

    def begin_stretch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads what value-like states have in the void namespace for many (group, key) pairs at once."""
        for cell in self._cells:
            cell.prefetch(keys)

    def many_keys(self, groups: Sequence[bytes], keys: Sequence[bytes]) -> ManyKeys:
        """The states of many different keys at once, in the void namespace, until the stretch ends; no key is current
        then. Arguments as for `switch`, one for each key."""
        self.leave()
        return ManyKeys(self._entries, groups, keys)

    def end_stretch(self) -> None:
        """Writes back what was changed since the last stretch."""
        self.leave()
        self._entries.write_through()
        for cell in self._cells:
            cell.forget_prefetched()

    def clean_up(self, groups: KeyGroupRange, limit: int) -> None:
        """Removes some of what has expired, between stretches.

        Args:
            groups: the key groups that the subtask owns.
            limit: as for `CleanUp.remove_some`, for each state whose declaration has no limit of its own.
        """
        cleaning = self._cleaning(groups)
        for name, state in self._states.items():
            ttl = state.ttl
            if ttl is not None and ttl.config.background_cleanup:
                cleaning.remove_some(state.id, ttl, ttl.config.cleanup_entries or limit)
            elif ttl is None and self._has_old_index(name):
                for expiry in expiry_ids(name):
                    cleaning.drop_index(expiry, limit)

    def remove_expired(self, groups: KeyGroupRange) -> None:
        """Removes all that has expired, between stretches: for a full snapshot, which reads everything anyway."""
        cleaning = self._cleaning(groups)
        for name, state in self._states.items():
            if state.ttl is not None:
                cleaning.remove_all(state.id, state.ttl)
            elif self._has_old_index(name):
                for expiry in expiry_ids(name):
                    cleaning.drop_all(expiry)

    def _has_old_index(self, name: str) -> bool:
        known = self._known.get(name)
        return known is not None and known.ttl_index

    def _cleaning(self, groups: KeyGroupRange) -> CleanUp:
        return CleanUp(self._entries.backend, groups, self._entries.time.epoch)

    def _give_back(self) -> None:
        for state in self._states.values():
            state.give_back()

    def _ttl(self, descriptor: StateDescriptor) -> Ttl | None:
        if descriptor.ttl is None or not descriptor.ttl.is_enabled:
            return None
        return Ttl(self._entries, descriptor.name, descriptor.ttl, self._known.get(descriptor.name))

    def _recorded(self, state: _State) -> StateSchema:
        """The schema as the manifest has it: with what the next batch must know of its time to live."""
        known, ttl = self._known.get(state.schema.name), state.ttl
        schema = replace(state.schema, **with_history(state.schema, known))
        if ttl is None:
            return replace(schema, ttl_index=known is not None and known.ttl_index)
        return replace(schema, ttl_time=ttl.characteristic, ttl_since=ttl.since, ttl_always=ttl.always, ttl_index=True,
                       ttl_other_index=ttl.has_other_index)  # fmt: skip

    def _cell(self, wanted: Cell[Any]) -> Any:
        found = self._register(wanted)
        if found is wanted:
            self._cells.append(wanted)
        return found

    def _register(self, wanted: _State) -> Any:
        schema = wanted.schema
        found = self._states.get(schema.name)
        if found is not None:
            if found.schema != schema or _config(found) != _config(wanted):
                raise StateError("a state name is used for two different states", hint="use another name",
                                 name=schema.name, first=_declared(found), second=_declared(wanted))  # fmt: skip
            return found
        check_state(self._known.get(schema.name), _declaration(wanted))
        check_ids(schema.name, self._known)
        self._refuse_shared(wanted)
        self._states[schema.name] = wanted
        return wanted

    def _refuse_shared(self, wanted: _State) -> None:
        schema, taken = wanted.schema, {wanted.id, *expiry_ids(wanted.schema.name)}
        if taken & set(TIMER_IDS.values()):
            raise StateError(
                "a state name has the same id as the timers", hint="rename the state", name=schema.name
            )
        for other in self._states.values():
            if taken & {other.id, *expiry_ids(other.schema.name)}:
                raise StateError("two state names have the same id", hint="rename one of them", first=schema.name,
                                 second=other.schema.name)  # fmt: skip
            if schema.queryable and schema.queryable == other.schema.queryable:
                raise StateError("two states have the same queryable name", hint="rename one of them",
                                 queryable=schema.queryable, first=other.schema.name, second=schema.name)  # fmt: skip


def check_ids(name: str, stored: Iterable[str], operator: str = "") -> None:
    """Raises IncompatibleState when a state's entries would lie among those of another stored state.

    The stored state need not be declared any more: its entries stay, and would be read as values of `name`.

    Args:
        stored: names of the states that the operator's checkpoint has.
        operator: its uid, for the error.
    """
    taken = {state_id(name), *expiry_ids(name)}
    for other in stored:
        if other != name and taken & {state_id(other), *expiry_ids(other)}:
            facts = {"operator": operator} if operator else {}
            raise IncompatibleState("a state has the same id as a stored state of another name", hint="rename the new "
                                    "state", name=name, stored=other, **facts)  # fmt: skip


def state_names(schemas: Iterable[StateSchema]) -> dict[bytes, StateSchema | None]:
    """What the state ids in stored keys stand for; None for expiry entries and timers."""
    names: dict[bytes, StateSchema | None] = dict.fromkeys(TIMER_IDS.values())
    names |= {expiry: None for schema in schemas for expiry in expiry_ids(schema.name)}
    return names | {state_id(schema.name): schema for schema in schemas}


def _declaration(state: _State) -> Declaration:
    return Declaration(state.schema, state.codec.custom)


def _config(state: _State) -> object:
    return state.ttl.config if state.ttl is not None else None


def _declared(state: _State) -> str:
    lives = f", lives {state.ttl.config.ttl}" if state.ttl is not None else ""
    named = f", queryable as {state.schema.queryable}" if state.schema.queryable else ""
    return f"{_describe(state.schema)}{lives}{named}"


def _describe(schema: StateSchema) -> str:
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"
