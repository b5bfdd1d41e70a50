"""Plants bugs one after another, and reports those that their tests do not find.

``python -m tests.bugs [--workers N] [NAME...]`` ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.bugs.bug import BUGS, ROOT, Bug

COPIED = ("stateflow", "plugins", "dags", "scripts", "tests", "docs", "benchmarks", "pyproject.toml", "README.md")
SECONDS = 600
"""A bug that lets its tests hang is found as well."""


@dataclass(frozen=True)
class Outcome:
    """What the tests of a bug did.

    Attributes:
        missed: its tests that did not fail.
        output: the last lines of pytest, if any test did not fail.
    """

    bug: Bug
    missed: tuple[str, ...]
    output: str = ""


def run(bug: Bug, repository: Path) -> Outcome:
    """Plants a bug in a copy of the repository, runs each of its tests, and restores the file."""
    original = (repository / bug.file).read_bytes()
    bug.plant(repository)
    try:
        outputs = {test: _output_of_passed(test, repository) for test in bug.tests}
    finally:
        (repository / bug.file).write_bytes(original)
    missed = tuple(test for test, output in outputs.items() if output is not None)
    return Outcome(bug, missed, "\n".join(outputs[test] or "" for test in missed))


def _output_of_passed(test: str, repository: Path) -> str | None:
    """Returns the end of pytest's output, or None if the test failed, as it should."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", test]
    # The copy comes before the installed package, also in processes that tests start.
    path = f"{repository}:{repository / 'plugins'}"
    environment = {**os.environ, "PYTHONPATH": path, "HYPOTHESIS_PROFILE": "bugs"}
    try:
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode == 1 else done.stdout[-2000:] + done.stderr[-2000:]


@contextmanager
def copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Makes copies of the repository, for as many workers."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="stateflow-bugs-") as folder:
        for worker in range(number):
            copy = Path(folder) / str(worker)
            for name in COPIED:
                source = ROOT / name
                ignored = shutil.ignore_patterns("__pycache__")
                if source.is_dir():
                    shutil.copytree(source, copy / name, ignore=ignored)
                else:
                    shutil.copy(source, copy / name)
            (copy / ".venv").symlink_to(ROOT / ".venv")
            free.put(copy)
        yield free


def main(arguments: Sequence[str]) -> int:
    """Prints one line for each bug; returns 1 if one was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("names", nargs="*", help="beginnings of names of bugs; all by default")
    given = parser.parse_args(arguments)
    chosen = [bug for bug in BUGS if bug.name.startswith(tuple(given.names) or "")]
    with copies(given.workers) as free, ThreadPoolExecutor(given.workers) as pool:

        def run_in_copy(bug: Bug) -> Outcome:
            copy = free.get()
            try:
                return run(bug, copy)
            finally:
                free.put(copy)

        outcomes = []
        for outcome in pool.map(run_in_copy, chosen):
            outcomes.append(outcome)
            print(f"{'found' if not outcome.missed else 'MISSED'}  {outcome.bug.name}", flush=True)
            for test in outcome.missed:
                print(f"    {test} passed, or could not run:\n{outcome.output}", flush=True)
    missed = sum(bool(outcome.missed) for outcome in outcomes)
    print(f"{len(outcomes) - missed} of {len(outcomes)} planted bugs were found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
