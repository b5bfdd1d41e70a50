"""Plays the scoreboard: ``python -m tests.scoreboard [--tier TIER] [--rows NAME,…] [--seed N]``."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.results import stamp
from tests.scoreboard.report import Score, headline, page
from tests.scoreboard.row import Result, Row, Tier, caught, play
from tests.scoreboard.rows import ROWS

DOCS = Path(__file__).parents[2] / "docs"
_PROCESSES = 2
_PATH = re.compile(r"(/[\w.+-]+){2,}")
_PARTS = 8
"""Of a row, played by whichever process is free."""


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    """Exit code 1 when there is a violation, or a planted bug that was missed."""
    given = _parse(arguments)
    rows = [row for row in ROWS if not given.rows or row.name in given.rows.split(",")]
    if not rows:
        print(f"no such row; known: {', '.join(row.name for row in ROWS)}", file=sys.stderr)
        return 2
    if given.seed is not None:
        return _replay(rows, given.seed)
    scores = _played(rows, Tier(given.tier))
    print(headline(scores, ROWS))
    for name, score in scores.items():
        for text in score.violations or ([] if score.caught else ["the planted bug was missed"]):
            print(f"{name}: {text}")
    write(docs, scores)
    return 1 if any(score.violations or not score.caught for score in scores.values()) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scoreboard", description=__doc__)
    tiers = [tier.value for tier in Tier]
    parser.add_argument("--tier", default=Tier.HALF_HOUR.value, choices=tiers, help="how much is played")
    parser.add_argument("--rows", default="", metavar="NAME,…", help="these alone; the others stay as they are written")
    parser.add_argument("--seed", type=int, help="one round alone, with all that it says; nothing is written")
    return parser.parse_args(arguments)


def _replay(rows: Sequence[Row], seed: int) -> int:
    found = [play(row, [seed]) for row in rows]
    for row, result in zip(rows, found, strict=True):
        print(row.name, result.injected, "injected", *result.violations, sep="\n  ")
    return 1 if any(result.violations for result in found) else 0


def write(docs: Path, scores: dict[str, Score]) -> None:
    """Puts what was played now in the place of what was played before."""
    stored = docs / "scoreboard.json"
    before = msgspec.json.decode(stored.read_bytes(), type=dict[str, Score]) if stored.exists() else {}
    played = {name: replace(s, violations=[brief(text) for text in s.violations]) for name, s in scores.items()}
    known = {row.name: score for row in ROWS if (score := played.get(row.name) or before.get(row.name))}
    stored.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
    (docs / "scoreboard.md").write_text(page(known, ROWS))
    print(f"written: {docs / 'scoreboard.md'}")


@dataclass
class _Play:
    """A row that is being played."""

    result: Result = field(default_factory=Result)
    caught: str = ""
    seconds: float = 0.0

    def add(self, done: tuple[Result, float]) -> None:
        self.result.add(done[0])
        self.seconds += done[1]

    def catch(self, done: tuple[str, float]) -> None:
        self.caught, seconds = done
        self.seconds += seconds


def _played(rows: Sequence[Row], tier: Tier) -> dict[str, Score]:
    began = time.monotonic()
    plays = {row.name: _Play() for row in rows}
    # Spawned: what is tried forks, and must not find our threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, context, initializer=_quiet) as pool:
        work: dict[Future[Any], Callable[[Any], None]] = {}
        for row in rows:
            for seeds in _parts(row.rounds.get(tier, 0)):
                work[pool.submit(_play, row.name, seeds)] = plays[row.name].add
            work[pool.submit(_caught, row.name)] = plays[row.name].catch
        for number, done in enumerate(as_completed(work), 1):
            work[done](done.result())
            print(f"\r{number} of {len(work)} parts, {time.monotonic() - began:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    return _scores(plays, tier)


def _scores(plays: dict[str, _Play], tier: Tier) -> dict[str, Score]:
    facts = stamp()
    machine = facts["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}"
    return {
        name: Score(
            tier.value,
            play.result.injected,
            play.result.rounds,
            play.result.violations,
            brief(play.caught),
            round(play.seconds, 1),
            facts["at"],
            facts["commit"],
            where,
        )
        for name, play in plays.items()
    }


def brief(text: str) -> str:
    """Its first line, without paths of this machine; the rest is printed where it is played."""
    return _PATH.sub("…", text.partition("\n")[0])[:200]


def _parts(rounds: int) -> Iterator[range]:
    size = max(1, -(-rounds // _PARTS))
    return (range(first, min(first + size, rounds)) for first in range(0, rounds, size))


def _play(name: str, seeds: range) -> tuple[Result, float]:
    began = time.monotonic()
    return play(_row(name), seeds), time.monotonic() - began


def _caught(name: str) -> tuple[str, float]:
    began = time.monotonic()
    return caught(_row(name)), time.monotonic() - began


def _row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def _quiet() -> None:
    # Runs that lose tell so, and there are thousands.
    logging.getLogger("stateflow").setLevel(logging.CRITICAL)
