"""Programs that tests of jobs on Spark start, and what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[2]
_RUNS = Path(__file__).with_name("observed_runs.py")


def ended(command: Sequence[str], code: int = 0) -> str:
    """What a program prints that ends with `code`: its output, or its errors when that is not 0."""
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-6000:]
    return done.stderr if code else done.stdout


def observed_runs(job: Path, root: Path, *settings: Mapping[str, str]) -> dict[str, Any]:
    """Runs a job once for each of the settings, in one process; returns what `observed_runs.py` prints."""
    given = map(json.dumps, settings)
    printed = ended([sys.executable, str(_RUNS), str(job), str(root), *given])
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found
