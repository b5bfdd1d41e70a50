"""A replay on Spark: the rows of a batch, and an executor that runs tasks in this process.

The rows of a batch come from a query whose location has the batch planned and not committed. Spark only moves rows and
evaluates expressions.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from stateflow.api.source import Source, texts_of
from stateflow.checkpoint.log.documents import NOT_BEGUN, Manifest, SparkPosition
from stateflow.checkpoint.restore.source_positions import offset_lines
from stateflow.errors import BatchFailed, InputLost, StateflowError
from stateflow.replay.input import PlannedBatch, RunRows, deleted_file, lost_input
from stateflow.runtime.executor import REPORT, BatchWork, ChainSpec, Executed, LevelSpec, decode_reports, level_specs
from stateflow.runtime.job import Job
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import PlannedOffsets, SparkLocation, source_log
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.frames import empty_rows
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.spark.observations import Observations
from stateflow.runtime.spark.shuffle import next_exchange
from stateflow.runtime.spark.sorting import SortSettings, sort_input
from stateflow.runtime.spark.streaming_query import query_sources, split_times, stream_frame
from stateflow.runtime.task.task import run_level

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SparkReader:
    """How Spark reads the sources of a job.

    Attributes:
        sources: the sources by uid, as Spark reads them.
        folder: folder for the locations of queries.
    """

    spark: SparkSession
    sources: Mapping[str, Source]
    folder: Path


class SparkInput:
    """Lets Spark run planned batches once more.

    Args:
        job: the job.
        reader: how Spark reads its sources.
        target: the manifest of the checkpoint after the batches, with the sources of the job.
    """

    def __init__(self, job: Job, reader: SparkReader, target: Manifest) -> None:
        assert target.spark is not None
        self._job = job
        self._reader = reader
        self._position = target.spark
        self._number = 0

    def check(self, batch: PlannedBatch, manifest: Manifest) -> None:
        """See `BatchReader.check`."""
        assert manifest.spark is not None
        for at, node in enumerate(self._job.plan.sources):
            start, end = batch.start_of(node.uid), batch.end_of(node.uid)
            if not batch.moves(node.uid):
                continue
            lost = self._lost(self._reader.sources[node.uid], start, end, self._logs(at, manifest.spark))
            if lost:
                raise lost_input(node.uid, lost, batch)

    @staticmethod
    def _lost(source: Source, start: str, end: str, logs: Mapping[str, bytes]) -> Sequence[str]:
        if _is_file_position(end):
            return lost_files(logs.values(), start, end)
        return source.lost_between(start, end, logs)

    def _logs(self, at: int, position: SparkPosition) -> dict[str, bytes]:
        """Returns Spark's log of a source by name."""
        prefix = f"{at}/"
        own = [file for file in position.source_files if file.path.startswith(prefix)]
        return {file.path.removeprefix(prefix): source_log(self._job.root.storage, file) for file in own}

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """See `BatchReader.run`: runs the rows while their query runs."""
        if not batch.has_input:
            run_rows(empty_rows(self._reader.spark, self._job.plan.sources), {})
            return
        location = self._create_location(batch)
        query = _BatchQuery(self._job, self._reader, location, batch, run_rows)
        query.run()

    def _create_location(self, batch: PlannedBatch) -> SparkLocation:
        self._number += 1
        location = SparkLocation(self._reader.folder / str(self._number), self._job.root.storage)
        sources = query_sources(self._reader.spark, self._job.plan, self._reader.sources)
        query_id = self._job.root.clock.new_id()
        parts = (query_id[:8], query_id[8:12], query_id[12:16], query_id[16:20], query_id[20:])
        uids = [node.uid for node in self._job.plan.sources]
        partitions = str(self._reader.spark.conf.get("spark.sql.shuffle.partitions"))
        planned = planned_offsets(batch, self._position, uids, partitions)
        location.create_planned(planned, self._position, "-".join(parts), sources)
        return location


def _is_file_position(offset: str) -> bool:
    """Returns whether an offset is one of Spark's file source."""
    try:
        found = json.loads(offset)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == {"logOffset"}


def planned_offsets(
    batch: PlannedBatch, position: SparkPosition, uids: Sequence[str], shuffle_partitions: str
) -> PlannedOffsets:
    """Returns the entries of Spark's offset log for a batch. Pure.

    Args:
        position: the position of the checkpoint after it.
        uids: uids of the sources, in the order of the query.
        shuffle_partitions: see `PlannedOffsets`.
    """
    version, about = offset_lines(position.offsets)[:2]
    if batch.spark_time is not None:
        about = json.dumps({**json.loads(about), "batchTimestampMs": batch.spark_time})

    def entry(offsets: Mapping[str, str]) -> bytes:
        return "\n".join([version, about, *(offsets.get(uid, NOT_BEGUN) for uid in uids)]).encode()

    is_first = all(batch.start.get(uid, NOT_BEGUN) == NOT_BEGUN for uid in uids)
    return PlannedOffsets(None if is_first else entry(batch.start), entry(batch.end), shuffle_partitions)


class _BatchQuery:
    """A query that runs one planned batch."""

    def __init__(
        self, job: Job, reader: SparkReader, location: SparkLocation, batch: PlannedBatch, run_rows: RunRows
    ) -> None:
        self._job = job
        self._reader = reader
        self._location = location
        self._batch = batch
        self._run_rows = run_rows
        self._error: BaseException | None = None
        self._has_run = False
        self._finished = threading.Event()

    def run(self) -> None:
        """Runs the query until its batch is processed."""
        query = (
            stream_frame(self._reader.spark, self._job, self._reader.sources, self._location)
            .writeStream.foreachBatch(self._process)
            .option("checkpointLocation", f"file://{self._location.folder}")
            .trigger(availableNow=True)
            .start()
        )
        self._wait(query)
        if self._error is not None:
            raise self._explained(self._error) from self._error
        if not self._has_run:
            raise BatchFailed("Spark has not run the batch", hint="check the log of Spark")

    def _explained(self, error: BaseException) -> BaseException:
        """Returns the error of a source that has made the batch fail, or else the error itself."""
        sources = self._reader.sources
        if isinstance(error, BatchFailed):
            reason = str(error.facts.get("reason", ""))
            for uid, source in sources.items():
                explained = source.explain_failure(reason)
                if isinstance(explained, InputLost):
                    return lost_input(uid, texts_of(explained), self._batch)
                if explained is not None:
                    return explained
        if isinstance(error, InputLost):
            return _of_source(error, sources, self._batch)
        return error

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        # Spark plans more batches until the query is stopped; they are not part of the replay.
        if self._finished.is_set():
            return
        try:
            self._run_without_corrupt_files(frame, batch_id)
            self._has_run = True
        except BaseException as e:
            # Not raised: Spark would print it several times, with the stack traces of the JVM and Python.
            self._error = self._translated(e)
        finally:
            self._finished.set()

    def _run_without_corrupt_files(self, frame: DataFrame, batch_id: int) -> None:
        nodes = self._job.plan.sources
        batch = BatchInput(nodes, self._reader.sources, self._location, batch_id=batch_id, frame=frame)
        while True:
            try:
                self._run_batch(batch, frame)
                return
            except Exception as e:
                if not batch.skip_corrupt(e):
                    raise

    def _run_batch(self, batch: BatchInput, frame: DataFrame) -> None:
        if not self._job.plan.times_of_splits:
            self._run_rows(batch.rows(), {})
            return
        frame = frame.persist()
        try:
            times = split_times(self._job.plan, frame, self._reader.sources, self._batch.end)
            self._run_rows(batch.rows(frame), times)
        finally:
            frame.unpersist()

    def _wait(self, query: StreamingQuery) -> None:
        try:
            while query.isActive:
                if self._finished.wait(_POLL_SECONDS):
                    query.stop()
            query.awaitTermination()
        except StreamingQueryException as e:
            if not self._finished.is_set():
                self._error = self._translated(e)

    def _translated(self, error: BaseException) -> BaseException:
        descriptions = {uid: source.description for uid, source in self._reader.sources.items()}
        lost = deleted_file(str(error.__cause__ or error), self._batch, descriptions)
        return lost or (error if isinstance(error, StateflowError) else to_stateflow_error(error))


def _of_source(error: InputLost, sources: Mapping[str, Source], batch: PlannedBatch) -> InputLost:
    """Returns the error of a replay for one that a source has raised in a task or in the driver."""
    uids = [uid for uid, source in sources.items() if source.description == error.facts.get("source")]
    return lost_input(uids[0], texts_of(error), batch) if uids else error


_SHOWN = 3


def lost_files(logs: Iterable[bytes], start: str, end: str) -> list[str]:
    """Returns some of the files between two positions that are missing or changed, each with the reason.

    Only local files can be checked.

    Args:
        logs: contents of the files of Spark's log of the source.
        start, end: positions of a file source, as in Spark's offset log.
    """
    after, upto = _number(start), _number(end)
    found = []
    for path, modified, number in _entries(logs):
        reason = _reason(path, modified) if after < number <= upto else ""
        if reason:
            found.append(f"{path}: {reason}")
            if len(found) == _SHOWN:
                break
    return found


def _reason(path: str, modified: int) -> str:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "it does not exist"
    except OSError:
        # The task that reads it reports why it cannot.
        return ""
    return "" if status.st_mtime_ns // 1_000_000 == modified else "it has changed since it was read"


def _entries(logs: Iterable[bytes]) -> Iterator[tuple[str, int, int]]:
    """Yields path, modification time and number of the log's entry of each local file."""
    for log in logs:
        for line in log.splitlines():
            if not line.startswith(b"{"):
                continue
            entry = json.loads(line)
            uri = urlsplit(entry["path"])
            if uri.scheme == "file" and uri.netloc in ("", "localhost"):
                yield unquote(uri.path), int(entry["timestamp"]), int(entry["batchId"])


def _number(offset: str) -> int:
    return -1 if offset == NOT_BEGUN else int(json.loads(offset)["logOffset"])


_PACKED = "partition int, data binary"


class InProcessExecutor(SparkExecutor):
    """Collects the input of each task, so that functions run in this process, which has the terminal.

    Args:
        adapt: called with each task's own copy of its chain; returns the one to run.
    """

    def __init__(self, adapt: Callable[[ChainSpec], ChainSpec]) -> None:
        super().__init__()
        self._adapt = adapt
        self._attempts = count()

    def _run(self, inputs: Inputs, work: BatchWork) -> Executed:
        specs, spark = level_specs(work), inputs.spark
        inputs, observed = self._observe_inputs(inputs, work.plan)
        with ExitStack() as persisted:
            emitted = self._run_level(self._first(inputs, work, observed, persisted), specs[0], observed)
            for at, level in enumerate(work.plan.levels[1:], 1):
                frame = _frame_of(spark, emitted, specs[at - 1])
                exchanged = next_exchange(level, work.plan.levels[at - 1], frame, work.info, observed)
                emitted = self._run_level(exchanged, specs[at], observed)
            reports = decode_reports(value for batch in emitted for value in batch.column(REPORT).to_pylist())
            return Executed(reports, observed.latest(inputs, work.info), observed.rows(inputs))

    def _run_level(self, exchanged: DataFrame, spec: LevelSpec, observed: Observations) -> list[pa.RecordBatch]:
        """Runs the tasks of a level one after another; returns all that they emit."""
        result: list[pa.RecordBatch] = []
        for partition, batches in sorted(_collected(exchanged, observed).items()):
            number = partition // spec.parallelism
            chain = self._adapt(copy.deepcopy(spec.chains[number]))
            settings = SortSettings(spec.batch.settings.sort_memory_bytes, spec.batch.environment.local_folder)
            rows = sort_input(chain, settings, iter(batches))
            result += run_level(spec.with_chain(number, chain), partition, f"p{next(self._attempts)}", rows)
        return result


def _collected(exchanged: DataFrame, observed: Observations) -> Mapping[int, list[pa.RecordBatch]]:
    """Returns the input of each task as the task would receive it, by its number."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for partition, data in observed.collect(exchanged.mapInArrow(_pack, _PACKED)):
        found.setdefault(partition, []).extend(pa.ipc.open_stream(bytes(data)))
    return found


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, batch.schema) as stream:
            stream.write_batch(batch)
        columns = {
            "partition": pa.array([context.partitionId()], pa.int32()),
            "data": pa.array([target.getvalue().to_pybytes()], pa.binary()),
        }
        yield pa.RecordBatch.from_pydict(columns)


def _frame_of(spark: SparkSession, emitted: list[pa.RecordBatch], spec: LevelSpec) -> DataFrame:
    table = pa.Table.from_batches(emitted, schema=spec.output_schema)
    return spark.createDataFrame(table, from_arrow_schema(spec.output_schema, prefer_timestamp_ntz=True))
