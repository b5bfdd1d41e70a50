"""Creates the DAGs of a job: run, savepoint, retention, recovery, and events of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AssetOrTimeSchedule, Context, CronTriggerTimetable, Param, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from stateflow_airflow.dags.forms import note_params, recovery_params, retention_params, run_params, savepoint_params
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.approvals.approval import StateflowApprovalOperator, StateflowClaimApprovalOperator
from stateflow_airflow.operators.approvals.command_approval import (
    StateflowRetentionApprovalOperator,
    StateflowStopApprovalOperator,
)
from stateflow_airflow.operators.base import quote
from stateflow_airflow.operators.partitions import PartitionEvents, StateflowPartitionEventsOperator
from stateflow_airflow.operators.recovery import (
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)
from stateflow_airflow.operators.retention import StateflowRetentionOperator, StateflowTablesOperator
from stateflow_airflow.operators.retention_limits import Retention, TableMaintenance
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from stateflow_airflow.operators.template_values import as_list, to_text

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg


def stateflow_dags(
    job: StateflowJob,
    application: str,
    schedule: ScheduleArg = None,
    savepoints: ScheduleArg = "@daily",
    retention: Retention | None = None,
) -> list[DAG]:
    """Creates the DAGs of a job; Airflow finds them in the file that calls this.

    Args:
        job: the job.
        application: absolute path of the job file.
        schedule: schedule of runs; None for manual runs only, or for a continuous job.
        savepoints: schedule of periodic savepoints, and of the retention after each; None for manual runs only.
        retention: limits of the retention DAG; by default seven periodic savepoints.

    Raises:
        PermanentFailure: a continuous job has a schedule.
    """
    dags = [
        run_dag(job, application, schedule),
        savepoint_dag(job, application),
        retention_dag(job, application, savepoints, retention or Retention()),
        recovery_dag(job, application),
    ]
    return dags if job.partitions is None else [*dags, partitions_dag(job, job.partitions)]


_FAILED_RUNS = 10
"""DAG runs of a continuous job that fail in a row, without one that succeeds, before Airflow pauses the DAG. The next
one follows within seconds, also after an error that only a user can fix."""


_FIRST_INTERVAL = datetime(2020, 1, 1, tzinfo=UTC)
"""Begin of the data interval of a continuous DAG's first DAG run, which ends when that is created.

Without a start date, Airflow gives the first DAG run an empty interval. The second one would begin at the end of that,
and so have the logical date of the first one; Airflow then creates none at all, and logs `run already exists`.
"""


def run_dag(job: StateflowJob, application: str, schedule: ScheduleArg) -> DAG:
    """Returns the DAG; its form can override the setting ``run.drain`` with true, unless the job is continuous.

    For a job that begins with a savepoint, the form also offers the claim mode, unless the DAG file sets it.

    Raises:
        PermanentFailure: a continuous job has a schedule, or another job is to be renewed.
    """
    if job.renew_after is not None and not job.is_continuous:
        raise config_failure(
            f"the runs of {job.name!r} end by themselves and cannot be renewed",
            "omit renew_after, or set the mode to continuous",
            renew_after=str(job.renew_after),
        )
    asks = "from_savepoint" in job.run and "claim_mode" not in job.run
    params = run_params(job, asks_for_claim=asks)
    timing = _continuous_timing(job, schedule) if job.is_continuous else {"schedule": schedule}
    deadline = list(job.deadlines) or None
    doc = f"{job.description or _doc(job)}\n{_HELP.format(name=job.name)}"
    with new_dag(job, "", doc, params=params, deadline=deadline, **timing) as dag:
        settings = dict(job.run_settings) if job.is_continuous else _with_drain(job)
        if asks:
            _run_after_approval(job, application, settings)
        else:
            run_task(job, application, settings=settings, renew_after=job.renew_after)
    return dag


def _continuous_timing(job: StateflowJob, schedule: ScheduleArg) -> dict[str, object]:
    if schedule is not None:
        raise config_failure(
            f"the continuous job {job.name!r} has a schedule",
            "omit the schedule: Airflow starts the next run when one has ended",
            schedule=str(schedule),
        )
    timing: dict[str, object] = {"schedule": "@continuous", "start_date": _FIRST_INTERVAL}
    return {**timing, "max_consecutive_failed_dag_runs": _FAILED_RUNS}


def _doc(job: StateflowJob) -> str:
    if job.is_continuous:
        return (
            f"Keeps {job.name} running, from the newest checkpoint on. To stop it, pause this DAG, then trigger "
            f"`{job.name}_savepoint` with *Stop the run*; or pause this DAG, then mark the task as failed, which ends "
            "the run with a checkpoint. To start it, unpause this DAG. Airflow pauses it after "
            f"{_FAILED_RUNS} failed runs in a row: correct what their log names, then unpause it."
        )
    return f"Runs {job.name} until it has processed all new input, from the newest checkpoint on."


_HELP = """
| when | do |
|---|---|
| a run failed or was killed | nothing is lost: clear its task, or wait for the next run; either continues from the newest checkpoint; no row counts twice, unless `checkpoints.mode` or a sink is at-least-once |
| the output is wrong | `{name}_recovery` returns state, source positions and tables to an earlier point |
| a new version of the job is next | take a savepoint with `{name}_savepoint` first |
| you want to know where the job stands | tab *State* of this DAG, or `stateflow status` |
"""  # noqa: E501


def _with_drain(job: StateflowJob) -> dict[str, object]:
    default = to_text(job.settings.get("run.drain", False))
    return {**job.settings, "run.drain": f"{{{{ 'true' if params.get('drain') is true else '{default}' }}}}"}


def _run_after_approval(job: StateflowJob, application: str, settings: Mapping[str, object]) -> None:
    """Adds the task that runs the job, and the one that asks if a user wants the new job root to claim its savepoint.

    A scheduled run has the default, which needs no approval.
    """
    mode = "{{ params.get('claim_mode') or 'no-claim' }}"
    approve = StateflowClaimApprovalOperator(
        task_id="approve_claim",
        from_savepoint=job.run["from_savepoint"],
        claim_mode=mode,
        subject=f"Let {job.name} own, and later delete, the savepoint that it begins with?",
        **approval(job),
    )
    run = run_task(
        job,
        application,
        settings=settings,
        renew_after=job.renew_after,
        claim_mode=mode,
        approval=approve.output,
        self_approval=job.self_approval,
    )
    approve >> run


_SAVEPOINT_DOC = """
Takes a savepoint of {name}: at the next barrier of an active run, otherwise from the newest checkpoint. It is kept
until a user deletes it. Trigger it with an empty form if in doubt: the job continues, and nothing else changes.

With *Stop the run*, the run ends with exactly that checkpoint. Another user (with `self_approval`, also the same one)
approves the stop within a day: task `approve`, tab *Required Actions*; until then, the run continues. The approval
counts for the newest run at that time; once another run has started, clear `approve`.

With *Drain* as well, every event-time timer fires before the savepoint. If no run is active, the task runs the job only
to drain it and reads no input; not with a connection in cluster mode: {drain}. Use *Drain* for the
last run only: it closes every open session.
{pause}
*Format*: a canonical savepoint can be restored into each state backend, and read by other programs; it takes longer.

A task that failed or was killed can be cleared: it returns the same savepoint.
"""


_PAUSE = """
Before you stop the run, pause the DAG `{name}`: otherwise it would start the job again at once, so that the stop is
refused. Unpause it to start the job.
"""


def savepoint_dag(job: StateflowJob, application: str) -> DAG:
    """Returns the DAG. It has no schedule."""
    asked = {"name": "{{ params.name or '' }}", "reason": "{{ params.reason or '' }}", "origin": "{{ params.origin }}"}
    given: dict[str, Any] = {
        "job_root": job.root,
        "job": application,
        "settings": job.settings,
        "locations": job.locations,
        "outlets": [job.savepoint],
        "stored_as": "{{ '' if params.format == 'default' else params.format }}",
        **asked,
        **RETRIES,
    }
    stopped = job.name if job.is_continuous else ""
    pause = _PAUSE.format(name=job.name) if stopped else ""
    drain = "then, drain while a run is active" if stopped else f"then, trigger `{job.name}` with *Last run: drain*"
    doc = _SAVEPOINT_DOC.format(name=job.name, pause=pause, drain=drain)
    options: dict[str, Any] = {"params": savepoint_params(job), "user_defined_filters": {"quoted": quote}}
    with new_dag(job, "_savepoint", doc, schedule=None, **options, **CREATED_UNPAUSED) as dag:
        StateflowSavepointOperator(task_id="savepoint", pre_execute=_skip_if_stopping, **given)
        approve = StateflowStopApprovalOperator(
            task_id="approve",
            subject=f"Stop {job.name}?",
            body="**Reason**:\n\n{{ (params.reason or '') | quoted }}",
            drain="{{ params.drain }}",
            run_dag=stopped,
            spark=job.spark,
            pre_execute=skip_unless("stop", True),
            **asked,
            **approval(job),
        )
        stop = StateflowStopOperator(
            task_id="stop",
            drain="{{ params.drain }}",
            run_dag=stopped,
            spark=job.spark,
            approval=approve.output,
            self_approval=job.self_approval,
            **given,
        )
        approve >> stop
    return dag


def _skip_if_stopping(context: Context) -> None:
    """Skips the savepoint task if the run is to stop. Raises PermanentFailure for a drain without a stop."""
    skip_unless("stop", False)(context)
    if context["params"].get("drain"):
        raise config_failure(
            "Drain requires Stop the run", "trigger the DAG again with both, or with neither", drain=True, stop=False
        )


ORIGIN = "{{ 'manual' if dag_run.triggering_user_name else 'periodic' }}"
"""Origin of the savepoint. A user who triggers the DAG many times would otherwise replace all older periodic ones."""


_RETENTION_DOC = """
Takes a periodic savepoint of {name}, then deletes periodic savepoints beyond the limits and files that no checkpoint
references. May run concurrently with a run of the job. If a user triggers it, the savepoint is a manual one, which
displaces no periodic one and is kept until a user deletes it.

**To see what would be deleted**, trigger it with *Preview*: it takes no savepoint and deletes nothing; the log of
`collect` has the list.

Limits in the form that delete what the configured limits keep need the approval of another user (with
`self_approval`, also of the same one) within a day: task `approve`, tab *Required Actions*. The approval counts for the
checkpoints and savepoints that the question lists. When others would be deleted as well, because the job has made more,
clear `approve`. If nothing needs an approval, that task asks nothing. *Savepoint to delete* names a savepoint of any
origin: it is deleted for ever, always with that approval, and no savepoint is taken first. The job's history stores the
*Reason* of that deletion, and of no other one. **The disk is full**: `collect` runs also if `savepoint` failed.
"""


_TABLES_DOC = """
Then the task `tables` combines small files of the job's Delta tables, and deletes files that were removed from a table
some time ago and that no kept checkpoint or savepoint needs.
"""


def retention_dag(job: StateflowJob, application: str, schedule: ScheduleArg, retention: Retention) -> DAG:
    """Returns the DAG. `retention` has the defaults of its form."""
    params = retention_params(retention, job.tables)
    doc = _RETENTION_DOC.format(name=job.name) + (_TABLES_DOC if job.tables else "")
    with new_dag(job, "_retention", doc, schedule=schedule, params=params) as dag:
        savepoint = StateflowSavepointOperator(
            task_id="savepoint",
            job_root=job.root,
            job=application,
            settings=job.settings,
            locations=job.locations,
            origin=ORIGIN,
            outlets=[job.savepoint],
            pre_execute=_skip_savepoint,
            **RETRIES,
        )
        limits = _limits(job, retention)
        # Runs also if the savepoint failed: the reason may be a full disk.
        approve = StateflowRetentionApprovalOperator(
            task_id="approve",
            subject=f"Delete checkpoints or savepoints of {job.name} that its configuration keeps?",
            pre_execute=skip_unless("preview", False),
            trigger_rule=TriggerRule.ALL_DONE,
            **limits,
            **approval(job),
        )
        # Runs also if the question was skipped, for a preview; without a necessary approval, it deletes nothing.
        collect = StateflowRetentionOperator(
            task_id="collect",
            job_root=job.root,
            locations=job.locations,
            preview="{{ params.preview }}",
            approval=approve.output,
            self_approval=job.self_approval,
            trigger_rule=TriggerRule.NONE_FAILED,
            **limits,
            **RETRIES,
        )
        # Fails the DAG run if either task failed.
        done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
        savepoint >> approve >> collect >> done
        savepoint >> done
        if job.tables:
            collect >> _tables_task(job, application, job.tables) >> done
    return dag


def _limits(job: StateflowJob, retention: Retention) -> dict[str, Any]:
    """Returns the arguments of what is deleted: the form's, and the configured limits, which need no approval."""
    return {
        "retain": "{{ params.retain }}",
        "savepoints": "{{ params.savepoints }}",
        "savepoints_max_age": "{{ (params.max_age or '') | trim }}",
        "dispose": "{{ params.dispose or '' }}",
        "reason": "{{ params.reason or '' }}",
        "configured": with_setting(job, retention),
    }


def _tables_task(job: StateflowJob, application: str, tables: TableMaintenance) -> StateflowTablesOperator:
    """Returns the task that follows the retention: what that deletes no longer holds files of the tables."""
    return StateflowTablesOperator(
        task_id="tables",
        job=application,
        job_root=job.root,
        settings=job.settings,
        locations=job.locations,
        older_than=tables.older_than,
        tables=tables.sinks,
        optimize=tables.optimize,
        preview="{{ params.preview }}",
        pre_execute=skip_unless("tables", True),
        **RETRIES,
    )


def with_setting(job: StateflowJob, retention: Retention) -> Retention:
    """Returns the limits that the form can only extend without an approval."""
    setting = job.settings.get("checkpoints.retained")
    number = int(setting) if isinstance(setting, int | str) and str(setting).isdecimal() else None
    return retention if retention.checkpoints else replace(retention, checkpoints=number)


_RECOVERY_DOC = """
Restores {name} to an earlier checkpoint or savepoint: state, source positions and tables together. Nothing changes
before the plan is approved.

1. Pause the DAG `{name}`: a run that starts in the meantime makes the plan outdated, and the restore is refused.{stop}
2. Find the point: tab *State* of this DAG, or `stateflow checkpoints list` and `stateflow savepoint list`. With
   `before:2026-01-31T03:00` (UTC), it is the newest point before that time.
3. Trigger this DAG with the target and a reason.
4. Read the plan: task `approve`, tab *Required Actions*. Another user (with `self_approval`, also the same one)
   approves or rejects it within a day. A rejection changes nothing, skips the remaining tasks, and is recorded in the
   job's history with that user's name and note.
5. When `verify` has succeeded, unpause `{name}`.

| when | do |
|---|---|
| `plan` failed | its log names the wrong value and the ones that exist: trigger this DAG again |
| `restore` failed with `plan-outdated` | nothing was changed: clear `plan`, which plans the same target again and asks again |
| nobody answered, so that `approve` failed | nothing was changed: clear `plan` |
| a task was killed, or failed for another reason | clear it: it completes what was begun, and restores at most once |
| the target was wrong | trigger this DAG again; to undo a restore, restore a savepoint or checkpoint that was taken before it |
"""  # noqa: E501


_STOP = """
   Then stop its run: trigger `{name}_savepoint` with *Stop the run*."""


APPROVAL_BODY = """
{{ ti.xcom_pull(task_ids='plan')['markdown'] }}

**Reason**:

{{ params.reason | quoted }}

**After the restore**: {{ 'the job runs with this job file.' if params.run else 'the job does not run.' }}

On approval, exactly this plan is executed. If a run of the job has started since, nothing is changed.
"""


class _JobArguments(TypedDict):
    job: str
    job_root: str
    settings: Mapping[str, object]
    locations: str | Sequence[str]


def recovery_dag(job: StateflowJob, application: str) -> DAG:
    """Returns the DAG. It has no schedule."""
    params = recovery_params(job)
    code: _JobArguments = {
        "job": application,
        "job_root": job.root,
        "settings": job.settings,
        "locations": job.locations,
    }
    doc = _RECOVERY_DOC.format(name=job.name, stop=_STOP.format(name=job.name) if job.is_continuous else "")
    with new_dag(
        job, "_recovery", doc, schedule=None, params=params, user_defined_filters={"quoted": quote}, **CREATED_UNPAUSED
    ) as dag:
        plan = StateflowRestorePlanOperator(
            task_id="plan",
            target="{{ params.target }}",
            sinks="{{ params.sinks }}",
            drop="{{ params.drop or '' }}",
            from_other_job="{{ params.from_other_job }}",
            keep_tables="{{ params.keep_tables or '' }}",
            maps="{{ params.new_names or '' }}",
            sources="{{ params.source_positions or '' }}",
            claim_mode="{{ params.claim_mode }}",
            run_dag=job.name,
            expected_plan="{{ params.expected_plan or '' }}",
            **code,
            **RETRIES,
        )
        approve = StateflowApprovalOperator(
            task_id="approve",
            plan=plan.output,
            subject=f"Restore {job.name} to {{{{ ti.xcom_pull(task_ids='plan')['plan']['target_label'] }}}}?",
            body=APPROVAL_BODY,
            **approval(job),
        )
        restore = StateflowRestoreOperator(
            task_id="restore",
            plan=plan.output,
            approval=approve.output,
            self_approval=job.self_approval,
            reason="{{ params.reason }}",
            pool=job.pool,
            **code,
            **RETRIES,
        )
        verify = StateflowVerifyOperator(task_id="verify", job_root=job.root, locations=job.locations, **RETRIES)
        run = run_task(job, application, settings=job.single_run_settings, pre_execute=skip_unless("run", True))
        plan >> approve >> restore >> verify >> run
    return dag


_PARTITIONS_DOC = """
Emits an event of the asset `{asset}` for each {unit} that the watermark of {name} has closed, and another one with
`undone` for each that a restore has reopened. A DAG whose schedule is a `PartitionedAssetTimetable` of the asset gets a
DAG run for each.
"""


def partitions_dag(job: StateflowJob, partitions: PartitionEvents) -> DAG:
    """Returns the DAG. It follows each run; a continuous job, and restores, are looked at every ten minutes or hour."""
    timetable = CronTriggerTimetable("*/10 * * * *" if job.is_continuous else "@hourly", timezone="UTC")
    schedule = AssetOrTimeSchedule(timetable=timetable, assets=[job.checkpoint])
    doc = _PARTITIONS_DOC.format(asset=job.partition.name, unit=partitions.unit, name=job.name)
    with new_dag(job, "_partitions", doc, schedule=schedule) as dag:
        reopened, closed = (
            StateflowPartitionEventsOperator(
                task_id=name,
                job_root=job.root,
                locations=job.locations,
                asset=job.partition,
                partitions=partitions,
                undone=undone,
                # A task without events is skipped.
                trigger_rule=TriggerRule.NONE_FAILED,
                **RETRIES,
            )
            for name, undone in (("reopened", True), ("closed", False))
        )
        reopened >> closed
    return dag


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
        "params": note_params(),
        "assigned_users": [{"id": user, "name": user} for user in as_list(job.approvers)] or None,
        **RETRIES,
    }


def _skip_savepoint(context: Context) -> None:
    """Skips the savepoint before a retention for a preview, and for a user who wants to delete a savepoint."""
    for param in ("preview", "dispose"):
        value = context["params"].get(param)
        # A blank name is none.
        if value and str(value).strip():
            raise AirflowSkipException(f"{param} is {value}")


def skip_unless(param: str, wanted: bool) -> Callable[[Context], None]:
    """Returns a `pre_execute` hook that skips the task unless the DAG run's param equals `wanted`."""

    def check(context: Context) -> None:
        if bool(context["params"][param]) is not wanted:
            raise AirflowSkipException(f"{param} is {context['params'][param]}")

    return check
