"""The Airflow plugin, which the entry point of an installed stateflow or the plugins folder loads."""

from __future__ import annotations

import logging

from airflow.plugins_manager import AirflowPlugin

from stateflow_airflow.versions import require_supported, warn_of_untested

require_supported()
for _warning in warn_of_untested():
    logging.getLogger(__name__).warning("%s", _warning)

# After the check: an unsupported Airflow may not have what this imports.
from stateflow_airflow.deadlines import LastCheckpointDeadline  # noqa: E402


class StateflowPlugin(AirflowPlugin):
    """Lists stateflow among Airflow's plugins, so that Airflow reports an unsupported version at startup.

    It registers the deadline reference, which Airflow finds in no other way.
    """

    name = "stateflow"
    deadline_references = [LastCheckpointDeadline]
