"""Counts calls: work that does not depend on the machine's speed."""

from __future__ import annotations

import sys
from collections.abc import Callable


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
