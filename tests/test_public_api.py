"""What users import, and what that costs them."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import stateflow

ROOT = Path(stateflow.__file__).parents[1]


PUBLIC_NAMES = [
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


def _modules_after(statement: str) -> set[str]:
    """Top-level packages that a fresh process has loaded after a statement."""
    return _process_after(statement)[0]


def _process_after(statement: str, environment: Mapping[str, str] = os.environ) -> tuple[set[str], float]:
    """Top-level packages that a fresh process has loaded after a statement, and its seconds of CPU time."""
    script = (
        f"import json, sys, time\n{statement}\n"
        "print(json.dumps([sorted({m.split('.')[0] for m in sys.modules}), time.process_time()]))"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, seconds = json.loads(ended.stdout)
    return set(loaded), seconds


def test_the_public_names_are_sorted_and_exist() -> None:
    assert stateflow.__all__ == sorted(set(stateflow.__all__))
    for name in stateflow.__all__:
        assert getattr(stateflow, name).__name__ == name


def test_the_public_names_never_change_unnoticed() -> None:
    assert stateflow.__all__ == PUBLIC_NAMES


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        stateflow.no_such_name  # noqa: B018


def test_importing_stateflow_loads_neither_spark_nor_a_sink_nor_the_command_line() -> None:
    loaded = _modules_after("import stateflow")
    sinks = {"deltalake", "delta", "psycopg", "pyiceberg", "obstore"}
    assert loaded & {*sinks, "pyspark", "py4j", "pandas", "airflow", "click", "rich"} == set()


@pytest.mark.long(reason="starts processes that import the package")
def test_what_needs_no_spark_loads_none() -> None:
    """Airflow's workers import these, and the command line for `status` and `gc`."""
    loaded = _modules_after(
        "import stateflow.operations, stateflow.checkpoint.restore.state_assignment, stateflow.cli.main\n"
        "import stateflow.testing.sources"
    )
    assert loaded & {"pyspark", "py4j", "pandas", "airflow"} == set()


@pytest.mark.long(reason="starts processes that import the package")
def test_a_job_s_module_and_the_test_of_a_statement_load_no_spark_and_take_two_seconds(tmp_path: Path) -> None:
    """Sources and sinks are declared, and a statement runs in the harness, where Python keeps compiled files."""
    statement = (
        "import msgspec, stateflow\n"
        "from stateflow import DeltaSink, DeltaSource, FileSource, KafkaSource, SparkSource\n"
        "from stateflow.testing import KeyedHarness, KeyedInput, sql_query\n"
        "Row = msgspec.defstruct('Row', [('id', int)])\n"
        "FileSource('rows', schema=Row, format='json'), DeltaSource('rows', schema=Row), DeltaSink('made')\n"
        "query = sql_query('SELECT id, COUNT(*) AS n FROM t GROUP BY id', 't')\n"
        "with KeyedHarness(query, KeyedInput(Row)) as h:\n"
        "    assert [row.n for row in h.push(Row(1), Row(1))] == [2]\n"
    )
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    loaded, _ = _process_after(statement, environment)
    _, seconds = _process_after(statement, environment)
    assert seconds < 2
    assert loaded & {"pyspark", "py4j", "airflow"} == set()


def test_every_module_has_a_docstring() -> None:
    for found in pkgutil.walk_packages(stateflow.__path__, "stateflow."):
        if found.name != "stateflow.__main__":
            text = importlib.import_module(found.name).__doc__
            assert text and text[0].isupper() and text.strip(), found.name


def test_types_are_shipped() -> None:
    assert (Path(stateflow.__file__).parent / "py.typed").is_file()
