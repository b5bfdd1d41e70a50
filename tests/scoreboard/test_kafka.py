"""Jobs whose tables are topics or in PostgreSQL, while drivers, servers, their disk and connections fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.scoreboard.jobs import KILLED, STEPS, ServerFaults, check_complete, checkpoint_settings, fill, small_disk
from tests.scoreboard.row import Round, Row
from tests.servers.kafka import KafkaCluster, kafka_cluster
from tests.servers.postgres import Postgres, postgres_server
from tests.support.patched_processes import TIMEOUT
from tests.support.processes import Running, wait_for
from tests.support.root_files import Chain
from tests.support.table_jobs import KafkaJob, PostgresJob

_ROWS, _MANY_ROWS = 40, 300
"""Rows that are delivered for each run: four checkpoints, and two transactions of each; and for the run in which no
space is left, because files of a full disk still have the rest of their last block."""
_IN_TRANSACTION = ("transaction.begun", "transaction.written", "transaction.token")
_PUBLISHING = (
    "transaction.token", "publish.after", "transaction.committed", "transaction.written", "publish.before",
    "transaction.begun",
)  # fmt: skip
_LATE = ("transaction.written", "publish.before", "transaction.token")
_SHORT = {TIMEOUT: "2"}
"""For drivers that no broker answers."""
_LOST = "the response of a transaction's commit was lost"
_MEGABYTES = 96
_PARTS = 3


@Row(
    32, "kafka", plays=(0, 3, 60), mutants=("token-after-records", "own-transactional-id", "early-records"),
    within=2 * _PARTS,
)  # fmt: skip
def test_faults_around_kafka_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of drivers with their tasks, and of brokers, at steps of a transaction and at random times; brokers
    without disk space; leaders that move to another broker; connections that are cut in mid-transaction; lost answers
    to a commit; drivers that publish late. The tables are topics.

    As for killed-drivers, for consumers of committed records, who see no row before the COMMIT of its checkpoint.
    """
    kinds = _kinds(round_.seed)
    brokers = 2 if _Faults.move_leaders in kinds else 1
    with small_disk(round_.folder / "disk", _MEGABYTES) as disk, kafka_cluster(disk / "kafka", brokers) as cluster:
        job = KafkaJob.create(cluster, folder=round_.folder / "job", settings=checkpoint_settings(round_))
        try:
            return _play(_Faults(round_, job, Chain(job.root), cluster, disk), kinds)
        finally:
            job.end_all()


def _kinds(seed: int) -> list[Callable[[_Faults], int]]:
    """The faults of a round; successive rounds have each of them once."""
    block, part = divmod(seed, _PARTS)
    kinds: list[Callable[[_Faults], int]] = [
        _Faults.kill_driver_while_it_publishes, _Faults.publish_late, _Faults.lose_answer_to_commit,
        _Faults.cut_in_transaction, _Faults.kill_broker_in_transaction, _Faults.kill_driver_anywhere,
        _Faults.fill_disk_in_transaction, _Faults.move_leaders, _Faults.kill_broker_at_rest,
    ]  # fmt: skip
    if block:
        random.Random(block).shuffle(kinds)
    return kinds[part::_PARTS] if block else kinds[_PARTS * part : _PARTS * (part + 1)]


def _play(faults: _Faults, kinds: list[Callable[[_Faults], int]]) -> int:
    job = faults.job
    job.deliver(10)
    job.finish()
    injected = 0
    for fault in kinds:
        job.deliver_more(_ROWS)
        found = fault(faults)
        assert found or faults.round_.seed >= _PARTS, f"no effect of {fault.__name__}"
        injected += found
        job.check_visible()
    check_complete(job, faults.chain)
    return injected


@dataclass
class _Faults(ServerFaults[KafkaJob]):
    """What fails in a round. `disk`: has the data of all brokers."""

    cluster: KafkaCluster
    disk: Path

    def kill_driver_while_it_publishes(self) -> int:
        """Kills a driver at a step of a publication."""
        step = _PUBLISHING[self.round_.seed // _PARTS % len(_PUBLISHING)]
        return int(self.end(self.job.start(f"{step}:{self._nth()}")).code == KILLED)

    def kill_driver_anywhere(self) -> int:
        """Kills a driver at another step, or at a random time."""
        if self.round_.rng.random() < 0.5:
            return int(self.end(self.job.start(self.round_.rng.choice(STEPS))).code == KILLED)
        return self.kill_driver_at_any_time()

    def publish_late(self) -> int:
        """Lets a driver publish that was stopped while another one was run."""
        return self.publish_after_another(self._stopped(_LATE[self.round_.seed // _PARTS % len(_LATE)]))

    def lose_answer_to_commit(self) -> int:
        """Loses the answer to a commit; the driver asks for its outcome when it has given up waiting."""
        run = self._stopped("transaction.token")
        self.cluster.lose_answers(True)
        run.resume()

        def look() -> None:
            self.chain.look()
            if _LOST in run.errors:
                self.cluster.lose_answers(False)

        ended = run.wait(look)
        self.cluster.lose_answers(False)
        assert ended.code in (0, 5), str(ended)
        return ended.err.count(_LOST)

    def cut_in_transaction(self) -> int:
        run = self._stopped(self.round_.rng.choice(_IN_TRANSACTION))
        cut = self.cluster.cut()
        run.resume()
        assert self.end(run).code in (0, 5)
        return cut

    def kill_broker_in_transaction(self) -> int:
        run = self._stopped(self.round_.rng.choice(_IN_TRANSACTION))
        self.round_.rng.choice(self.cluster.nodes).kill()
        is_back = self.round_.rng.random() < 0.5
        if is_back:
            self.cluster.start()
        run.resume()
        ended = self.end(run)
        assert ended.code in (0, 5), str(ended)
        if not is_back:
            self.cluster.start()
        return 1

    def kill_broker_at_rest(self) -> int:
        self.job.finish()
        self.cluster.restart()
        return len(self.cluster.nodes)

    def fill_disk_in_transaction(self) -> int:
        self.job.deliver_more(_MANY_ROWS)
        run = self._stopped(self.round_.rng.choice(_IN_TRANSACTION))
        filler = fill(self.disk, leave=self.round_.rng.choice([0, 4096, self.round_.rng.randrange(20_000)]))
        run.resume()
        ended = self.end(run)
        assert ended.code in (0, 5), str(ended)
        has_ended = sum(not node.is_running for node in self.cluster.nodes)
        filler.unlink()
        self.cluster.restart()
        return max(has_ended, int(ended.code == 5))

    def move_leaders(self) -> int:
        """Kills a broker in mid-transaction, so that the other one leads; in the next one, leaders move back."""
        run = self._stopped(self.round_.rng.choice(_IN_TRANSACTION))
        moved = self.cluster.leaders().count(2)
        self.cluster.nodes[1].kill()
        self.cluster.wait_led(by_second=False)
        run.resume()
        assert self.end(run).code in (0, 5)
        self.job.deliver_more(_ROWS)
        run = self._stopped(self.round_.rng.choice(_IN_TRANSACTION))
        self.cluster.start()
        moved += self.cluster.wait_led(by_second=True)
        run.resume()
        assert self.end(run).code in (0, 5)
        return moved

    def _nth(self) -> int:
        return self.round_.rng.randrange(1, 5)

    def _stopped(self, step: str) -> Running:
        # A run has one checkpoint at least, and two transactions of each.
        self.job.variables = _SHORT
        try:
            return self.stopped(step, self._nth() % 2 + 1)
        finally:
            self.job.variables = {}


# -- PostgreSQL -------------------------------------------------------------------------------------------------------

_TO_POSTGRES = ("publish.before", "postgres.before-commit", "publish.after")
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
            return _play_postgres(round_, job, server)
        finally:
            job.end_all()


def _play_postgres(round_: Round, job: PostgresJob, server: Postgres) -> int:
    job.deliver(10)
    job.finish()
    faults = _PostgresFaults(round_, job, Chain(job.root), server)
    kinds: list[Callable[[], int]] = [
        faults.kill_driver_at_step, faults.kill_driver_at_any_time, faults.cut_in_transaction,
        faults.kill_server_in_transaction, faults.kill_server_at_rest, faults.publish_late, faults.publish_at_once,
    ]  # fmt: skip
    round_.rng.shuffle(kinds)
    injected = 0
    for fault in kinds[:_FAULTS]:
        job.deliver_more(_ROWS)
        injected += fault()
    check_complete(job, faults.chain)
    return injected


@dataclass
class _PostgresFaults(ServerFaults[PostgresJob]):
    server: Postgres

    def kill_driver_at_step(self) -> int:
        """Kills a driver at a step, more often at those of a publication."""
        step = self.round_.rng.choice([*_TO_POSTGRES * 4, *STEPS])
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
        return self.round_.rng.randrange(1, 3) if step in _TO_POSTGRES else 1

    def _stopped(self, step: str, times: int = 0) -> Running:
        # A run has one checkpoint at least, and two transactions of each.
        return self.stopped(step, times or self._times(step))
