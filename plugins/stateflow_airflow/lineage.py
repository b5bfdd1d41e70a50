"""Lineage of tasks, by Airflow's provider for OpenLineage where it is installed and configured.

The driver reports its own runs; the task's run is their parent, and has the same inputs and outputs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk.types import RuntimeTaskInstanceProtocol
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import RunFacet

    TaskLineage = OperatorLineage[Dataset, RunFacet]

log = logging.getLogger("airflow.task")


def lineage_variables(ti: RuntimeTaskInstanceProtocol) -> dict[str, str]:
    """Returns the environment by which the events of a driver belong to its task; empty without the provider.

    The driver sends its events to the receiver that Airflow's configuration names.
    """
    try:
        from airflow.providers.openlineage import conf
        from airflow.providers.openlineage.plugins import macros
    except ImportError:
        return {}
    from stateflow.lineage.events import NAMESPACE_VARIABLE, PARENT_VARIABLE, ROOT_VARIABLE

    try:
        if conf.is_disabled():
            return {}
        variables = {
            NAMESPACE_VARIABLE: conf.namespace(),
            PARENT_VARIABLE: macros.lineage_parent_id(ti),
            ROOT_VARIABLE: macros.lineage_root_parent_id(ti),
        }
        if transport := conf.transport():
            variables["OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
        elif path := conf.config_path(False):
            variables["OPENLINEAGE_CONFIG"] = path
    except Exception:
        # Whatever the provider raises: lineage must not fail a task.
        log.warning("the lineage events of the run will not name this task", exc_info=True)
        return {}
    return variables


def operator_lineage(result: Mapping[str, object] | None) -> TaskLineage:
    """Returns what a task tells the provider: inputs, outputs and facets of the run that it has waited for.

    Args:
        result: the lineage in the result of the run; None before its end, or if it has none.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    if result is None:
        return OperatorLineage()
    from stateflow.lineage.events import LineageEvent
    from stateflow.lineage.openlineage import input_dataset, output_dataset, stateflow_facets
    from stateflow.outputs import from_object

    event = from_object(LineageEvent, result)
    # The events of the driver's run have the numbers of rows.
    return OperatorLineage(
        inputs=[input_dataset(each, is_last=False) for each in event.inputs],
        outputs=[output_dataset(each, is_last=False) for each in event.outputs],
        run_facets={name: facet for name, facet in stateflow_facets(event).items() if facet is not None},
    )
