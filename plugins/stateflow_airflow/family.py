"""The DAGs that a job needs, made by one call: it runs, savepoints are taken and looked after, and it goes back.

In a DAG file::

    stateflow_dags(
        job=StateflowJob(name="flights", root="/data/jobs/flights"),
        application="/opt/jobs/flights.py",
        schedule="@hourly",
        savepoints="@daily",
        retention=Retention(savepoints=7),
    )

makes ``flights``, ``flights_savepoint``, ``flights_retention`` and ``flights_recovery``. They need no pool: when a run
and a restore meet, the later one fences the earlier. To let them wait for each other instead, make a pool with one
slot and name it: ``StateflowJob(pool="flights")``.

A new Airflow pauses a new DAG. Unpause ``flights`` and ``flights_retention`` once; the other two have no schedule, and
are created unpaused, so that a trigger starts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, Context, Param, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from stateflow_airflow.failures import misconfigured
from stateflow_airflow.operators.approval import StateflowApprovalOperator
from stateflow_airflow.operators.recovery import (
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from stateflow_airflow.points import suggested_targets
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.task_requests import as_text

_AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10)}
# Of a DAG without a schedule: a trigger of a paused DAG stays queued.
_UNPAUSED: dict[str, Any] = {"is_paused_upon_creation": False}


@dataclass(frozen=True, kw_only=True)
class StateflowJob:
    """A job as Airflow has to know it.

    Args:
        name: of the job; the DAGs and the assets are named after it.
        root: its job root.
        settings: as in `StateflowRunOperator`.
        spark: as in `StateflowRunOperator`.
        pool: of the tasks that run or restore the job. A pool of your own has to exist: Airflow leaves a task without
            one in the state "scheduled" and reports that in the scheduler's log only.
        run: further arguments of the tasks that run the job, such as ``retries``.
        params: further params of the run DAG and of the recovery DAG, for templates in `settings` and `spark`. A text
            that may stay empty needs the type ``["null", "string"]``: Airflow's form requires every other one, and
            cannot be sent without it.
        run_params: as `params`, of the run DAG only. A template has to do without them as well:
            ``{{ params.get('failpoint') or '' }}``.
        suggest_targets: whether the recovery form suggests what can be gone back to. A job root in a file system is
            looked at for that each time Airflow parses the DAG file; one in another storage never is.
        approvers: ids of the users who may approve a restore; everyone who may answer, when empty.
        description: of the run DAG, in Markdown.
    """

    name: str
    root: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    spark: SparkSubmit = field(default_factory=SparkSubmit)
    pool: str = "default_pool"
    run: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Param] = field(default_factory=dict)
    run_params: Mapping[str, Param] = field(default_factory=dict)
    suggest_targets: bool = True
    approvers: Sequence[str] = ()
    description: str = ""

    @property
    def checkpoint(self) -> Asset:
        """Gets an event from every run, with the id and the offsets of its last checkpoint."""
        return Asset(name=f"{self.name}.checkpoint", uri=f"stateflow://{self.name}/checkpoint")

    @property
    def savepoint(self) -> Asset:
        """Gets an event from every savepoint, with its id and path."""
        return Asset(name=f"{self.name}.savepoint", uri=f"stateflow://{self.name}/savepoint")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is kept.

    Args:
        checkpoints: this many of the newest; None for what the job's own setting says.
        savepoints: this many of the newest periodic ones; None for all.
        max_age: periodic savepoints that are not older; None for any age.
    """

    checkpoints: int | None = None
    savepoints: int | None = 7
    max_age: timedelta | None = None


def stateflow_dags(
    job: StateflowJob,
    application: str,
    schedule: Any = None,
    savepoints: Any = "@daily",
    retention: Retention | None = None,
) -> list[DAG]:
    """Makes the family of DAGs of a job; Airflow finds them in the file that calls this.

    Args:
        application: absolute path of the job file.
        schedule: of runs; None for by hand.
        savepoints: schedule of periodic savepoints, and of the retention after each; None for by hand.
        retention: seven periodic savepoints, unless said otherwise.
    """
    return [
        _run_dag(job, application, schedule),
        _savepoint_dag(job, application),
        _retention_dag(job, application, savepoints, retention or Retention()),
        _recovery_dag(job, application),
    ]


def _dag(job: StateflowJob, suffix: str, doc: str, **arguments: Any) -> DAG:
    # One at a time; and what was missed is not made up for, since a run goes on from the head whatever its date.
    return DAG(
        dag_id=f"{job.name}{suffix}",
        catchup=False,
        max_active_runs=1,
        doc_md=doc,
        tags=["stateflow", job.name],
        **arguments,
    )


def _run_dag(job: StateflowJob, application: str, schedule: Any) -> DAG:
    doc = (
        job.description
        or f"Runs {job.name} until it has caught up. A run goes on from the newest checkpoint."
    )
    params = {"drain": DRAIN, **job.params, **job.run_params}
    otherwise = as_text(job.settings.get("run.drain", False))
    drain = f"{{{{ 'true' if params.get('drain') is true else '{otherwise}' }}}}"
    with _dag(job, "", doc, schedule=schedule, params=params) as dag:
        _run(job, application, settings={**job.settings, "run.drain": drain})
    return dag


DRAIN = Param(
    False,
    type="boolean",
    title="Last run: drain",
    description="Fires every event-time timer at the end of the run. Only for the last run: on a schedule it would end"
    " every open session at the end of each run.",
)


def _run(job: StateflowJob, application: str, **arguments: Any) -> StateflowRunOperator:
    given = {**_AGAIN, **job.run}
    settings = arguments.pop("settings", job.settings)
    outlets = [job.checkpoint, *given.pop("outlets", ())]
    return StateflowRunOperator(
        task_id="run",
        job=application,
        job_root=job.root,
        settings=settings,
        spark=job.spark,
        pool=job.pool,
        outlets=outlets,
        **given,
        **arguments,
    )


SAVEPOINT_DOC = """
Takes a savepoint of {name}: at the next barrier while a run works, from the newest checkpoint otherwise. It is kept
until a user deletes it. With *Stop the run with it*, the run ends with exactly that checkpoint.

With *Drain* as well, every event-time timer fires before the savepoint; without a run, the task runs the job for that
alone and reads no input. Only for the last run: every open session ends.
"""


def _savepoint_dag(job: StateflowJob, application: str) -> DAG:
    params = {
        "name": optional_text(
            "Name",
            "Letters, digits, dot, underscore and hyphen. Without a name: its origin and the time.",
        ),
        "reason": optional_text("Reason", "Kept with the savepoint."),
        "origin": Param("manual", type="string", enum=["manual", "upgrade"], title="Origin"),
        "stop": Param(False, type="boolean", title="Stop the run with it"),
        "drain": Param(
            False,
            type="boolean",
            title="Drain",
            description="With *Stop the run with it*: fires every event-time timer before the savepoint. Only for the"
            " last run: every open session ends.",
        ),
    }
    given: dict[str, Any] = {
        "job_root": job.root,
        "job": application,
        "settings": job.settings,
        "name": "{{ params.name or '' }}",
        "reason": "{{ params.reason or '' }}",
        "outlets": [job.savepoint],
        **_AGAIN,
    }
    doc = SAVEPOINT_DOC.format(name=job.name)
    with _dag(job, "_savepoint", doc, schedule=None, params=params, **_UNPAUSED) as dag:
        StateflowSavepointOperator(
            task_id="savepoint", origin="{{ params.origin }}", pre_execute=_not_stopping, **given
        )
        StateflowStopOperator(
            task_id="stop",
            origin="{{ params.origin }}",
            drain="{{ params.drain }}",
            spark=job.spark,
            pre_execute=_only_if("stop", True),
            **given,
        )
    return dag


RETENTION_DOC = """
Takes a periodic savepoint of {name}, then deletes periodic savepoints that are too many or too old, and what no
checkpoint needs any more. It may work during a run. With *preview* it takes none, and only says what would go.
"""


def _retention_dag(job: StateflowJob, application: str, schedule: Any, retention: Retention) -> DAG:
    params = {
        "retain": Param(
            retention.checkpoints,
            type=["null", "integer"],
            minimum=1,
            title="Checkpoints to keep",
            description="Empty: as the job's runs have it.",
        ),
        "savepoints": Param(
            retention.savepoints,
            type=["null", "integer"],
            minimum=1,
            title="Periodic savepoints to keep",
            description="Empty: all.",
        ),
        "preview": Param(False, type="boolean", title="Only say what would be deleted"),
    }
    with _dag(
        job, "_retention", RETENTION_DOC.format(name=job.name), schedule=schedule, params=params
    ) as dag:
        savepoint = StateflowSavepointOperator(
            task_id="savepoint",
            job_root=job.root,
            job=application,
            settings=job.settings,
            origin="periodic",
            outlets=[job.savepoint],
            pre_execute=_only_if("preview", False),
            **_AGAIN,
        )
        # Also when no savepoint could be taken: the reason may be that there is no space left.
        collect = StateflowRetentionOperator(
            task_id="collect",
            job_root=job.root,
            retain="{{ params.retain }}",
            savepoints="{{ params.savepoints }}",
            savepoints_max_age=retention.max_age,
            preview="{{ params.preview }}",
            trigger_rule=TriggerRule.ALL_DONE,
            **_AGAIN,
        )
        # The DAG run fails when either has.
        done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
        savepoint >> collect >> done
        savepoint >> done
    return dag


RECOVERY_DOC = """
Takes {name} back to a point in time: state, source positions and tables together.

1. Pause the DAG `{name}`: a run that begins meanwhile makes the plan outdated, and it is refused then.
2. Trigger this one with a target and a reason. The field *Go back to* suggests savepoints and checkpoints.
3. Read the plan: task `approve`, tab *Required Actions*. Approve or reject it. A rejection changes nothing, fails the
   DAG run, and is kept in the job's history with your name and note.
4. Unpause `{name}`.

A task that fails or is killed may be cleared; clearing `plan` plans for the same target, and asks, again. For another
target, trigger this DAG again.
"""

PLAN_BODY = """
{{ ti.xcom_pull(task_ids='plan')['markdown'] }}

**Reason**: {{ params.reason }}

**Afterwards**: {{ 'the job is run with this job file.' if params.run else 'no run follows.' }}

Approving does exactly this, or nothing when a run of the job has begun since.
"""


def _recovery_dag(job: StateflowJob, application: str) -> DAG:
    targets = suggested_targets(job.root) if job.suggest_targets else []
    params = {**_recovery_params(targets), **job.params}
    code: dict[str, Any] = {"job": application, "job_root": job.root, "settings": job.settings}
    doc = RECOVERY_DOC.format(name=job.name)
    with _dag(job, "_recovery", doc, schedule=None, params=params, **_UNPAUSED) as dag:
        plan = StateflowRestorePlanOperator(
            task_id="plan",
            target="{{ params.target }}",
            sinks="{{ params.sinks }}",
            drop="{{ params.drop or '' }}",
            foreign="{{ params.foreign }}",
            leave="{{ params.leave or '' }}",
            run_dag=job.name,
            **code,
            **_AGAIN,
        )
        approve = StateflowApprovalOperator(
            task_id="approve",
            job_root=job.root,
            plan=plan.output,
            subject=f"Take {job.name} back to {{{{ ti.xcom_pull(task_ids='plan')['plan']['label'] }}}}?",
            body=PLAN_BODY,
            response_timeout=timedelta(days=1),
            params={
                "note": Param(
                    None, type=["null", "string"], title="Note", description="Kept in the job's log."
                )
            },
            assigned_users=[{"id": user, "name": user} for user in job.approvers] or None,
            **_AGAIN,
        )
        restore = StateflowRestoreOperator(
            task_id="restore",
            plan=plan.output,
            approval=approve.output,
            reason="{{ params.reason }}",
            pool=job.pool,
            **code,
            **_AGAIN,
        )
        verify = StateflowVerifyOperator(task_id="verify", job_root=job.root, **_AGAIN)
        run = _run(job, application, pre_execute=_only_if("run", True))
        plan >> approve >> restore >> verify >> run
    return dag


def _recovery_params(targets: Sequence[str]) -> dict[str, Param]:
    suggestions: dict[str, Any] = {"examples": list(targets)} if targets else {}
    return {
        "target": Param(
            **suggestions,
            type="string",
            minLength=1,
            title="Go back to",
            description="latest, a checkpoint's id, a savepoint's name or path, before:2026-01-31T03:00 (UTC),"
            " or before:SOURCE=OFFSET",
        ),
        "sinks": Param(
            "restore",
            type="string",
            enum=["restore", "keep"],
            values_display={"restore": "tables go back as well", "keep": "tables keep their content"},
            title="Tables",
        ),
        "reason": Param(
            type="string",
            format="multiline",
            minLength=1,
            title="Reason",
            description="Kept in the job's log.",
        ),
        "drop": optional_text("State to drop", "Comma-separated uids of operators removed from the job."),
        "leave": optional_text(
            "Tables to leave",
            "Comma-separated uids of sinks removed from the job: their tables keep what came since.",
        ),
        "foreign": Param(False, type="boolean", title="The savepoint may be another job's"),
        "run": Param(False, type="boolean", title="Run the job afterwards"),
    }


def optional_text(title: str, description: str, **schema: Any) -> Param:
    """A param for a text that may be left out: without the type ``null``, Airflow's form requires it."""
    return Param(None, type=["null", "string"], title=title, description=description, **schema)


def _only_if(param: str, wanted: bool) -> Callable[[Context], None]:
    """Skips the task unless the DAG run's param is that."""

    def check(context: Context) -> None:
        if bool(context["params"][param]) is not wanted:
            raise AirflowSkipException(f"{param} is {context['params'][param]}")

    return check


def _not_stopping(context: Context) -> None:
    """Skips the task that only takes a savepoint when the run is to stop; raises PermanentFailure for a drain alone."""
    _only_if("stop", False)(context)
    if context["params"].get("drain"):
        raise misconfigured(
            "Drain is ticked, and Stop the run with it is not",
            "trigger again with both: a run that goes on is not drained",
        )
