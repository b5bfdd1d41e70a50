"""A clock on the wall that is wrong, and jumps, in the process whose environment asks for it."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta
from unittest.mock import patch

from stateflow.clock import SystemClock

VARIABLE = "STATEFLOW_TEST_CLOCK"
_MOST = timedelta(hours=2)
_JUMPS = 0.2


def skew_from_environment() -> None:
    """Makes `SystemClock.now` wrong by up to two hours; it jumps periodically, also back."""
    seed = os.environ.get(VARIABLE)
    if not seed:
        return
    rng, right = random.Random(int(seed)), SystemClock.now
    wrong_by = [rng.uniform(-1, 1) * _MOST]

    def now(self: SystemClock) -> datetime:
        if rng.random() < _JUMPS:
            wrong_by[0] = rng.uniform(-1, 1) * _MOST
        return right(self) + wrong_by[0]

    patch.object(SystemClock, "now", now).start()
