"""The description of a job from which its DAGs are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from airflow.sdk import Asset, Param
from airflow.sdk.definitions.deadline import DeadlineAlert

from stateflow_airflow.deadlines import checkpoint_asset, partition_asset, savepoint_asset
from stateflow_airflow.operators.partitions import PartitionEvents
from stateflow_airflow.operators.retention_limits import TableMaintenance
from stateflow_airflow.spark import SparkSubmit


@dataclass(frozen=True, kw_only=True)
class StateflowJob:
    """A job and its Airflow options.

    Args:
        name: name of the job; DAG ids and asset names start with it.
        root: the job root.
        mode: ``scheduled`` for runs that end when they have processed new input; ``continuous`` for a run that stays
            up until it is stopped, or until the end that the setting ``run.until`` defines. Another run follows it.
        renew_after: age at which a run of a continuous job is replaced by a new one, which takes over once it has
            started Spark; see `StateflowRunOperator`. None for never.
        settings: see `StateflowRunOperator`.
        spark: see `StateflowRunOperator`.
        pool: the Airflow pool of the tasks that run or restore the job. Create the pool first: Airflow keeps a task
            with an unknown pool in the state "scheduled" and reports it only in the scheduler's log.
        run: further arguments of the tasks that run the job, such as ``retries``.
        params: further params of the run DAG and the recovery DAG, for templates in `settings` and `spark`. An optional
            text param needs the type ``["null", "string"]``: Airflow's form requires a value for every other type.
        run_params: further params of the run DAG only. Templates must work without them, since the recovery DAG
            renders the same templates: ``{{ params.get('failpoint') or '' }}``.
        locations: paths and URIs outside of the job root where savepoints may be: restore targets, and the savepoint
            that a new job root starts from. Also Airflow's setting ``[stateflow] allowed_locations``.
        approvers: ids of the users who may approve a restore, a stop, or a retention below the configured numbers; if
            empty, every user who may answer.
        self_approval: whether the user who triggers one of these may approve it.
        description: description of the run DAG, in Markdown.
        deadlines: deadline alerts of the run DAG, see `no_checkpoint_for`.
        partition_events: the partitions of event time that get an asset event once the watermark has closed them:
            ``day`` or ``hour`` of UTC, or a `PartitionEvents`; None for none. Needs Airflow 3.3. See
            `StateflowPartitionEventsOperator`.
        tables: how the retention DAG maintains the Delta tables of the sinks, with the job file; None if it does not.
    """

    name: str
    root: str
    mode: Literal["scheduled", "continuous"] = "scheduled"
    renew_after: timedelta | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    spark: SparkSubmit = field(default_factory=SparkSubmit)
    pool: str = "default_pool"
    run: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Param] = field(default_factory=dict)
    run_params: Mapping[str, Param] = field(default_factory=dict)
    locations: str | Sequence[str] = ()
    approvers: str | Sequence[str] = ()
    self_approval: bool = False
    description: str = ""
    deadlines: Sequence[DeadlineAlert] = ()
    tables: TableMaintenance | None = None
    partition_events: Literal["day", "hour"] | PartitionEvents | None = None

    @property
    def is_continuous(self) -> bool:
        """Whether a run stays up."""
        return self.mode == "continuous"

    @property
    def run_settings(self) -> Mapping[str, object]:
        """The settings of the runs that the run DAG starts."""
        # A run that is left on another host ends with a checkpoint instead of being fenced.
        continuous: dict[str, object] = {"run.until": "stopped", "run.take_over": "1 min"}
        return {**continuous, **self.settings} if self.is_continuous else self.settings

    @property
    def single_run_settings(self) -> Mapping[str, object]:
        """The settings of a run after a restore, which ends; the run DAG continues the job once it is unpaused."""
        return {**self.settings, "run.until": "input-ends"} if self.is_continuous else self.settings

    @property
    def checkpoint(self) -> Asset:
        """The asset that each run updates, with the id and the offsets of its last checkpoint."""
        return checkpoint_asset(self.name)

    @property
    def partition(self) -> Asset:
        """The asset with an event for each closed day or hour, which has the day or hour as its partition key."""
        return partition_asset(self.name)

    @property
    def partitions(self) -> PartitionEvents | None:
        """The partitions that get events; None for none."""
        wanted = self.partition_events
        return wanted if wanted is None or isinstance(wanted, PartitionEvents) else PartitionEvents(unit=wanted)

    @property
    def savepoint(self) -> Asset:
        """The asset that each savepoint updates, with its id and path."""
        return savepoint_asset(self.name)
