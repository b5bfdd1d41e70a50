"""Faults of drivers whose tables are in a server, which rows for single servers extend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.scoreboard.jobs import KILLED, kill_after
from tests.scoreboard.row import Round
from tests.support.job_fixture import AccountsJob
from tests.support.processes import Ended, Running
from tests.support.root_files import Chain

_ENDS = {0, KILLED, 5}
"""A driver succeeds, is killed, or reports that the server failed."""
_SECONDS = 1.5

J = TypeVar("J", bound=AccountsJob)


@dataclass
class ServerFaults(Generic[J]):
    """What fails in a round; a fault returns how many faults it injected."""

    round_: Round
    job: J
    chain: Chain

    def kill_driver_at_any_time(self) -> int:
        run = self.job.start()
        kill_after(self.round_.rng.uniform(0.2, _SECONDS), run, self.chain.look)
        return int(self.end(run).code == KILLED)

    def publish_after_another(self, run: Running) -> int:
        self.job.finish()
        run.resume()
        self.check_fenced(run)
        return 1

    def check_fenced(self, run: Running) -> None:
        """Waits for the end of a driver that another one has fenced."""
        late = run.wait(self.chain.look)
        assert (late.code, late.error.code) == (3, "fenced"), str(late)

    def stopped(self, step: str, times: int) -> Running:
        return self.job.start(f"{step}:{times}:stop").wait_stopped(self.chain.look)

    def end(self, run: Running) -> Ended:
        """Waits for the end of a driver, whose reason must be one of the faults."""
        ended = run.wait(self.chain.look)
        assert ended.code in _ENDS, str(ended)
        return ended
