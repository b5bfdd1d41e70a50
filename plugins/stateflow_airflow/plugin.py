"""The Airflow plugin, which the entry point of an installed stateflow or the plugins folder loads."""

from __future__ import annotations

import logging
from functools import cache
from typing import cast

from airflow.plugins_manager import AirflowPlugin

from stateflow_airflow.versions import require_supported, warn_of_untested

log = logging.getLogger(__name__)

require_supported()
for _warning in warn_of_untested():
    log.warning("%s", _warning)

# After the check: an unsupported Airflow may not have what this imports.
from stateflow_airflow.deadlines import LastCheckpointDeadline  # noqa: E402


@cache
def _pages() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    try:
        from stateflow_airflow.services.pages import pages_entries, pages_mounts

        return pages_mounts(), pages_entries()
    except Exception:
        # An error would end the API server; the pages import private names of Airflow, which another version may lack.
        log.warning("the pages of jobs are not mounted; all else of stateflow works", exc_info=True)
        return [], []


class StateflowPlugin(AirflowPlugin):
    """Lists stateflow among Airflow's plugins, so that Airflow reports an unsupported version at startup.

    It registers the deadline reference, which Airflow finds in no other way, and the pages of jobs. These are imported
    when the API server asks for them: schedulers and workers load this class, too.

    Attributes:
        fastapi_apps: the application of the pages; empty if it cannot be made here.
        react_apps: where Airflow shows the pages; empty if there is no application.
    """

    name = "stateflow"
    deadline_references = [LastCheckpointDeadline]
    # Airflow only reads them, from an instance.
    fastapi_apps = cast("list[object]", property(lambda _: _pages()[0]))
    react_apps = cast("list[object]", property(lambda _: _pages()[1]))
