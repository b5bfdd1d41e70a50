"""Plays histories from the command line: ``python -m tests.model 20000 --workers 2``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.model.history import Report, Search, explore, play
from tests.model.invariants.violation import Violation
from tests.model.simulation.plan import PLANS
from tests.support.mutants import SIMULATED

_CHUNK = 100


def main(arguments: Sequence[str]) -> int:
    """Plays histories, or replays one; returns 1 when a rule was broken."""
    logging.getLogger("stateflow").addHandler(logging.NullHandler())
    options = _parser().parse_args(arguments)
    search = Search(options.mutant, options.plan)
    if options.trace:
        return _replay(options.seed, search, options.trace)
    began = time.monotonic()
    report = _explore(options, search)
    _print(report, time.monotonic() - began)
    return 1 if report.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("histories", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--mutant", choices=sorted(SIMULATED), default="", help="the code with one rule taken out")
    parser.add_argument("--plan", choices=sorted(PLANS), default="", help="a directed search")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--trace", type=int, nargs="?", const=60, help="replay one history, print its last steps")
    return parser


def _explore(options: argparse.Namespace, search: Search) -> Report:
    end = options.seed + options.histories
    chunks = [range(start, min(start + _CHUNK, end)) for start in range(options.seed, end, _CHUNK)]
    work = partial(explore, search=search, failures=-1 if options.all else 1)
    total = Report()
    # The pool starts its processes with the first task.
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for report in map(work, chunks) if options.workers == 1 else pool.map(work, chunks):
            total.add(report)
            if report.failures and not options.all:
                pool.shutdown(cancel_futures=True)
                break
    return total


def _replay(seed: int, search: Search, steps: int) -> int:
    trace: deque[str] = deque(maxlen=steps)
    try:
        stats = play(seed, search, trace)
    except Violation as e:
        print(*trace, f"violation: {e}", sep="\n")
        return 1
    print(*trace, dict(stats), sep="\n")
    return 0


def _print(report: Report, seconds: float) -> None:
    for name, count in sorted(report.stats.items()):
        print(f"{count:12,d}  {name}")
    print(f"{report.histories:12,d}  histories in {seconds:.1f} s, {len(report.failures)} broke a rule")
    for failure in report.failures[:10]:
        print(f"  seed {failure.seed}: {failure.text}")
    if report.failures:
        print(report.failures[0].story())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
