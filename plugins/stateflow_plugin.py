"""Registers stateflow's plugin if this folder is Airflow's plugins folder.

An installed stateflow registers the plugin by its entry point. Airflow reports a name that is registered twice as an
import error, so this file then registers nothing.
"""

from importlib.metadata import entry_points

if not any(entry.value.startswith("stateflow_airflow.") for entry in entry_points(group="airflow.plugins")):
    from stateflow_airflow.plugin import StateflowPlugin

    __all__ = ["StateflowPlugin"]
