"""Compares this checkout with an earlier commit: throughput and micro-batch interval.

``python benchmarks/regression.py COMMIT`` checks the commit out into a temporary folder and runs the benchmark jobs of
both versions over the same events. The two runs of a pair are concurrent, so each figure is that of half a machine, but
changes of the machine's speed affect both versions: on a shared machine, the ratios of consecutive runs differed by
30 %, those of concurrent runs by 7 %. A ratio is this checkout's figure divided by the earlier one's in the same
pair; the result has the quartiles of the ratios.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cells import GOAL  # noqa: E402
from benchmarks.data import Events, write_events  # noqa: E402
from benchmarks.results import write_result  # noqa: E402

KINDS = ("row", "vectorized", "columns", "micro-batch")
WARM_UP = 40
"""Micro-batches before those that are measured."""
MEASURE = """
import json, statistics, sys, time
from dataclasses import replace
from pathlib import Path
from benchmarks import micro_batch
from benchmarks.cells import GOAL
from benchmarks.competitors import COMPETITORS, Task
from benchmarks.runs import RunRequest, Timeline, run_job

def throughput(kind, home, events, order):
    measured = COMPETITORS[kind](Task(replace(GOAL, events=order["events"]), events, home))
    return {name: measured[name] for name in ("events_per_s", "cpu_s_per_million")}

def interval(home, events, order):
    settings = {
        "job.events": str(events), "job.table": str(home / "table"), "job.levels": "1",
        "local_dir": str(home / "local"), "parallelism": "2", "checkpoints.asynchronous": "True",
    }
    timeline, cpu = Timeline(), []
    on_batch = lambda result: (timeline.note(result), cpu.append(time.process_time()))
    run_job(RunRequest(micro_batch.JOB, str(home / "root"), (settings,), "benchmark", on_batch=on_batch))
    cpu_s = cpu[-1] - cpu[order["warm_up"]]
    return {
        "interval_ms": round(statistics.median(timeline.intervals(order["warm_up"])) * 1000, 1),
        "driver_cpu_ms": round(cpu_s / (len(cpu) - 1 - order["warm_up"]) * 1000, 2),
    }

order = json.loads(sys.argv[1])
kind, home, events = order["kind"], Path(order["home"]), Path(order["folder"])
print(json.dumps(interval(home, events, order) if kind == "micro-batch" else throughput(kind, home, events, order)))
"""
"""The program that measures one version; it uses names that both versions have."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        pairs: measurements of each version and kind.
        events: of each throughput run.
        batches: measured for the micro-batch interval.
    """

    pairs: int = 12
    events: int = 5_000_000
    batches: int = 120


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
    write_events(folder / "large", replace(GOAL, events=sizes.events).data())
    write_events(folder / "small", Events(WARM_UP + sizes.batches, 10, keys=1000))
    measured: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in KINDS}
    with checked_out(commit, folder) as tree:
        trees = {"earlier": tree, "current": ROOT}
        for number in range(sizes.pairs):
            for kind in KINDS:
                events = folder / ("small" if kind == "micro-batch" else "large")
                order = {"kind": kind, "folder": str(events), "events": sizes.events, "warm_up": WARM_UP}
                # The version that starts first alternates.
                measured[kind].append(_measure_pair(sorted(trees.items(), reverse=number % 2 == 0), order))
                print(kind, measured[kind][-1], flush=True)
    ratios = {kind: _ratios(pairs) for kind, pairs in measured.items()}
    return {"against": commit, "ratios": ratios, "measured": measured, **asdict(sizes)}


def _ratios(pairs: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns the quartiles of the pairs' ratios for each figure."""
    names = pairs[0]["current"]
    ratios = {name: [pair["current"][name] / pair["earlier"][name] for pair in pairs] for name in names}
    return {name: quartiles(values) for name, values in ratios.items()}


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Returns median and quartiles of values, rounded."""
    low, median, high = (round(value, 3) for value in statistics.quantiles(values, n=4, method="inclusive"))
    return {"median": median, "lower_quartile": low, "upper_quartile": high}


def _measure_pair(trees: Sequence[tuple[str, Path]], order: dict[str, Any]) -> dict[str, dict[str, float]]:
    with ThreadPoolExecutor(len(trees)) as pool:
        measured = {name: pool.submit(_measure_once, tree, order) for name, tree in trees}
        return {name: figures.result() for name, figures in measured.items()}


def _measure_once(tree: Path, order: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="stateflow-regression-") as home:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, json.dumps({**order, "home": home})],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE,
            check=True,
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
