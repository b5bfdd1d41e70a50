"""Sources and sinks that come with stateflow."""

from stateflow.connectors.delta import DeltaSink

__all__ = ["DeltaSink"]
