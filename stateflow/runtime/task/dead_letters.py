"""Counting dead letters against their budget: in a task, and over all tasks of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from stateflow.api.dead_letters import DeadLetter, DeadLetters
from stateflow.api.returned import WrongReturn
from stateflow.checkpoint.reports import Failure, TaskReport
from stateflow.errors import StateError, StateflowError, UserCodeError
from stateflow.runtime.plan import JobPlan

_HINT = "nothing of this batch was committed; mend the function or its input, or raise the budget"


def innermost(error: BaseException) -> str:
    """File and line where an error was raised; of a function that returned the wrong thing, its own."""
    if isinstance(error, WrongReturn):
        return error.where
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


def is_the_rows_fault(error: Exception) -> bool:
    """Whether a function's error is its own, or of a value that it gave to state; nothing that the system met."""
    return not isinstance(error, StateflowError) or isinstance(error, StateError | UserCodeError)


class LetterBox:
    """The dead letters of one function in one task.

    Args:
        operator: as the letters name it.
        batch: number of the batch.
    """

    def __init__(self, policy: DeadLetters, operator: str, batch: int) -> None:
        self._budget = policy.budget
        self._operator = operator
        self._batch = batch
        self.count = 0
        self.last: Failure | None = None

    def take(self, key: Mapping[str, Any] | None, row: Any, error: Exception) -> DeadLetter:
        """The letter for a row that the function raised for. Raises UserCodeError beyond the budget."""
        self.count += 1
        what = str(error) if isinstance(error, WrongReturn) else f"{type(error).__name__}: {error}"
        letter = DeadLetter(
            self._operator, _json(key) if key else "", _json(row), what, innermost(error), self._batch
        )
        known = {"error": what, "where": letter.where, "key": repr(key), "row": repr(row)[:500]}
        self.last = Failure(kind="UserCodeError", message=what, hint="", facts=known)
        if self.count > self._budget:
            refuse(self._operator, self.count, self._budget, self.last)
        return letter


def check_budgets(plan: JobPlan, reports: Iterable[TaskReport]) -> None:
    """Raises UserCodeError when the tasks of an operator together had more dead letters than its budget."""
    found: dict[str, list[TaskReport]] = defaultdict(list)
    for report in reports:
        if report.dead_letters:
            found[report.uid].append(report)
    for unit in plan.units:
        policy = unit.operator.on_error if unit.operator else None
        count = sum(report.dead_letters for report in found[unit.uid])
        if policy is not None and count > policy.budget:
            refuse(unit.uid, count, policy.budget, found[unit.uid][-1].last_dead_letter)


def refuse(operator: str, count: int, budget: int, last: Failure | None) -> NoReturn:
    """Raises UserCodeError for too many dead letters, with the facts of one of them."""
    raise UserCodeError("more rows failed in a batch than the budget of dead letters allows", hint=_HINT,
                        operator=operator, failed=count, budget=budget,
                        **(last.facts if last else {}))  # fmt: skip


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return repr(value)
