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


def requester(context: Context) -> str:
    """Returns the user who triggered the DAG run, or the DAG if its schedule did."""
    user = getattr(context.get("dag_run"), "triggering_user_name", None)
    return str(user) if user else f"airflow DAG {context['ti'].dag_id}"
