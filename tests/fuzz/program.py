"""The process that runs one fuzz target: ``python -m tests.fuzz.program FOLDER TARGET SEED INPUTS``.

It prints JSON: how many inputs were accepted and refused, bytes of memory beyond what the process had, the longest time
of an input in seconds of CPU, and the first input that failed. Before each input it stores its number in
``progress``, so that a crash names its input. An input that waits ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import random
import resource
import sys
import time
import traceback
from pathlib import Path

from stateflow.errors import StateflowError
from stateflow.storage.locations import VARIABLE
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.support.memory import MemoryPeak

_BATCH = 1000
_WALL_SECONDS = 20
"""Most that an input may take, CPU time or not; the machine may be busy with other work."""


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run(target: Target, rng: random.Random, inputs: int, progress: int) -> dict[str, object]:
    """Gives the inputs to the target until one fails."""
    counts = {"accepted": 0, "refused": 0}
    longest, failure, codes = 0.0, "", set()
    for number in range(inputs):
        os.pwrite(progress, b"%-8d" % number, 0)
        given = target.mutate(rng)
        started = _cpu_seconds()
        faulthandler.dump_traceback_later(_WALL_SECONDS, exit=True)
        try:
            target.parse(given)
            counts["accepted"] += 1
        except StateflowError as e:
            counts["refused"] += 1
            codes.add(e.code)
            assert str(e)
        except Exception:
            failure = f"input {number}: {given!r:.2000}\n{traceback.format_exc()[-3000:]}"
            break
        finally:
            faulthandler.cancel_dump_traceback_later()
        longest = max(longest, _cpu_seconds() - started)
        if number % _BATCH == _BATCH - 1:
            target.after_batch()
    target.after_batch()
    return {**counts, "codes": sorted(codes), "longest": longest, "failure": failure}


def main(folder: Path, name: str, seed: int, inputs: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Warnings about each damaged document would hide what failed.
    logging.disable()
    # As for a task of Airflow, and without a network.
    os.environ[VARIABLE] = str(folder)
    progress = os.open(folder / f"progress-{name}", os.O_WRONLY | os.O_CREAT)
    with TARGETS[name](folder) as target:
        rng = random.Random(seed)
        # The first inputs import what their parser needs.
        warm = run(target, random.Random(-1), 20, progress)
        peak = MemoryPeak()
        found = warm if warm["failure"] else run(target, rng, inputs, progress)
    print(json.dumps({**found, "memory": peak.bytes()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
