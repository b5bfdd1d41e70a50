"""What work takes of this process: memory and calls; and a limit of the size of files."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT = 100 << 20
"""The largest part of hostile input in memory that stateflow promises."""
CPU_SECONDS = 4
"""Most CPU time for hostile input. Alone on a processor none takes 2 s; with other work on the same core it doubles."""


class MemoryPeak:
    """Measures the peak from its creation on; Linux's record of the peak is reset, so that there is one at a time."""

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")

    def bytes(self) -> int:
        return _status("VmHWM") - self._before


def _status(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def count_calls(function: Callable[[], object]) -> int:
    """Calls a function, and returns how many functions were called meanwhile, of Python and of C."""
    count, before = 0, sys.getprofile()

    def note(_frame: object, event: str, _value: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A process that writes more to a file fails, or is killed unless it ignores that signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
