"""Finds, awaits and signals processes of this machine.

A process is identified by its id *and* its start time, since ids are reused. Only Linux is supported: start times are
read from ``/proc``, and waiting uses process file descriptors instead of polling.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Read = Callable[[int, str], bytes]
"""Reads a file of a process below ``/proc``, by process id and file name."""

_PROC = Path("/proc")
_ENDED = (b"Z", b"X", b"x")
"""State letters of zombies and of dead processes."""
_EXEC_SECONDS = 1.0
"""Limit for an exec, which takes milliseconds on a busy machine. Kernel threads never have a program."""


@dataclass(frozen=True)
class Process:
    """A process that was alive when it was found.

    Attributes:
        started: clock ticks from the machine's boot to the start of the process; constant during its life.
        session: id of its session.
    """

    pid: int
    started: int
    session: int


def boot_id() -> str:
    """Returns the id of this machine's current boot. Start times of different boots are not comparable."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_proc(pid: int, name: str) -> bytes:
    """Returns the content of a file of the process below ``/proc``."""
    return (_PROC / str(pid) / name).read_bytes()


def find(pid: int, read: Read = read_proc) -> Process | None:
    """Returns the process `pid`; None if it does not exist or is a zombie."""
    try:
        stat = read(pid, "stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may contain any character, so split after it.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in _ENDED:
        return None
    return Process(pid=pid, started=int(fields[19]), session=int(fields[3]))


def session_members(session: int) -> list[Process]:
    """Returns every living process of `session`, in any process group."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [process for pid in pids if (process := find(pid)) and process.session == session]


def has_environment(pid: int, entry: str, read: Read = read_proc) -> bool:
    """Returns whether the process was started with ``NAME=value`` in its environment."""
    try:
        return entry.encode() in _environment(pid, read).split(b"\0")
    except OSError:
        return False


def _environment(pid: int, read: Read) -> bytes:
    """Returns the environment of a process, also during an exec.

    Between its old and its new program, a process has neither arguments nor an environment. A caller that took that for
    the answer would miss a child process that is just being started.
    """
    deadline = time.monotonic() + _EXEC_SECONDS  # noqa: TID251
    while not (environment := read(pid, "environ")):
        # Arguments without an environment: it has none, unless the exec completed between the two reads.
        settled = read(pid, "cmdline") or find(pid, read) is None
        if settled or time.monotonic() > deadline:  # noqa: TID251
            return read(pid, "environ")
        os.sched_yield()
    return environment


@contextlib.contextmanager
def watch(process: Process) -> Iterator[int | None]:
    """Yields a descriptor that becomes readable when `process` ends; None if it has ended already."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # Another process may have received the id before the descriptor was opened.
        yield descriptor if find(process.pid) == process else None
    finally:
        os.close(descriptor)


def wait_for_end(process: Process, seconds: float) -> bool:
    """Waits up to `seconds`; returns True as soon as `process` has ended."""
    with watch(process) as descriptor:
        return descriptor is None or has_ended(descriptor, seconds)


def wait_for_all(group: Sequence[Process], seconds: float) -> None:
    """Waits up to `seconds` in total until every process of `group` has ended."""
    # Processes end in real time, so this takes no Clock.
    deadline = time.monotonic() + seconds  # noqa: TID251
    for process in group:
        wait_for_end(process, max(0.0, deadline - time.monotonic()))  # noqa: TID251


def has_ended(descriptor: int, seconds: float) -> bool:
    """Waits up to `seconds` on a descriptor from `watch`; returns True as soon as its process has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal to exactly this process; does nothing if it has ended."""
    with watch(process) as descriptor, contextlib.suppress(ProcessLookupError):
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
