"""Compares this checkout with an earlier commit: throughput and micro-batch interval, in turns on one machine.

``python benchmarks/regression.py COMMIT`` checks the commit out into a temporary folder and runs the benchmark jobs of
both versions over the same events. The order changes with each round, so that changes of the machine's load affect
both. A ratio is this checkout's figure divided by the earlier one's in the same round; the result has their medians.
The micro-batch interval is also measured in units of Spark's own interval, which changes with the machine's load too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cells import GOAL, Cell  # noqa: E402
from benchmarks.data import write_events  # noqa: E402
from benchmarks.results import write_result  # noqa: E402

KINDS = ("row", "vectorized")
MEASURE = """
import json, sys
from dataclasses import replace
from pathlib import Path
from benchmarks import micro_batch
from benchmarks.cells import GOAL
from benchmarks.competitors import COMPETITORS, Task

folder, events, kinds, sizes = (json.loads(a) for a in sys.argv[1:])
cell = replace(GOAL, events=sizes["events"])
figures = {}
for kind in kinds:
    home = Path(folder) / kind
    home.mkdir(parents=True)
    figures[kind] = COMPETITORS[kind](Task(cell, Path(events), home))["events_per_s"]
home = Path(folder) / "micro-batch"
home.mkdir()
measured = micro_batch.measure(home, micro_batch.Size(batches=sizes["batches"]))
figures["interval_ms"] = measured["interval_ms"]
figures["interval_in_spark_intervals"] = round(measured["interval_ms"] / measured["spark_alone_interval_ms"], 3)
print(json.dumps(figures))
"""
"""The program that measures one version; it uses names that both versions have."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: measurements of each version.
        events: of each throughput run.
        batches: measured for the micro-batch interval.
    """

    rounds: int = 5
    events: int = 5_000_000
    batches: int = 80


@dataclass(frozen=True)
class Version:
    """A checkout and its figures, one per round."""

    tree: Path
    rounds: list[dict[str, float]] = field(default_factory=list)


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Checks a commit out into `folder`, and removes it from Git's list of work trees at the end."""
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def measure(folder: Path, commit: str, sizes: Sizes) -> dict[str, Any]:
    """Measures both versions.

    Args:
        folder: for events, job roots and the earlier version's files.
        commit: the earlier version.
    """
    cell = replace(GOAL, events=sizes.events)
    write_events(folder / "events", cell.data())
    with checked_out(commit, folder) as tree:
        versions = [Version(tree), Version(ROOT)]
        for turn in range(sizes.rounds):
            for version in versions[:: 1 if turn % 2 == 0 else -1]:
                _round(version, folder, cell, sizes)
    earlier, current = versions
    return {
        "against": commit,
        "ratios": {name: round(_median_ratio(name, current, earlier), 3) for name in current.rounds[0]},
        "earlier": earlier.rounds,
        "current": current.rounds,
        **asdict(sizes),
    }


def _median_ratio(name: str, current: Version, earlier: Version) -> float:
    pairs = zip(current.rounds, earlier.rounds, strict=True)
    return statistics.median(now[name] / before[name] for now, before in pairs)


def _round(version: Version, folder: Path, cell: Cell, sizes: Sizes) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as home:
        arguments = [home, str(folder / "events"), KINDS, {"events": cell.events, "batches": sizes.batches}]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *map(json.dumps, arguments)],
            cwd=version.tree,
            env={**os.environ, "PYTHONPATH": str(version.tree)},
            stdout=subprocess.PIPE,
            check=True,
        )
    version.rounds.append(json.loads(done.stdout.splitlines()[-1]))
    print(version.tree, version.rounds[-1], flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measures and writes ``results/regression.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the earlier version")
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args(arguments))
    commit = given.pop("commit")
    with tempfile.TemporaryDirectory(prefix="stateflow-regression-") as folder:
        path = write_result("regression", measure(Path(folder), commit, Sizes(**given)))
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
