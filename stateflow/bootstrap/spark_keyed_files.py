"""Writes keyed state from DataFrames of Spark: each task has the rows of one subtask, and writes its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stateflow.bootstrap.encoded_entries import EntryEncoder, GivenKey
from stateflow.bootstrap.frames import Frame, column_names, is_spark, slice_batch
from stateflow.bootstrap.keyed_files import MOST_BUCKETS, EntrySorter, with_timers
from stateflow.bootstrap.layout import GivenOperator, Layout, SavepointFolder, StateRows
from stateflow.checkpoint.barriers import Failure
from stateflow.config.spark_versions import partition_by_id
from stateflow.errors import BatchFailed, InternalError, SchemaMismatch, StateflowError
from stateflow.private_files import ScratchFolder
from stateflow.runtime.spark.errors import log_with_stack_trace, to_stateflow_error
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.state.handles import Document, SubtaskState
from stateflow.storage import Credentials, open_storage
from stateflow.types.columns.struct_classes import prepare_struct_classes
from stateflow.types.declared_types import NUMBERS, quote_name
from stateflow.types.decoders import msgpack_decoder

_INDEX, _FRAME, _SUBTASK = "__index", "frame", "subtask"


class _Written(Document, frozen=True, kw_only=True):
    """State that a task has written, or the reason why it failed."""

    states: list[SubtaskState] = []
    failure: Failure | None = None


@dataclass(frozen=True)
class _Work:
    """Work of the tasks, which Spark sends to them.

    Attributes:
        operator: the operator, with empty frames of the same columns.
        layout: its subtasks.
        storage: URI of the savepoint's storage.
        folder: prefix of its keys there.
        credentials: of the driver.
    """

    operator: GivenOperator
    layout: Layout
    storage: str
    folder: str
    credentials: Credentials


def write_on_spark(operator: GivenOperator, layout: Layout, target: SavepointFolder) -> list[SubtaskState]:
    """Writes the keyed state of an operator; as `write_local`, but no row passes this process.

    Frames of Arrow are sent to Spark. Each task sorts the entries of its subtask on the disk of its host.
    """
    spark = next(frame.sparkSession for frame in operator.frames if is_spark(frame))
    frames = [_distributed(spark, frame) for frame in operator.frames]
    operator = _indexed(operator, frames)
    prepare_struct_classes()
    work = _Work(_without_rows(operator), layout, target.storage.uri, target.folder, Credentials.of_process())
    try:
        rows = _combined(operator, layout)
        written = rows.mapInArrow(partial(_write_subtasks, work), "written binary").collect()
    except (Py4JError, PySparkException) as e:
        raise _of_savepoint(to_stateflow_error(e)) from e
    found: list[SubtaskState] = []
    for row in written:
        result = msgpack_decoder(_Written).decode(bytes(row[0]))
        if result.failure:
            raise result.failure.to_error()
        found += result.states
    return sorted(found, key=lambda state: state.subtask)


def _of_savepoint(error: StateflowError) -> StateflowError:
    """Returns an error of Spark's tasks as one of the call, where it would be about a batch of a run."""
    if type(error) is not BatchFailed:
        return error
    return BatchFailed(
        "Spark failed to read or write the state of a savepoint",
        hint=f"{log_with_stack_trace()} has the full stack trace; no savepoint was written: repeat the call, or fix "
        "the reason",
        **error.facts,
    )


def _distributed(spark: SparkSession, frame: Frame) -> DataFrame:
    if is_spark(frame):
        return frame
    if isinstance(frame, pa.RecordBatchReader):
        return spark.createDataFrame(frame.read_all())
    return spark.createDataFrame(pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else frame)


def _indexed(operator: GivenOperator, frames: Sequence[DataFrame]) -> GivenOperator:
    """Returns the operator with frames of Spark, those of lists with the positions of their elements."""
    states = tuple(_numbered(rows, operator.key, frame) for rows, frame in zip(operator.states, frames, strict=False))
    return replace(operator, states=states, timers=None if operator.timers is None else frames[-1])


def _numbered(rows: StateRows, key: GivenKey, frame: DataFrame) -> StateRows:
    columns = rows.columns
    if not columns.order_by:
        return replace(rows, frame=frame)
    within = [quote_name(name) for name in (*key.names, *([columns.namespace] if columns.namespace else []))]
    window = Window.partitionBy(*within).orderBy(*[quote_name(name) for name in columns.order_by])
    numbered = frame.withColumn(_INDEX, F.row_number().over(window).cast("bigint") - F.lit(1))
    return replace(rows, frame=numbered, columns=replace(columns, index=_INDEX))


def _without_rows(operator: GivenOperator) -> GivenOperator:
    """Returns the operator with empty frames, which are sent to tasks."""
    states = tuple(replace(rows, frame=_empty(rows.frame)) for rows in operator.states)
    return replace(operator, states=states, timers=None if operator.timers is None else _empty(operator.timers))


def _empty(frame: Frame) -> pa.Table:
    return pa.table({name: pa.nulls(0) for name in column_names(frame)})


def _combined(operator: GivenOperator, layout: Layout) -> DataFrame:
    """Returns the rows of all frames, each in the partition of its subtask.

    The rows of a single frame are as they are. A row of several frames has the number of its frame, and the columns of
    that frame as a struct; those of other frames are null.
    """
    frames = [frame for frame in operator.frames if is_spark(frame)]
    if len(frames) == 1:
        return partition_by_id(frames[0], layout.parallelism, _subtask_of(frames[0], operator.key, layout))
    schemas = [frame.schema for frame in frames]
    parts = [_tagged(frame, at, schemas, operator.key, layout) for at, frame in enumerate(frames)]
    rows = reduce(DataFrame.unionByName, parts)
    # The task does not read the subtask: to drop it, Spark would copy each row.
    return partition_by_id(rows, layout.parallelism, F.col(_SUBTASK))


def _tagged(frame: DataFrame, number: int, schemas: Sequence[StructType], key: GivenKey, layout: Layout) -> DataFrame:
    others = [
        (
            F.struct(*(F.col(quote_name(name)) for name in schema.names)) if at == number else F.lit(None).cast(schema)
        ).alias(f"s{at}")
        for at, schema in enumerate(schemas)
    ]
    return frame.select(_subtask_of(frame, key, layout).alias(_SUBTASK), F.lit(number).alias(_FRAME), *others)


def _subtask_of(frame: DataFrame, key: GivenKey, layout: Layout) -> Column:
    columns = [_key_column(frame, name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    # As for tasks of a run: subtask i of P owns the key groups g with i = ⌊g·P/M⌋.
    group = F.pmod(F.xxhash64(*columns), F.lit(layout.max_parallelism).cast("bigint"))
    return F.floor(group * F.lit(layout.parallelism) / F.lit(layout.max_parallelism)).cast("int")


def _key_column(frame: DataFrame, name: str, kind: str) -> Column:
    given = frame.schema[name].dataType.simpleString()
    if given != kind and not any(given in each and kind in each for each in NUMBERS):
        raise SchemaMismatch(
            "the type of a key column differs from the operator's",
            hint="cast the column before it is written",
            column=name,
            wanted=kind,
            given=given,
        )
    return F.col(quote_name(name)) if given == kind else F.col(quote_name(name)).cast(kind)


def _write_subtasks(work: _Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes the rows of one partition, which are those of one subtask; yields a `_Written`."""
    work.credentials.adopt()
    context = TaskContext.get()
    if context is None:
        raise InternalError("a task of Spark has no context")
    try:
        result = _Written(states=_write(work, context.partitionId(), batches))
    except StateflowError as e:
        # Not raised: Spark would run the task again, and the rows stay the same.
        result = _Written(failure=Failure.of(e))
    yield pa.RecordBatch.from_pydict({"written": pa.array([msgspec.msgpack.encode(result)], pa.binary())})


def _write(work: _Work, subtask: int, batches: Iterable[pa.RecordBatch]) -> list[SubtaskState]:
    operator, layout = work.operator, work.layout
    encoders = [operator.state_encoder(rows, layout) for rows in operator.states]
    timers = operator.timer_encoder() if operator.timers is not None else None
    each: list[EntryEncoder] = [*encoders, *([timers] if timers else [])]

    def parts() -> Iterator[EntryColumns]:
        for batch in batches:
            for number, encoder in enumerate(each):
                rows = batch if len(each) == 1 else _rows_of(batch, number)
                for part in slice_batch(rows):
                    yield encoder.encode(part)

    with ScratchFolder() as scratch:
        sorter = EntrySorter(operator, layout, [subtask], MOST_BUCKETS // 4, scratch.path)
        sorter.add(parts())
        states = sorter.write(SavepointFolder(open_storage(work.storage), work.folder))
    return [with_timers(state, timers.earliest if timers else {}) for state in states]


def _rows_of(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Returns the rows of one frame."""
    is_own = pa.compute.equal(batch.column(_FRAME), number)
    rows = batch.column(f"s{number}").filter(is_own)
    return pa.RecordBatch.from_struct_array(rows)
