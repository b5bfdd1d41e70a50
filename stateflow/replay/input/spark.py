"""The rows of a batch of a job that runs on Spark: a query whose location has the batch planned and not committed."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stateflow.api.source import Source, texts_of
from stateflow.checkpoint.log.documents import NOT_BEGUN, Manifest, SparkPosition
from stateflow.checkpoint.restore.source_positions import offset_lines
from stateflow.errors import BatchFailed, InputLost, StateflowError
from stateflow.replay.input.local import RunRows
from stateflow.replay.input.lost import deleted_file, input_lost
from stateflow.replay.input.read_files import lost_files
from stateflow.replay.target import PlannedBatch
from stateflow.runtime.job.job import Job
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.frames import empty_rows
from stateflow.runtime.spark.location.checkpoint_location import PlannedOffsets, SparkLocation, source_log
from stateflow.runtime.spark.streaming_query import query_sources, split_times, stream_frame

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
                raise input_lost(node.uid, lost, batch)

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
            stream_frame(self._reader.spark, self._job, self._reader.sources)
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
                    return input_lost(uid, texts_of(explained), self._batch)
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
        self._location.check_batch(batch_id, [self._reader.sources[node.uid] for node in nodes])
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
    return input_lost(uids[0], texts_of(error), batch) if uids else error
