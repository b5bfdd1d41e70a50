"""How a task identifies itself to stateflow: its user, and a request id that retries share."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def request_id(context: Context, *more: object) -> str:
    """Returns an id that is the same for every try of this task in this DAG run, and unique to the task."""
    ti = context["ti"]
    # Each part is prefixed with its length, so that different parts never give the same text.
    parts = [str(part) for part in (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, *more)]
    text = "/".join(f"{len(part)}:{part}" for part in parts)
    return f"airflow-{sha256(text.encode()).hexdigest()[:24]}"


def default_name(origin: str, context: Context, request: str) -> str:
    """Returns a savepoint's default name: its origin and the time of the DAG run; the same for every try."""
    run = context.get("dag_run")
    stamp = f"{run.run_after:%Y%m%dT%H%M%SZ}-" if run else ""
    return f"{origin}-{stamp}{request[-6:]}"


def triggering_user(context: Context) -> str:
    """Returns the user who triggered the DAG run, as Airflow has authenticated the user; empty without a user."""
    return str(getattr(context.get("dag_run"), "triggering_user_name", None) or "")


def requester(context: Context) -> str:
    """Returns the user who triggered the DAG run, or the DAG, as stored in the job's records.

    Nothing that the user enters can change it: neither the form nor the configuration of the DAG run.
    """
    from stateflow.requesters import airflow_dag

    user = triggering_user(context)
    return airflow_user(user) if user else airflow_dag(context["ti"].dag_id)


def requested_by(context: Context) -> str:
    """Returns the user who triggered the DAG run, or the DAG, for display."""
    return triggering_user(context) or f"DAG {context['ti'].dag_id}"


def airflow_user(name: str) -> str:
    """Returns a user whom Airflow has authenticated, as stored in the job's records."""
    from stateflow import requesters

    return requesters.airflow_user(name)
