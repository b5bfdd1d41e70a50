"""Measures what the data for the pages of a job costs its runs, in CPU time of all their processes.

``python benchmarks/history_cost.py`` runs the same job without Spark in new processes that store ``all`` of that data,
only the ``metrics`` of operators and sinks, or ``none`` of it: without the last two, there are no records of runs, no
job file and graph, no progress, no report of the input that waits, no figures of subtasks and no live sizes of state
(`benchmarks.history_leg`). All of them ask the sources what waits, which metrics report as well. The job root shows
after each run that it has what it should, and no more. Each round has one run of each; which one is the first changes.
A ratio or a difference is of the runs of one round; the result has their quartiles. `spent_ms` is the CPU time of the
functions that make and store the data, except what is measured for each row.

There are three cases: a run of twelve batches; the smallest run, of one batch with ten rows, whose difference is what a
run costs whatever its size; and this one with its job root in a bucket. A run with Spark stores the same data and takes
more CPU time for all else, so these ratios are upper bounds for it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.history_leg import ALL, JOB, METRICS, NONE, Ended, Order  # noqa: E402
from benchmarks.regression import quartiles  # noqa: E402
from benchmarks.results import write_result  # noqa: E402
from stateflow.checkpoint.history import RUN_START, read_history, read_run_file  # noqa: E402
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord  # noqa: E402
from stateflow.storage import Storage, open_storage  # noqa: E402
from stateflow.storage.paths import BACKLOG, PROGRESS, RUN_FILES  # noqa: E402
from tests.servers.running import s3_server  # noqa: E402

PARTS = (ALL, METRICS, NONE)
OPERATORS = {"totals", "compared", "minutes"}
RUN, SMALLEST, IN_BUCKET = "run", "smallest_run", "smallest_run_in_bucket"
CASES = (RUN, SMALLEST, IN_BUCKET)
_LOOKS_EVERY_S = 2
"""How often a run looks for a newer one, and then stores its progress: really every 15 seconds of a long batch."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: each with a run of each case and each of `PARTS`.
        warm_up: rounds before those that count, which fill caches of the machine.
        batches: of the run that is not the smallest.
        rows: of each of its batches.
    """

    rounds: int = 12
    warm_up: int = 1
    batches: int = 12
    rows: int = 6_000


@dataclass(frozen=True)
class Measured:
    """A run.

    Attributes:
        cpu_s: of its processes, from their start to their end.
        ended: what it has reported.
        stored_bytes: size of the objects of its job root, by area.
    """

    cpu_s: float
    ended: Ended
    stored_bytes: dict[str, int]


def measure(folder: Path, sizes: Sizes, cases: Sequence[str] = CASES) -> dict[str, Any]:
    """Measures each case, in rounds, so that a slow minute of the machine concerns all of them."""
    found: dict[str, list[dict[str, Measured]]] = {case: [] for case in cases}
    orders = list(permutations(PARTS))
    with _bucket(folder):
        for number in range(-sizes.warm_up, sizes.rounds):
            for case in cases:
                home = folder / f"{case}-{number}"
                round_ = {part: _run(case, part, home / part, sizes) for part in orders[number % len(orders)]}
                found[case] += [round_] if number >= 0 else []
                print(number, case, {part: round(each.cpu_s, 3) for part, each in round_.items()}, flush=True)
    return {**{case: _figures(rounds) for case, rounds in found.items()}, **asdict(sizes)}


@contextmanager
def _bucket(folder: Path) -> Iterator[None]:
    with s3_server(folder / "s3", "bucket") as variables, mock.patch.dict(os.environ, variables):
        yield


def _run(case: str, part: str, home: Path, sizes: Sizes) -> Measured:
    home.mkdir(parents=True)
    batches, rows = (sizes.batches, sizes.rows) if case == RUN else (1, 10)
    settings = {
        "job.batches": str(batches),
        "job.rows": str(rows),
        "job.table": str(home / "table"),
        "local_dir": str(home / "local"),
        "parallelism": "4",
        "state.backend": "rocksdb",
        "requests.fence_interval": f"{_LOOKS_EVERY_S}s",
    }
    root = f"s3://bucket/{home.parent.name}/{part}" if case == IN_BUCKET else str(home / "root")
    order = Order(part, root, settings)
    command = [sys.executable, "-m", "benchmarks.history_leg", msgspec.json.encode(order).decode()]
    before = _cpu_of_ended()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    cpu_s = _cpu_of_ended() - before
    assert done.returncode == 0, done.stderr[-4000:]
    ended = msgspec.json.decode(done.stdout.splitlines()[-1], type=Ended)
    storage = open_storage(root)
    _check(storage, part, ended, batches)
    return Measured(cpu_s, ended, _stored_bytes(storage))


def _cpu_of_ended() -> float:
    """Returns the CPU time of all child processes that have ended, with their descendants, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _check(storage: Storage, part: str, ended: Ended, batches: int) -> None:
    """Checks that a job root has what the run was to store, and nothing else."""
    history = read_history(storage)
    starts = [r for r in history if isinstance(r, ActionRecord) and r.kind == RUN_START]
    checkpoints = [r for r in history if isinstance(r, CheckpointRecord)]
    assert len([record for record in checkpoints if record.rows_in]) == batches
    operators = [metrics for record in checkpoints for metrics in record.operators.values()]
    for record in checkpoints:
        assert record.operators.keys() == (set() if part == NONE else OPERATORS), record
    if part == ALL:
        (start,) = starts
        assert start.duration_ms and read_run_file(storage, start.text("job_file_sha256")) == JOB.read_bytes()
        graph = json.loads(read_run_file(storage, start.text("graph_sha256")) or b"{}")
        assert {chain["uid"] for level in graph["levels"] for chain in level["chains"]} >= OPERATORS
        assert all(m.spread and m.busiest and m.live_entries is not None for m in operators)
        assert ended.calls["progress"] or ended.seconds < 2 * _LOOKS_EVERY_S, ended
    else:
        assert not starts and not storage.list(RUN_FILES) and not ended.calls["progress"]
        assert all(not m.spread and not m.busiest and m.live_entries is None for m in operators)
    # The run deletes its last report of progress, and leaves the last one of the input that waits.
    assert not storage.list(PROGRESS) and bool(storage.list(BACKLOG)) == (part == ALL)


def _stored_bytes(storage: Storage) -> dict[str, int]:
    found: dict[str, int] = {}
    for blob in storage.list(""):
        area = blob.key.partition("/")[0]
        found[area] = found.get(area, 0) + (storage.size(blob.key) or 0)
    return found


def _figures(rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Any]:
    pairs = {"all_to_none": (ALL, NONE), "all_to_metrics": (ALL, METRICS), "metrics_to_none": (METRICS, NONE)}
    cpu_s = {part: [each[part].cpu_s for each in rounds] for part in PARTS}
    ended = {part: [each[part].ended for each in rounds] for part in PARTS}
    both = {name: list(zip(cpu_s[part], cpu_s[other], strict=True)) for name, (part, other) in pairs.items()}
    return {
        "ratios": {name: quartiles([a / b for a, b in values]) for name, values in both.items()},
        "differences_ms": {name: quartiles([(a - b) * 1000 for a, b in values]) for name, values in both.items()},
        "spent_share": _median(
            [sum(e.spent_ms.values()) / 1000 / s for e, s in zip(ended[ALL], cpu_s[ALL], strict=True)]
        ),
        "spent_ms": {name: _median([each.spent_ms[name] for each in ended[ALL]]) for name in ended[ALL][0].spent_ms},
        "calls": {name: _median([each.calls[name] for each in ended[ALL]]) for name in ended[ALL][0].calls},
        "run_s": {part: _median([each.seconds for each in ended[part]]) for part in PARTS},
        "stored_bytes": {part: rounds[-1][part].stored_bytes for part in PARTS},
        "cpu_s": {part: [round(seconds, 4) for seconds in values] for part, values in cpu_s.items()},
    }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def main(arguments: Sequence[str]) -> int:
    """Measures and writes ``results/history-cost.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = vars(parser.parse_args(arguments))
    cases = given.pop("cases")
    with tempfile.TemporaryDirectory(prefix="stateflow-history-") as folder:
        print(write_result("history-cost", measure(Path(folder), Sizes(**given), cases)).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
