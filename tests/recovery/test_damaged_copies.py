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


def _damage(box: JobFixture, damage: str) -> None:
    unshare(box)
    paths = cached_files(box)
    assert paths
    for path in paths:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_changes_no_result(box: AccountsJob, backend: str, damage: str) -> None:
    box.settings = BACKENDS[backend]
    box.run_to(50)
    _damage(box, damage)
    box.deliver(100)
    ended = box.run()
    assert "damaged-copy-dropped" in ended.err, str(ended)
    if backend == "filesystem" or damage != "a bit in the middle":
        # It is found where it is opened, and fetched again at once.
        ended.check()
    retry(box, ended)
    box.check()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["zeroed", "a bit in the middle"])
def test_spark_tries_a_task_again_that_met_a_damaged_copy(flights: FlightsJob, damage: str) -> None:
    flights.run_to(3)
    _damage(flights, damage)
    flights.run_to(6)
    flights.check()
