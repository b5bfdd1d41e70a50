"""The assets of a job, and deadline alerts of the DAG that runs it: no checkpoint for some time.

Airflow evaluates a deadline when it creates a DAG run, in the scheduler. `LastCheckpointDeadline` therefore reads the
asset events in Airflow's database, and never the job root, whose storage could block the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset
from airflow.sdk.definitions.deadline import REFERENCE_TYPE_FIELD, BaseDeadlineReference, DeadlineAlert

if TYPE_CHECKING:
    from airflow.sdk.definitions.callback import Callback
    from sqlalchemy.orm import Session


def checkpoint_asset(name: str) -> Asset:
    """Returns the asset that each run of the job with this name updates."""
    return Asset(name=f"{name}.checkpoint", uri=f"stateflow://{name}/checkpoint")


def partition_asset(name: str) -> Asset:
    """Returns the asset with an event for each closed day or hour of the job with this name."""
    return Asset(name=f"{name}.partition", uri=f"stateflow://{name}/partition")


def savepoint_asset(name: str) -> Asset:
    """Returns the asset that each savepoint of the job with this name updates."""
    return Asset(name=f"{name}.savepoint", uri=f"stateflow://{name}/savepoint")


@dataclass(frozen=True, eq=False)
class LastCheckpointDeadline(BaseDeadlineReference):
    """The time of the newest event of a checkpoint asset; the time of the DAG run's creation if there is none.

    Args:
        asset_uri: URI of the asset that the job's runs update.
    """

    asset_uri: str = ""

    def serialize_reference(self) -> dict[str, object]:
        """Returns the reference as JSON values."""
        return {REFERENCE_TYPE_FIELD: self.reference_name, "asset_uri": self.asset_uri}

    @classmethod
    def deserialize_reference(cls, reference_data: Mapping[str, object]) -> LastCheckpointDeadline:
        """Returns the reference of `serialize_reference`."""
        return cls(str(reference_data["asset_uri"]))

    def _evaluate_with(self, *, session: Session, **_: object) -> datetime:
        """Called by Airflow in the scheduler."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.sdk import timezone
        from sqlalchemy import select

        of_asset = AssetEvent.asset_id == AssetModel.id
        events = select(AssetEvent.timestamp).join(AssetModel, of_asset).where(AssetModel.uri == self.asset_uri)
        newest = session.scalar(events.order_by(AssetEvent.timestamp.desc()).limit(1))
        return newest or timezone.utcnow()


def no_checkpoint_for(name: str, interval: timedelta, callback: Callback) -> DeadlineAlert:
    """Returns an alert for `StateflowJob.deadlines`: no run has ended with success for some time.

    Each DAG run gets a deadline: `interval` after the newest event of the job's checkpoint asset. Airflow calls
    `callback` once if the DAG run has not succeeded until then. A run without new input also updates the asset.
    Airflow keeps the deadline of a DAG run that has failed, also if a later one succeeds in time. Without a DAG run
    there is no deadline: if the DAG may be paused, or its run lasts all day, use `StateflowCheckpointSensor`.

    Args:
        name: name of the `StateflowJob`.
        interval: greatest time between the ends of two runs, longer than the schedule's interval.
        callback: an `AsyncCallback`, which runs in the triggerer, or a `SyncCallback`.
    """
    reference = LastCheckpointDeadline(checkpoint_asset(name).uri)
    return DeadlineAlert(reference=reference, interval=interval, callback=callback, name=f"{name}: no checkpoint")
