"""Apache Flink's checkpoints, savepoints and managed state for PySpark jobs that Airflow launches.

The names that a job file needs; those that need Spark are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stateflow.api.backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from stateflow.api.functions import Context, KeyedProcessFunction, RuntimeContext
from stateflow.descriptors import MapStateDescriptor, ValueStateDescriptor
from stateflow.environment import StreamExecutionEnvironment
from stateflow.state.keyed import MapState, ValueState

if TYPE_CHECKING:
    from stateflow.connectors.delta import DeltaSink
    from stateflow.connectors.files import FileSource

_LAZY = {"DeltaSink": "stateflow.connectors.delta", "FileSource": "stateflow.connectors.files"}

__all__ = [
    "Context",
    "DeltaSink",
    "FileSource",
    "FsStateBackend",
    "KeyedProcessFunction",
    "MapState",
    "MapStateDescriptor",
    "MemoryStateBackend",
    "RocksDBStateBackend",
    "RuntimeContext",
    "StreamExecutionEnvironment",
    "ValueState",
    "ValueStateDescriptor",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'stateflow' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
