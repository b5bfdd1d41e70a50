"""How long each test took: every run of the tests writes ``build/durations.json``."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "build" / "durations.json"


class Durations:
    """A plugin that adds up set-up, call and clean-up of each test, of all workers."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Is called in the process that collects the workers' reports, and in each worker for its own."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Replaces the tests of this run in the file; those that did not run keep their figures."""
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        known |= {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
