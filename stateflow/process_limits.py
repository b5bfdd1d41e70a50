"""Limits of memory and CPU time of processes that read input which could crash or block them.

`failure_of` runs a program in a child process for this. The child imports nothing from stateflow unless its program
does: it gets the text of its program, after the text of `limit_memory` and `limit`, and calls `limit` as soon as it has
imported what it needs. A process that exists only for such input, and whose end is harmless, calls `isolate` instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

_WALL_SECONDS_PER_CPU_SECOND = 30
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ChildLimits:
    """The limits of a child process: bytes in addition to its memory when it calls `limit`, and seconds of CPU time."""

    memory: int
    cpu_seconds: int


def limit_memory(memory: int) -> None:
    """Limits the memory of this process, in bytes in addition to its present memory; it writes no core file."""
    # Here as well, because a child's program begins with the text of this function.
    import resource

    with open("/proc/self/statm", "rb") as file:
        data_pages = int(file.read().split()[5])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory += data_pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def limit(memory: int, cpu_seconds: int) -> None:
    """Sets the limits of this process: bytes in addition to its present memory, and seconds."""
    import resource

    limit_memory(memory)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))


_isolated = False


def isolate(memory: int) -> None:
    """Marks this process as one that may crash without harm, and limits its memory as `limit_memory` does."""
    global _isolated
    limit_memory(memory)
    _isolated = True


def is_isolated() -> bool:
    """Returns whether this process may crash without harm, so that its input needs no other process."""
    return _isolated


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to send a signal to this process when the thread that started it ends.

    A thread of this process could not always end it: a library may block while it holds the interpreter lock.

    Args:
        parent: the id of the parent process; if it has ended already, this process does, too.
        number: the signal.
    """
    end_with_this_process(parent, number)()


def end_with_this_process(parent: int, number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Returns `end_with_parent` as a function for `subprocess.Popen`, which calls it before it executes a program.

    The function loads no library, which is not safe there. The program inherits the kernel's promise.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        if libc.prctl(_PR_SET_PDEATHSIG, number) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:
            os._exit(1)

    return ask


@contextlib.contextmanager
def ends_at_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Lets a server end normally at SIGTERM, also before it serves.

    While it serves, uvicorn handles the signal, and sends it to the process again when it has stopped.
    """

    def end(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def time_limits(cpu_seconds: int, wall_seconds: int) -> Iterator[None]:
    """Limits the time for the `with` block; the system ends the process with SIGXCPU or SIGALRM after that."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = math.ceil(time.process_time()) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until if most == resource.RLIM_INFINITY else min(until, most), most))
    signal.alarm(wall_seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def failure_of(program: str, arguments: Sequence[object], limits: ChildLimits, data: bytes = b"") -> str:
    """Runs a program with limits; returns why it failed, or an empty string.

    Args:
        program: text of the program. Its arguments are bytes of memory and seconds of CPU time, for `limit`, and
            `arguments`. What it prints before it exits with another code than 0 is the reason.
        arguments: further arguments.
        limits: the limits.
        data: its standard input.
    """
    timeout = limits.cpu_seconds * _WALL_SECONDS_PER_CPU_SECOND
    text = f"{inspect.getsource(limit_memory)}\n\n{inspect.getsource(limit)}\n\n{program}"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", text, *map(str, (limits.memory, limits.cpu_seconds, *arguments))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    ) as child:
        assert child.stdin is not None
        # At once, because `communicate` writes 4 KiB at a time. A child that has ended early says why.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(data)
        try:
            printed, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"a process that read it did not end within {timeout} s"
    if child.returncode == 0:
        return ""
    return printed.decode(errors="replace") or f"a process that read it ended with {child.returncode}"
