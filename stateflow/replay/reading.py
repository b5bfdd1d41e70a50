"""How a replay reads rows and runs tasks: on Spark, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stateflow.api.source import LocalSource
from stateflow.checkpoint.log.documents import Manifest
from stateflow.errors import ConfigError
from stateflow.replay.key_trace import KeyTracer
from stateflow.replay.local_input import LocalInput, RunRows
from stateflow.replay.target import PlannedBatch
from stateflow.runtime.executor import Executor
from stateflow.runtime.job.job import Job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.preflight import StartContext


class BatchReader(Protocol):
    """Reads the rows of batches."""

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """Calls `run_rows` with the rows of a batch."""


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
        job_file: the job file, which Spark's workers import.
        job: the job of the replay.
        target: the manifest of the checkpoint, with the sources of the job.
        folder: scratch folder.
        on_step: called before each slow step with its description.
        tracer: records the calls for a key; the tasks then run in this process.
    """

    start: StartContext
    job_file: Path
    job: Job
    target: Manifest
    folder: Path
    on_step: Callable[[str], None]
    tracer: KeyTracer | None = None


@contextmanager
def reading(context: ReadingContext) -> Iterator[Reading]:
    """Yields how the batches run. Raises ConfigError for a job on Spark."""
    if not context.start.on_spark:
        nodes = context.start.graph.sources
        sources = {node.uid: node.source for node in nodes if isinstance(node.source, LocalSource)}
        executor = LocalExecutor(adapt=context.tracer.traced) if context.tracer else LocalExecutor()
        yield Reading(executor, LocalInput(context.job, sources))
        return
    raise ConfigError("jobs that run on Spark cannot be replayed yet", hint="replay a job whose sources need no Spark")
