"""Failpoints: each name is used in the code exactly once, and they act as the environment says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import failpoints
from stateflow.errors import ConfigError, InternalError
from tests.support.errors import raises

SOURCE = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _no_failpoint_was_passed() -> Iterator[None]:
    failpoints.passed.clear()
    yield
    failpoints.passed.clear()


def test_every_failpoint_is_hit_at_one_place_of_the_code() -> None:
    # The conformance suite publishes as a run does, in the same steps.
    paths = [path for path in SOURCE.rglob("*.py") if SOURCE / "testing" not in path.parents]
    texts = [path.read_text() for path in paths if path.name != "failpoints.py"]
    found = [name for text in texts for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', text)]
    assert sorted(found) == sorted(failpoints.NAMES)
    assert sum(text.count("failpoints.hit(") for text in texts) == len(found)


def test_a_failpoint_does_nothing_without_the_environment_variable() -> None:
    for name in failpoints.NAMES:
        failpoints.hit(name)


def test_an_unknown_failpoint_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.gebin")
    with raises(ConfigError, name="batch.gebin") as refused:
        failpoints.hit("batch.begin")
    assert "batch.begin" in refused.value.hint


@pytest.mark.parametrize("wanted", ["", "batch.end:0", "batch.end:x", "batch.end:1:stopp", "batch.end 1", "batch"])
def test_a_wrong_specification_of_a_failpoint_is_refused(wanted: str) -> None:
    for accepted in ("batch.end", "batch.end:2", "batch.end:2:stop", "batch.end::error"):
        failpoints.check(accepted)
    with raises(ConfigError):
        failpoints.check(wanted)


def test_a_failpoint_acts_only_at_the_given_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.end:3:error")
    for _ in range(2):
        failpoints.hit("batch.begin")
        failpoints.hit("batch.end")
    assert failpoints.passed == {"batch.end": 2}
    with raises(InternalError, name="batch.end"):
        failpoints.hit("batch.end")
    failpoints.hit("batch.end")


def test_a_failpoint_with_a_marker_acts_once_over_all_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.end::error")
    monkeypatch.setenv("STATEFLOW_FAILPOINT_ONCE", str(marker))
    with raises(InternalError, name="batch.end"):
        failpoints.hit("batch.end")
    assert marker.read_text() == f"{os.getpid()}\n"
    failpoints.passed.clear()
    failpoints.hit("batch.end")


_STOPPED_IN_THREAD = """
import sys, threading
from stateflow import failpoints

def stop():
    failpoints.hit("batch.end")
    open(sys.argv[1], "w").close()

threads = [threading.Thread(target=stop)]
threads[0].start()
threads[0].join()
"""


def test_a_thread_that_stops_the_process_at_a_failpoint_stops_as_well(tmp_path: Path) -> None:
    continued = tmp_path / "continued"
    environment = {**os.environ, "STATEFLOW_FAILPOINT": "batch.end:1:stop"}
    with subprocess.Popen([sys.executable, "-c", _STOPPED_IN_THREAD, str(continued)], env=environment) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        assert not continued.exists()
        process.send_signal(signal.SIGCONT)
    assert continued.exists()
