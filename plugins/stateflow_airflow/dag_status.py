"""The status of another DAG: whether it is paused, and its active runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from stateflow_airflow.failures import PermanentFailure

if TYPE_CHECKING:
    from airflow.sdk import Context


class DagStatus(TypedDict):
    """Whether a DAG is paused, and the number of its running and queued runs."""

    paused: bool
    active_runs: int


def dag_status(context: Context, dag_id: str) -> DagStatus:
    """Returns the status of a DAG, as Airflow's API server reports it to a task."""
    ti = context["ti"]
    return {
        "paused": ti.get_dag(dag_id).is_paused,
        "active_runs": ti.get_dr_count(dag_id, states=["running", "queued"]),
    }


def require_paused(context: Context, dag_id: str) -> None:
    """Raises PermanentFailure unless the DAG is paused; checks nothing for an empty id."""
    if dag_id and not dag_status(context, dag_id)["paused"]:
        raise PermanentFailure(
            "dag-not-paused",
            f"the DAG {dag_id!r} is not paused and would start the job again at once",
            f"pause {dag_id}, then clear this task; unpause it to start the job",
            {"dag": dag_id},
        )
