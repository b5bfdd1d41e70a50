"""Apache Flink's checkpoints, savepoints and managed state for PySpark jobs that Airflow launches.

The names that a job file needs; those that need Spark are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stateflow.api.backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from stateflow.api.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.dead_letters import DeadLetter, DeadLetters
from stateflow.api.functions import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.rich_functions import RichFilterFunction, RichFlatMapFunction, RichMapFunction
from stateflow.api.side_outputs import OutputTag
from stateflow.api.timers import TimerService
from stateflow.api.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    Compatibility,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    Serializer,
    ValueStateDescriptor,
)
from stateflow.environment import StreamExecutionEnvironment
from stateflow.state.aggregating_state import AggregatingState
from stateflow.state.list_state import ListState
from stateflow.state.map_state import MapState
from stateflow.state.operator_state import BroadcastState, OperatorListState, OperatorStateStore
from stateflow.state.reducing_state import ReducingState
from stateflow.state.timers import TimeDomain
from stateflow.state.value_state import ValueState
from stateflow.time_to_live import StateTtlConfig, Time

if TYPE_CHECKING:
    from stateflow.connectors.delta import DeltaSink
    from stateflow.connectors.files import ColumnPolicy, FileSource

_LAZY = {
    "ColumnPolicy": "stateflow.connectors.files",
    "DeltaSink": "stateflow.connectors.delta",
    "FileSource": "stateflow.connectors.files",
}

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "ColumnPolicy",
    "Compatibility",
    "Context",
    "DeadLetter",
    "DeadLetters",
    "DeltaSink",
    "FileSource",
    "FoldingStateDescriptor",
    "FsStateBackend",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MemoryStateBackend",
    "OnTimerContext",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichMapFunction",
    "RocksDBStateBackend",
    "RuntimeContext",
    "Serializer",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TimerService",
    "ValueState",
    "ValueStateDescriptor",
    "VectorState",
    "VectorizedKeyedFunction",
    "WatermarkStrategy",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'stateflow' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
