"""What a fuzz target is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Mutate = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        mutate: returns a changed input.
        parse: reads an input; it returns, or raises StateflowError.
        after_batch: called after each 1,000 inputs, and after the last one.
    """

    mutate: Mutate
    parse: Callable[[Any], object]
    after_batch: Callable[[], object] = lambda: None
