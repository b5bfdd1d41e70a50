"""Writes canonical savepoints in a Spark job of its own, while batches run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.checkpoint.savepoints.canonical.running_worker import RunningWorker
from stateflow.checkpoint.savepoints.canonical.worker_tasks import WorkerResult, WorkerTask
from stateflow.checkpoint.savepoints.canonical.workers import LocalWorkers, SavepointWorkers
from stateflow.errors import StateflowError
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.state.handles import StateFile
from stateflow.storage import Credentials

_GROUP = "stateflow-savepoint"


class SparkWorkers(SavepointWorkers):
    """Workers in Spark tasks, which occupy at most half of the slots, so that batches have the others.

    Attributes:
        context: the context of the run; None before its first batch, when the workers are child processes.
    """

    def __init__(self) -> None:
        self.context: SparkContext | None = None

    def run(self, tasks: Sequence[WorkerTask]) -> list[list[StateFile]]:
        """See `SavepointWorkers.run`."""
        if self.context is None:
            return LocalWorkers().run(tasks)
        # The group of this thread: one that a batch uses would be cancelled with the batch.
        self.context.setJobGroup(_GROUP, "a canonical savepoint of stateflow")
        slots = max(1, self.context.defaultParallelism // 2)
        try:
            work = self.context.parallelize(tasks, min(len(tasks), slots))
            results = work.mapPartitions(partial(_do_partition, Credentials.of_process())).collect()
        except (Py4JError, PySparkException) as e:
            raise to_stateflow_error(e) from e
        return [result.stored() for result in results]


def _do_partition(credentials: Credentials, tasks: Iterable[WorkerTask]) -> Iterator[WorkerResult]:
    """Yields the results of tasks up to the first failure."""
    credentials.adopt()
    # A process of its own: Spark's worker cannot lower its priority for one task.
    with RunningWorker() as worker:
        for task in tasks:
            try:
                result = worker.run(task)
            except StateflowError as e:
                # Not raised, because Spark would run the partition again.
                result = WorkerResult(failure=Failure.of(e))
            yield result
            if result.failure:
                return
