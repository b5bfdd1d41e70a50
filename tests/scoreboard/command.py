"""Plays the scoreboard: ``python -m tests.scoreboard [--tier TIER] [--rows NAME,…] [--seed N]``."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.results import stamp
from tests.scoreboard.report import Scores, headline, page
from tests.scoreboard.row import Result, Row, Tier, caught, play
from tests.scoreboard.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "scoreboard.md"
_PROCESSES = 2
_PARTS = 8
"""Of a row, played by whichever process is free."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when there is a violation, or a planted bug that was missed."""
    given = _parse(arguments)
    rows = [row for row in ROWS if not given.rows or row.name in given.rows.split(",")]
    if not rows:
        print(f"no such row; known: {', '.join(row.name for row in ROWS)}", file=sys.stderr)
        return 2
    if given.seed is not None:
        return _replay(rows, given.seed)
    scores = _scores(rows, Tier(given.tier))
    print(headline(scores, rows))
    for text in [*scores.violations, *(f"missed: {name}" for name in scores.missed)]:
        print(text)
    if len(rows) == len(ROWS):
        PAGE.write_text(page(scores, rows))
        print(f"written: {PAGE}")
    return 1 if scores.violations or scores.missed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scoreboard", description=__doc__)
    tiers = [tier.value for tier in Tier]
    parser.add_argument("--tier", default=Tier.HALF_HOUR.value, choices=tiers, help="how much is played")
    parser.add_argument(
        "--rows", default="", metavar="NAME,…", help="these alone; the page is not written then"
    )
    parser.add_argument("--seed", type=int, help="one round alone, with all that it says")
    return parser.parse_args(arguments)


def _replay(rows: Sequence[Row], seed: int) -> int:
    found = [play(row, [seed]) for row in rows]
    for row, result in zip(rows, found, strict=True):
        print(row.name, result.injected, "injected", *result.violations, sep="\n  ")
    return 1 if any(result.violations for result in found) else 0


def _scores(rows: Sequence[Row], tier: Tier) -> Scores:
    began = time.monotonic()
    scores = Scores(tier)
    # Spawned: what is tried forks, and must not find our threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, context, initializer=_quiet) as pool:
        work: dict[Future[Any], Callable[[Any], None]] = {}
        for row in rows:
            scores.results[row.name] = Result()
            for seeds in _parts(row.rounds.get(tier, 0)):
                work[pool.submit(_play, row.name, seeds)] = scores.results[row.name].add
            work[pool.submit(_caught, row.name)] = lambda text, name=row.name: scores.caught.update(
                {name: text}
            )
        for number, done in enumerate(as_completed(work), 1):
            work[done](done.result())
            print(
                f"\r{number} of {len(work)} parts, {time.monotonic() - began:.0f} s", end="", file=sys.stderr
            )
    print(file=sys.stderr)
    scores.minutes = (time.monotonic() - began) / 60
    facts = stamp()
    machine = facts["machine"]
    scores.stamp = {
        **facts,
        "machine": f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}",
    }
    return scores


def _parts(rounds: int) -> Iterator[range]:
    size = max(1, -(-rounds // _PARTS))
    return (range(first, min(first + size, rounds)) for first in range(0, rounds, size))


def _play(name: str, seeds: range) -> Result:
    return play(_row(name), seeds)


def _caught(name: str) -> str:
    return caught(_row(name))


def _row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def _quiet() -> None:
    # Runs that lose tell so, and there are thousands.
    logging.getLogger("stateflow").setLevel(logging.CRITICAL)
