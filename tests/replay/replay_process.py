"""Runs and replays of jobs on Spark, all in one process with one session.

``python -m tests.replay.replay_process`` reads commands from stdin and prints the answer to each, one line of JSON:
``run``, or ``replay`` of a batch. The first word of an answer is `ANSWER`: Spark prints to stdout as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.errors import StateflowError
from stateflow.launch import RunRequest, run_job
from stateflow.replay.key_trace import KeyRequest
from stateflow.replay.run import ReplayRequest, replay
from tests.support.job_fixture import JobFixture
from tests.support.processes import ROOT

ANSWER = "answer:"
_JARS = sorted(str(path) for name in ("jars", "kafka") for path in (Path(sys.prefix) / name).glob("*.jar"))
_SESSION = {
    "spark.conf.spark.jars": ",".join(_JARS),
    "spark.conf.spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.conf.spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.conf.spark.databricks.delta.snapshotPartitions": "2",
}
"""Settings that all jobs share, since only those of the first one start Spark."""


@dataclass
class SparkReplays:
    """The process. `folder`: for the working files of all jobs."""

    process: subprocess.Popen[str]
    folder: Path

    def run(self, job: JobFixture, **settings: object) -> None:
        """Runs a job; settings have two underscores for each dot."""
        answer = self._ask(job, "run", settings)
        assert "error" not in answer, answer

    def replay(self, job: JobFixture, batch: int, key: Sequence[str] = (), **settings: object) -> dict[str, Any]:
        """Replays a batch; returns the report, or the code and the facts of the error. `key`: the only key to show."""
        return self._ask(job, "replay", settings, batch=batch, key=list(key))

    def _ask(self, job: JobFixture, verb: str, settings: dict[str, object], **more: object) -> dict[str, Any]:
        given = {**job.settings, "checkpoints__retained": 50, "checkpoints__asynchronous": "no", **settings}
        layer = {name.replace("__", "."): str(value) for name, value in given.items()}
        layer |= {**_SESSION, "local_dir": str(self.folder)}
        command = {"do": verb, "job": job.job_file, "root": job.job_root, "settings": layer, **more}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return found
        raise AssertionError(f"the process has ended: {(self.folder / 'log').read_text()[-6000:]}")


@contextmanager
def spark_replays(folder: Path) -> Iterator[SparkReplays]:
    """Starts the process; Spark starts with the first run."""
    command = [sys.executable, "-m", __name__]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, stderr=log, text=True) as process,
    ):
        try:
            yield SparkReplays(process, folder)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


def _main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = _run(command) if command["do"] == "run" else _replay(command)
        except StateflowError as e:
            answer = {"error": e.code, "facts": e.facts, "text": str(e)}
        print(ANSWER + json.dumps(answer, default=str), flush=True)


def _run(command: dict[str, Any]) -> dict[str, Any]:
    run_job(RunRequest(Path(command["job"]), command["root"], (command["settings"],)))
    return {}


def _replay(command: dict[str, Any]) -> dict[str, Any]:
    report = replay(
        ReplayRequest(
            Path(command["job"]), command["root"], command["batch"], (command["settings"],), max_rows=None,
            key=KeyRequest(tuple(command["key"])) if command["key"] else None,
        )
    )  # fmt: skip
    return {
        "same": report.is_same,
        "difference": [str(change) for change in report.difference.changes],
        "rows": {emitted.sink: emitted.rows for emitted in report.emitted},
        "rows_in": [batch.rows_in for batch in report.batches],
        "deviation": report.deviation,
    }


if __name__ == "__main__":
    _main()
