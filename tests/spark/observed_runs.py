"""Runs a job in this process, once or more, and prints what Spark was asked for; run as a program, never imported.

``observed_runs.py JOB JOB_ROOT SETTINGS…``, one JSON object of settings for each run. All runs use one Spark, whose
start takes longer than a run over a few rows. Prints one JSON object about the last run: Spark's settings that a run
requires, and for each batch the SQL executions that Spark has begun, with their jobs, and the number of all jobs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stateflow.launch import RunRequest, run_job
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.spark.settings import REQUIRED


class Observer:
    """Looks at Spark's own list of executions after each batch."""

    def __init__(self) -> None:
        self.settings: dict[str, str | None] = {}
        self.batches: list[dict[str, Any]] = []
        self._seen: set[int] = set()
        self._jobs = 0

    def started(self, run: object) -> None:
        session = _session()
        self.settings = {key: session.conf.get(key, None) for key in REQUIRED}
        self._new()

    def batch(self, result: BatchResult) -> None:
        self.batches.append(self._new())

    def _new(self) -> dict[str, Any]:
        context = _session().sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        found = _session()._jsparkSession.sharedState().statusStore().executionsList()
        executions = [found.apply(i) for i in range(found.size())]
        new = [e for e in executions if e.executionId() not in self._seen]
        self._seen |= {e.executionId() for e in new}
        before, self._jobs = self._jobs, context.statusStore().jobsList(None).size()
        told = [{"id": e.executionId(), "root": e.rootExecutionId(), "jobs": e.jobs().size()} for e in new]
        return {"executions": told, "all_jobs": self._jobs - before}


def _session() -> SparkSession:
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    assert session is not None
    return session


def main(job: str, job_root: str, *settings: str) -> None:
    observer = Observer()
    for each in settings:
        observer = Observer()
        layers = (json.loads(each),)
        run_job(RunRequest(Path(job), job_root, layers, on_start=observer.started, on_batch=observer.batch))
    print(json.dumps({"settings": observer.settings, "batches": observer.batches}))


if __name__ == "__main__":
    # The folder of a program comes first on the path; its neighbours are no modules.
    sys.path.pop(0)
    main(*sys.argv[1:])
