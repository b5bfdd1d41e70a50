"""Drivers that are killed, are stopped, race, or have a wrong clock."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from tests.scoreboard.cluster_kills import ClusterKills
from tests.scoreboard.jobs import KILLED, STEPS, accounts_job, check_complete, kill_after, stored_tables_job
from tests.scoreboard.row import Round, Row
from tests.servers.faults import BUSY, CUT_ANSWER, LATE_REQUEST, LOST_ANSWER, LOST_REQUEST, Faults
from tests.servers.local_yarn import local_yarn
from tests.servers.running import s3_server
from tests.support.job_fixture import ASYNCHRONOUS, SLICE, AccountsJob
from tests.support.patched_processes import CLOCK
from tests.support.processes import DEADLINE, Ended, Running, unless_ended, wait_for
from tests.support.restores import go_back
from tests.support.root_files import Chain

_KILLS = 5
_ONCE = {"claim.before", "claim.after", "start.published", "history.indexed", "run.end"}
_ROCKSDB = {"task.snapshot", *ASYNCHRONOUS}
"""The steps that not every backend has."""
# A run that is stopped before its claim is not late, and one that is stopped at its end has no work left.
_STOPS = sorted({*STEPS} - ASYNCHRONOUS - {"claim.before", "history.indexed", "run.end"})
_RUNS, _PATIENCE = 4, 40
_LAUNCHES = 4
_STORAGE, _LONGEST = 5, 5.0
"""Exit code of an error about the storage, and seconds after which a run is killed at the latest."""


@Row(2, "killed-drivers", plays=(1, 24, 200), mutants=("no-token",), within=40)
def test_killed_drivers_lose_and_double_nothing(round_: Round) -> int:
    """SIGKILL of a driver at a random time; the job root is on POSIX.

    Tables and state are what plain dictionaries contain for all input; the log is one chain; no file is left over.
    """
    with accounts_job(round_) as job:
        return _kill_at_random(job, round_.rng, rows=150)


@Row(2, "killed-drivers-s3", plays=(0, 6, 40), mutants=("no-token",), within=40)
def test_drivers_killed_on_s3_lose_and_double_nothing(round_: Round) -> int:
    """As killed-drivers, with the job root on an S3 server.

    As for killed-drivers.
    """
    with s3_server(round_.folder / "s3", "bucket") as variables:
        root = round_.folder / "s3" / "data" / "bucket" / "job"
        with accounts_job(round_, root_folder=root, address="s3://bucket/job", variables=variables) as job:
            return _kill_at_random(job, round_.rng, rows=30)


@Row(2, "tables-in-buckets", plays=(0, 8, 40), mutants=("no-token",), within=40)
def test_drivers_killed_with_tables_in_a_bucket_lose_and_double_nothing(round_: Round) -> int:
    """As killed-drivers, with the job root and tables on an S3 or an Azure server: Delta tables, of which one is
    upserted, or folders of files.

    As for killed-drivers; also no data file is left that no version has.
    """
    with stored_tables_job(round_) as job:
        return _kill_at_random(job, round_.rng, rows=30)


@Row(9, "tables-behind-networks", plays=(0, 8, 40), mutants=("unread-entry",), within=24)
def test_drivers_whose_tables_are_behind_a_bad_network_lose_and_double_nothing(round_: Round) -> int:
    """As tables-in-buckets, with 503 and 429, lost requests, lost, late and cut answers at any request, and some kills.

    As for tables-in-buckets; each run succeeds, is killed, or fails with an error about the storage.
    """
    kinds = (*BUSY, LOST_REQUEST, LATE_REQUEST, CUT_ANSWER, *[LOST_ANSWER] * 3)
    faults = Faults(random.Random(round_.rng.random()), 0.0, kinds)
    with stored_tables_job(round_, faults) as job:
        _play_behind(job, faults, round_.rng)
    return faults.injected.total()


def _play_behind(job: AccountsJob, faults: Faults, rng: random.Random) -> None:
    chain = Chain(job.root)
    job.deliver(SLICE)
    job.finish()
    for _ in range(_KILLS):
        job.deliver_more(3 * SLICE)
        faults.share = rng.uniform(0.02, 0.15)
        run = job.start()
        if rng.random() < 0.4:
            kill_after(rng.uniform(0, _LONGEST), run, chain.look)
        ended = run.wait(chain.look)
        assert ended.code in (0, KILLED, _STORAGE), str(ended)
    faults.share = 0
    check_complete(job, chain)


@Row(2, "cluster-drivers", plays=(0, 8, 60), mutants=("no-token", "any-result", "second-driver"), within=24)
def test_drivers_in_a_cluster_and_who_submits_them_lose_and_double_nothing(round_: Round) -> int:
    """Drivers on a stand-in for YARN: SIGKILL of the driver, of the process that submits and follows it, or of both, at
    named steps and at random times; a driver that the cluster gives up, and that continues after its successor.

    As for killed-drivers; a successor follows the driver of its launch instead of submitting another one, and returns
    its result, also when it is asked again; nothing that is staged for a driver stays.
    """
    with local_yarn(round_.folder / "yarn") as yarn, accounts_job(round_) as job:
        return ClusterKills(round_, job, yarn).play(_LAUNCHES)


def _kill_at_random(job: AccountsJob, rng: random.Random, rows: int) -> int:
    """Kills runs at times between their start and their end; returns how many died. `rows`: delivered for each run."""
    chain = Chain(job.root)
    killed = 0
    # How long a run takes depends on the machine: with a fixed time, all kills can fall into the start. The first run
    # may wait for the server that processes are forked from.
    job.deliver(SLICE)
    job.finish()
    job.deliver_more(rows)
    began = time.monotonic()
    job.finish()
    longest = time.monotonic() - began
    for _ in range(_KILLS):
        job.deliver_more(rows)
        run = job.start()
        kill_after(rng.uniform(0, longest), run, chain.look)
        ended = run.wait(chain.look)
        assert ended.code in (0, KILLED), str(ended)
        killed += ended.code == KILLED
    check_complete(job, chain)
    return killed


@Row(5, "named-steps", plays=(8, 3 * len(STEPS), 20 * len(STEPS)), mutants=("no-token",), within=len(STEPS))
def test_a_kill_at_any_step_loses_and_doubles_nothing(round_: Round) -> int:
    """SIGKILL at each named step of the protocol.

    As for killed-drivers.
    """
    step = STEPS[round_.seed % len(STEPS)]
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "checkpoints__collect_every": 1, "checkpoints__retained": 1}
        if step in ASYNCHRONOUS:
            job.settings = {**job.settings, "checkpoints__asynchronous": "yes"}
        if step in _ROCKSDB:
            job.settings = {**job.settings, "state__backend": "rocksdb"}
        chain = Chain(job.root)
        job.deliver(40)
        job.finish()
        chain.look()
        job.deliver(120)
        nth = 1 if step in _ONCE else round_.rng.randrange(1, 4)
        ended = job.start(f"{step}:{nth}").wait(chain.look)
        assert ended.code == KILLED and job.marker.exists(), f"{step} was not reached: {ended}"
        check_complete(job, chain)
    return 1


@Row(6, "stopped-drivers", plays=(4, 50, 600), mutants=("no-token",), within=len(_STOPS))
def test_a_driver_resumed_after_another_run_is_fenced(round_: Round) -> int:
    """A driver stopped by SIGSTOP at a named step while one or two others run, then resumed.

    As for killed-drivers; the late driver reports that it is fenced.
    """
    rng, step = round_.rng, _STOPS[round_.seed % len(_STOPS)]
    with accounts_job(round_) as job:
        # With this backend a run passes each of the steps.
        job.settings = {**job.settings, "checkpoints__collect_every": 1, "state__backend": "rocksdb"}
        chain = Chain(job.root)
        job.deliver(30)
        if rng.random() < 0.5:
            job.finish()
        job.deliver(110)
        stopped = job.start(f"{step}:1:stop")
        stopped.wait_stopped(chain.look)
        others = [job.start() for _ in range(rng.choice([1, 1, 2]))]
        _check_one_wins([other.wait(chain.look) for other in others])
        stopped.resume()
        late = stopped.wait(chain.look)
        assert (late.code, late.error.code) == (3, "fenced"), f"{step}: {late}"
        check_complete(job, chain)
    return 1


@Row(6, "drivers-at-once", plays=(2, 20, 300), mutants=("no-fence",), within=20)
def test_one_of_several_drivers_wins(round_: Round) -> int:
    """Two or three drivers at once; each driver beyond the first is one fault.

    As for killed-drivers; the drivers that lose are fenced.
    """
    rng = round_.rng
    with accounts_job(round_) as job:
        chain = Chain(job.root)
        job.deliver(400)
        runs = [job.start()]
        for _ in range(rng.choice([1, 2])):
            _wait_for_entries(job, chain, len(chain.seen) + rng.randrange(8))
            runs.append(job.start())
        _check_one_wins([run.wait(chain.look) for run in runs])
        check_complete(job, chain)
    return len(runs) - 1


def _wait_for_entries(job: AccountsJob, chain: Chain, number: int) -> None:
    """Waits until the log has had so many entries, or the first run has ended."""

    def far_enough() -> bool:
        chain.look()
        return len(chain.seen) >= number or job.processes[0].poll() is not None

    wait_for(far_enough, lambda: f"{number} entries of the log")


def _check_one_wins(ended: list[Ended]) -> None:
    assert any(e.code == 0 for e in ended), ended
    assert all(e.code == 0 or (e.code == 3 and e.error.code == "fenced") for e in ended), ended


@Row(19, "clocks", plays=(1, 10, 200), mutants=("newest-by-time",))
def test_wrong_clocks_change_no_result(round_: Round) -> int:
    """Every process has a clock that is wrong by up to two hours and jumps in both directions.

    As for killed-drivers: clocks affect only displayed times and waits.
    """
    rng, clocks = round_.rng, 0
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "checkpoints__max_age": "30m"}
        chain = Chain(job.root)
        for number in range(_RUNS):
            job.deliver(50 * (number + 1))
            runs = []
            for _ in range(rng.choice([1, 1, 2])):
                job.variables = {CLOCK: str(rng.randrange(1 << 30))}
                runs.append(job.start(rng.choice(["", "commit.after:2", "batch.reported:2"])))
                clocks += 1
            for run in runs:
                ended = run.wait(chain.look, _PATIENCE)
                assert ended.code in (0, KILLED, 3), str(ended)
        check_complete(job, chain)
    return clocks


# -- long runs --------------------------------------------------------------------------------------------------------

_LOG_ENTRIES = 60
"""At most: what the commits between two collections and some starts write."""
_MEMORY_MIB = 20
_LOOK_SECONDS = 0.2
_BATCH_SECONDS = 2
"""How long a batch may take on a busy machine."""


@dataclass
class _Watch:
    """Looks at files and memory while a job runs.

    Attributes:
        objects: how many files root and scratch space had, each time.
        memory: of the current run.
    """

    job: AccountsJob
    chain: Chain
    objects: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    looked: float = 0.0

    def look(self, run: Running) -> None:
        self.chain.look()
        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        entries = _files(self.job.root / "log")
        assert entries <= _LOG_ENTRIES, f"the log has {entries} entries"
        self.objects.append(_files(self.job.root) + _files(self.job.local))
        self.memory.append(_memory(run.pid))

    def work(self, batches: int, killed_after: float | None = None) -> int:
        """A run over so many new batches, killed at some time or not; returns how many were killed."""
        self.job.deliver_more(batches * SLICE)
        self.memory.clear()
        run = self.job.start()
        if killed_after is not None:
            kill_after(killed_after, run, lambda: self.look(run))
        # A killed run leaves its batches to the next one.
        patience = DEADLINE + _BATCH_SECONDS * len(self.job.delivered) / SLICE
        ended = run.wait(lambda: self.look(run), patience)
        assert ended.code == 0 or (killed_after is not None and ended.code == KILLED), str(ended)
        return int(ended.code == KILLED)

    def check(self) -> None:
        """Neither memory of the last run nor files grew over its time."""
        memory = self.memory[len(self.memory) // 3 : -1]
        grown = max(memory) - memory[0] if memory else 0
        assert grown <= _MEMORY_MIB, f"the last run grew by {grown:.0f} MiB"
        half = len(self.objects) // 2
        first, second = max(self.objects[:half]), max(self.objects[half:])
        assert second <= 1.5 * first + _LOG_ENTRIES, f"{first} files at first, then {second}"


def _files(folder: Path) -> int:
    """How many files are below a folder; a collection may remove some meanwhile."""
    return sum(len(files) for _, _, files in os.walk(folder))


def _memory(pid: int) -> float:
    """MiB of a process that it does not share; 0 when it has ended."""
    found = unless_ended(lambda: psutil.Process(pid).memory_info(), None)
    return float(found.rss - found.shared) / (1 << 20) if found else 0.0


@Row(23, "long-runs", plays=(0, 4, 40), mutants=("kept-entries",), within=1)
def test_long_runs_leave_nothing_that_grows(round_: Round) -> int:
    """Thousands of batches of one job with kills, savepoints, restores and idle runs.

    As for killed-drivers; the log has at most 60 entries, the number of files does not grow, and memory not by 20 MiB.
    """
    # `make test` plays the first round only.
    runs, batches, last_batches = (12, 60, 1000) if round_.seed else (4, 15, 120)
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "history__retained": 50}
        job.deliver(SLICE)
        job.finish()
        watch = _Watch(job, Chain(job.root))
        injected = 0
        for number in range(runs):
            happenings: list[Callable[[], int]] = [
                lambda: watch.work(batches, killed_after=round_.rng.uniform(0, 1.5)),
                lambda: watch.work(batches),
                partial(_restore, watch, batches, f"point-{number}"),
                lambda: _idle(job, runs=5),
            ]
            # Each of them at least once.
            injected += happenings[number % 4 if number < 4 else round_.rng.randrange(4)]()
        watch.work(last_batches)
        watch.check()
        check_complete(job, watch.chain)
    return injected


def _restore(watch: _Watch, batches: int, name: str) -> int:
    job = watch.job
    # With the job file: the run before may have been killed between a checkpoint and the publication of its output.
    made = job.command("savepoint", "create", "--name", name, "--job", job.job_file, with_job=True)
    assert made.code == 0, str(made)
    watch.work(batches)
    go_back(job, name)
    gone = job.command("savepoint", "dispose", name)
    assert gone.code == 0, str(gone)
    return 1


def _idle(job: AccountsJob, runs: int) -> int:
    for _ in range(runs):
        job.finish()
    return runs
