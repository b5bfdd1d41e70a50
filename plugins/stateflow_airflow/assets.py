"""The assets of a job."""

from __future__ import annotations

from airflow.sdk import Asset


def checkpoint_asset(name: str) -> Asset:
    """Returns the asset that each run of the job with this name updates."""
    return Asset(name=f"{name}.checkpoint", uri=f"stateflow://{name}/checkpoint")


def savepoint_asset(name: str) -> Asset:
    """Returns the asset that each savepoint of the job with this name updates."""
    return Asset(name=f"{name}.savepoint", uri=f"stateflow://{name}/savepoint")
