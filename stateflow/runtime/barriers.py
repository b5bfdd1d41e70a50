"""One batch up to its barrier: what every driver does, whether it has a job root or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from stateflow.checkpoint.barrier import Acknowledgement, PendingBarrier
from stateflow.checkpoint.documents import OperatorState
from stateflow.checkpoint.reports import TaskReport
from stateflow.errors import BatchFailed
from stateflow.runtime.dead_letters import check_budgets
from stateflow.runtime.executors import BatchWork, Executor
from stateflow.state.memory import check_limit


def run_to_barrier(executor: Executor, rows: Any, work: BatchWork) -> PendingBarrier:
    """Runs the tasks of a batch and collects what they report.

    Raises the failure of a task; BatchFailed when the reports are not whole; UserCodeError when too many rows failed.
    """
    pending = PendingBarrier(work.info.generation, work.info.ordinal, work.plan.participants())
    for report in executor.execute(rows, work):
        _acknowledge(pending, report)
    pending.check()
    check_budgets(work.plan, pending.reports.values())
    return pending


def operators_behind(
    pending: PendingBarrier, base: Mapping[str, OperatorState], watermarks: Mapping[str, int | None], limit: int
) -> list[OperatorState]:  # fmt: skip
    """The state of every operator behind a batch, for the manifest.

    Args:
        base: the state before it.
        watermarks: of the batch, by operator.
        limit: bytes that the memory backend may hold.

    Raises ConfigError when it holds more.
    """
    operators = [replace(o, watermark=watermarks.get(o.uid)) for o in pending.operators(base.values())]
    check_limit({o.uid: o.subtasks for o in operators}, limit)
    return operators


def _acknowledge(pending: PendingBarrier, report: TaskReport) -> None:
    verdict = pending.acknowledge(report)
    if verdict not in (Acknowledgement.ACCEPTED, Acknowledgement.DUPLICATE):
        raise BatchFailed("a task's report does not belong to this barrier", why=verdict.value, uid=report.uid,
                          subtask=report.subtask, attempt=report.attempt)  # fmt: skip
