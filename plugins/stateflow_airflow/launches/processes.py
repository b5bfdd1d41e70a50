"""Which processes of this machine belong to a session, since when, and how to wait for them or end them.

A process is identified by its id *and* its start time, since ids are used again. Only Linux is supported:
times come from ``/proc``, waiting uses process file descriptors, so nothing here guesses or sleeps."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ENDED = (b"Z", b"X", b"x")
"""Zombies, and what is being collected at this very moment."""
_EXEC_SECONDS = 1.0
"""An exec takes milliseconds on a busy machine; threads of the kernel have no program ever."""


@dataclass(frozen=True)
class Process:
    """A process that was alive when it was looked at."""

    pid: int
    started: int
    """Clock ticks from the machine's boot to the start of the process; never changes while it lives."""
    session: int


def boot_id() -> str:
    """Names the present boot of this machine; start times of another boot mean nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def look(pid: int) -> Process | None:
    """The living process `pid`; None when there is none, or only a zombie that nobody has collected yet."""
    try:
        stat = _read(pid, "stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold any character, so count from its end.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in _ENDED:
        return None
    return Process(pid=pid, started=int(fields[19]), session=int(fields[3]))


def session_members(session: int) -> list[Process]:
    """Every living process of `session`, whatever process group it moved to."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [process for pid in pids if (process := look(pid)) and process.session == session]


def has_environment(pid: int, entry: str) -> bool:
    """Whether the process was started with ``NAME=value`` in its environment."""
    try:
        return entry.encode() in _environment(pid).split(b"\0")
    except OSError:
        return False


def _environment(pid: int) -> bytes:
    """The environment of a process, one in the middle of an exec included.

    Between its old program and its new one a process has neither arguments nor environment. Whoever takes that for
    an answer leaves a child that is just being started out of those to end.
    """
    deadline = time.monotonic() + _EXEC_SECONDS  # noqa: TID251
    while not (environment := _read(pid, "environ")):
        # Arguments without an environment: it has none, unless its exec came to an end between the two questions.
        settled = _read(pid, "cmdline") or look(pid) is None
        if settled or time.monotonic() > deadline:  # noqa: TID251
            return _read(pid, "environ")
        os.sched_yield()
    return environment


def _read(pid: int, name: str) -> bytes:
    return (_PROC / str(pid) / name).read_bytes()


@contextlib.contextmanager
def watch(process: Process) -> Iterator[int | None]:
    """Yields a descriptor that becomes readable when `process` ends; None when it has ended already."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # The id may have been given to another process between the look and the open.
        yield descriptor if look(process.pid) == process else None
    finally:
        os.close(descriptor)


def wait_for_end(process: Process, seconds: float) -> bool:
    """Waits up to `seconds`; True as soon as `process` has ended."""
    with watch(process) as descriptor:
        return descriptor is None or ended(descriptor, seconds)


def wait_for_all(group: Sequence[Process], seconds: float) -> None:
    """Waits up to `seconds` altogether, until every process of `group` has ended."""
    # Processes end in the machine's own time, so this asks for it and takes no Clock.
    deadline = time.monotonic() + seconds  # noqa: TID251
    for process in group:
        wait_for_end(process, max(0.0, deadline - time.monotonic()))  # noqa: TID251


def ended(descriptor: int, seconds: float) -> bool:
    """Waits up to `seconds` on a descriptor from `watch`; True as soon as its process has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal to exactly this process; does nothing when it has ended."""
    with watch(process) as descriptor, contextlib.suppress(ProcessLookupError):
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
