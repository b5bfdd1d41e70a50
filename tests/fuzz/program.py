"""The process that runs fuzz targets: ``python -m tests.fuzz.program FOLDER INPUTS TARGET…``.

It prints a line of JSON for each target: how many inputs were accepted and refused, bytes of memory beyond what the
process had, the longest time of an input in seconds of CPU, and the first input that failed. Before each input it
stores target and number in ``progress``, so that a crash names its input. An input that waits ends the process.
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
from collections.abc import Sequence
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


def run(target: Target, rng: random.Random, inputs: int, progress: Path, name: str) -> dict[str, object]:
    """Gives the inputs to the target until one fails."""
    counts = {"accepted": 0, "refused": 0}
    longest, failure, codes = 0.0, "", set()
    for number in range(inputs):
        progress.write_text(f"{name} {number}")
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


def main(folder: Path, inputs: int, names: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Warnings about each damaged document would hide what failed.
    logging.disable()
    # As for a task of Airflow, and without a network.
    os.environ[VARIABLE] = str(folder)
    progress = folder / "progress"
    for name in names:
        with TARGETS[name](folder) as target:
            # The first inputs import what their parser needs.
            warm = run(target, random.Random(-1), 20, progress, name)
            peak = MemoryPeak()
            found = warm if warm["failure"] else run(target, random.Random(inputs), inputs, progress, name)
        print(json.dumps({**found, "name": name, "memory": peak.bytes()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
