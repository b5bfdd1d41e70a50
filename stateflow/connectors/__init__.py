"""Sources and sinks that are part of stateflow."""

from stateflow.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
