"""Labels of this host's processes in the names of local files, so that others find out whether an owner still runs."""

from __future__ import annotations

import os
from pathlib import Path

_ENDED = ("Z", "X")
"""State letters of zombies and of dead processes."""


def own_label() -> str:
    """Returns the label of this process: its id and its start time, in clock ticks since the boot.

    An id alone does not identify a process: the kernel gives it to another process or thread later. Without a start
    time, an upload that a dead process left would be waited for as long as that one lives.
    """
    pid = os.getpid()
    return f"{pid}_{_start_time(str(pid))}"


def is_running(label: str) -> bool:
    """Returns whether the process with this label still runs; False for anything that is not a label."""
    pid, _, started = label.partition("_")
    return pid.isdigit() and started != "" and _start_time(pid) == started


def _start_time(pid: str) -> str:
    """Returns when a process started; an empty string if it does not exist or has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The second field is the program's name in parentheses and may contain any character.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] in _ENDED else fields[19]
