"""A program that queries a job: ``query_load.py JOB_ROOT KEYS KEYS_PER_SECOND KEYS_PER_REQUEST RESULT``.

It ends with SIGTERM, and then writes each request to RESULT, in seconds: when it ended by the wall clock, how long it
took, its checkpoint, the CPU time of this process for it, and how long this process was ready to run meanwhile while no
core was free. A rate of 0 is without a pause.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from stateflow import QueryableStateClient

_STATE = "values"


class Waits:
    """How long this thread has waited for a core since it began, by the scheduler of Linux."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def seconds(self) -> float:
        """Returns the time in seconds."""
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


def main(arguments: list[str]) -> None:
    """Queries until SIGTERM."""
    root, keys, rate, chunk, result = arguments
    asked_per_request, pause = int(chunk), int(chunk) / float(rate) if float(rate) else 0.0
    rng, ended, waits = random.Random(os.getpid()), [], Waits()

    def end(*_: object) -> None:
        ended.append(True)

    signal.signal(signal.SIGTERM, end)
    samples = []
    with QueryableStateClient(root, timeout=timedelta(minutes=10)) as client:
        client.get_many(_STATE, [0])
        print("ready", flush=True)
        due = time.time()
        while not ended:
            asked = [rng.randrange(int(keys)) for _ in range(asked_per_request)]
            began, worked, waited = time.time(), time.thread_time(), waits.seconds()
            found = client.get_many(_STATE, asked)
            now, worked, waited = time.time(), time.thread_time() - worked, waits.seconds() - waited
            assert all(each.found for each in found)
            samples.append((now, now - began, max(each.checkpoint_id for each in found), worked, waited))
            if pause:
                due = max(due + pause, now - 1)
                time.sleep(max(0.0, due - time.time()))
    Path(result).write_text(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1:])
