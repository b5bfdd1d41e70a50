"""Failpoints: each that is named is in the code, each in the code is named, and they act as they are asked to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import failpoints
from stateflow.errors import ConfigError, InternalError
from tests.support.errors import raises

SOURCE = Path(failpoints.__file__).parent


def _in_the_source() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        if path.name != "failpoints.py":
            text = path.read_text()
            found.update(re.findall(r'failpoints\.hit\("([^"]+)"\)', text))
            assert text.count("failpoints.hit(") == len(re.findall(r'failpoints\.hit\("', text)), path
    return found


def test_every_failpoint_is_listed_and_every_listed_one_is_somewhere() -> None:
    found = _in_the_source()
    assert set(found) == set(failpoints.NAMES)
    assert [name for name, count in found.items() if count > 1] == []


def test_without_being_asked_for_nothing_happens() -> None:
    for name in failpoints.NAMES:
        failpoints.hit(name)


def test_an_unknown_name_is_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.gebin")
    with raises(ConfigError, name="batch.gebin") as refused:
        failpoints.hit("batch.begin")
    assert "batch.begin" in refused.value.hint


@pytest.mark.parametrize("wanted", ["batch.end", "batch.end:2", "batch.end:2:stop", "batch.end::error"])
def test_what_the_environment_may_ask_for_is_accepted(wanted: str) -> None:
    failpoints.check(wanted)


@pytest.mark.parametrize("wanted", ["", "batch.end:0", "batch.end:x", "batch.end:1:stopp", "batch.end 1", "batch"])
def test_anything_else_is_refused(wanted: str) -> None:
    with raises(ConfigError):
        failpoints.check(wanted)


@pytest.fixture
def fresh() -> Iterator[None]:
    """As in a new process, and for those that come next as well."""
    failpoints.passed.clear()
    yield
    failpoints.passed.clear()


@pytest.mark.usefixtures("fresh")
def test_it_acts_at_the_time_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.end:3:error")
    for _ in range(2):
        failpoints.hit("batch.begin")
        failpoints.hit("batch.end")
    assert failpoints.passed == {"batch.end": 2}
    with raises(InternalError, name="batch.end"):
        failpoints.hit("batch.end")
    failpoints.hit("batch.end")


@pytest.mark.usefixtures("fresh")
def test_once_means_once_over_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "batch.end::error")
    monkeypatch.setenv("STATEFLOW_FAILPOINT_ONCE", str(marker))
    with raises(InternalError, name="batch.end"):
        failpoints.hit("batch.end")
    assert marker.read_text() == f"{os.getpid()}\n"
    failpoints.passed.clear()
    failpoints.hit("batch.end")


@pytest.mark.parametrize(("action", "code"), [("", -signal.SIGKILL), (":1:kill", -signal.SIGKILL)])
def test_it_kills(action: str, code: int) -> None:
    """In a process that has nothing but this one file."""
    script = (
        "import importlib.util, sys, types\n"
        "sys.modules['stateflow'] = types.ModuleType('stateflow')\n"
        f"sys.modules['stateflow'].__path__ = [{str(SOURCE)!r}]\n"
        "from stateflow import failpoints\n"
        "failpoints.hit('batch.begin')\nprint('passed')\nfailpoints.hit('batch.end')\nprint('not reached')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-u", "-c", script],
        env={"STATEFLOW_FAILPOINT": f"batch.end{action}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "passed\n"), ended.stderr
