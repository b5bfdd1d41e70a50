"""A program that queries a job: ``query_load.py JOB_ROOT KEYS KEYS_PER_SECOND KEYS_PER_REQUEST RESULT``.

It ends with SIGTERM, and then writes each request to RESULT: when it ended, how long it took, and its checkpoint, with
times of the wall clock in seconds. A rate of 0 is without a pause.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from stateflow import QueryableStateClient

_STATE = "values"


def main(arguments: list[str]) -> None:
    """Queries until SIGTERM."""
    root, keys, rate, chunk, result = arguments
    asked_per_request, pause = int(chunk), int(chunk) / float(rate) if float(rate) else 0.0
    rng, ended = random.Random(1), []

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
            began = time.time()
            found = client.get_many(_STATE, asked)
            now = time.time()
            assert all(each.found for each in found)
            samples.append((now, now - began, max(each.checkpoint_id for each in found)))
            if pause:
                due = max(due + pause, now - 1)
                time.sleep(max(0.0, due - time.time()))
    Path(result).write_text(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1:])
