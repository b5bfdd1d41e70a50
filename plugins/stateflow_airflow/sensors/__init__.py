"""Sensors that wait until a job is up to date, or fail if it is not: the age of its checkpoint, and its event-time lag.

They read the job root only: no job file is loaded, no Spark is started, and nothing is changed or locked.
"""

from stateflow_airflow.sensors.sensors import StateflowCheckpointSensor, StateflowWatermarkSensor

__all__ = ["StateflowCheckpointSensor", "StateflowWatermarkSensor"]
