"""Looking at processes that are ending, or just beginning."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stateflow_airflow import processes


@pytest.mark.parametrize(
    ("state", "alive"), [("R", True), ("S", True), ("D", True), ("T", True), ("Z", False), ("X", False)]
)
def test_a_process_that_ended_is_not_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, alive: bool
) -> None:
    """Z: nobody has collected it yet. X: its parent is collecting it at this very moment, which no test can arrange
    for a real one; seen once in some hundred looks at what was just killed."""
    (tmp_path / "123").mkdir()
    numbers = " ".join(str(n) for n in range(4, 30))
    (tmp_path / "123" / "stat").write_text(f"123 (a) Z (b) {state} {numbers}\n")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.look(123) == (processes.Process(pid=123, started=22, session=6) if alive else None)


def test_one_that_nobody_collects_has_ended() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    process = processes.look(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for_end(process, 10)
    assert processes.look(pid) is None
    os.waitpid(pid, 0)


def test_one_in_the_middle_of_an_exec_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment it has neither arguments nor environment; seen in 109 of 3,000 looks on a busy machine."""
    answers = {
        "stat": [f"123 (a) R {' '.join(str(n) for n in range(4, 30))}".encode()],
        "cmdline": [b"", b"a\0"],
        "environ": [b"", b"", b"A=b\0C=d\0"],
    }

    def read(pid: int, name: str) -> bytes:
        return answers[name].pop(0)

    monkeypatch.setattr(processes, "_read", read)
    assert processes.has_environment(123, "C=d")


def test_one_without_an_environment_has_none() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    assert not processes.has_environment(pid, "A=b")
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for_end(processes.look(pid) or processes.Process(pid, 0, 0), 10)
    assert not processes.has_environment(pid, "A=b")
    os.waitpid(pid, 0)
    assert not processes.has_environment(pid, "A=b")
