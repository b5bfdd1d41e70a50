"""Running the benchmark job, and noting when each batch was committed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.launch import RunRequest, RunResult, run_job
from stateflow.runtime.job import BatchResult

JOB = Path(__file__).parent / "jobs" / "running_mean.py"


@dataclass
class Timeline:
    """When batches were committed and published, in seconds of a monotonic clock."""

    began: float = field(default_factory=time.monotonic)
    committed: list[float] = field(default_factory=list)
    results: list[BatchResult] = field(default_factory=list)

    def note(self, result: BatchResult) -> None:
        """One more batch."""
        self.committed.append(time.monotonic())
        self.results.append(result)

    def intervals(self, skip: int) -> list[float]:
        """Seconds between batches, without the first `skip`."""
        times = self.committed[skip:]
        return [after - before for before, after in itertools.pairwise(times)]


def run_timed(job: Path, root: Path, settings: Mapping[str, str]) -> tuple[RunResult, Timeline]:
    """Runs a job file in a job root."""
    timeline = Timeline()
    result = run_job(RunRequest(job, str(root), (dict(settings),), "benchmark", on_batch=timeline.note))
    return result, timeline
