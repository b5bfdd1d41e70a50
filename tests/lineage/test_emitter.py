"""Events are sent in the background, in their order, and none of what can go wrong reaches the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from stateflow.lineage.events import LineageEvent, RunFacts, RunState
from stateflow.lineage.reporter import _MOST_WAITING, BackgroundEmitter, is_configured

_LOGGER = "stateflow.lineage.reporter"


def _event(number: int, state: RunState = RunState.RUNNING) -> LineageEvent:
    at = f"2026-01-01T00:00:00.{number:03}+00:00"
    return LineageEvent(state=state, occurred_at=at, run_id="r", job="j", is_continuous=False, run=RunFacts())


def _warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.name == _LOGGER and record.levelno >= logging.WARNING for record in caplog.records)


def _emitter(send: Callable[[LineageEvent], None], seconds: float = 5.0) -> BackgroundEmitter:
    return BackgroundEmitter(lambda: send, seconds)


def test_events_arrive_in_order_before_the_end() -> None:
    received: list[LineageEvent] = []
    emitter = _emitter(received.append)
    events = [_event(n) for n in range(20)]
    for event in events:
        emitter.put(event)
    emitter.close()
    emitter.put(_event(99))
    assert received == events


def test_of_too_many_events_checkpoints_are_dropped_first_and_the_last_event_of_a_run_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    received: list[LineageEvent] = []
    started, released = threading.Event(), threading.Event()

    def send(event: LineageEvent) -> None:
        started.set()
        released.wait()
        received.append(event)

    emitter = _emitter(send)
    emitter.put(_event(0, RunState.START))
    assert started.wait(5)
    for number in range(1, _MOST_WAITING + 50):
        emitter.put(_event(number))
    last = _event(999, RunState.COMPLETE)
    emitter.put(last)
    released.set()
    emitter.close()
    assert len(received) == _MOST_WAITING + 1
    assert (received[0].state, received[-1]) == (RunState.START, last)
    assert _warnings(caplog) == 1


def test_a_failing_receiver_is_reported_once_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    def send(event: LineageEvent) -> None:
        raise ConnectionError("no answer from http://user:s3cret@host/api?key=s3cret")

    with caplog.at_level(logging.INFO, _LOGGER):
        emitter = _emitter(send)
        for number in range(3):
            emitter.put(_event(number))
        emitter.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "http://host/api" in caplog.text and "s3cret" not in caplog.text


def test_a_receiver_that_cannot_be_opened_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def connect() -> Callable[[LineageEvent], None]:
        raise ValueError("Failed to parse OpenLineage config.")

    emitter = BackgroundEmitter(connect, 5)
    emitter.put(_event(0))
    emitter.close()
    assert "Failed to parse" in caplog.text


def test_the_end_waits_only_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()

    def send(event: LineageEvent) -> None:
        never.wait()

    emitter = _emitter(send, 0.01)
    emitter.put(_event(0))
    emitter.close()
    never.set()
    assert _warnings(caplog) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OPENLINEAGE_URL": "http://host"}, True),
        ({"OPENLINEAGE_URL": ""}, False),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, True),
        ({"OPENLINEAGE_URL": "http://host", "OPENLINEAGE_DISABLED": "TRUE"}, False),
        ({"OPENLINEAGE_CONFIG": "/does/not/exist.yml"}, False),
        ({"OPENLINEAGE_CONFIG": __file__}, True),
    ],
)
def test_openlineage_s_own_variables_decide_whether_events_are_sent(
    environment: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    assert is_configured(environment) is expected
