"""Compares the duration of a run with the schedule of its DAG."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pendulum
from croniter import croniter

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.types import DagRunProtocol

log = logging.getLogger("airflow.task")

_SCHEDULED = "scheduled"
"""Type of the DAG runs that a schedule has created."""


def interval_after(timetable: object, due: datetime) -> timedelta | None:
    """Returns the time between a scheduled DAG run and the next one.

    Returns None for a schedule without times in advance: none, ``@once``, ``@continuous``, assets, and timetables of
    other classes than those that Airflow makes of cron expressions and durations.

    Args:
        timetable: the DAG's.
        due: when the DAG run was due.
    """
    delta, expression = getattr(timetable, "delta", None), getattr(timetable, "expression", None)
    if delta is not None:
        following: datetime = due + delta
    elif isinstance(expression, str):
        zone = getattr(timetable, "timezone", None)
        begin = due.astimezone(pendulum.timezone(zone) if isinstance(zone, str) else zone)
        following = croniter(expression, begin).get_next(datetime)
    else:
        return None
    return following - due


def warn_if_longer(duration_s: float | None, dag: DAG | None, dag_run: DagRunProtocol) -> bool:
    """Logs a warning if a scheduled run took longer than until the next one was due; returns whether it did.

    DAG runs that users or assets have triggered, and those of backfills, are not compared.

    Args:
        duration_s: seconds that the program ran; None if an older version of stateflow ran it.
        dag: the DAG; None for a task outside of a DAG.
        dag_run: the DAG run.
    """
    if duration_s is None or dag is None or dag_run.run_type != _SCHEDULED:
        return False
    interval = interval_after(dag.timetable, dag_run.run_after)
    if interval is None or duration_s <= interval.total_seconds():
        return False
    log.warning(
        "the run took %s, longer than the schedule's interval of %s, so the next run starts late: "
        "schedule the DAG less often, give the job more resources, or keep it running with run.until",
        timedelta(seconds=round(duration_s)),
        interval,
    )
    return True
