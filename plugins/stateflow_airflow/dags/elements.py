"""Elements that the DAGs of a job share: DAG options, the run task, conditions and params."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from airflow.sdk import DAG, Context, Param
from airflow.sdk.exceptions import AirflowSkipException

from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.template_values import as_list


class Retries(TypedDict):
    """The retry arguments of a task."""

    retries: int
    retry_delay: timedelta


class CreatedUnpaused(TypedDict):
    """The argument that creates a DAG unpaused."""

    is_paused_upon_creation: bool


RETRIES: Retries = {"retries": 2, "retry_delay": timedelta(seconds=10)}
CREATED_UNPAUSED: CreatedUnpaused = {"is_paused_upon_creation": False}
"""For a DAG without a schedule: a DAG run that is triggered while the DAG is paused stays queued."""


def new_dag(job: StateflowJob, suffix: str, doc: str, **arguments: Any) -> DAG:
    """Returns a DAG of the job, which runs once at a time.

    It has no catch-up: a run continues from the newest checkpoint, whatever its logical date.
    """
    return DAG(
        dag_id=f"{job.name}{suffix}",
        catchup=False,
        max_active_runs=1,
        doc_md=doc,
        tags=["stateflow", job.name],
        **arguments,
    )


def run_task(job: StateflowJob, application: str, **arguments: Any) -> StateflowRunOperator:
    """Returns the task that runs the job.

    Args:
        job: the job.
        application: absolute path of the job file.
        arguments: further arguments of the operator; `settings` replaces those of the job's runs.
    """
    given = {**RETRIES, **job.run}
    settings = arguments.pop("settings", job.run_settings)
    outlets = [job.checkpoint, *given.pop("outlets", ())]
    return StateflowRunOperator(
        task_id="run",
        job=application,
        job_root=job.root,
        settings=settings,
        locations=job.locations,
        spark=job.spark,
        pool=job.pool,
        outlets=outlets,
        **given,
        **arguments,
    )


class Approval(TypedDict):
    """The arguments of a task that asks for approval."""

    job_root: str
    locations: str | Sequence[str]
    self_approval: bool
    response_timeout: timedelta
    params: dict[str, Param]
    assigned_users: list[Any] | None
    retries: int
    retry_delay: timedelta


def approval(job: StateflowJob) -> Approval:
    """Returns the arguments of a task that asks for approval of what is to be done to the job."""
    return {
        "job_root": job.root,
        "locations": job.locations,
        "self_approval": job.self_approval,
        "response_timeout": timedelta(days=1),
        "params": {"note": optional_text("Note", "Stored in the job's log.")},
        "assigned_users": [{"id": user, "name": user} for user in as_list(job.approvers)] or None,
        **RETRIES,
    }


def claim_mode() -> Param:
    """Returns the param that decides who owns a savepoint after a restore or the start of a new job root."""
    return Param(
        "no-claim",
        type="string",
        enum=["no-claim", "claim"],
        values_display={
            "no-claim": "leave the savepoint as it is",
            "claim": "the job owns the savepoint, and deletes it later",
        },
        title="Claim mode",
        description="A claimed savepoint is deleted once its state is no longer one of the retained checkpoints.",
    )


_VISIBLE = (
    r"[^\s\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u180e"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff]"
)
"""A character that a reader sees, for Python and browsers."""


def optional_text(title: str, description: str) -> Param:
    """Returns a param for an optional text. Without the type ``null``, Airflow's form requires a value."""
    return Param(None, type=["null", "string"], title=title, description=description)


def required_text(title: str, description: str, **more: str) -> Param:
    """Returns a param for a text with visible characters; `more` are further parts of its JSON schema."""
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "pattern": _VISIBLE, **more}
    return Param(title=title, description=description, **schema)


def skip_unless(param: str, wanted: bool) -> Callable[[Context], None]:
    """Returns a `pre_execute` hook that skips the task unless the DAG run's param equals `wanted`."""

    def check(context: Context) -> None:
        if bool(context["params"][param]) is not wanted:
            raise AirflowSkipException(f"{param} is {context['params'][param]}")

    return check
