"""The pins of a Spark session's queries end with the session, and without it after a lease."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.documents import Pin
from stateflow.checkpoint.log.job_root import LEASE
from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import MissingFile
from stateflow.query.data_source import QueryReader, ReadRequest, SessionPins, StateDataSource, open_root, pin_for_query
from tests.query.summed_job import SummedJob
from tests.support.errors import raises

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    # Entries have milliseconds.
    return ManualClock(start=SystemClock().now().replace(microsecond=0))


@pytest.fixture
def pins(clock: ManualClock) -> Iterator[SessionPins]:
    pins = SessionPins(clock)
    yield pins
    pins.end()


def _plan(job: SummedJob, pins: SessionPins, clock: Clock, needed: timedelta = HOUR) -> None:
    root = open_root(job.uri, clock)
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    pin_for_query(root, checkpoint, needed, str(pins.folder))


def _pins(job: SummedJob) -> list[Pin]:
    return job.root.head().entry.pinned


def _left(job: SummedJob, clock: Clock) -> timedelta:
    (pin,) = _pins(job)
    return datetime.fromisoformat(pin.until) - clock.now()


def test_queries_share_a_pin_which_the_driver_renews_for_their_time(
    job: SummedJob, pins: SessionPins, clock: ManualClock
) -> None:
    job.run(4)
    _plan(job, pins, clock)
    assert _left(job, clock) == LEASE
    clock.sleep(HOUR / 2)
    _plan(job, pins, clock)
    clock.sleep(HOUR * 0.9)
    pins.renew()
    assert _left(job, clock) == HOUR / 10
    clock.sleep(HOUR / 10)
    pins.renew()
    assert _pins(job) == []
    before = job.root.head()
    pins.renew()
    assert job.root.head() == before


def test_the_end_of_the_session_removes_its_pins(job: SummedJob, pins: SessionPins, clock: ManualClock) -> None:
    job.run(4)
    _plan(job, pins, clock)
    job.run(8)
    _plan(job, pins, clock, LEASE / 2)
    assert len(_pins(job)) == 2
    pins.end()
    assert _pins(job) == [] and not pins.folder.exists()


def test_a_dropped_pin_is_not_renewed_and_the_next_query_has_another(
    job: SummedJob, pins: SessionPins, clock: ManualClock
) -> None:
    job.run(4)
    _plan(job, pins, clock)
    (first,) = _pins(job)
    # The driver was suspended.
    clock.sleep(LEASE)
    open_root(job.uri, clock).admin.end_leases()
    _plan(job, pins, clock)
    (second,) = _pins(job)
    assert second.id != first.id
    clock.sleep(LEASE)
    open_root(job.uri, clock).admin.end_leases()
    pins.renew()
    assert _pins(job) == []


def test_a_query_without_a_folder_of_the_session_has_a_pin_for_all_of_the_time(
    job: SummedJob, clock: ManualClock
) -> None:
    job.run(4)
    root = open_root(job.uri, clock)
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    for folder in ("", str(job.folder / "of another host")):
        pin_for_query(root, checkpoint, HOUR, folder)
    assert [datetime.fromisoformat(pin.until) - clock.now() for pin in _pins(job)] == [HOUR, HOUR]


def test_a_task_after_the_end_of_its_pin_raises_an_error_that_names_the_lease(
    job: SummedJob, pins: SessionPins
) -> None:
    # Later checkpoints share no file with earlier ones.
    job.settings["state__incremental"] = False
    job.run(4)
    options = {"path": job.uri, "operator": "sum", "state": "total", "lease_seconds": "60"}
    reader = QueryReader(ReadRequest.of(options), StateDataSource(options).schema(), str(pins.folder))
    partition, *_ = reader.partitions()
    pins.end()
    job.run(32)
    Collector(job.root).collect()
    with raises(MissingFile) as caught:
        list(reader.read(partition))
    assert caught.value.facts["lease_seconds"] == 60
