"""A run on Spark: streaming queries whose micro-batches end in checkpoints of stateflow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stateflow import failpoints
from stateflow.api.file_log import FilePattern
from stateflow.api.source import Source, limits_of
from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.checkpoint.restore.source_positions import position_before_first_batch
from stateflow.errors import BatchFailed, InputLost, StateflowError, StorageError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.termination import CAUGHT_UP, IDLE_INTERVAL, IdleWork, RunBounds, run_ticks
from stateflow.runtime.job import BatchResult, Job, Positions, SkippedFile, quarantine_records
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import QuerySource, SparkLocation, driver_location, source_positions
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.frames import empty_rows, source_frame
from stateflow.runtime.spark.observations import latest_by_split
from stateflow.runtime.spark.table_registration import register_tables
from stateflow.storage.paths import spark_location
from stateflow.types.columns.struct_classes import prepare_struct_classes

_POLL_SECONDS = 0.1
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
"""Spark's setting of the pause after a poll that has found no input; 10 ms unless it is set."""


@dataclass
class _Outcome:
    """Reports of the callback, which runs in a thread of Spark, to the main thread."""

    error: BaseException | None = None
    reached: str | None = None
    batches: int = 0
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def has_ended(self) -> bool:
        """Whether the query must process no other batch."""
        return self.error is not None or self.reached is not None

    def end_if(self, reached: str | None) -> None:
        """Ends the query if the run is stopped or has reached a bound; None if it has not."""
        self.reached = reached
        if reached is not None:
            self.finished.set()

    def fail(self, error: BaseException) -> None:
        """Ends the query with an error."""
        self.error = error if isinstance(error, StateflowError) else to_stateflow_error(error)
        self.finished.set()


class SparkRun:
    """Drives a started `JobRun` with Spark's streaming queries.

    Args:
        run: a started run, whose executor is `SparkExecutor`.
        sources: the sources by uid.
        on_batch: called after each committed and published batch.
        bounds: when to end; a run that restarts passes the same bounds again.
    """

    def __init__(
        self,
        spark: SparkSession,
        run: JobRun,
        sources: Mapping[str, Source],
        on_batch: Callable[[BatchResult], None],
        bounds: RunBounds,
    ) -> None:
        self._spark = spark
        self._run = run
        self._sources = sources
        self._on_batch = on_batch
        self._bounds = bounds
        self._location: SparkLocation
        # Held by what runs a batch: the callback in a thread of Spark, or the main thread, which fires timers.
        self._batch_lock = threading.Lock()

    def run(self) -> str:
        """Runs until all input that existed at the start is processed, or until a bound; returns which.

        A continuous run waits for more input until it is stopped or reaches a bound.
        """
        # Sources in Python are sent with their row classes.
        prepare_struct_classes()
        try:
            self._bounds.begin()
            register_tables(self._spark, (bound.sink for bound in self._run.job.sinks.values()))
            self._location = self._create_location()
            if self._bounds.end.continuous:
                with self._bounds.signal.handle_signals():
                    return self._run_to_end(self._until_stopped)
            return self._run_to_end(self._until_reached)
        finally:
            self._run.abandon()

    def _run_to_end(self, run_batches: Callable[[], str]) -> str:
        with self._run.guard.translate_errors():
            reached = self._run.stopped or run_batches()
        self._run.finish()
        return reached

    def _until_stopped(self) -> str:
        # A bounded source has ended once its input is read, which Spark's AvailableNow trigger shows.
        if self._run.job.plan.bounded:
            reached = self._until_reached()
            if reached != CAUGHT_UP:
                return reached
        self._check_positions()
        outcome = self._continuous_query()
        if outcome.error is not None:
            self._raise(outcome.error)
        if outcome.reached is None:
            raise BatchFailed(
                "the streaming query was stopped outside of the run",
                hint="check what else uses the Spark session; a new run continues from the last checkpoint",
            )
        return outcome.reached

    def _until_reached(self) -> str:
        # Spark runs only one batch per query when one source does not support the AvailableNow trigger.
        ends_by_itself = all(source.ends_by_itself for source in self._sources.values())
        reached = self._bounds.reached
        while reached is None:
            self._check_positions()
            outcome = self._query()
            if outcome.error is not None:
                self._raise(outcome.error)
            if self._run.manifest is None:
                self._record_start()
            reached = outcome.reached
            if reached is None and (ends_by_itself or outcome.batches == 0):
                reached = run_ticks(self._run, self._bounds, self._on_batch)
        return reached

    def _check_positions(self) -> None:
        """Raises InputLost if a source cannot continue from its position."""
        for position in self._run.positions:
            if position.uid in self._sources and position.offset != NOT_BEGUN:
                self._sources[position.uid].check_position(position.offset)

    def _raise(self, error: BaseException) -> NoReturn:
        """Raises the error that ended a query, or its cause: input that no longer exists, or an error of a source."""
        if isinstance(error, BatchFailed):
            # A source that does not answer now is not the reason for the failure.
            with suppress(StorageError):
                try:
                    self._check_positions()
                except InputLost as e:
                    raise e from error
            error = _explained(error, self._sources.values())
        raise error

    def _record_start(self) -> None:
        """Makes a checkpoint of where the sources begin, if no input of a new job has arrived yet.

        A source that begins at its end would otherwise begin later in the next run, without the input in between.
        """
        uids = [uid for uid, _ in self._run.job.sources]
        offsets = [self._sources[uid].first_offset(self._location.source_logs(at)) for at, uid in enumerate(uids)]
        if not any(offsets):
            return
        position = position_before_first_batch([offset or NOT_BEGUN for offset in offsets])
        positions = Positions(source_positions(position, list(self._run.job.sources)), position)
        rows = empty_rows(self._spark, self._run.job.plan.sources)
        self._on_batch(self._run.run_batch(rows, lambda _: positions))

    def _create_location(self) -> SparkLocation:
        root, settings = self._run.job.root, self._run.job.settings
        generation = self._run.head.entry.generation
        folder = root.storage.local_path(spark_location(generation))
        if folder is None:
            folder = driver_location(settings.local_folder, root.job.job_uuid, generation)
        location = SparkLocation(folder, root.storage)
        manifest = self._run.manifest
        query_id = _query_id(self._run.job.root.clock.new_id())
        sources = query_sources(self._spark, self._run.job.plan, self._sources)
        location.create(manifest.spark if manifest else None, query_id, sources)
        failpoints.hit("start.seeded")
        return location

    def _query(self) -> _Outcome:
        outcome = _Outcome()
        query = self._writer(outcome).trigger(availableNow=True).start()
        _wait(query, outcome)
        return outcome

    def _writer(self, outcome: _Outcome) -> DataStreamWriter:
        return (
            stream_frame(self._spark, self._run.job, self._sources, self._location)
            .writeStream.foreachBatch(lambda df, n: self._batch(df, n, outcome))
            # Hadoop takes the path literally: it would not decode a percent-encoded URI.
            .option("checkpointLocation", f"file://{self._location.folder}")
        )

    def _continuous_query(self) -> _Outcome:
        """Runs a query that polls the sources until the run is stopped or reaches a bound."""
        outcome = _Outcome()
        trigger = _polling_trigger(self._spark, self._run.job.settings.run.interval)
        query = self._writer(outcome).trigger(processingTime=trigger).start()
        idle = IdleWork(self._run, self._bounds, self._on_batch)
        pause = timedelta()
        while query.isActive and not outcome.finished.wait(pause.total_seconds()):
            pause = self._idle_step(idle, outcome)
        query.stop()
        _wait(query, outcome)
        return outcome

    def _idle_step(self, idle: IdleWork, outcome: _Outcome) -> timedelta:
        """Does what is due while no batch runs; returns the time until the next step."""
        if not self._batch_lock.acquire(blocking=False):
            return IDLE_INTERVAL
        try:
            outcome.end_if(_reached(self._run, self._bounds))
            # A batch may also have failed since the last step.
            if outcome.has_ended:
                return timedelta()
            if self._run.manifest is None:
                self._record_start()
            pause = idle.step(caught_up=True)
            outcome.end_if(_reached(self._run, self._bounds))
            return pause
        except Exception as e:
            outcome.fail(e)
            return timedelta()
        finally:
            self._batch_lock.release()

    def _batch(self, frame: DataFrame, batch_id: int, outcome: _Outcome) -> None:
        with self._batch_lock:
            if outcome.has_ended:
                # Spark starts one more batch while it stops. It may count this batch as done: the next run starts from
                # the checkpoint log, not from Spark's directory, and this run processes nothing after a batch that it
                # skipped.
                return
            try:
                self._on_batch(self._run_without_corrupt_files(frame, batch_id))
            except BaseException as e:
                # Not raised: Spark would print it several times, with the stack traces of the JVM and Python. That
                # Spark then counts the batch as done has no effect, as above.
                outcome.fail(e)
                return
            outcome.batches += 1
            self._bounds.count_batch()
            outcome.end_if(_reached(self._run, self._bounds))

    def _run_without_corrupt_files(self, frame: DataFrame, batch_id: int) -> BatchResult:
        """Runs the batch, and retries it as long as it fails on a corrupt file that may be skipped."""
        nodes = self._run.job.plan.sources
        batch = BatchInput(nodes, self._sources, self._location, batch_id=batch_id, frame=frame)
        while True:
            try:
                return self._run_rows(batch, frame, batch_id)
            except Exception as e:
                if not batch.skip_corrupt(e):
                    raise

    def _run_rows(self, batch: BatchInput, frame: DataFrame, batch_id: int) -> BatchResult:
        plan, skipped = self._run.job.plan, batch.skipped
        if not plan.times_of_splits:
            return self._run.run_batch(batch.rows(), lambda folder: self._positions(batch_id, folder, skipped))
        frame = frame.persist()
        try:
            return self._run.run_batch(
                batch.rows(frame),
                lambda folder: self._with_split_times(self._positions(batch_id, folder, skipped), frame),
            )
        finally:
            frame.unpersist()

    def _with_split_times(self, positions: Positions, rows: DataFrame) -> Positions:
        offsets = {position.uid: position.offset for position in positions.sources}
        return replace(positions, split_times=split_times(self._run.job.plan, rows, self._sources, offsets))

    def _positions(self, batch_id: int, folder: str, skipped: Sequence[SkippedFile]) -> Positions:
        position, root = self._location.capture(batch_id, folder), self._run.job.root
        at = root.clock.now().isoformat(timespec="milliseconds")
        records = quarantine_records(skipped, at, self._run.head.entry.generation)
        return Positions(source_positions(position, list(self._run.job.sources)), position, records)


def query_sources(spark: SparkSession, plan: JobPlan, sources: Mapping[str, Source]) -> list[QuerySource]:
    """Returns the sources of a job's query, in its order.

    Args:
        sources: the sources by uid.
    """
    # Hadoop's settings, which PySpark has no method for.
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    addresses = {node.uid: sources[node.uid].files_address for node in plan.sources}
    return [QuerySource(uid, FilePattern(a, default) if a is not None else None) for uid, a in addresses.items()]


def stream_frame(spark: SparkSession, job: Job, sources: Mapping[str, Source], location: SparkLocation) -> DataFrame:
    """Returns the streaming DataFrame of all sources of a job.

    Args:
        sources: the sources by uid.
        location: the Spark checkpoint location of the query.
    """
    nodes = job.plan.sources
    frames = []
    for at, node in enumerate(nodes):
        source = sources[node.uid]
        limits = limits_of(node.uid, source, job.settings.source)
        frame = source.stream_files(spark, limits, location.log_folder(at)) or source.stream(spark, limits)
        # The rows of files are read by their names. Next to other sources, Spark must not read them, too.
        frames.append((node, frame.where("false") if source.has_files and len(nodes) > 1 else frame))
    return source_frame(frames)


def split_times(
    plan: JobPlan, rows: DataFrame, sources: Mapping[str, Source], offsets: Mapping[str, str]
) -> dict[str, dict[str, int | None]]:
    """Returns the latest event times in a batch of each split, as `Positions.split_times`.

    Args:
        rows: the rows of the batch, persisted.
        sources: the sources by uid.
        offsets: their positions after the batch.
    """
    return {
        uid: {split: of_rows.get(split) for split in sources[uid].splits(offsets[uid])}
        for uid, of_rows in latest_by_split(plan, rows).items()
        if offsets[uid] != NOT_BEGUN
    }


def _reached(run: JobRun, bounds: RunBounds) -> str | None:
    return run.stopped or bounds.reached


def _wait(query: StreamingQuery, outcome: _Outcome) -> None:
    try:
        while query.isActive:
            if outcome.finished.wait(_POLL_SECONDS):
                query.stop()
        query.awaitTermination()
    except StreamingQueryException as e:
        if outcome.error is None and outcome.reached is None:
            outcome.error = to_stateflow_error(e)


def _polling_trigger(spark: SparkSession, interval: timedelta | None) -> str:
    """Returns the interval of a trigger that polls for input; sets the pause after a poll that has found none."""
    if not spark.sparkContext.getConf().contains(_POLLING_DELAY):
        spark.conf.set(_POLLING_DELAY, f"{IDLE_INTERVAL // timedelta(milliseconds=1)}ms")
    return f"{(interval or timedelta()) // timedelta(milliseconds=1)} milliseconds"


def _explained(error: BatchFailed, sources: Iterable[Source]) -> StateflowError:
    """Returns the error of a source that has made a batch fail, with `error` as its cause, or else `error`."""
    reason = str(error.facts.get("reason", ""))
    for source in sources:
        explained = source.explain_failure(reason)
        if explained is not None:
            explained.__cause__ = error
            return explained
    return error


def _query_id(hexadecimal: str) -> str:
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
