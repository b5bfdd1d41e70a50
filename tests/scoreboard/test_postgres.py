"""A job whose tables are in PostgreSQL, while drivers, the server and connections fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.scoreboard.jobs import KILLED, STEPS, ServerFaults, check_complete, checkpoint_settings
from tests.scoreboard.row import Round, Row
from tests.servers.postgres import Postgres, postgres_server
from tests.support.processes import Running, wait_for
from tests.support.root_files import Chain
from tests.support.table_jobs import PostgresJob

_ROWS = 40
"""Rows that are delivered for each run: four checkpoints, and two transactions of each."""
_PUBLISHING = ("publish.before", "postgres.before-commit", "publish.after")
_FAULTS = 3
"""Of seven kinds, in each round."""


@Row(31, "postgres", plays=(0, 10, 240), mutants=("token-after-rows", "forgotten-commits", "unlocked-token"), within=12)
def test_faults_around_postgres_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of drivers with their tasks, and of the database, at steps of a publication and at random times;
    connections that are cut in mid-transaction; drivers that publish late, or while another one does. The tables are
    in PostgreSQL.

    As for killed-drivers; rows and tokens of a transaction are stored together, and a driver that is late is fenced.
    """
    with postgres_server() as server:
        job = PostgresJob.create(server, "jobs", folder=round_.folder / "job", settings=checkpoint_settings(round_))
        try:
            return _play(round_, job, server)
        finally:
            job.end_all()


def _play(round_: Round, job: PostgresJob, server: Postgres) -> int:
    job.deliver(10)
    job.finish()
    faults = _Faults(round_, job, Chain(job.root), server)
    kinds: list[Callable[[], int]] = [
        faults.kill_driver_at_step,
        faults.kill_driver_at_any_time,
        faults.cut_in_transaction,
        faults.kill_server_in_transaction,
        faults.kill_server_at_rest,
        faults.publish_late,
        faults.publish_at_once,
    ]
    round_.rng.shuffle(kinds)
    injected = 0
    for fault in kinds[:_FAULTS]:
        job.deliver_more(_ROWS)
        injected += fault()
    check_complete(job, faults.chain)
    return injected


@dataclass
class _Faults(ServerFaults[PostgresJob]):
    server: Postgres

    def kill_driver_at_step(self) -> int:
        """Kills a driver at a step, more often at those of a publication."""
        step = self.round_.rng.choice([*_PUBLISHING * 4, *STEPS])
        return int(self.end(self.job.start(f"{step}:{self._times(step)}")).code == KILLED)

    def cut_in_transaction(self) -> int:
        run = self._stopped("postgres.before-commit")
        cut = self.server.cut_connections()
        run.resume()
        assert self.end(run).code in (0, 5)
        return cut

    def kill_server_in_transaction(self) -> int:
        run = self._stopped("postgres.before-commit")
        self.server.kill()
        is_back = self.round_.rng.random() < 0.5
        if is_back:
            self.server.start()
        run.resume()
        ended = self.end(run)
        assert ended.code == 5 or is_back, str(ended)
        if not is_back:
            self.server.start()
        return 1

    def kill_server_at_rest(self) -> int:
        self.job.finish()
        self.server.kill()
        self.server.start()
        return 1

    def publish_late(self) -> int:
        return self.publish_after_another(self._stopped("publish.before"))

    def publish_at_once(self) -> int:
        """Stops a driver between the check of a token and its change until another driver waits, or has ended."""
        # Of rows that are appended: an upsert with undo also locks its table.
        run = self._stopped("postgres.written", times=1)
        other = self.job.start()
        wait_for(lambda: self.server.waiting() > 0 or other.poll() is not None, lambda: f"{other} to wait for a lock")
        run.resume()
        assert self.end(other).code == 0
        self.check_fenced(run)
        return 1

    def _times(self, step: str) -> int:
        return self.round_.rng.randrange(1, 3) if step in _PUBLISHING else 1

    def _stopped(self, step: str, times: int = 0) -> Running:
        # A run has one checkpoint at least, and two transactions of each.
        return self.stopped(step, times or self._times(step))
