"""A whole run on Spark: a streaming query whose every micro-batch ends in a checkpoint of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stateflow import failpoints
from stateflow.api.graph import SinkNode
from stateflow.api.source import Source
from stateflow.errors import ConfigError, StateflowError
from stateflow.runtime.bounds import STOPPED, Bounds
from stateflow.runtime.frames import source_frame
from stateflow.runtime.job import BatchResult, Positions
from stateflow.runtime.run import JobRun
from stateflow.runtime.seeding import SparkLocation, driver_location, source_positions
from stateflow.runtime.session import is_local
from stateflow.runtime.spark_failures import as_ours
from stateflow.runtime.ticks import run_ticks
from stateflow.storage import Storage
from stateflow.storage.paths import spark_location

_POLL_SECONDS = 0.1


@dataclass
class _Outcome:
    """What the callback, which runs in a thread of Spark's, leaves for the main thread."""

    error: BaseException | None = None
    reached: str | None = None
    batches: int = 0


def check_sinks(sinks: Iterable[SinkNode], master: str, shared: bool) -> None:
    """Raises ConfigError for a sink whose files tasks on other hosts would write to their own disks."""
    local = [node.uid for node in sinks if node.sink.host_local]
    if local and not is_local(master) and not shared:
        raise ConfigError("a sink's table is on this host only, but tasks run on others", hint="use a path that all "
                          "hosts see, and set storage.shared=true", sinks=local, master=master)  # fmt: skip


def check_root(storage: Storage, master: str, shared: bool) -> None:
    """Raises ConfigError for a job root that the tasks, or Spark's driver, could not see."""
    if storage.local_path("x") is None and storage.host_local:
        raise ConfigError(
            "a job root in memory is for runs without Spark", hint="use a path", root=storage.uri
        )
    if storage.host_local and not is_local(master) and not shared:
        raise ConfigError("the job root is on this host only, but tasks run on others", hint="use a storage that all "
                          "hosts see; if this path is one, set storage.shared=true", root=storage.uri,
                          master=master)  # fmt: skip


class SparkRun:
    """Drives a started `JobRun` by Spark's streaming query.

    Args:
        run: started; its executor is Spark's.
        sources: by uid.
        on_batch: called after each committed and published batch.
        bounds: when to end; those of a run that starts again go on.
    """

    def __init__(
        self,
        spark: SparkSession,
        run: JobRun,
        sources: Mapping[str, Source],
        on_batch: Callable[[BatchResult], None],
        bounds: Bounds,
    ) -> None:
        self._spark = spark
        self._run = run
        self._sources = sources
        self._on_batch = on_batch
        self._bounds = bounds
        self._location: SparkLocation

    def run(self) -> str:
        """Runs until caught up with what the source held at the start, or until a bound; returns which."""
        try:
            self._bounds.begin()
            self._location = self._seeded_location()
            with self._run.fenced_first():
                reached = STOPPED if self._run.stopped else self._until_reached()
            self._run.finish()
        finally:
            self._run.abandon()
        return reached

    def _until_reached(self) -> str:
        # Spark falls back to one batch per query when a single source does not know where "available now" ends.
        ends_by_itself = all(source.ends_by_itself for source in self._sources.values())
        reached = self._bounds.reached
        while reached is None:
            outcome = self._query()
            if outcome.error is not None:
                raise outcome.error
            reached = outcome.reached
            if reached is None and (ends_by_itself or outcome.batches == 0):
                reached = run_ticks(self._run, self._bounds, self._on_batch)
        return reached

    def _seeded_location(self) -> SparkLocation:
        root, settings = self._run.job.root, self._run.job.settings
        generation = self._run.head.entry.generation
        folder = root.storage.local_path(spark_location(generation))
        if folder is None:
            folder = driver_location(settings.local_folder, root.job.job_uuid, generation)
        location = SparkLocation(folder, root.storage)
        manifest = self._run.manifest
        location.seed(manifest.spark if manifest else None, _query_id(self._run.job.root.clock.new_id()))
        failpoints.hit("start.seeded")
        return location

    def _frame(self) -> DataFrame:
        limits = self._run.job.settings.source
        nodes = self._run.job.plan.sources
        return source_frame([(node, self._sources[node.uid].stream(self._spark, limits)) for node in nodes])

    def _query(self) -> _Outcome:
        outcome = _Outcome()
        finished = threading.Event()
        query = (
            self._frame()
            .writeStream.foreachBatch(lambda df, n: self._batch(df, n, outcome, finished))
            # Hadoop takes a path literally: percent signs of a real URI would become part of the name.
            .option("checkpointLocation", f"file://{self._location.folder}")
            .trigger(availableNow=True)
            .start()
        )
        self._wait(query, outcome, finished)
        return outcome

    def _wait(self, query: StreamingQuery, outcome: _Outcome, finished: threading.Event) -> None:
        try:
            while query.isActive:
                if finished.wait(_POLL_SECONDS):
                    query.stop()
            query.awaitTermination()
        except StreamingQueryException as e:
            if outcome.error is None and outcome.reached is None:
                outcome.error = as_ours(e)

    def _batch(self, frame: DataFrame, batch_id: int, outcome: _Outcome, finished: threading.Event) -> None:
        if outcome.error is not None or outcome.reached is not None:
            # Spark asks for one more batch while it is being stopped. It may think that this one is done: the next run
            # starts from our log, not from Spark's directory, and this one runs nothing after a batch that it left out.
            return
        try:
            self._on_batch(self._run.run_batch(frame, lambda folder: self._positions(batch_id, folder)))
        except BaseException as e:
            outcome.error = e if isinstance(e, StateflowError) else as_ours(e)
            finished.set()
            raise
        outcome.batches += 1
        self._bounds.count_batch()
        outcome.reached = STOPPED if self._run.stopped else self._bounds.reached
        if outcome.reached is not None:
            finished.set()

    def _positions(self, batch_id: int, folder: str) -> Positions:
        position = self._location.capture(batch_id, folder)
        return Positions(source_positions(position, list(self._run.job.sources)), position)


def _query_id(hexadecimal: str) -> str:
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
