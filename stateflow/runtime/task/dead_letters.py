"""Dead letters and their budget, for one task and for all tasks of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from stateflow.api.dead_letters import LONGEST_KEY, LONGEST_ROW, DeadLetter, DeadLetters
from stateflow.api.functions.returned import InvalidReturnValue
from stateflow.api.schema import UndecodableRecord
from stateflow.checkpoint.barriers import Failure, TaskReport
from stateflow.errors import LONGEST_TEXT, UserCodeError, cut
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.user_code import describe_value, find_user_line

_HINT = "nothing of this batch was committed; fix the function or its input, or raise the budget"


class DeadLetterCollector:
    """Creates the dead letters of one function in one task, up to its budget.

    Args:
        operator: the operator that the letters name.
        batch: number of the batch.

    Attributes:
        count: number of letters.
        last: the error of the last one; None without letters.
    """

    def __init__(self, policy: DeadLetters, operator: str, batch: int) -> None:
        self._budget = policy.budget
        self._operator = operator
        self._batch = batch
        self.count = 0
        self.last: Failure | None = None

    def collect(self, key: Mapping[str, object] | None, row: object, error: Exception) -> DeadLetter:
        """Returns the dead letter of a row that the function raised for.

        Args:
            key: values of the key columns by name; None for a row without a key.

        Raises:
            UserCodeError: the budget is exceeded.
        """
        self.count += 1
        is_known = isinstance(error, InvalidReturnValue | UndecodableRecord)
        what = str(error) if is_known else f"{type(error).__name__}: {error}"
        where = "" if isinstance(error, UndecodableRecord) else find_user_line(error)
        texts = cut(_json(key), LONGEST_KEY) if key else "", cut(_json(row), LONGEST_ROW), cut(what, LONGEST_TEXT)
        letter = DeadLetter(self._operator, *texts, where, self._batch)
        known = {"error": letter.error, "where": letter.where, "key": describe_value(key), "row": describe_value(row)}
        self.last = Failure(kind="UserCodeError", message=letter.error, hint="", facts=known)
        if self.count > self._budget:
            _raise_budget_exceeded(self._operator, self.count, self._budget, self.last)
        return letter


def check_budgets(plan: JobPlan, reports: Iterable[TaskReport]) -> None:
    """Raises UserCodeError if the tasks of an operator together produced more dead letters than its budget."""
    found: dict[str, list[TaskReport]] = defaultdict(list)
    for report in reports:
        if report.dead_letters:
            found[report.uid].append(report)
    for chain in plan.chains:
        policy = chain.operator.on_error if chain.operator else None
        count = sum(report.dead_letters for report in found[chain.uid])
        if policy is not None and count > policy.budget:
            _raise_budget_exceeded(chain.uid, count, policy.budget, found[chain.uid][-1].last_dead_letter)


def _raise_budget_exceeded(operator: str, count: int, budget: int, last: Failure | None) -> NoReturn:
    """Raises UserCodeError for too many dead letters, with the facts of the last one."""
    raise UserCodeError(
        "more rows failed in a batch than the budget of dead letters allows",
        hint=_HINT,
        operator=operator,
        failed=count,
        budget=budget,
        **(last.facts if last else {}),
    )


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return repr(value)
