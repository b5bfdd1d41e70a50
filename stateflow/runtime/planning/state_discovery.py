"""Discovers the states that a job declares before its first batch, by opening copies of its functions.

The job's own function objects are sent to tasks and must not have been opened.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from stateflow.api.functions.adapters import user_function
from stateflow.api.functions.checkpointed import CheckpointedFunction, FunctionInitializationContext
from stateflow.api.functions.process import KeyedFunction, RuntimeContext, TaskInfo
from stateflow.errors import StateError, StateflowError, UserCodeError
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.user_code import innermost
from stateflow.state.backends.memory import DictBackend
from stateflow.state.handles import OperatorContent
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.schema.compatibility import Declarations

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


def declared_states(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
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


def declared_states_if_known(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
    """Returns the declared states for the start of a run; none if a function cannot be opened outside of a task.

    The run starts nevertheless, because its tasks compare the states again.
    """
    try:
        return declared_states(plan, max_parallelism)
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
        given = FunctionInitializationContext(False, (operator, context), OperatorContent(), info)
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
            where=innermost(e),
        ) from e
