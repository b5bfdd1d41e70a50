"""Apache Flink's checkpoints, savepoints and managed state for PySpark jobs that Airflow launches.

Exports the public API for job files; names that need Spark are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stateflow.api.dead_letters import DeadLetter, DeadLetters
from stateflow.api.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext, TimerService
from stateflow.api.functions.rich import RichFilterFunction, RichFlatMapFunction, RichMapFunction
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.joins.functions import JoinContext, ProcessJoinFunction
from stateflow.api.joins.window_join import TaggedRow
from stateflow.api.over.frames import Unbounded
from stateflow.api.patterns.conditions import MatchedRows
from stateflow.api.patterns.functions import PatternProcessFunction
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.patterns.skip import AfterMatchSkipStrategy
from stateflow.api.side_outputs import OutputTag
from stateflow.api.state_backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.api.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from stateflow.api.windows.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    EvictorContext,
    TimeEvictor,
    TimestampedRow,
)
from stateflow.api.windows.functions import (
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowContext,
    WindowOpenContext,
)
from stateflow.api.windows.trigger import OnMergeContext, Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from stateflow.api.windows.window import GlobalWindow
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import EnvironmentUnsupported
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.operator_state import BroadcastState, OperatorListState, OperatorStateStore
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.state.stored_key import TimeDomain
from stateflow.types.columns.precision import precision
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.custom_serializer import Compatibility, Serializer
from stateflow.types.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.time_window import TimeWindow
from stateflow.types.ttl_config import StateTtlConfig, Time

if TYPE_CHECKING:
    from stateflow.bootstrap.frames import KeyedStateFrame
    from stateflow.bootstrap.spark_checkpoint import SparkCheckpoint
    from stateflow.bootstrap.writer import SavepointWriter
    from stateflow.compare.snapshots import diff
    from stateflow.connectors.column_policy import ColumnPolicy
    from stateflow.connectors.delta.sink import DeltaSink
    from stateflow.connectors.delta.source import DeltaSource
    from stateflow.connectors.files.sink import FileSink
    from stateflow.connectors.files.source import FileSource
    from stateflow.connectors.foreach_batch import ForeachBatchSink
    from stateflow.connectors.iceberg.sink import IcebergSink
    from stateflow.connectors.kafka.avro import AvroFormat, SchemaRegistry
    from stateflow.connectors.kafka.client import KafkaSecurity
    from stateflow.connectors.kafka.formats import Json, KafkaHeader, Raw
    from stateflow.connectors.kafka.sink import KafkaSink
    from stateflow.connectors.kafka.source import KafkaSource
    from stateflow.connectors.partitioned.positions import Split
    from stateflow.connectors.partitioned.source import PartitionedSource
    from stateflow.connectors.partitioned.split_rows import BadRow
    from stateflow.connectors.postgres.sink import PostgresSink
    from stateflow.connectors.spark import SparkSource
    from stateflow.query.data_source import register_spark_reader
    from stateflow.query.metadata import read_metadata
    from stateflow.query.reader import read_state
    from stateflow.replay.replay_batch import replay_batch
    from stateflow.serving.client import AsyncQueryableStateClient, QueryableStateClient

_LAZY = {
    "AsyncQueryableStateClient": "stateflow.serving.client",
    "AvroFormat": "stateflow.connectors.kafka.avro",
    "BadRow": "stateflow.connectors.partitioned.split_rows",
    "ColumnPolicy": "stateflow.connectors.column_policy",
    "DeltaSink": "stateflow.connectors.delta.sink",
    "DeltaSource": "stateflow.connectors.delta.source",
    "FileSink": "stateflow.connectors.files.sink",
    "FileSource": "stateflow.connectors.files.source",
    "ForeachBatchSink": "stateflow.connectors.foreach_batch",
    "IcebergSink": "stateflow.connectors.iceberg.sink",
    "Json": "stateflow.connectors.kafka.formats",
    "KafkaHeader": "stateflow.connectors.kafka.formats",
    "KafkaSecurity": "stateflow.connectors.kafka.client",
    "KafkaSink": "stateflow.connectors.kafka.sink",
    "KafkaSource": "stateflow.connectors.kafka.source",
    "KeyedStateFrame": "stateflow.bootstrap.frames",
    "PartitionedSource": "stateflow.connectors.partitioned.source",
    "PostgresSink": "stateflow.connectors.postgres.sink",
    "QueryableStateClient": "stateflow.serving.client",
    "Raw": "stateflow.connectors.kafka.formats",
    "SavepointWriter": "stateflow.bootstrap.writer",
    "SchemaRegistry": "stateflow.connectors.kafka.avro",
    "SparkCheckpoint": "stateflow.bootstrap.spark_checkpoint",
    "Split": "stateflow.connectors.partitioned.positions",
    "SparkSource": "stateflow.connectors.spark",
    "read_metadata": "stateflow.query.metadata",
    "read_state": "stateflow.query.reader",
    "diff": "stateflow.compare.snapshots",
    "register_spark_reader": "stateflow.query.data_source",
    "replay_batch": "stateflow.replay.replay_batch",
}

__all__ = [
    "AfterMatchSkipStrategy",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AsyncQueryableStateClient",
    "AvroFormat",
    "BadRow",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "ColumnPolicy",
    "Compatibility",
    "Context",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DataStream",
    "DeadLetter",
    "DeadLetters",
    "DeltaEvictor",
    "DeltaSink",
    "DeltaSource",
    "DeltaTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "FileSink",
    "FileSource",
    "FoldingStateDescriptor",
    "ForeachBatchSink",
    "FsStateBackend",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindow",
    "GlobalWindows",
    "IcebergSink",
    "JoinContext",
    "Json",
    "KafkaHeader",
    "KafkaSecurity",
    "KafkaSink",
    "KafkaSource",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateFrame",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MatchedRows",
    "MemoryStateBackend",
    "NeverTrigger",
    "OnMergeContext",
    "OnTimerContext",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "PartitionedSource",
    "Pattern",
    "PatternProcessFunction",
    "PostgresSink",
    "ProcessAllWindowFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "QueryableStateClient",
    "Raw",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichMapFunction",
    "RocksDBStateBackend",
    "RowKind",
    "RuntimeContext",
    "SavepointWriter",
    "SchemaRegistry",
    "Serializer",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SparkCheckpoint",
    "SparkSource",
    "Split",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TaggedRow",
    "Time",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampedRow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Unbounded",
    "ValueState",
    "ValueStateDescriptor",
    "VectorState",
    "VectorizedKeyedFunction",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowContext",
    "WindowOpenContext",
    "diff",
    "precision",
    "read_metadata",
    "read_state",
    "register_spark_reader",
    "replay_batch",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'stateflow' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as e:
        if e.name == "httpx":
            raise EnvironmentUnsupported(
                "httpx is not installed", hint="pip install 'stateflow[serve]'", package="httpx", needed_by=name
            ) from e
        if e.name != "pyspark":
            raise
        raise EnvironmentUnsupported(
            "PySpark is not installed", hint="pip install 'stateflow[spark]'", package="pyspark", needed_by=name
        ) from e
