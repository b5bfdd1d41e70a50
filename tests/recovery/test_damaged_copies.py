"""Cached files that are damaged between runs: a run, or its retry, fetches them again, with the same results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.recovery.host_copies import cached_files, retry, unshare
from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import AccountsJob, JobFixture

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "truncated": lambda data: data[: len(data) // 2],
    "a bit in the middle": lambda data: data[: (at := len(data) // 2)] + bytes([data[at] ^ 1]) + data[at + 1 :],
}
BACKENDS: dict[str, dict[str, object]] = {
    "rocksdb": {"state__backend": "rocksdb"},
    "filesystem": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
}


def _damage(job: JobFixture, damage: str) -> None:
    unshare(job)
    paths = cached_files(job)
    assert paths
    for path in paths:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_changes_no_result(job: AccountsJob, backend: str, damage: str) -> None:
    job.settings = BACKENDS[backend]
    job.run_to(50)
    _damage(job, damage)
    job.deliver(100)
    ended = job.run()
    assert "damaged-copy-dropped" in ended.err, str(ended)
    if backend == "filesystem" or damage != "a bit in the middle":
        # It is found where it is opened, and fetched again at once.
        ended.check()
    retry(job, ended)
    job.check()


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark for its jobs")
@pytest.mark.parametrize("damage", ["zeroed", "a bit in the middle"])
def test_spark_tries_a_task_again_that_met_a_damaged_copy(flights: FlightsJob, damage: str) -> None:
    flights.run_to(3)
    _damage(flights, damage)
    flights.run_to(6)
    flights.check()
