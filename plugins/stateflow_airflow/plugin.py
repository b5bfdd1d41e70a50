"""What Airflow loads: through the entry point of an installed stateflow, or through the plugins folder."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from stateflow_airflow.versions import require_supported

require_supported()


class StateflowPlugin(AirflowPlugin):
    """Makes Airflow list stateflow among its plugins, and report a version it cannot work with."""

    name = "stateflow"
