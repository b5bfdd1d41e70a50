"""The Airflow plugin, which the entry point of an installed stateflow or the plugins folder loads."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from stateflow_airflow.versions import require_supported

require_supported()


class StateflowPlugin(AirflowPlugin):
    """Lists stateflow among Airflow's plugins, so that Airflow reports an unsupported version at startup."""

    name = "stateflow"
