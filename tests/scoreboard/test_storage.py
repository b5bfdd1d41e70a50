"""Storages: writers that race for a name, networks that fail, servers that are busy, processes that fork."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateflow.storage import MemoryStorage, PosixStorage, PutResult, Storage, open_storage
from tests.scoreboard.forked import REFUSED, WAYS, WORKED
from tests.scoreboard.jobs import accounts_job, check_complete
from tests.scoreboard.row import Round, Row
from tests.servers.faults import BUSY, KINDS, Faults, fault_proxy
from tests.servers.running import s3_server
from tests.support.job_fixture import AccountsJob
from tests.support.processes import ROOT
from tests.support.root_files import Chain

_RACERS, _RACES = 8, 50
_RUNS = 4
_DAMAGED_OR_BUG = {1, 2, 4}
"""Exit codes of a run that reports damage, or an internal error."""
_FORK_SECONDS = 30


@Row(8, "names", plays=(1, 4, 40), mutants=("check-then-write",), within=3)
def test_one_writer_gets_a_name(round_: Round) -> int:
    """Eight writers race for a name (POSIX, memory, S3 server).

    Exactly one call returns that it created the name, and its bytes are stored.
    """
    with s3_server(round_.folder / "s3", "bucket") as variables, pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        storages = [PosixStorage(round_.folder / "posix"), MemoryStorage(), open_storage("s3://bucket/races")]
        for storage in storages:
            for number in range(_RACES):
                _race(storage, f"log/{round_.seed}-{number}")
    return _RACES * len(storages)


def _race(storage: Storage, key: str) -> None:
    bids = [f"racer {n}".encode() * 500 for n in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as pool:
        results = list(pool.map(lambda bid: storage.put_new(key, bid), bids))
    winners = [bid for bid, result in zip(bids, results, strict=True) if result is PutResult.CREATED]
    assert len(winners) == 1, f"{len(winners)} winners in {storage.uri}"
    assert storage.get(key) == winners[0], f"other bytes than the winner's in {storage.uri}"


@Row(9, "network", plays=(1, 20, 300), mutants=("believed",), within=30)
def test_a_network_that_fails_damages_nothing(round_: Round) -> int:
    """Requests lost, late or without a response; responses truncated, slow, 408, 409, 429, 500, 503 (S3 server, proxy).

    As for killed-drivers; no run reports damage.
    """
    return _play(round_, random.Random(round_.seed).choice([0.02, 0.05, 0.1]), KINDS)[0]


@Row(10, "busy", plays=(0, 4, 40), mutants=("impatient",), within=3)
def test_runs_succeed_on_a_busy_server(round_: Round) -> int:
    """503 or 429 as the response to a quarter, in some rounds three quarters, of all requests.

    As for network; if a quarter of the requests is refused, every run succeeds.
    """
    # In some rounds far more than clients can hide by repeating requests.
    if round_.seed % 4 == 3:
        return _play(round_, 0.75, BUSY)[0]
    injected, codes = _play(round_, 0.25, BUSY)
    assert codes == [0] * _RUNS, f"not every run succeeded: {codes}"
    return injected


def _play(round_: Round, share: float, kinds: Sequence[str]) -> tuple[int, list[int]]:
    """Returns the number of faults, and the exit codes of the runs."""
    faults = Faults(round_.rng, share, kinds)
    root = round_.folder / "s3" / "data" / "bucket" / "job"
    with (
        s3_server(round_.folder / "s3", "bucket") as variables,
        fault_proxy(variables["AWS_ENDPOINT_URL"], faults) as address,
        accounts_job(
            round_, root_folder=root, address="s3://bucket/job", variables={**variables, "AWS_ENDPOINT_URL": address}
        ) as job,
    ):
        codes = _runs(job)
        faults.share = 0
        check_complete(job, Chain(job.root))
    return faults.injected.total(), codes


def _runs(job: AccountsJob) -> list[int]:
    chain, codes = Chain(job.root), []
    for number in range(1, _RUNS + 1):
        job.deliver(20 * number)
        ended = job.start().wait(chain.look)
        assert ended.code not in _DAMAGED_OR_BUG, str(ended)
        codes.append(ended.code)
    chain.check()
    return codes


@Row(20, "forks", plays=(0, 1, 5), mutants=("no-fork-guard",), within=1)
def test_a_forked_process_uses_a_storage_or_is_refused(round_: Round) -> int:
    """A fork after a storage was used; the child uses it, or opens it again, also in a thread (POSIX, S3 server).

    The child's calls succeed or fail with an error that names the fork; none hangs, and the parent continues.
    """
    with s3_server(round_.folder / "s3", "bucket") as variables:
        uris = (str(round_.folder / "posix"), (round_.folder / "other").as_uri(), "s3://bucket/forks")
        for uri in uris:
            for way in WAYS:
                _fork(uri, way, {**os.environ, **variables})
    return len(uris) * len(WAYS)


def _fork(uri: str, way: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.scoreboard.forked", uri, way]
    # Raises TimeoutExpired if it hangs.
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, timeout=_FORK_SECONDS, check=False, text=True
    )
    may_refuse = uri.startswith("s3:") and way != "not used before"
    assert done.returncode in ({WORKED, REFUSED} if may_refuse else {WORKED}), f"{uri} {way}: {done.stderr[-1500:]}"
