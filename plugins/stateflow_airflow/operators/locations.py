"""The locations outside of job roots that a DAG's tasks may open."""

from __future__ import annotations

import os
from collections.abc import Sequence

from airflow.sdk import conf

from stateflow_airflow.failures import misconfigured

VARIABLE = "STATEFLOW_ALLOWED_LOCATIONS"
"""The library's variable, whose module is not imported here: DAG files import this one."""


def allowed_locations(of_the_job: Sequence[str]) -> dict[str, str]:
    """Returns the environment variable that restricts the library to the job root and these locations.

    Args:
        of_the_job: paths and URIs, in addition to those of the worker's environment and of Airflow's setting
            ``[stateflow] allowed_locations``.

    Raises:
        PermanentFailure: a location contains whitespace, which separates locations.
    """
    for location in of_the_job:
        if len(location.split()) != 1:
            raise misconfigured(
                f"the location {location!r} is empty or contains whitespace",
                "write a space in a path as %20, in a URI that starts with file://",
                location=location,
            )
    configured = conf.get("stateflow", "allowed_locations", fallback=None) or ""
    return {VARIABLE: " ".join([*of_the_job, *configured.split(), *os.environ.get(VARIABLE, "").split()])}
