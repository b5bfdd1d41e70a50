"""Finds the states that a job declares, by calling `open` of its functions without data.

`discover_states` returns their schemas, for a start; `discover_operators` their descriptors, with which state can be
written without a run.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from stateflow.api.functions.adapters import user_function
from stateflow.api.functions.checkpointed import CheckpointedFunction, FunctionInitializationContext
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction
from stateflow.api.functions.process import KeyedFunction, RuntimeContext, TaskInfo
from stateflow.errors import StateError, StateflowError, UserCodeError
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.user_code import find_user_line
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.operator_state import BroadcastState, OperatorListState, OperatorStateStore
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.state.schema_compatibility import Declarations
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

log = logging.getLogger(__name__)


NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The processing time of a function that is opened to discover its states."""


@dataclass(frozen=True)
class DiscoveredStates:
    """The states that one operator declares.

    Attributes:
        keyed: the keyed state.
        operator: the operator state.
        function: the copy of the user's function that declared them, with the attributes that `open` has set.
    """

    keyed: KeyedState
    operator: OperatorStateStore
    function: object


def discover_state_schemas(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
    """Returns the states that each keyed operator declares in `initialize_state` and `open`, by uid.

    Raises:
        UserCodeError: a function cannot be copied, or one of these methods raised.
        StateError: two declarations contradict each other.
        JobDefinitionError: a declaration is invalid.
    """
    found = {}
    for chain in plan.chains:
        if chain.operator is not None:
            info = TaskInfo(chain.uid, 0, plan.parallelism, max_parallelism, NO_TIME)
            found[chain.uid] = _discover_declarations(chain.operator.function, info)
    _check_queryable_names(found)
    return found


def _check_queryable_names(declared: dict[str, Declarations]) -> None:
    """Raises StateError if states of two operators have the same queryable name; clients know nothing else of them."""
    taken: dict[str, str] = {}
    for uid, declarations in declared.items():
        for state in declarations.keyed:
            name, place = state.schema.queryable, f"{uid}.{state.schema.name}"
            if name and taken.setdefault(name, place) != place:
                raise StateError(
                    "states of two operators have the same queryable name",
                    hint="rename one of them",
                    queryable=name,
                    first=taken[name],
                    second=place,
                )


def discover_states_if_possible(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
    """Returns the declared states for the start of a run; none if a function cannot be opened outside of a task.

    The run starts nevertheless, because its tasks compare the states again.
    """
    try:
        return discover_state_schemas(plan, max_parallelism)
    except UserCodeError as e:
        log.warning("cannot compare declared states with stored states before the start: %s", e)
        return {}


def source_columns(plan: JobPlan) -> dict[str, dict[str, str]]:
    """Returns the declared columns of each source with their Spark types, by uid of the source."""
    return {node.uid: {column.name: column.dtype for column in node.source.schema.columns} for node in plan.sources}


def discover_states(
    function: KeyedFunction[object],
    info: TaskInfo,
    keyed: KeyedState | None = None,
    operator: OperatorStateStore | None = None,
) -> DiscoveredStates:
    """Opens a copy of a function as a task does, closes it, and returns the states that it declared.

    Args:
        function: the function.
        info: number and parallelism of the task.
        keyed: the keyed state to declare states in; by default an empty one.
        operator: the operator state to declare states in; by default an empty one.

    Raises:
        Exception: what the function raises.
    """
    keyed, operator = keyed or KeyedState(DictBackend()), operator or OperatorStateStore()
    own, context = copy.deepcopy(function), RuntimeContext(keyed, info)
    hooks = user_function(own)
    if isinstance(hooks, CheckpointedFunction):
        given = FunctionInitializationContext(False, info, operator=operator, keyed=context, raw=OperatorContent())
        hooks.initialize_state(given)
    own.open(context)
    own.close()
    return DiscoveredStates(keyed, operator, hooks)


def _discover_declarations(function: KeyedFunction[object], info: TaskInfo) -> Declarations:
    with user_errors(info.uid):
        declared = discover_states(function, info)
        return Declarations(declared.keyed.registry.declarations, declared.operator.declarations)


@contextmanager
def user_errors(uid: str) -> Iterator[None]:
    """Adds the uid of an operator to errors of its body, which calls `open`; raises other exceptions as UserCodeError.

    Args:
        uid: uid of the operator.
    """
    try:
        yield
    except StateflowError as e:
        e.add_facts(operator=uid)
        raise
    except Exception as e:
        raise UserCodeError(
            f"open of an operator raised {type(e).__name__}: {e}",
            hint="a start calls open on a copy of the function to discover its states; fix the function",
            operator=uid,
            where=find_user_line(e),
        ) from e


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")
AnyList = ListStateDescriptor[Any]
AnyMap = MapStateDescriptor[Any, Any]
_BroadcastFunction = KeyedBroadcastProcessFunction[Any, Any, Any]


@dataclass(frozen=True)
class DeclaredOperator:
    """The declarations of a keyed operator before its first row.

    Attributes:
        uid: uid of the operator.
        key: Spark's names of the types of its key columns, by name.
        keyed: the keyed states, by name.
        lists: the lists of operator state whose elements are split, by name.
        unions: the union lists, by name.
        broadcasts: the broadcast states, by name. Functions request them first while a row is processed: so these
            are the maps that could be one, and that are attributes of the function, also if `open` sets them, or names
            of its module.
        keyed_schemas: schemas of the keyed states.
        operator_schemas: schemas of the operator states.
    """

    uid: str
    key: Mapping[str, str]
    keyed: Mapping[str, StateDescriptor]
    lists: Mapping[str, AnyList]
    unions: Mapping[str, AnyList]
    broadcasts: Mapping[str, AnyMap]
    keyed_schemas: tuple[StateSchema, ...]
    operator_schemas: tuple[StateSchema, ...]


def discover_operators(plan: JobPlan, max_parallelism: int) -> dict[str, DeclaredOperator]:
    """Returns what each keyed operator declares in `initialize_state` and `open`, by uid.

    Raises:
        UserCodeError: a function cannot be copied, or one of these methods raised.
        StateError: two declarations contradict each other.
        JobDefinitionError: a declaration is invalid.
    """
    found = {}
    for chain in plan.chains:
        if chain.operator is None:
            continue
        info = TaskInfo(chain.uid, 0, plan.parallelism, max_parallelism, NO_TIME)
        keyed, operator = _KeyedDescriptors(), _OperatorDescriptors()
        with user_errors(chain.uid):
            opened = discover_states(chain.operator.function, info, keyed, operator).function
            for descriptor in _later_broadcasts(opened, keyed.found, operator):
                operator.get_broadcast_state(descriptor)
        found[chain.uid] = DeclaredOperator(
            uid=chain.uid,
            key=plan.key_columns[chain.uid],
            keyed=keyed.found,
            lists=operator.lists,
            unions=operator.unions,
            broadcasts=operator.broadcasts,
            keyed_schemas=tuple(keyed.registry.schemas),
            operator_schemas=tuple(operator.schemas),
        )
    return found


def _later_broadcasts(
    function: object, keyed: Mapping[str, StateDescriptor], operator: _OperatorDescriptors
) -> list[AnyMap]:
    """Returns descriptors of broadcast states that a function does not request before its first row.

    Args:
        function: a copy of the user's function that was opened.
        keyed: its keyed states, by name.
        operator: the operator states that it has requested.
    """
    if not isinstance(function, KeyedBroadcastProcessFunction):
        return []
    found: dict[str, list[AnyMap]] = {}
    for each in _values_in_reach(function):
        if isinstance(each, MapStateDescriptor) and not (each.ttl or each.queryable or each.serializer):
            of_name = found.setdefault(each.name, [])
            if each not in of_name:
                of_name.append(each)
    requested = {schema.name for schema in operator.schemas}
    known = [descriptor for descriptor in keyed.values() if isinstance(descriptor, MapStateDescriptor)]
    # Of several with one name, it is not known which one the function means.
    single = [each[0] for name, each in sorted(found.items()) if len(each) == 1 and name not in requested]
    return [each for each in single if each not in known]


def _values_in_reach(function: _BroadcastFunction) -> Iterator[object]:
    """Yields the attributes of a function, of its classes, and what its module has names for."""
    yield from getattr(function, "__dict__", {}).values()
    for cls in type(function).__mro__:
        yield from vars(cls).values()
    names = getattr(type(function).process_broadcast_element, "__globals__", {})
    yield from list(names.values())


class _KeyedDescriptors(KeyedState):
    """Keyed state that keeps the descriptors of its states.

    Attributes:
        found: the descriptors, by name.
    """

    def __init__(self) -> None:
        super().__init__(DictBackend())
        self.found: dict[str, StateDescriptor] = {}

    def value_state(self, descriptor: ValueStateDescriptor[T], per_key: bool = False) -> ValueState[T]:
        self.found[descriptor.name] = descriptor
        return super().value_state(descriptor, per_key)

    def list_state(self, descriptor: ListStateDescriptor[T], per_key: bool = False) -> ListState[T]:
        self.found[descriptor.name] = descriptor
        return super().list_state(descriptor, per_key)

    def map_state(self, descriptor: MapStateDescriptor[K, V], per_key: bool = False) -> MapState[K, V]:
        self.found[descriptor.name] = descriptor
        return super().map_state(descriptor, per_key)

    def reducing_state(self, descriptor: ReducingStateDescriptor[T], per_key: bool = False) -> ReducingState[T]:
        self.found[descriptor.name] = descriptor
        return super().reducing_state(descriptor, per_key)

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor[In, Acc, Out], per_key: bool = False
    ) -> AggregatingState[In, Acc, Out]:
        # A folding state is declared as one.
        self.found[descriptor.name] = descriptor
        return super().aggregating_state(descriptor, per_key)


class _OperatorDescriptors(OperatorStateStore):
    """Operator state that keeps the descriptors of its states.

    Attributes:
        lists, unions, broadcasts: the descriptors, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, AnyList] = {}
        self.unions: dict[str, AnyList] = {}
        self.broadcasts: dict[str, AnyMap] = {}

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        self.lists[descriptor.name] = descriptor
        return super().get_list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        self.unions[descriptor.name] = descriptor
        return super().get_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        self.broadcasts[descriptor.name] = descriptor
        return super().get_broadcast_state(descriptor)
