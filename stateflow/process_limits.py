"""Runs a program in a child process with limits for memory and CPU time, for input that could crash or block a process.

The child imports nothing from stateflow unless its program does: it gets the text of its program, after the text of
this module's function `limit`, which the program calls as soon as it has imported what it needs.
"""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_WALL_SECONDS_PER_CPU_SECOND = 30


@dataclass(frozen=True)
class ChildLimits:
    """What a child process may use: bytes in addition to its memory when it calls `limit`, and seconds of CPU time."""

    memory: int
    cpu_seconds: int


def limit(memory: int, cpu_seconds: int) -> None:
    """Sets the limits of this process: bytes in addition to its present memory, and seconds."""
    import resource

    with open("/proc/self/statm", "rb") as file:
        data_pages = int(file.read().split()[5])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    memory += data_pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


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
    text = f"{inspect.getsource(limit)}\n\n{program}"
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
