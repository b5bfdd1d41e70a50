"""Looking at processes that are ending, or just beginning."""

from __future__ import annotations

import os
import signal

import pytest

from stateflow_airflow.launches import processes


@pytest.mark.parametrize(
    ("state", "alive"), [("R", True), ("S", True), ("D", True), ("T", True), ("Z", False), ("X", False)]
)
def test_a_process_that_ended_is_not_alive(state: str, alive: bool) -> None:
    """Z: its parent has not collected it yet. X: its parent is collecting it at this very moment, which no test can
    arrange for a real one; seen once in some hundred looks at what was just killed."""
    numbers = " ".join(str(n) for n in range(4, 30))
    files = {(123, "stat"): f"123 (a) Z (b) {state} {numbers}\n".encode()}
    assert processes.find(123, lambda pid, name: files[pid, name]) == (
        processes.Process(pid=123, started=22, session=6) if alive else None
    )


def test_a_zombie_has_ended() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    process = processes.find(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for_end(process, 10)
    assert processes.find(pid) is None
    os.waitpid(pid, 0)


def test_one_in_the_middle_of_an_exec_is_asked_again() -> None:
    """For a moment it has neither arguments nor environment; seen in 109 of 3,000 looks on a busy machine."""
    answers = {
        "stat": [f"123 (a) R {' '.join(str(n) for n in range(4, 30))}".encode()],
        "cmdline": [b"", b"a\0"],
        "environ": [b"", b"", b"A=b\0C=d\0"],
    }

    assert processes.has_environment(123, "C=d", lambda _, name: answers[name].pop(0))


def test_one_without_an_environment_has_none() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    assert not processes.has_environment(pid, "A=b")
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for_end(processes.find(pid) or processes.Process(pid, 0, 0), 10)
    assert not processes.has_environment(pid, "A=b")
    os.waitpid(pid, 0)
    assert not processes.has_environment(pid, "A=b")
