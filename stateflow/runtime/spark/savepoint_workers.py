"""Writes canonical savepoints in a Spark job of its own, while batches run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from stateflow.checkpoint.savepoints.canonical.worker_tasks import WorkerResult, WorkerTask
from stateflow.checkpoint.savepoints.canonical.workers import LocalWorkers, SavepointWorkers, run_in_process
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.storage import Credentials

_GROUP = "stateflow-savepoint"


class SparkWorkers(SavepointWorkers):
    """Workers in Spark tasks, which occupy at most half of the slots, so that batches have the others.

    Attributes:
        context: the context of the run; None before its first batch, when the workers are child processes.
    """

    def __init__(self) -> None:
        self.context: SparkContext | None = None

    def run(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """See `SavepointWorkers.run`."""
        if self.context is None:
            return LocalWorkers().run(tasks)
        # The group of this thread: one that a batch uses would be cancelled with the batch.
        self.context.setJobGroup(_GROUP, "a canonical savepoint of stateflow")
        slots = max(1, self.context.defaultParallelism // 2)
        try:
            work = self.context.parallelize(tasks, min(len(tasks), slots))
            return work.map(partial(_run, Credentials.of_process())).collect()
        except (Py4JError, PySparkException) as e:
            raise to_stateflow_error(e) from e


def _run(credentials: Credentials, task: WorkerTask) -> WorkerResult:
    credentials.adopt()
    # A process of its own: Spark's worker cannot lower its priority for one task.
    return run_in_process(task)
