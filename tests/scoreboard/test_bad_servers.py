"""Storage servers that misbehave, or are not the ones that they seem to be, at any request of a job and of commands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from stateflow.storage import MemoryStorage, PosixStorage, PutResult, Storage, open_storage
from tests.scoreboard.forked import REFUSED, WAYS, WORKED
from tests.scoreboard.jobs import accounts_job, check_complete
from tests.scoreboard.row import Round, Row
from tests.servers.faults import (
    BUSY,
    HOSTILE_KINDS,
    KINDS,
    LIES,
    REDIRECTED,
    SECRET,
    TOO_SHORT,
    Faults,
    fault_proxy,
    misbehaving_proxy,
)
from tests.servers.hdfs import webhdfs_server
from tests.servers.hostile import HostileServer, answer, hostile_server
from tests.servers.running import CANARY, files_with, s3_server
from tests.support.job_fixture import AccountsJob
from tests.support.patched_processes import TIMEOUT
from tests.support.processes import ROOT, Ended, Running, unless_ended
from tests.support.restores import plan_file
from tests.support.root_files import Chain

_TIMEOUT = "0.5"
"""Seconds for a request."""
_SECONDS = 60
_TRIES = 5
_MEMORY_MIB = 150
"""More than what a command takes whose server behaves."""
_DAMAGED = 4
_ENDS = {0, 2, 5}
_OFTEN = (REDIRECTED, TOO_SHORT) * 2
"""Kinds that are three times as frequent as others, since they find a planted bug at few requests only."""
_MISTAKES = {"internal", "fenced"}


@dataclass(frozen=True)
class _Site:
    """A storage server that is reached through a misbehaving proxy, and another server.

    Attributes:
        address: of the job root.
        root: its files.
        variables: of the environment of clients.
        may_damage: whether answers may have other bytes than those that are stored.
        is_redirected: whether requests may be sent to the other server.
    """

    address: str
    root: Path
    variables: dict[str, str]
    faults: Faults
    elsewhere: HostileServer
    may_damage: bool
    is_redirected: bool


@Row(
    26,
    "bad-servers",
    plays=(0, 12, 300),
    mutants=("token-to-anybody", "redirected-anywhere", "echoed-answers", "endless-answers", "no-length-check"),
    # Some of the bugs can be found in every fourth round only, and there only if a response of the right kind is hit.
    within=60,
)
def test_bad_servers_damage_nothing_and_learn_nothing(round_: Round) -> int:
    """A WebHDFS or S3 server answers 401, 403, with redirections to other ports, hosts and schemes, too short or too
    long, slowly, without end, with other bytes, or drops the connection, at any request of runs, savepoints, restores,
    listings and verifications.

    Every command succeeds or fails with one error in time, with bounded memory; credentials are sent to the configured
    servers only, and no answer's text is in an error or a file; afterwards, tables and state are those of the oracle.
    """
    with _site(round_) as site:
        job_root = {"root_folder": site.root, "address": site.address, "variables": site.variables}
        with accounts_job(round_, **job_root) as job:
            _play(round_, job, site)
        _check_secrets(round_, site)
    return site.faults.injected.total()


@contextmanager
def _site(round_: Round) -> Iterator[_Site]:
    is_s3, has_lies = bool(round_.seed % 2), bool(round_.seed % 4 // 2)
    # A client of S3 follows redirections, and takes what it gets for the object.
    possible = (*HOSTILE_KINDS, *(LIES if has_lies else ()), *_OFTEN)
    kinds = [kind for kind in possible if has_lies or not (is_s3 and kind == REDIRECTED)]
    faults = Faults(round_.rng, 0, kinds)
    with ExitStack() as stack:
        elsewhere = stack.enter_context(hostile_server(lambda _: answer(200, SECRET.encode(), ETag="x")))
        variables = {TIMEOUT: _TIMEOUT}
        if is_s3:
            variables |= stack.enter_context(s3_server(round_.folder / "s3", "bucket"))
            upstream, root = variables["AWS_ENDPOINT_URL"], round_.folder / "s3" / "data" / "bucket" / "job"
        else:
            root = round_.folder / "hdfs" / "job"
            upstream = stack.enter_context(webhdfs_server(root.parent, CANARY))
        stolen = 0.8 if has_lies and not is_s3 else 0.0
        proxy = stack.enter_context(misbehaving_proxy(upstream, faults, elsewhere.host, stolen))
        if is_s3:
            address = "s3://bucket/job"
            variables["AWS_ENDPOINT_URL"] = proxy
        else:
            name_node = proxy.replace("http:", "webhdfs:")
            address = f"{name_node}/job"
            # In some rounds the other server has the port of a DataNode.
            ports = str(elsewhere.port) if has_lies else "9864"
            variables |= {"WEBHDFS_TOKEN": CANARY, "WEBHDFS_NAMENODES": name_node, "WEBHDFS_DATANODE_PORTS": ports}
        yield _Site(address, root, variables, faults, elsewhere, has_lies, has_lies or is_s3)


def _play(round_: Round, job: AccountsJob, site: _Site) -> None:
    job.deliver(20)
    usual = _Watch()
    usual.wait(job.start()).check()
    job.create_savepoint("early")
    for number in range(_TRIES):
        job.deliver_more(20)
        site.faults.share = round_.rng.choice([0.03, 0.1, 0.3])
        for running in _some_commands(round_, job, number):
            watch = _Watch()
            ended = watch.wait(running)
            _check_end(ended, site)
            assert watch.highest < usual.highest + _MEMORY_MIB, f"{watch.highest} MiB, usually {usual.highest}: {ended}"
            if ended.code:
                break
    site.faults.share = 0
    job.deliver_more(10)
    job.finish()
    job.check_results()


def _some_commands(round_: Round, job: AccountsJob, number: int) -> Iterator[Running]:
    """Commands of which each needs the one before."""
    kind = round_.rng.choice(["run", "run", "savepoint", "list", "verify", "restore"])
    if kind == "run":
        yield job.start()
    elif kind == "savepoint":
        yield job.begin("savepoint", "create", "--name", f"later-{number}")
    elif kind == "list":
        yield job.begin("savepoint", "list", "--json")
    elif kind == "verify":
        yield job.begin("verify", "--deep")
    else:
        words = ("restore", job.job_file)
        yield job.begin(*words, "--plan", "early", "--out", str(plan_file(job)), with_job=True)
        yield job.begin(*words, "--execute", str(plan_file(job)), with_job=True)


def _check_end(ended: Ended, site: _Site) -> None:
    allowed = _ENDS | ({_DAMAGED} if site.may_damage else set())
    assert ended.code in allowed, str(ended)
    assert ended.code == 0 or ended.error.code not in _MISTAKES, str(ended)
    assert SECRET not in ended.out + ended.err, str(ended)


def _check_secrets(round_: Round, site: _Site) -> None:
    for secret in (SECRET, CANARY):
        assert files_with(secret, round_.folder) == []
    asked = "\n".join(request.head for request in site.elsewhere.asked)
    # What a round finds is written into the scoreboard.
    shown = asked.replace(CANARY, "<token>")
    assert CANARY not in asked and "authorization" not in asked.lower() and "user.name" not in asked, shown
    assert site.is_redirected or not asked, shown


@dataclass
class _Watch:
    """The memory of a process. `highest`: MiB that it had at most."""

    highest: float = 0.0

    def wait(self, running: Running) -> Ended:
        def look() -> None:
            found = unless_ended(lambda: psutil.Process(running.pid).memory_info().rss, 0)
            self.highest = max(self.highest, found / (1 << 20))

        return running.wait(look, _SECONDS)


# -- one writer, and a network that fails -----------------------------------------------------------------------------

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
    """Requests lost, late or without a response, some in a row; responses truncated, slow, 408, 409, 429, 500, 503.

    As for killed-drivers, through a proxy in front of an S3 server; no run reports damage.
    """
    share = random.Random(round_.seed).choice([0.02, 0.05, 0.1])
    # In every other round more in a row than a client repeats: it cannot know then whether a write was done.
    return _play_storage(round_, share, KINDS, outage=8 * (round_.seed % 2))[0]


@Row(10, "busy", plays=(0, 4, 40), mutants=("impatient",), within=3)
def test_runs_succeed_on_a_busy_server(round_: Round) -> int:
    """503 or 429 as the response to a quarter, in some rounds three quarters, of all requests.

    As for network; if a quarter of the requests is refused, every run succeeds.
    """
    # In some rounds far more than clients can hide by repeating requests.
    if round_.seed % 4 == 3:
        return _play_storage(round_, 0.75, BUSY)[0]
    injected, codes = _play_storage(round_, 0.25, BUSY)
    assert codes == [0] * _RUNS, f"not every run succeeded: {codes}"
    return injected


def _play_storage(round_: Round, share: float, kinds: Sequence[str], outage: int = 0) -> tuple[int, list[int]]:
    """Returns the number of faults, and the exit codes of the runs."""
    faults = Faults(round_.rng, share, kinds, outage)
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
