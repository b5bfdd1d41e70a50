"""Registers stateflow's plugin when this folder is Airflow's plugins folder.

An installed stateflow has an entry point that Airflow loads as well. Registering one name twice is an
import error in Airflow's eyes, so this file then stands back.
"""

from importlib.metadata import entry_points

if not any(entry.value.startswith("stateflow_airflow.") for entry in entry_points(group="airflow.plugins")):
    from stateflow_airflow.plugin import StateflowPlugin

    __all__ = ["StateflowPlugin"]
