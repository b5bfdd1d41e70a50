"""Sensors that wait until a job is up to date, or fail if it is not.

They compare the age of its checkpoint, its event-time lag, or the input that waits. No Spark is started, and nothing is
changed or locked. Only the sensor of the backlog loads the job file.
"""

from stateflow_airflow.sensors.sensors import (
    StateflowBacklogSensor,
    StateflowCheckpointSensor,
    StateflowWatermarkSensor,
)

__all__ = ["StateflowBacklogSensor", "StateflowCheckpointSensor", "StateflowWatermarkSensor"]
