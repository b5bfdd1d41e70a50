"""What the parts of the driver share about one run."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.runtime.driver.background import BackgroundWork
from stateflow.runtime.job.job import Job
from stateflow.runtime.publisher import Publisher


@dataclass(frozen=True)
class RunContext:
    """One run of a job, once it is restored.

    Attributes:
        job: the job that runs.
        generation: the run's generation: that of its last CLAIM, since a start that rewinds claims the job again.
        publisher: publishes the run's output.
        guard: detects that a newer run has claimed the job.
        background: does work whose failure does not end the run.
        note: requester of the run, or reason; for the history.
    """

    job: Job
    generation: int
    publisher: Publisher
    guard: FenceGuard
    background: BackgroundWork
    note: str = ""

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.job.root.clock.monotonic()

    @property
    def timestamp(self) -> str:
        """The current time in ISO 8601, with milliseconds."""
        return self.job.root.clock.now().isoformat(timespec="milliseconds")
