"""How a replay reads rows and runs tasks: on Spark, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from stateflow.api.source import LocalSource
from stateflow.checkpoint.log.documents import Manifest
from stateflow.config.settings import Settings
from stateflow.launch import start_spark
from stateflow.replay.input.local import LocalInput, RunRows
from stateflow.replay.key_trace import KeyTracer
from stateflow.replay.target import PlannedBatch
from stateflow.runtime.executor import Executor
from stateflow.runtime.job.job import Job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.preflight import StartContext

_LOCAL_MASTER = "local[2,4]"


class BatchReader(Protocol):
    """Reads the rows of batches."""

    def check(self, batch: PlannedBatch, manifest: Manifest) -> None:
        """Checks whether the sources have the rows of a batch, as far as that is known before they are read.

        Args:
            batch: the batch.
            manifest: the manifest of a checkpoint after it, with the sources of the job.

        Raises:
            InputLost: a source no longer has them.
        """

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """Calls `run_rows` with the rows of a batch.

        Raises:
            InputLost: a source no longer has them.
            StateflowError: the batch failed.
        """


@dataclass(frozen=True)
class Reading:
    """A way to run batches.

    Attributes:
        executor: runs the tasks.
        rows: reads the rows, as the executor takes them.
    """

    executor: Executor
    rows: BatchReader


@dataclass(frozen=True)
class ReadingContext:
    """What rows are read for.

    Attributes:
        start: the job with its settings.
        job: the job of the replay.
        target: the manifest of the checkpoint, with the sources of the job.
        folder: scratch folder.
        on_step: called before each slow step with its description.
        tracer: records the calls for a key; the tasks then run in this process.
    """

    start: StartContext
    job: Job
    target: Manifest
    folder: Path
    on_step: Callable[[str], None]
    tracer: KeyTracer | None = None


@contextmanager
def reading(context: ReadingContext) -> Iterator[Reading]:
    """Starts Spark if the job needs it; yields how the batches run."""
    if not context.start.on_spark:
        nodes = context.start.graph.sources
        sources = {node.uid: node.source for node in nodes if isinstance(node.source, LocalSource)}
        local = LocalExecutor(adapt=context.tracer.traced) if context.tracer else LocalExecutor()
        yield Reading(local, LocalInput(context.job, sources))
        return
    # Importing Spark takes a second, which replays without it save.
    from stateflow.replay.input.spark import SparkInput, SparkReader
    from stateflow.replay.spark_in_process import InProcessExecutor
    from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
    from stateflow.runtime.spark.executor import SparkExecutor

    context.on_step("starting Spark")
    start = replace(context.start, settings=_on_this_host(context.start.settings))
    started, sources_of_spark = start_spark(start)
    spark = started.session
    assert spark is not None
    reader = SparkReader(spark, sources_of_spark, context.folder / "spark")
    with translate_spark_errors(lambda: is_alive(spark)):
        executor = InProcessExecutor(context.tracer.traced) if context.tracer else SparkExecutor()
        yield Reading(executor, SparkInput(context.job, reader, context.target))


def _on_this_host(settings: Settings) -> Settings:
    """Returns settings by which Spark runs on this host: tasks on other hosts cannot write to the scratch folder."""
    if settings.spark.master.startswith("local[") and "spark.master" not in settings.spark.conf:
        return settings
    conf = {name: value for name, value in settings.spark.conf.items() if name != "spark.master"}
    return replace(settings, spark=replace(settings.spark, master=_LOCAL_MASTER, conf=conf))
