"""Jobs of `tests.spark.jobs` in a folder; run as a program, runs of a job in one process, with Spark's actions.

``python -m tests.spark.processes JOB JOB_ROOT SETTINGS…`` has one JSON object of settings for each run. All runs use
one Spark, whose start takes longer than a run over a few rows. It prints one JSON object about the last run: Spark's
settings that a run requires, and for each batch the SQL executions with their jobs, and the number of all jobs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stateflow.testing.sinks import FolderSink
from tests.support.job_fixture import JobFixture
from tests.support.processes import ROOT, fork, spawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ModuleJob(JobFixture):
    def __init__(self, folder: Path, job: ModuleType, *, spark: bool = True, **settings: object) -> None:
        common = {"job__home": folder, "job__spark": "yes" if spark else "no", "checkpoints__asynchronous": "yes"}
        super().__init__(folder, common | settings, job_name=str(job.__file__), launcher=spawn if spark else fork)

    @property
    def job_file(self) -> str:
        return self.job_name

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in FolderSink(self.folder / table).rows())

    def close(self) -> None:
        self.end_all()
        for process in self.processes:
            process.wait_family()


def observed_runs(job: JobFixture, *settings: Mapping[str, object]) -> dict[str, Any]:
    """Runs a job once for each of the settings, in one process; returns what the program prints."""
    common = {**job.settings, "local_dir": job.local}
    given = [{n.replace("__", "."): str(v) for n, v in {**common, **each}.items()} for each in settings]
    command = [sys.executable, "-m", __name__, job.job_file, job.job_root, *map(json.dumps, given)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class _Observer:
    def __init__(self) -> None:
        self.settings: dict[str, str | None] = {}
        self.batches: list[dict[str, Any]] = []
        self._seen: set[int] = set()
        self._jobs = 0

    def started(self, run: object) -> None:
        from stateflow.config.spark_versions import running_version

        self.settings = {key: _session().conf.get(key, None) for key in running_version().required}
        self._new()

    def batch(self, result: object) -> None:
        self.batches.append(self._new())

    def _new(self) -> dict[str, Any]:
        context = _session().sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        found = _session()._jsparkSession.sharedState().statusStore().executionsList()
        new = [e for e in map(found.apply, range(found.size())) if e.executionId() not in self._seen]
        self._seen |= {e.executionId() for e in new}
        before, self._jobs = self._jobs, context.statusStore().jobsList(None).size()
        executions = [{"id": e.executionId(), "root": e.rootExecutionId(), "jobs": e.jobs().size()} for e in new]
        return {"executions": executions, "all_jobs": self._jobs - before}


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    assert session is not None
    return session


def _main(job: str, job_root: str, *settings: str) -> None:
    from stateflow.launch import RunRequest, run_job

    observer = _Observer()
    for each in settings:
        observer = _Observer()
        layers = (json.loads(each),)
        run_job(RunRequest(Path(job), job_root, layers, on_start=observer.started, on_batch=observer.batch))
    print(json.dumps({"settings": observer.settings, "batches": observer.batches}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
