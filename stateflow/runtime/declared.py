"""The states that a job declares, found before any batch: by calling `open` of its functions with a recording context.

The object that is opened is a copy: the job's own goes to tasks as it is.
"""

from __future__ import annotations

import copy
import logging
from datetime import UTC, datetime

from stateflow.api.functions import RuntimeContext, TaskInfo
from stateflow.errors import StateflowError, UserCodeError
from stateflow.runtime.dead_letters import innermost
from stateflow.runtime.plan import JobPlan
from stateflow.state.evolution import Declaration
from stateflow.state.keyed import KeyedState
from stateflow.state.memory import DictBackend

log = logging.getLogger(__name__)

_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def declared_states(plan: JobPlan, max_parallelism: int) -> dict[str, list[Declaration]]:
    """What each keyed operator's `open` declares, by uid.

    Raises UserCodeError when an `open` raises, or its function cannot be copied; StateError or JobDefinitionError for
    declarations that cannot be.
    """
    found = {}
    for unit in plan.units:
        if unit.operator is not None:
            info = TaskInfo(unit.uid, 0, plan.parallelism, max_parallelism, _NO_TIME)
            found[unit.uid] = _opened(unit.operator.function, info)
    return found


def declared_if_known(plan: JobPlan, max_parallelism: int) -> dict[str, list[Declaration]]:
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


def _opened(function: object, info: TaskInfo) -> list[Declaration]:
    state = KeyedState(DictBackend())
    try:
        own = copy.deepcopy(function)
        try:
            own.open(RuntimeContext(state, info))  # type: ignore[attr-defined]
        finally:
            own.close()  # type: ignore[attr-defined]
    except StateflowError:
        raise
    except Exception as e:
        raise UserCodeError(f"open of an operator raised {type(e).__name__}: {e}", hint="it is called once, to learn "
                            "what states it declares", operator=info.uid, where=innermost(e)) from e  # fmt: skip
    return state.declarations
