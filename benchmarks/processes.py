"""Running a competitor in processes of its own, and what they use: CPU time and memory, from ``/proc``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_EVERY_SECONDS = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProgramFailed(Exception):
    """A competitor's program failed; the message has the end of what it said.

    Attributes:
        reason: what happened, in a line without paths of the machine.
    """

    def __init__(self, reason: str, program: str, said: str) -> None:
        super().__init__(f"{program} {reason}:\n{said}")
        self.reason = reason


@dataclass
class Usage:
    """What a process and its descendants have used, at times of the monotonic clock that all processes share."""

    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    _seen: dict[int, float] = field(default_factory=dict)

    def sample(self, root: int) -> None:
        """Takes a sample of a process and its descendants. Exited processes count with their last sampled usage."""
        memory = 0
        for pid, seconds, resident in _tree(root):
            self._seen[pid] = seconds
            memory += resident
        self.times.append(time.monotonic())
        self.cpu.append(sum(self._seen.values()))
        self.peak_bytes = max(self.peak_bytes, memory)

    def cpu_between(self, begin: float, end: float) -> float:
        """Seconds of CPU time between two measurements."""
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        after = bisect_right(self.times, moment)
        if after in (0, len(self.times)):
            return self.cpu[min(after, len(self.times) - 1)]
        begin, end = self.times[after - 1], self.times[after]
        part = (moment - begin) / (end - begin)
        return self.cpu[after - 1] + part * (self.cpu[after] - self.cpu[after - 1])


def run_program(
    command: Sequence[str], environment: Mapping[str, str], output: Path, limit_seconds: float = 3600
) -> Usage:
    """Runs it to its end, with what it prints going to `output`. Raises ProgramFailed, also at the time limit."""
    usage = Usage()
    reason = ""
    deadline = time.monotonic() + limit_seconds
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                usage.sample(process.pid)
                time.sleep(_EVERY_SECONDS)
        finally:
            if process.poll() is None:
                reason = f"did not end within {limit_seconds:,.0f} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        said = output.read_bytes()[-3000:].decode(errors="replace")
        raise ProgramFailed(reason or f"ended with {process.returncode}", " ".join(command), said)
    return usage


def _tree(root: int) -> list[tuple[int, float, int]]:
    """Of the process and its descendants: number, CPU seconds and resident bytes."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    members: set[int] = {root}
    before = 0
    while len(members) != before:
        before = len(members)
        members |= {pid for pid, (parent, _, _) in stats.items() if parent in members}
    return [(pid, stats[pid][1], stats[pid][2]) for pid in members if pid in stats]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, float, int] | None:
    """Parent, CPU seconds, resident bytes; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
