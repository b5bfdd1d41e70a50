"""The states that a job declares, found before any batch: by calling `open` of its functions with a recording context.

The object that is opened is a copy: the job's own goes to tasks as it is.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stateflow.api.checkpointed import CheckpointedFunction, FunctionInitializationContext
from stateflow.api.functions import KeyedFunction, RuntimeContext, TaskInfo
from stateflow.api.keyed_rows import hooks_of
from stateflow.errors import StateflowError, UserCodeError
from stateflow.runtime.dead_letters import innermost
from stateflow.runtime.plan import JobPlan
from stateflow.state.evolution import Declarations
from stateflow.state.handles import OperatorContent
from stateflow.state.keyed import KeyedState
from stateflow.state.memory import DictBackend
from stateflow.state.operator_state import OperatorStateStore

log = logging.getLogger(__name__)

_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Declared:
    """The states of one operator."""

    keyed: KeyedState
    operator: OperatorStateStore


def declared_states(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
    """What each keyed operator's `initialize_state` and `open` declare, by uid.

    Raises UserCodeError when an `open` raises, or its function cannot be copied; StateError or JobDefinitionError for
    declarations that cannot be.
    """
    found = {}
    for unit in plan.units:
        if unit.operator is not None:
            info = TaskInfo(unit.uid, 0, plan.parallelism, max_parallelism, _NO_TIME)
            found[unit.uid] = _opened(unit.operator.function, info)
    return found


def declared_if_known(plan: JobPlan, max_parallelism: int) -> dict[str, Declarations]:
    """The same for a start, which goes on without when an `open` needs what only tasks have: they check again."""
    try:
        return declared_states(plan, max_parallelism)
    except UserCodeError as e:
        log.warning("declared states are not compared with stored ones before the start: %s", e)
        return {}


def source_columns(plan: JobPlan) -> dict[str, dict[str, str]]:
    """The columns that the job declares of each source, with their Spark types."""
    return {
        source.uid: {column.name: column.spark_type for column in source.schema.columns}
        for source in plan.sources
    }


def declare(function: KeyedFunction[Any], info: TaskInfo, keyed: KeyedState | None = None) -> Declared:
    """What a function declares when it begins: a copy of it is opened, as a task does, and closed.

    Args:
        keyed: where keyed states are declared; by default on nothing stored.

    Raises whatever the function raises.
    """
    keyed, operator = keyed or KeyedState(DictBackend()), OperatorStateStore()
    own, context = copy.deepcopy(function), RuntimeContext(keyed, info)
    hooks = hooks_of(own)
    if isinstance(hooks, CheckpointedFunction):
        given = FunctionInitializationContext(False, (operator, context), OperatorContent(), info)
        hooks.initialize_state(given)
    own.open(context)
    own.close()
    return Declared(keyed, operator)


def _opened(function: KeyedFunction[Any], info: TaskInfo) -> Declarations:
    try:
        declared = declare(function, info)
        return Declarations(declared.keyed.declarations, declared.operator.declarations)
    except StateflowError as e:
        e.add_facts(operator=info.uid)
        raise
    except Exception as e:
        raise UserCodeError(f"open of an operator raised {type(e).__name__}: {e}", hint="it is called once, to learn "
                            "what states it declares", operator=info.uid, where=innermost(e)) from e  # fmt: skip
