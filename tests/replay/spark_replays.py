"""Runs of a job on Spark, and replays of all their batches, in one process with one Spark.

``python -m tests.replay.spark_replays JOB JOB_ROOT SETTINGS…`` has one JSON object of settings for each run. It prints
a JSON list: for each retained checkpoint its number, whether the state is the same, and the rows by sink; or the error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.errors import StateflowError
from stateflow.launch import RunRequest, run_job
from stateflow.replay.key_trace import KeyRequest
from stateflow.replay.run import ReplayRequest, replay
from stateflow.storage import open_storage
from tests.support.job_fixture import JobFixture
from tests.support.processes import ROOT


def replays(job: JobFixture, *settings: dict[str, object]) -> list[dict[str, Any]]:
    """Runs a job once for each of the settings, and replays the batches of its retained checkpoints."""
    common = {**job.settings, "local_dir": job.local}
    given = [{n.replace("__", "."): str(v) for n, v in {**common, **each}.items()} for each in settings]
    command = [sys.executable, "-m", __name__, job.job_file, job.job_root, *map(json.dumps, given)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(job_file: Path, job_root: str, *texts: str) -> None:
    settings = [json.loads(text) for text in texts]
    for each in settings:
        run_job(RunRequest(job_file, job_root, (each,)))
    root = JobRoot.open(open_storage(job_root), SystemClock(), "test")
    ids = [ref.id for ref in root.checkpoints.kept(root.head())]
    found = [_replayed(job_file, job_root, number, settings[-1]) for number in ids]
    print(json.dumps(found, default=str))


def _replayed(job_file: Path, job_root: str, number: int, settings: dict[str, str]) -> dict[str, Any]:
    key = KeyRequest(tuple(json.loads(settings["job.key"]))) if "job.key" in settings else None
    try:
        report = replay(ReplayRequest(job_file, job_root, number, (settings,), max_rows=None, key=key))
    except StateflowError as e:
        return {"batch": number, "error": e.code, "text": str(e)}
    rows = {emitted.sink: emitted.rows for emitted in report.emitted}
    return {
        "batch": number,
        "same": report.is_same,
        "difference": [str(change) for change in report.difference.changes],
        "rows": json.loads(json.dumps(rows, default=str)),
        "rows_in": [batch.rows_in for batch in report.batches],
        "deviation": report.deviation,
        "calls": [[call.given for call in each.calls] for each in report.keys],
    }


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
