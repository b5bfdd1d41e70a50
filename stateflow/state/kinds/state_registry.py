"""The declared states of one subtask, and the declarations in their checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from stateflow.errors import IncompatibleState, StateError
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import state_id
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.state.kinds.ttl import Ttl, expiry_ids
from stateflow.state.schema import declaration_text
from stateflow.state.schema_compatibility import Declaration, check_state, with_history
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
